use super::*;
use proptest::prelude::*;

const FIRST: &str = "tcp ESTAB 0      90468  10.0.5.1:55042 10.201.1.1:5201 users:((\"iperf3\",pid=16828,fd=5)) \
    timer:(persist,200ms,0) uid:39791 ino:126634 sk:a4 cgroup:unreachable:2010c00000052 <->";
const SECOND: &str = "\t ts sack ecnseen prague wscale:8,7 rto:204 rtt:0.62/0.082 mss:1448 pmtu:1500 rcvmss:536 \
    advmss:1448 cwnd:2 ssthresh:2 bytes_sent:5400833 bytes_retrans:11488 bytes_acked:5389346 segs_out:3764 segs_in:3657 \
    data_segs_out:3762 send 37367742bps lastsnd:4 lastrcv:6316 lastack:4 pacing_rate 3408752bps delivery_rate \
    16088888bps delivered:3755 delivered_ce:562 busy:6308ms retrans:0/8 rcv_space:14480 rcv_ssthresh:64088 \
    notsent:90468 minrtt:0.212";

fn read(text: &str) -> Info {
    match line(text, false) {
        Some(Line::Info(info)) => *info,
        other => panic!("{other:?}"),
    }
}

fn socket(text: &str) -> Socket {
    match line(text, false) {
        Some(Line::Socket(socket, _)) => socket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_line_identifies_the_socket() {
    let socket = socket(FIRST);
    assert_eq!(socket.local, Endpoint { ip: [10, 0, 5, 1].into(), port: 55042 });
    assert_eq!(socket.peer, Endpoint { ip: [10, 201, 1, 1].into(), port: 5201 });
    assert_eq!(socket.process, Some(Process { name: "iperf3".into(), pid: 16828, fd: 5 }));
    assert_eq!(socket.state, 1);
}

#[test]
fn second_line_has_the_state() {
    let info = read(SECOND);
    assert_eq!(info.unread_reason, None);
    let sample = info.sample;
    assert_eq!(sample.cc, "prague");
    assert_eq!(
        (sample.rtt_us, sample.rttvar_us, sample.rto_us),
        (Some(620), Some(82), Some(204_000))
    );
    assert_eq!((sample.snd_cwnd_pkts, sample.snd_ssthresh_pkts), (Some(2), Some(2)));
    assert_eq!((sample.retrans_pkts, sample.total_retrans_pkts), (Some(0), Some(8)));
    assert_eq!((sample.delivered_pkts, sample.delivered_ce_pkts), (Some(3755), Some(562)));
    assert_eq!(sample.pacing_rate_bytes_per_s, Some(426_094));
    assert_eq!(sample.delivery_rate_bytes_per_s, Some(2_011_111));
    assert_eq!((sample.busy_us, sample.min_rtt_us), (Some(6_308_000), Some(212)));
    assert_eq!(sample.options, Some(1 | 2 | 4 | 16));
    assert_eq!((sample.app_limited, sample.unacked_pkts), (Some(false), Some(0)));
    assert_eq!(sample.ato_us, None, "what ss leaves out is unknown");
}

#[test]
fn every_name_that_the_kernel_has_is_a_congestion_control() {
    for name in ["cubic", "prague-reno", "bbr", "dctcp-reno", "ccbta_x"] {
        let text = format!("\t ts sack {name} wscale:8,7 rto:204 rtt:1/2 cwnd:10 minrtt:0.2");
        assert_eq!(read(&text).sample.cc, name);
    }
    assert_eq!(
        read("\t sack rto:204 rtt:1/2 cwnd:10 minrtt:0.2").sample.cc,
        "",
        "no congestion control"
    );
}

#[test]
fn keeps_fields_of_the_congestion_control() {
    let bbr = read(
        "\t bbr wscale:8,7 rtt:20.5/1 cwnd:10 bbr:(bw:8.5Mbps,mrtt:20.1,pacing_gain:2.88672,cwnd_gain:2.88672) \
         pacing_rate 10Mbps/20Gbps app_limited rwnd_limited:12ms(1.5%) minrtt:20.1",
    );
    assert_eq!(bbr.sample.bbr_bw_bytes_per_s, Some(1_062_500));
    assert_eq!(bbr.sample.bbr_min_rtt_us, Some(20_100));
    assert_eq!(bbr.sample.max_pacing_rate_bytes_per_s, Some(2_500_000_000));
    assert_eq!((bbr.sample.app_limited, bbr.sample.rwnd_limited_us), (Some(true), Some(12_000)));
    let dctcp =
        read("\t dctcp rto:204 cwnd:4 dctcp:(ce_state:0,alpha:17,ab_ecn:0,ab_tot:0) minrtt:0.1");
    assert_eq!(dctcp.sample.dctcp_alpha, Some(17));
}

#[test]
fn truncated_line_keeps_complete_fields() {
    let cut = read("\t ts sack cubic wscale:8,7 rto:208 rtt:4.104/0.255 mss:1448 cwnd:1");
    assert_eq!(cut.unread_reason.as_deref(), Some("it ends in the middle"));
    assert_eq!(cut.sample.rtt_us, Some(4104));
    assert_eq!(cut.sample.snd_cwnd_pkts, None, "it may have been cwnd:10");
    assert_eq!(cut.sample.total_retrans_pkts, None, "it may have stood behind");
    let Some(Line::Info(torn)) =
        line("\t ts cubic rto:208 rtt:4.104/0.255 cwnd:10 minrtt:0.35", true)
    else {
        panic!();
    };
    assert_eq!((torn.sample.snd_cwnd_pkts, torn.sample.min_rtt_us), (Some(10), None));
    let wrong = read("\t cubic rto:208 rtt:4.104 cwnd:10 retrans:0/x busy:3 minrtt:0.35");
    assert_eq!(wrong.unread_reason.as_deref(), Some("cannot read rtt:4.104 retrans:0/x busy:3"));
    assert_eq!(wrong.sample.snd_cwnd_pkts, Some(10));
    assert_eq!(line("tcp ESTAB 0 0 10.0.5.1:55042 10.201.1.1:52", true), None);
}

#[test]
fn other_forms_of_a_first_line() {
    for text in [
        "ESTAB 0 0 10.0.5.1:55042 10.201.1.1:5201",
        "tcp   ESTAB      0      0         10.0.5.1:55042      10.201.1.1:5201    ",
        "tcp ESTAB 0 0 [::ffff:10.0.5.1]:55042 [::ffff:10.201.1.1]:5201",
        "tcp ESTAB 0 0 10.0.5.1%eth1:55042 10.201.1.1:5201 ino:1",
        "tcp ESTAB 0 0 ::ffff:10.0.5.1:55042 ::ffff:10.201.1.1:5201",
    ] {
        let socket = socket(text);
        assert_eq!((socket.local.port, socket.peer.port), (55042, 5201), "{text}");
        assert_eq!(socket.local.ip, std::net::IpAddr::from([10, 0, 5, 1]), "{text}");
    }
    let v6 =
        socket("tcp TIME-WAIT 0 0 [2001:db8::1]:40000 [2001:db8::2]:5201 timer:(timewait,59sec,0)");
    assert_eq!((v6.local.ip.to_string().as_str(), v6.state), ("2001:db8::1", 6));
    let whole = format!("{FIRST} {SECOND}");
    assert!(matches!(line(&whole, false), Some(Line::Socket(_, Some(_)))), "ss -O");
    for other in [
        "Netid State Recv-Q Send-Q Local Address:Port Peer Address:Port Process",
        "tcp LISTEN 0 4096 0.0.0.0:22 0.0.0.0:*",
    ] {
        assert_eq!(line(other, false), Some(Line::Other), "{other}");
    }
    for none in
        ["", "tcp", "tcp ESTAB", "tcp ESTAB 0 0", "tcp ESTAB x 0 a:1 b:2", "hello", "rtt:1/2"]
    {
        assert_eq!(line(none, false), None, "{none}");
    }
}

/// Lines with numbers 1, 2, ... to samples.
fn rows(lines: &[&str]) -> (Vec<Row>, Vec<u64>) {
    let mut pairing = Pairing::default();
    for (at, text) in lines.iter().enumerate() {
        if let Some(line) = line(text, false) {
            pairing.take(at as u64 + 1, Some(1000 + at as u64), line);
        }
    }
    pairing.finish()
}

fn first(port: u16) -> String {
    format!("tcp ESTAB 0 0 10.0.5.1:{port} 10.201.1.1:5201 <->")
}

fn second(cc: &str, sent: u32) -> String {
    format!("\t ts sack {cc} wscale:8,7 rto:208 rtt:4/1 cwnd:10 bytes_sent:{sent} minrtt:0.3")
}

fn ports(rows: &[Row]) -> Vec<Option<u16>> {
    rows.iter().map(|row| row.socket.as_ref().map(|s| s.local.port)).collect()
}

#[test]
fn lines_of_two_writers_find_their_sockets() {
    let (a, b) = (first(1), first(2));
    let data = [second("cubic", 10), second("prague", 5), second("cubic", 20), second("prague", 9)];
    // Whole, then interleaved, then without a first line.
    let lines = [&a, &data[0], &b, &data[1], &a, &b, &data[2], &data[3], &second("prague", 11)];
    let (rows, alone) = rows(&lines.map(String::as_str));
    assert_eq!(ports(&rows), [Some(1), Some(2), Some(1), Some(2), Some(2)]);
    assert_eq!(rows[2].at_ns, Some(1004), "the time of its own first line");
    assert!(alone.is_empty());
}

#[test]
fn ambiguous_line_is_assigned_to_no_socket() {
    let lines = [first(1), second("cubic", 10), first(2), second("cubic", 5), second("cubic", 30)];
    let (rows, _) = rows(&lines.each_ref().map(String::as_str));
    assert_eq!(ports(&rows), [Some(1), Some(2), None]);
}

#[test]
fn reports_first_line_without_second() {
    let lines = [first(1), first(1), second("cubic", 1), first(2)];
    let (rows, alone) = rows(&lines.each_ref().map(String::as_str));
    assert_eq!(ports(&rows), [Some(1)]);
    assert_eq!(alone, [1, 4]);
}

proptest! {
    #[test]
    fn no_line_makes_it_panic(
        noise in "\\PC{0,80}",
        fields in prop::collection::vec("(tcp|ESTAB|rtt|cwnd|bbr|retrans|send|busy|rto)[:( /,0-9a-z.)]{0,12}", 0..12),
        cut: bool,
    ) {
        let _ = line(&noise, cut);
        let _ = line(&fields.join(" "), cut);
    }

    #[test]
    fn wherever_a_line_is_cut_no_number_is_invented(at in 0usize..600) {
        let whole = read(SECOND).sample;
        let at = at.min(SECOND.len());
        if let Some(Line::Info(info)) = line(&SECOND[..at], true) {
            let sample = &info.sample;
            let pairs = [
                (sample.rtt_us, whole.rtt_us),
                (sample.snd_cwnd_pkts, whole.snd_cwnd_pkts),
                (sample.data_segs_out_pkts, whole.data_segs_out_pkts),
                (sample.total_retrans_pkts, whole.total_retrans_pkts),
                (sample.min_rtt_us, whole.min_rtt_us),
            ];
            for (cut, whole) in pairs {
                prop_assert!(cut.is_none() || cut == whole);
            }
            prop_assert!(sample.bytes_sent.is_none() || sample.bytes_sent == whole.bytes_sent);
        }
    }
}
