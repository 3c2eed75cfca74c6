//! Decodes `struct tcp_info` (include/uapi/linux/tcp.h) by length and kernel version. Fields that the running kernel lacks (its
//! struct is shorter) and values that mean "none" stay absent.

use ccbench_proto::wire::FlowSample;

use crate::bytes::{u16_at, u32_at, u64_at};

/// Length of the struct in Linux 6.18 and 7.x. Bytes beyond it are ignored.
pub const KNOWN_LEN: usize = 280;

/// `TCP_INFINITE_SSTHRESH`: the connection is still in its first slow start.
const SSTHRESH_UNSET_PKTS: u32 = 0x7fff_ffff;

/// Major and minor number of a kernel release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// 6 of "6.18.44".
    pub major: u32,
    /// 18 of "6.18.44".
    pub minor: u32,
}

impl KernelVersion {
    /// Parses a release such as "6.18.44-amd64"; `None` if it does not begin with two numbers.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Self { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
    }

    /// Returns the running kernel, or 0.0 if its release cannot be parsed. Version 0.0 decodes only fields that the length
    /// implies.
    #[must_use]
    pub fn running() -> Self {
        let uname = rustix::system::uname();
        Self::parse(&uname.release().to_string_lossy()).unwrap_or(Self { major: 0, minor: 0 })
    }

    fn at_least(self, major: u32, minor: u32) -> bool {
        self >= Self { major, minor }
    }
}

/// Fills the `tcp_info` columns of `row` from the kernel's bytes, of any length.
pub fn decode(info: &[u8], kernel: KernelVersion, row: &mut FlowSample) {
    head(info, kernel, row);
    window_and_rtt(info, row);
    rates_and_counters(info, row);
    since_4_9(info, row);
    accecn(info, kernel, row);
}

/// Bytes 0 to 59: state, options, timers and the packets in flight.
fn head(info: &[u8], kernel: KernelVersion, row: &mut FlowSample) {
    let byte = |at: usize| info.get(at).map(|&value| u32::from(value));
    row.state = byte(0);
    row.ca_state = byte(1);
    row.retransmits = byte(2);
    row.probes = byte(3);
    row.backoff = byte(4);
    row.options = byte(5);
    row.snd_wscale = byte(6).map(|value| bits(value, 8, 0, 4));
    row.rcv_wscale = byte(6).map(|value| bits(value, 8, 4, 4));
    // Byte 7 was padding until 4.9 (with delivery_rate) and 5.5 added these two fields.
    row.app_limited = byte(7).filter(|_| info.len() >= 168).map(|value| bits(value, 8, 0, 1) == 1);
    row.fastopen_client_fail = byte(7)
        .filter(|_| info.len() >= 232 && kernel.at_least(5, 5))
        .map(|value| bits(value, 8, 1, 2));
    row.rto_us = u32_at(info, 8);
    row.ato_us = u32_at(info, 12);
    row.snd_mss_bytes = u32_at(info, 16);
    row.rcv_mss_bytes = u32_at(info, 20);
    row.unacked_pkts = u32_at(info, 24);
    row.sacked_pkts = u32_at(info, 28);
    row.lost_pkts = u32_at(info, 32);
    row.retrans_pkts = u32_at(info, 36);
    row.fackets_pkts = u32_at(info, 40);
    row.last_data_sent_ms = u32_at(info, 44);
    row.last_data_recv_ms = u32_at(info, 52);
    row.last_ack_recv_ms = u32_at(info, 56);
}

/// Bytes 60 to 103: sizes, round-trip times, windows.
fn window_and_rtt(info: &[u8], row: &mut FlowSample) {
    row.pmtu_bytes = u32_at(info, 60);
    row.rcv_ssthresh_bytes = u32_at(info, 64);
    row.rtt_us = u32_at(info, 68);
    row.rttvar_us = u32_at(info, 72);
    row.snd_ssthresh_pkts = u32_at(info, 76).filter(|&pkts| pkts != SSTHRESH_UNSET_PKTS);
    row.snd_cwnd_pkts = u32_at(info, 80);
    row.advmss_bytes = u32_at(info, 84);
    row.reordering_pkts = u32_at(info, 88);
    row.rcv_rtt_us = u32_at(info, 92);
    row.rcv_space_bytes = u32_at(info, 96);
    row.total_retrans_pkts = u32_at(info, 100);
}

