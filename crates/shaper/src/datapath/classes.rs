//! Classifies packets with a list of rules. The first match wins, as with the kernel's `u32` filters.

use std::net::IpAddr;

use ccbench_proto::plan::Class;
use ccbench_proto::resolve::PacketMatch;

use super::header::{self, Fields};
use crate::discipline::QueueParams;

/// Parameters of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClassSpec {
    /// Its keys in the plan. Rates apply at the link's initial rate.
    pub(crate) plan: Class,
    /// Its queue.
    pub(crate) queue: QueueParams,
    /// A packet belongs to the class if it matches any of these.
    pub(crate) matches: Vec<PacketMatch>,
}

impl ClassSpec {
    /// Guaranteed rate, bit/s.
    pub(crate) fn rate_bps(&self) -> u64 {
        self.plan.rate.bits_per_sec()
    }

    /// Maximum rate including borrowed bandwidth, bit/s.
    pub(crate) fn ceil_bps(&self) -> u64 {
        self.plan.ceil.unwrap_or(self.plan.rate).bits_per_sec()
    }
}

/// The rules of all classes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Matcher {
    rules: Vec<Rule>,
}

/// One rule. All its fields must match.
#[derive(Debug, Clone, Copy)]
struct Rule {
    class: u8,
    v6: Option<bool>,
    src: Option<u128>,
    dst: Option<u128>,
    sport: Option<u16>,
    dport: Option<u16>,
    dscp: Option<u8>,
    ecn: Option<u8>,
}

impl Matcher {
    /// Creates the rules of these classes, at most 255, which are numbered from 1.
    pub(crate) fn new(classes: &[ClassSpec]) -> Self {
        let rules = (1..=u8::MAX)
            .zip(classes)
            .flat_map(|(class, spec)| spec.matches.iter().filter_map(move |m| Rule::new(class, m)));
        Self { rules: rules.collect() }
    }

    /// Returns the class of an Ethernet frame; 0 if no rule matches or the frame is not IP.
    #[inline]
    pub(crate) fn class_of(&self, frame: &[u8]) -> u8 {
        if self.has_rules() { self.class_of_fields(header::fields(frame).as_ref()) } else { 0 }
    }

    /// As [`Self::class_of`], for a frame with these fields; `None`: it is not IP, or there are no rules.
    #[inline]
    pub(crate) fn class_of_fields(&self, fields: Option<&Fields>) -> u8 {
        let Some(fields) = fields else { return 0 };
        self.rules.iter().find(|rule| rule.matches(fields)).map_or(0, |rule| rule.class)
    }

    /// Whether any frame may belong to a class.
    pub(crate) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }
}

impl Rule {
    /// Returns `None` if nothing can match, because the addresses belong to different families.
    fn new(class: u8, wanted: &PacketMatch) -> Option<Self> {
        let family = |address: Option<IpAddr>| address.map(|a| a.is_ipv6());
        let (src, dst) = (family(wanted.src), family(wanted.dst));
        if src.is_some() && dst.is_some() && src != dst {
            return None;
        }
        let bits = |address: IpAddr| match address {
            IpAddr::V4(four) => u128::from(four.to_bits()),
            IpAddr::V6(six) => six.to_bits(),
        };
        Some(Self {
            class,
            v6: src.or(dst),
            src: wanted.src.map(bits),
            dst: wanted.dst.map(bits),
            sport: wanted.sport,
            dport: wanted.dport,
            dscp: wanted.dscp,
            ecn: wanted.ecn,
        })
    }

    fn matches(&self, fields: &Fields) -> bool {
        fn same<T: PartialEq + Copy>(wanted: Option<T>, found: Option<T>) -> bool {
            wanted.is_none() || wanted == found
        }
        let port = |which: usize| fields.ports.map(|ports| ports[which]);
        same(self.v6, Some(fields.v6))
            && same(self.src, Some(fields.src))
            && same(self.dst, Some(fields.dst))
            && same(self.sport, port(0))
            && same(self.dport, port(1))
            && same(self.dscp, Some(fields.dscp))
            && same(self.ecn, Some(fields.ecn))
    }
}

