use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Vec<PingRun> {
    let mut sessions = PingRuns::default();
    for (at, line) in text.lines().enumerate() {
        let taken = sessions.take(at as u64 + 1, None, line);
        assert!(taken || line.trim().is_empty(), "{line}");
    }
    sessions.finish().0
}

/// From the bufferbloat study, as altered by Markdown.
const STUDY: &str = r"
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.

64 bytes from 10.0.0.2: icmp\_seq=1 ttl=64 time=474 ms

64 bytes from 10.0.0.2: icmp\_seq=2 ttl=64 time=482 ms

64 bytes from 10.0.0.2: icmp\_seq=3 ttl=64 time=491 ms

64 bytes from 10.0.0.2: icmp\_seq=4 ttl=64 time=501 ms

64 bytes from 10.0.0.2: icmp\_seq=5 ttl=64 time=510 ms

64 bytes from 10.0.0.2: icmp\_seq=6 ttl=64 time=519 ms

64 bytes from 10.0.0.2: icmp\_seq=7 ttl=64 time=528 ms

64 bytes from 10.0.0.2: icmp\_seq=8 ttl=64 time=539 ms

64 bytes from 10.0.0.2: icmp\_seq=9 ttl=64 time=538 ms

64 bytes from 10.0.0.2: icmp\_seq=10 ttl=64 time=547 ms

10 packets transmitted, 10 received, 0% packet loss, time **9002ms**

rtt min/avg/max/mdev = 474.159/513.370/547.446/24.280 ms
";

#[test]
fn the_mean_of_the_lines_is_what_the_study_quotes() {
    let sessions = read(STUDY);
    assert_eq!(sessions.len(), 1);
    let session = &sessions[0];
    let times: Vec<f64> = session.replies.values().filter_map(|reply| reply.rtt_us).collect();
    let mean_ms = times.iter().sum::<f64>() / times.len() as f64 / 1e3;
    assert_eq!(times.len(), 10);
    assert!((mean_ms - 513.370).abs() < 0.5, "{mean_ms}: the lines have no decimals");
    assert_eq!(session.summary_ms, Some([474.159, 513.370, 547.446, 24.280]));
    assert_eq!((session.host.as_str(), session.interval_ns()), ("10.0.0.2", 1_000_222_222));
    assert!(session.unanswered().is_empty());
}

#[test]
fn requests_without_reply_are_lost() {
    let sessions = read(
        "PING fe80::1(fe80::1) 56 data bytes\n\
         64 bytes from fe80::1: icmp_seq=1 ttl=64 time=0.051 ms\n\
         no answer yet for icmp_seq=2\n\
         From 10.0.0.1 icmp_seq=3 Destination Host Unreachable\n\
         64 bytes from fe80::1: icmp_seq=2 ttl=64 time=1200 ms\n\
         64 bytes from fe80::1: icmp_seq=5 ttl=64 time=0.05 ms (DUP!)\n\
         --- fe80::1 ping statistics ---\n\
         6 packets transmitted, 3 received, +1 duplicates, +1 errors, 50% packet loss, time 5000ms\n\
         rtt min/avg/max/mdev = 0.050/400.034/1200.000/1.000 ms, pipe 2",
    );
    let session = &sessions[0];
    assert_eq!(session.replies[&2].rtt_us, Some(1_200_000.0));
    assert_eq!(session.replies[&3].rtt_us, None);
    assert_eq!(session.unanswered(), [4, 6]);
}

#[test]
fn busybox_counts_from_zero_and_sequence_numbers_wrap() {
    let sessions = read(
        "PING 10.0.0.2 (10.0.0.2): 56 data bytes\n\
         64 bytes from 10.0.0.2: seq=0 ttl=64 time=0.123 ms\n\
         64 bytes from 10.0.0.2: seq=2 ttl=64 time=0.123 ms\n\
         round-trip min/avg/max = 0.123/0.123/0.123 ms",
    );
    assert_eq!((sessions[0].first(), sessions[0].unanswered()), (0, vec![1]));
    let mut session = PingRun::default();
    let counted = [65_534, 65_535, 0, 1, 65_535].map(|seq| session.count_on(seq));
    assert_eq!(counted, [65_534, 65_535, 65_536, 65_537, 65_535].map(Some));
}

#[test]
fn excerpt_without_beginning_has_no_losses() {
    let sessions = read("64 bytes from 12.1.1.66: icmp_seq=60 ttl=63 time=100 ms");
    assert!(sessions[0].unanswered().is_empty());
    let last = read(
        "--- 12.1.1.131 ping statistics ---\n60 packets transmitted, 60 received, 0% packet loss, time 59132ms\n\
         rtt min/avg/max/mdev = 147.650/1069.770/2363.682/558.733 ms, pipe 3",
    );
    assert_eq!(last[0].summary_ms.map(|summary| summary[1]), Some(1069.770));
    assert!(last[0].unanswered().is_empty(), "unknown which");
}

proptest! {
    #[test]
    fn no_line_makes_it_panic(
        lines in prop::collection::vec(
            "(PING |64 bytes from |icmp_seq=|time=|--- | packets transmitted, |rtt min/avg/max/mdev = )?[0-9a-z=. /:,]{0,30}",
            0..12,
        )
    ) {
        let mut sessions = PingRuns::default();
        for line in lines {
            sessions.take(1, Some(1), &line);
        }
        for session in sessions.finish().0 {
            let _ = (session.unanswered().len(), session.interval_ns());
        }
    }
}