/// Bytes 104 to 159: pacing and byte and segment counts (Linux 3.15 to 4.6).
fn rates_and_counters(info: &[u8], row: &mut FlowSample) {
    row.pacing_rate_bytes_per_s = u64_at(info, 104).filter(|&rate| rate != u64::MAX);
    row.max_pacing_rate_bytes_per_s = u64_at(info, 112).filter(|&rate| rate != u64::MAX);
    row.bytes_acked = u64_at(info, 120);
    row.bytes_received = u64_at(info, 128);
    row.segs_out_pkts = u32_at(info, 136);
    row.segs_in_pkts = u32_at(info, 140);
    row.notsent_bytes = u32_at(info, 144);
    row.min_rtt_us = u32_at(info, 148).filter(|&rtt| rtt != u32::MAX);
    row.data_segs_in_pkts = u32_at(info, 152);
    row.data_segs_out_pkts = u32_at(info, 156);
}

/// Bytes 160 to 247: delivery, limits, loss events, windows, timeouts (Linux 4.9 to 6.7).
fn since_4_9(info: &[u8], row: &mut FlowSample) {
    row.delivery_rate_bytes_per_s = u64_at(info, 160);
    row.busy_us = u64_at(info, 168);
    row.rwnd_limited_us = u64_at(info, 176);
    row.sndbuf_limited_us = u64_at(info, 184);
    row.delivered_pkts = u32_at(info, 192);
    row.delivered_ce_pkts = u32_at(info, 196);
    row.bytes_sent = u64_at(info, 200);
    row.bytes_retrans = u64_at(info, 208);
    row.dsack_dups_pkts = u32_at(info, 216);
    row.reord_seen = u32_at(info, 220);
    row.rcv_ooopack_pkts = u32_at(info, 224);
    row.snd_wnd_bytes = u32_at(info, 228);
    row.rcv_wnd_bytes = u32_at(info, 232);
    row.rehash = u32_at(info, 236);
    row.total_rto = u16_at(info, 240).map(u32::from);
    row.total_rto_recoveries = u16_at(info, 242).map(u32::from);
    row.total_rto_time_ms = u32_at(info, 244);
}

/// Bytes 248 to 279: Accurate ECN (Linux 6.18). Linux 7.0 changed the layout of the last four bytes but not the length, so it
/// depends on the version.
fn accecn(info: &[u8], kernel: KernelVersion, row: &mut FlowSample) {
    row.received_ce_pkts = u32_at(info, 248);
    row.delivered_e1_bytes = u32_at(info, 252);
    row.delivered_e0_bytes = u32_at(info, 256);
    row.delivered_ce_bytes = u32_at(info, 260);
    row.received_e1_bytes = u32_at(info, 264);
    row.received_e0_bytes = u32_at(info, 268);
    row.received_ce_bytes = u32_at(info, 272);
    if kernel.at_least(7, 0) {
        let word = u32_at(info, 276);
        row.ecn_mode = word.map(|word| bits(word, 32, 0, 2));
        row.accecn_opt_seen = word.map(|word| bits(word, 32, 2, 2));
        row.accecn_fail_mode = word.map(|word| bits(word, 32, 4, 4));
    } else if kernel.at_least(6, 18) {
        row.accecn_fail_mode = u16_at(info, 276).map(u32::from);
        row.accecn_opt_seen = u16_at(info, 278).map(u32::from);
    }
}

