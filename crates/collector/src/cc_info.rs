//! Decodes the data of congestion controls: `INET_DIAG_VEGASINFO`, `_DCTCPINFO` and `_BBRINFO` (include/uapi/linux/inet_diag.h).
//! The row always has the raw bytes too, for algorithms that this module does not know.

use ccbench_proto::wire::FlowSample;

use crate::bytes::{u16_at, u32_at};

/// `INET_DIAG_VEGASINFO`: Vegas, and also Westwood, Veno, Illinois, YeAH.
pub const VEGAS: u16 = 3;
/// `INET_DIAG_DCTCPINFO`.
pub const DCTCP: u16 = 9;
/// `INET_DIAG_BBRINFO`; BBRv3 appends fields to it.
pub const BBR: u16 = 16;

/// The RTT fields of the Vegas family before the first RTT sample.
const VEGAS_NO_RTT_US: u32 = 0x7fff_ffff;

/// Fills the congestion control columns of `row` from attribute `kind` with the payload `info`.
pub fn decode(kind: u16, info: &[u8], row: &mut FlowSample) {
    row.cc_info.clear();
    row.cc_info.extend_from_slice(info);
    match kind {
        VEGAS => {
            let known = |rtt: &u32| *rtt != VEGAS_NO_RTT_US && *rtt != u32::MAX;
            row.vegas_rtt_us = u32_at(info, 8).filter(known);
            row.vegas_min_rtt_us = u32_at(info, 12).filter(known);
        }
        DCTCP => {
            // If it is 0, ECN was not negotiated and the socket runs Reno.
            let enabled = u16_at(info, 0).is_some_and(|enabled| enabled != 0);
            row.dctcp_alpha = u32_at(info, 4).filter(|_| enabled);
        }
        BBR => {
            row.bbr_bw_bytes_per_s = u32_at(info, 0)
                .zip(u32_at(info, 4))
                .map(|(low, high)| u64::from(high) << 32 | u64::from(low));
            row.bbr_min_rtt_us = u32_at(info, 8).filter(|&rtt| rtt != u32::MAX);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn decoded(kind: u16, info: &[u8]) -> FlowSample {
        let mut row = FlowSample::default();
        decode(kind, info, &mut row);
        assert_eq!(row.cc_info, info);
        row
    }

    #[test]
    fn combines_both_halves_of_bbr_bandwidth() {
        let row = decoded(BBR, &words(&[5, 1, 10_400, 739, 512]));
        assert_eq!(row.bbr_bw_bytes_per_s, Some((1 << 32) + 5));
        assert_eq!(row.bbr_min_rtt_us, Some(10_400));
        assert_eq!(row.vegas_rtt_us, None);
    }

    #[test]
    fn bbr_without_a_sample_has_no_minimum() {
        let row = decoded(BBR, &words(&[0, 0, u32::MAX, 739, 512]));
        assert_eq!(row.bbr_min_rtt_us, None);
        assert_eq!(row.bbr_bw_bytes_per_s, Some(0));
    }

    #[test]
    fn keeps_the_bytes_that_a_longer_bbr_info_appends() {
        let row = decoded(BBR, &words(&[7, 0, 9, 1, 2, 3, 4, 5]));
        assert_eq!(row.bbr_bw_bytes_per_s, Some(7));
        assert_eq!(row.cc_info.len(), 32);
    }

    #[test]
    fn dctcp_alpha_is_absent_unless_dctcp_is_enabled() {
        let mut info = words(&[0, 1024, 3, 4]);
        assert_eq!(decoded(DCTCP, &info).dctcp_alpha, None);
        info[..2].copy_from_slice(&1u16.to_ne_bytes());
        assert_eq!(decoded(DCTCP, &info).dctcp_alpha, Some(1024));
    }

    #[test]
    fn vegas_without_an_rtt_sample_has_no_rtt() {
        let row = decoded(VEGAS, &words(&[1, 4, 10_100, 10_000]));
        assert_eq!(row.vegas_rtt_us, Some(10_100));
        assert_eq!(row.vegas_min_rtt_us, Some(10_000));
        let row = decoded(VEGAS, &words(&[1, 0, 0x7fff_ffff, 0x7fff_ffff]));
        assert_eq!((row.vegas_rtt_us, row.vegas_min_rtt_us), (None, None));
    }

    #[test]
    fn keeps_the_bytes_of_an_unknown_attribute() {
        let row = decoded(29, &[1, 2, 3]);
        let only_bytes = FlowSample { cc_info: vec![1, 2, 3], ..FlowSample::default() };
        assert_eq!(row, only_bytes);
    }

    proptest! {
        #[test]
        fn decodes_any_bytes_without_panic(kind in 0u16..40, info in proptest::collection::vec(any::<u8>(), 0..64)) {
            decoded(kind, &info);
        }
    }
}
