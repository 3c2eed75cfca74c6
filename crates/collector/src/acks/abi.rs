//! The C structures of `bpf/acks.bpf.c`, field by field. A test compares the offsets with the BTF of the compiled object. Only
//! the layout is used: values are read from bytes by offset, so no `unsafe` is needed.

/// Declares a structure with C layout, and for the test a table of its fields: name, offset and size.
macro_rules! c_struct {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[allow(dead_code, reason = "only the layout is used")]
        pub(super) struct $name {
            $(pub(super) $field: $type,)*
        }

        #[cfg(all(test, feature = "ebpf"))]
        impl $name {
            const FIELDS: &[(&str, usize, usize)] = &[
                $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)*
            ];
        }
    };
}

c_struct! {
    /// `struct row`: the state of a socket.
    Row {
        kind: u32, ports: u32,
        at_ns: u64, cookie: u64, segments: u64, lost_rows: u64,
        bytes_acked: u64, bytes_received: u64, bytes_sent: u64, bytes_retrans: u64, pacing_rate: u64,
        rtt_us: u32, rttvar_us: u32, min_rtt_us: u32, rto_jiffies: u32, ato_jiffies: u32,
        snd_cwnd: u32, snd_ssthresh: u32, unacked: u32, sacked: u32, lost: u32, retrans: u32, reordering: u32,
        delivered: u32, delivered_ce: u32, rate_delivered: u32, rate_interval_us: u32,
        total_retrans: u32, segs_out: u32, segs_in: u32, data_segs_out: u32, data_segs_in: u32,
        notsent_bytes: u32,
        snd_wnd: u32, rcv_wnd: u32, rcv_ssthresh: u32, rcv_rtt_us: u32, rcv_space: u32, rcv_ooopack: u32,
        dsack_dups: u32, reord_seen: u32, pmtu: u32,
        snd_mss: u16, rcv_mss: u16, advmss: u16, rehash: u16,
        busy_jiffies: u32, rwnd_limited_jiffies: u32, sndbuf_limited_jiffies: u32,
        total_rto: u16, total_rto_recoveries: u16, total_rto_time_ms: u32,
        received_ce: u32, delivered_ecn_bytes: [u32; 3], received_ecn_bytes: [u32; 3],
        ca_state: u8, retransmits: u8, backoff: u8, probes: u8,
        app_limited: u8, ecn_flags: u8, accecn: u8, has: u8,
    }
}

c_struct! {
    /// `struct event`: every record except rows.
    Event {
        kind: u32, ports: u32,
        at_ns: u64, cookie: u64,
        count: u32, ca_state: u32,
        snd_cwnd: u32, snd_ssthresh: u32, rtt_us: u32, unacked: u32, lost: u32, total_retrans: u32,
        cc: [u8; 16],
    }
}

c_struct! {
    /// `struct flow`: a value of the map `acks_flows`.
    Flow {
        segments: u64, rows: u64, lost_rows: u64, events: u64, lost_events: u64, last_ns: u64, ca_ops: u64,
        ports: u32,
        cwnd: u32, ssthresh: u32, total_retrans: u32, lost_out: u32, delivered_ce: u32, min_rtt: u32,
        rcv_ooopack: u32,
        ca_state: u8, retransmits: u8, seen: u8, unused: u8,
        rto_una: u32,
        seen_segs: u32, coalesced_segs: u32, missed_segs: u32, seen_retrans: u32, missed_retrans: u32,
        missed_states: u16, next_ca_state: u8, ca_state_known: u8,
    }
}

c_struct! {
    /// `acks_config`.
    Config {
        netns_cookie: u64, snd_gap_ns: u64, rcv_gap_ns: u64,
        mode: u32, wakeup_bytes: u32,
    }
}

c_struct! {
    /// `acks_global`.
    Global {
        unwatched: u64, after_ack: u64, all_retransmits: u64,
    }
}

#[cfg(all(test, feature = "ebpf"))]
#[path = "abi/btf.rs"]
mod btf;

#[cfg(all(test, feature = "ebpf"))]
mod tests {
    use super::btf::Types;
    use super::*;

    #[test]
    fn offsets_match_the_btf_of_the_object() {
        let types = Types::of_object(super::super::bpf::OBJECT).unwrap();
        let structs = [
            ("row", Row::FIELDS, size_of::<Row>()),
            ("event", Event::FIELDS, size_of::<Event>()),
            ("flow", Flow::FIELDS, size_of::<Flow>()),
            ("acks_config", Config::FIELDS, size_of::<Config>()),
            ("acks_global", Global::FIELDS, size_of::<Global>()),
        ];
        for (name, fields, size) in structs {
            let found = types.fields(name).unwrap_or_else(|| panic!("no structure {name} in BTF"));
            let found_fields: Vec<_> =
                found.fields.iter().map(|f| (f.name.as_str(), f.offset, f.size)).collect();
            assert_eq!(found_fields, fields, "{name}");
            assert_eq!(found.size, size, "{name}");
        }
    }
}