/// Returns the C bit-field of `width` bits after `before` others in a unit of `unit` bits. Little-endian ABIs allocate from the
/// least significant bit, big-endian ABIs from the most significant bit.
fn bits(value: u32, unit: u32, before: u32, width: u32) -> u32 {
    let shift = if cfg!(target_endian = "big") { unit - before - width } else { before };
    (value >> shift) & ((1 << width) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V6_18: KernelVersion = KernelVersion { major: 6, minor: 18 };
    const V7_2: KernelVersion = KernelVersion { major: 7, minor: 2 };
    const V4_19: KernelVersion = KernelVersion { major: 4, minor: 19 };

    /// Makes a struct in which byte `n` is `n % 251`, so that all fields differ.
    fn counted(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    fn decoded(info: &[u8], kernel: KernelVersion) -> FlowSample {
        let mut row = FlowSample::default();
        decode(info, kernel, &mut row);
        row
    }

    fn put(info: &mut [u8], at: usize, bytes: &[u8]) {
        info[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u32_counted(at: usize) -> Option<u32> {
        u32_at(&counted(KNOWN_LEN), at)
    }

    #[test]
    fn parses_major_and_minor_of_a_release() {
        let parsed = |text| KernelVersion::parse(text).map(|v| (v.major, v.minor));
        assert_eq!(parsed("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(parsed("7.0-rc1"), Some((7, 0)));
        assert_eq!(parsed("6.1.0-44-amd64"), Some((6, 1)));
        assert_eq!(parsed("6"), None);
        assert_eq!(parsed("linux"), None);
        assert_eq!(parsed(""), None);
        assert_eq!(parsed("99999999999.1"), None);
        assert!(V6_18 < V7_2 && V4_19 < V6_18);
    }

    #[test]
    fn decodes_the_full_struct_of_6_18() {
        let row = decoded(&counted(280), V6_18);
        assert_eq!(row.state, Some(0));
        assert_eq!(row.ca_state, Some(1));
        assert_eq!(row.options, Some(5));
        assert_eq!((row.snd_wscale, row.rcv_wscale), (Some(6), Some(0)));
        assert_eq!(row.app_limited, Some(true));
        assert_eq!(row.fastopen_client_fail, Some(3));
        assert_eq!(row.rto_us, u32_counted(8));
        assert_eq!(row.last_data_sent_ms, u32_counted(44));
        assert_eq!(row.last_data_recv_ms, u32_counted(52));
        assert_eq!(row.rtt_us, u32_counted(68));
        assert_eq!(row.snd_cwnd_pkts, u32_counted(80));
        assert_eq!(row.total_retrans_pkts, u32_counted(100));
        assert_eq!(row.bytes_acked, u64_at(&counted(280), 120));
        assert_eq!(row.min_rtt_us, u32_counted(148));
        assert_eq!(row.delivery_rate_bytes_per_s, u64_at(&counted(280), 160));
        assert_eq!(row.snd_wnd_bytes, u32_counted(228));
        assert_eq!(row.total_rto, Some(u32::from(u16::from_ne_bytes([240, 241]))));
        assert_eq!(row.total_rto_time_ms, u32_counted(244));
        assert_eq!(row.received_ce_pkts, u32_counted(248));
        assert_eq!(row.received_ce_bytes, u32_counted(272));
    }

    #[test]
    fn a_struct_of_232_bytes_ends_with_the_send_window() {
        let row = decoded(&counted(232), V4_19);
        assert_eq!(row.snd_wnd_bytes, u32_counted(228));
        assert_eq!(row.fastopen_client_fail, None, "came with 5.5");
        assert_eq!(row.rcv_wnd_bytes, None);
        assert_eq!(row.rehash, None);
        assert_eq!(row.total_rto, None);
        assert_eq!(row.received_ce_pkts, None);
        let newer = KernelVersion { major: 5, minor: 5 };
        assert_eq!(decoded(&counted(232), newer).fastopen_client_fail, Some(3));
    }

    #[test]
    fn a_struct_of_240_bytes_has_the_receive_window_and_no_timeouts() {
        let row = decoded(&counted(240), KernelVersion { major: 6, minor: 1 });
        assert_eq!(row.rcv_wnd_bytes, u32_counted(232));
        assert_eq!(row.rehash, u32_counted(236));
        assert_eq!(row.total_rto, None);
        assert_eq!(row.total_rto_time_ms, None);
    }

    #[test]
    fn a_struct_of_248_bytes_has_timeouts_and_no_accurate_ecn() {
        let row = decoded(&counted(248), KernelVersion { major: 6, minor: 12 });
        assert_eq!(row.total_rto_recoveries, u16_at(&counted(280), 242).map(u32::from));
        assert_eq!(row.total_rto_time_ms, u32_counted(244));
        assert_eq!(row.received_ce_pkts, None);
        assert_eq!(row.accecn_fail_mode, None);
        assert_eq!(row.ecn_mode, None);
    }

    #[test]
    fn a_struct_of_104_bytes_has_no_flags_in_byte_7() {
        let row = decoded(&counted(104), KernelVersion { major: 3, minor: 10 });
        assert_eq!(row.total_retrans_pkts, u32_counted(100));
        assert_eq!(row.app_limited, None);
        assert_eq!(row.pacing_rate_bytes_per_s, None);
    }

    #[test]
    fn the_last_four_bytes_are_two_numbers_in_6_18() {
        let mut info = vec![0; 280];
        put(&mut info, 276, &5u16.to_ne_bytes());
        put(&mut info, 278, &3u16.to_ne_bytes());
        let row = decoded(&info, V6_18);
        assert_eq!(row.accecn_fail_mode, Some(5));
        assert_eq!(row.accecn_opt_seen, Some(3));
        assert_eq!(row.ecn_mode, None, "6.18 does not report it");
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_last_four_bytes_are_bit_fields_from_7_0() {
        let mut info = vec![0; 280];
        let word: u32 = 3 | 2 << 2 | 9 << 4 | 0xabcdef << 8;
        put(&mut info, 276, &word.to_ne_bytes());
        for kernel in [V7_2, KernelVersion { major: 7, minor: 0 }] {
            let row = decoded(&info, kernel);
            assert_eq!(row.ecn_mode, Some(3));
            assert_eq!(row.accecn_opt_seen, Some(2));
            assert_eq!(row.accecn_fail_mode, Some(9));
        }
    }

    #[test]
    fn values_that_mean_none_are_absent() {
        let mut info = vec![0; 280];
        put(&mut info, 76, &SSTHRESH_UNSET_PKTS.to_ne_bytes());
        put(&mut info, 104, &u64::MAX.to_ne_bytes());
        put(&mut info, 112, &u64::MAX.to_ne_bytes());
        put(&mut info, 148, &u32::MAX.to_ne_bytes());
        let row = decoded(&info, V6_18);
        assert_eq!(row.snd_ssthresh_pkts, None);
        assert_eq!(row.pacing_rate_bytes_per_s, None);
        assert_eq!(row.max_pacing_rate_bytes_per_s, None);
        assert_eq!(row.min_rtt_us, None);
        put(&mut info, 76, &2u32.to_ne_bytes());
        put(&mut info, 104, &1_250_000u64.to_ne_bytes());
        let row = decoded(&info, V6_18);
        assert_eq!(row.snd_ssthresh_pkts, Some(2));
        assert_eq!(row.pacing_rate_bytes_per_s, Some(1_250_000));
    }

    #[test]
    fn a_truncated_field_is_absent() {
        let row = decoded(&counted(83), V6_18);
        assert_eq!(row.snd_ssthresh_pkts, u32_counted(76));
        assert_eq!(row.snd_cwnd_pkts, None);
        assert_eq!(decoded(&[], V6_18), FlowSample::default());
    }

    #[test]
    fn ignores_unknown_fields_of_a_longer_struct() {
        let long = counted(400);
        assert_eq!(decoded(&long, V7_2), decoded(&long[..KNOWN_LEN], V7_2));
    }

    proptest! {
        #[test]
        fn decodes_any_bytes_without_panic(
            info in proptest::collection::vec(any::<u8>(), 0..400),
            major in 0u32..9,
            minor in 0u32..30,
        ) {
            let row = decoded(&info, KernelVersion { major, minor });
            prop_assert_eq!(row.rtt_us.is_some(), info.len() >= 72);
            prop_assert_eq!(row.rehash.is_some(), info.len() >= 240);
        }

        #[test]
        fn parses_any_release_without_panic(release in ".{0,40}") {
            let _ = KernelVersion::parse(&release);
        }
    }
}
