//! Converts a dumped socket to a row. Pure. Units are converted only here and in `tcp_info`.

use ccbench_proto::wire::{FlowSample, SampleSource};

use crate::cc_info;
use crate::diag_msg::DiagMsg;
use crate::ports::SocketRole;
use crate::tcp_info::{self, KernelVersion};

/// When a sample was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleTime {
    /// This node's `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Time since this socket's previous sample; 0 for the first one.
    pub gap_ns: u64,
}

/// Returns the row of the socket `msg`, which has `role` in its flow.
#[must_use]
pub fn flow_sample(
    msg: &DiagMsg<'_>,
    role: SocketRole<'_>,
    when: SampleTime,
    kernel: KernelVersion,
) -> FlowSample {
    let mut row = FlowSample {
        at_ns: when.at_ns,
        flow_id: role.flow_id.to_owned(),
        group: role.group.to_owned(),
        side: role.side.into(),
        role: role.role.into(),
        sample_src: SampleSource::Diag.into(),
        gap_ns: when.gap_ns,
        cc: msg.cong.to_owned(),
        cookie: Some(msg.cookie),
        sport: u32::from(msg.sport),
        dport: u32::from(msg.dport),
        ..FlowSample::default()
    };
    tcp_info::decode(msg.info, kernel, &mut row);
    if let Some((kind, info)) = msg.cc_info {
        cc_info::decode(kind, info, &mut row);
    }
    row
}

#[cfg(test)]
mod tests {
    use ccbench_proto::wire::{Role, Side};
    use proptest::prelude::*;

    use super::*;
    use crate::diag_msg::tests::payload;

    const KERNEL: KernelVersion = KernelVersion { major: 6, minor: 18 };
    const ROLE: SocketRole<'_> =
        SocketRole { flow_id: "bulk/0", group: "bulk", side: Side::Sender, role: Role::Data };
    const WHEN: SampleTime = SampleTime { at_ns: 1_000, gap_ns: 100 };

    #[test]
    fn a_row_has_names_ports_and_kernel_fields() {
        let mut info = [0; 280];
        info[0] = 1;
        info[68..72].copy_from_slice(&10_050u32.to_ne_bytes());
        let mut bbr = [0; 20];
        bbr[..4].copy_from_slice(&12_000_000u32.to_ne_bytes());
        let bytes = payload((40_000, 5201), 9, &[(2, &info), (4, b"bbr\0"), (16, &bbr)]);
        let msg = DiagMsg::parse(&bytes).unwrap();
        let row = flow_sample(&msg, ROLE, WHEN, KERNEL);
        assert_eq!((row.at_ns, row.gap_ns), (1_000, 100));
        assert_eq!((&*row.flow_id, &*row.group), ("bulk/0", "bulk"));
        assert_eq!((row.side(), row.role()), (Side::Sender, Role::Data));
        assert_eq!(row.sample_src(), SampleSource::Diag);
        assert_eq!((row.sport, row.dport, row.cookie), (40_000, 5201, Some(9)));
        assert_eq!(row.cc, "bbr");
        assert_eq!((row.state, row.rtt_us), (Some(1), Some(10_050)));
        assert_eq!(row.bbr_bw_bytes_per_s, Some(12_000_000));
        assert_eq!(row.cc_info, bbr);
    }

    proptest! {
        #[test]
        fn converts_any_valid_message_without_panic(bytes in proptest::collection::vec(any::<u8>(), 72..500)) {
            if let Ok(msg) = DiagMsg::parse(&bytes) {
                let _ = flow_sample(&msg, ROLE, WHEN, KERNEL);
            }
        }

        #[test]
        fn converts_any_attribute_without_panic(
            info in proptest::collection::vec(any::<u8>(), 0..300),
            cong in proptest::collection::vec(any::<u8>(), 0..20),
            own in proptest::collection::vec(any::<u8>(), 0..40),
            kind in 0u16..30,
        ) {
            let bytes = payload((1, 2), 3, &[(2, &info), (4, &cong), (kind, &own)]);
            let msg = DiagMsg::parse(&bytes).unwrap();
            let _ = flow_sample(&msg, ROLE, WHEN, KERNEL);
        }
    }
}