#[cfg(test)]
mod tests {
    use ccbench_proto::units::Rate;

    use super::*;
    use crate::discipline::FifoLimit;

    fn class(matches: Vec<PacketMatch>) -> ClassSpec {
        ClassSpec {
            plan: Class::new(Rate::from_bits_per_sec(1)),
            queue: QueueParams::TailDrop(FifoLimit::Packets(1)),
            matches,
        }
    }

    /// Returns UDP over IPv4 from 10.0.0.1:1000 to 10.0.0.2:2000, with this TOS byte.
    fn four(tos: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, tos, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 1000_u16.to_be_bytes()[0], 232, 7, 208]);
        frame.resize(60, 0);
        frame
    }

    fn six(tos: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60 | tos >> 4, tos << 4, 0, 0, 0, 20, 6, 64]);
        frame.extend([0; 15]);
        frame.push(1);
        frame.extend([0; 15]);
        frame.extend([2, 3, 232, 7, 208]);
        frame.resize(80, 0);
        frame
    }

    #[test]
    fn all_given_fields_must_match() {
        let is = |wanted: PacketMatch, frame: &[u8]| {
            Matcher::new(&[class(vec![wanted])]).class_of(frame) == 1
        };
        let none = PacketMatch::default();
        let address = |text: &str| text.parse().ok();
        for (frame, src, dst, other) in
            [(four(0xb9), "10.0.0.1", "10.0.0.2", "::a00:1"), (six(0xb9), "::1", "::2", "0.0.0.1")]
        {
            assert!(is(none.clone(), &frame));
            assert!(is(PacketMatch { src: address(src), ..none.clone() }, &frame));
            assert!(is(PacketMatch { dst: address(dst), ..none.clone() }, &frame));
            assert!(!is(PacketMatch { src: address(dst), ..none.clone() }, &frame));
            // The same number in the other family is a different address.
            assert!(!is(PacketMatch { src: address(other), ..none.clone() }, &frame));
            for (port, side) in [(1000, true), (2000, false)] {
                let of = |side: bool| PacketMatch {
                    sport: side.then_some(port),
                    dport: (!side).then_some(port),
                    ..none.clone()
                };
                assert!(is(of(side), &frame) && !is(of(!side), &frame), "{port}");
            }
            assert!(is(PacketMatch { dscp: Some(46), ecn: Some(1), ..none.clone() }, &frame));
            assert!(!is(PacketMatch { dscp: Some(46), ecn: Some(2), ..none.clone() }, &frame));
            assert!(!is(PacketMatch { dscp: Some(0), ecn: Some(1), ..none.clone() }, &frame));
        }
        let mixed = PacketMatch { src: address("10.0.0.1"), dst: address("::2"), ..none.clone() };
        assert!(!is(mixed, &four(0)));
        let mut arp = four(0);
        arp[13] = 6;
        assert!(!is(none, &arp));
    }

    #[test]
    fn first_matching_class_wins() {
        let dport = |port| PacketMatch { dport: Some(port), ..PacketMatch::default() };
        let dscp = PacketMatch { dscp: Some(46), ..PacketMatch::default() };
        let matcher = Matcher::new(&[
            class(vec![dport(1), dport(3)]),
            class(vec![dport(2000), dport(1)]),
            class(vec![dscp]),
        ]);
        assert_eq!(matcher.class_of(&four(0xb8)), 2);
        assert_eq!(matcher.class_of(&four(0)), 2);
        assert_eq!(matcher.class_of_fields(header::fields(&four(0)).as_ref()), 2);
        assert_eq!(matcher.class_of_fields(None), 0);
        assert!(matcher.has_rules() && !Matcher::default().has_rules());
        let mut other = four(0xb8);
        other[36..38].copy_from_slice(&[0, 99]);
        assert_eq!(matcher.class_of(&other), 3);
        other[15] = 0;
        assert_eq!(matcher.class_of(&other), 0);
    }
}
