//! Addresses for the networks of commands. Each shell has a block and gives parts of it to nested shells, so one route
//! per shell reaches everything inside it, without NAT.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of IPv4 addresses. The first ones belong to the two ends of the shell's link, and are the last 32 bits of
/// their IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    base: u32,
    prefix: u8,
}

/// Address ranges for outermost shells, in order: 100.64/10 (as mahimahi), then 198.18/15 (RFC 2544), then RFC 1918.
const POOLS: [(Ipv4Addr, u8); 4] = [
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
];
/// Prefix length of an outermost shell's block.
const OUTERMOST: u8 = 18;
/// How many bits longer the prefix of a nested shell's block is: a block has 2^3 parts.
const PART_BITS: u8 = 3;
/// Longest prefix of a block, with room for the two addresses of one link.
const PAIR: u8 = 30;
/// The prefix of IPv6 addresses: a unique local one (RFC 4193). The last 32 bits hold the IPv4 address.
const V6: u128 = 0xfdcc_be4c_0011_0000_0000_0000_0000_0000;
/// How much longer an IPv6 prefix is than its IPv4 counterpart.
const V6_BITS: u8 = 96;

impl Block {
    fn new(base: Ipv4Addr, prefix: u8) -> Option<Self> {
        let base = base.to_bits();
        let fits = prefix <= PAIR && base & !mask(prefix) == 0;
        fits.then_some(Self { base, prefix })
    }

    /// Returns the length of its prefix.
    pub(crate) fn prefix(self) -> u8 {
        self.prefix
    }

    /// Returns its first address.
    pub(crate) fn base(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base)
    }

    /// Returns the address of the link's end outside the command's network.
    pub(crate) fn outer(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base + 1)
    }

    /// Returns the address of the end inside it.
    pub(crate) fn inner(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base + 2)
    }

    /// Whether it shares an address with `base/prefix`.
    fn overlaps(self, base: u32, prefix: u8) -> bool {
        let shorter = mask(self.prefix.min(prefix));
        self.base & shorter == base & shorter
    }

    /// Returns its parts for nested shells: all but the first, which holds the link's own addresses. None if the block is too small.
    fn parts(self) -> impl Iterator<Item = Self> {
        let prefix = self.prefix + PART_BITS;
        let count = if prefix <= PAIR { 1 << PART_BITS } else { 0 };
        (1..count).map(move |part| Self { base: self.base + (part << (32 - prefix)), prefix })
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base(), self.prefix)
    }
}

impl FromStr for Block {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (base, prefix) = text.split_once('/').ok_or(())?;
        Self::new(base.parse().map_err(drop)?, prefix.parse().map_err(drop)?).ok_or(())
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

/// Returns the IPv6 address for an IPv4 address.
pub(crate) fn v6(address: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(V6 | u128::from(address.to_bits()))
}

/// Returns the IPv6 prefix length for an IPv4 prefix length.
pub(crate) fn v6_prefix(prefix: u8) -> u8 {
    prefix + V6_BITS
}

/// Returns the blocks that a new shell may use, best first. In a shell these are parts of its block, elsewhere blocks
/// that overlap no route of this machine.
pub(crate) fn free(
    enclosing: Option<Block>,
    routes: &[(Ipv4Addr, u8)],
) -> impl Iterator<Item = Block> {
    let is_free = move |block: &Block| {
        routes.iter().all(|&(base, prefix)| {
            // Ignore the default route and routes to the whole block of the surrounding shell.
            let leads_here = enclosing.is_some_and(|enclosing| prefix <= enclosing.prefix);
            prefix == 0 || leads_here || !block.overlaps(base.to_bits(), prefix)
        })
    };
    let parts = enclosing.into_iter().flat_map(Block::parts);
    let whole =
        POOLS.into_iter().filter(move |_| enclosing.is_none()).flat_map(|(base, prefix)| {
            (0..1_u32 << (OUTERMOST - prefix)).map(move |n| Block {
                base: base.to_bits() + (n << (32 - OUTERMOST)),
                prefix: OUTERMOST,
            })
        });
    parts.chain(whole).filter(is_free)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(text: &str) -> Block {
        text.parse().unwrap()
    }

    #[test]
    fn the_outermost_shell_avoids_every_route() {
        let none = free(None, &[]).next().unwrap();
        assert_eq!(none.to_string(), "100.64.0.0/18");
        assert_eq!((none.outer(), none.inner()), ([100, 64, 0, 1].into(), [100, 64, 0, 2].into()));
        let routes = [
            (Ipv4Addr::UNSPECIFIED, 0),
            (Ipv4Addr::new(100, 64, 0, 0), 16),
            (Ipv4Addr::new(100, 65, 9, 7), 32),
        ];
        assert_eq!(free(None, &routes).next().unwrap().to_string(), "100.65.64.0/18");
        let cgnat = [(Ipv4Addr::new(100, 64, 0, 0), 10)];
        assert_eq!(free(None, &cgnat).next().unwrap().to_string(), "198.18.0.0/18");
        let all: Vec<_> = POOLS.into_iter().collect();
        assert_eq!(free(None, &all).next(), None);
    }

    #[test]
    fn nested_shells_get_parts_until_none_is_left() {
        let mut enclosing = block("100.64.0.0/18");
        let mut depth = 1;
        let routes = [(Ipv4Addr::UNSPECIFIED, 0), (Ipv4Addr::new(100, 64, 0, 0), 30)];
        while let Some(part) = free(Some(enclosing), &routes).next() {
            assert!(enclosing.overlaps(part.base, part.prefix));
            assert!(part.base > enclosing.base + 3, "its own pair is not given away");
            (enclosing, depth) = (part, depth + 1);
        }
        assert_eq!(depth, 5);
        let taken = [(Ipv4Addr::new(100, 64, 8, 0), 21)];
        let next = free(Some(block("100.64.0.0/18")), &taken).next().unwrap();
        assert_eq!(next.to_string(), "100.64.16.0/21");
    }

    #[test]
    fn ipv6_addresses_contain_the_ipv4_address() {
        assert_eq!(v6(Ipv4Addr::new(100, 64, 0, 1)).to_string(), "fdcc:be4c:11::6440:1");
        assert_eq!(v6_prefix(30), 126);
    }

    #[test]
    fn rejects_invalid_prefixes() {
        for bad in ["", "100.64.0.0", "100.64.0.1/18", "100.64.0.0/31", "x/18", "100.64.0.0/999"] {
            assert!(bad.parse::<Block>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn free_blocks_overlap_no_route(
            routes in proptest::collection::vec((any::<u32>(), 1_u8..=32), 0..50),
        ) {
            let routes: Vec<_> = routes
                .into_iter()
                .map(|(base, prefix)| (Ipv4Addr::from_bits(base & mask(prefix)), prefix))
                .collect();
            for block in free(None, &routes).take(20) {
                for &(base, prefix) in &routes {
                    prop_assert!(!block.overlaps(base.to_bits(), prefix));
                }
            }
        }
    }
}
