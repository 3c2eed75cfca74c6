use super::*;
use crate::flow::example_task;
use ccbench_proto::plan::Flow;
use ccbench_proto::units::{Micros, Rate};

const OLD: Version = Version { major: 3, minor: 12 };

fn task() -> FlowTask {
    FlowTask {
        group: "bulk".into(),
        plan: Flow {
            cc: Some("reno".into()),
            count: 5,
            rate: Some(Rate::from_bits_per_sec(10_000_000)),
            ..Flow::new("a", "b")
        },
        to_ip: [10, 0, 1, 2].into(),
        stop: Micros::from_millis(3_500),
        ..example_task()
    }
}

#[test]
fn parses_the_version() {
    assert_eq!(Version::parse("iperf 3.12 (cJSON 1.7.15)\nLinux"), Some(OLD));
    assert_eq!(Version::parse("iperf 3.17.1+"), Some(Version { major: 3, minor: 17 }));
    assert!(!OLD.has_json_stream());
    assert!(Version { major: 3, minor: 20 }.has_json_stream());
    for junk in ["", "iperf", "iperf x.y", "iperf 3"] {
        assert_eq!(Version::parse(junk), None, "{junk}");
    }
}

#[test]
fn builds_the_arguments() {
    assert_eq!(server_args(&task(), OLD).join(" "), "-s -1 -p 5201 -i 0.100 -J -B 10.0.1.2");
    assert_eq!(
        client_args(&task(), OLD).join(" "),
        "-c 10.0.1.2 -p 5201 -i 0.100 -J -B 10.0.0.1 --cport 10000 -P 5 -t 8 \
         --connect-timeout 3000 -C reno -b 10000000 -l 12500 --pacing-timer 1000"
    );
    let bare = FlowTask { plan: Flow { reverse: true, count: 5, ..Flow::new("a", "b") }, ..task() };
    assert_eq!(
        client_args(&bare, Version { major: 3, minor: 17 }).join(" "),
        "-c 10.0.1.2 -p 5201 -i 0.100 --json-stream -B 10.0.0.1 --cport 10000 -P 5 -t 8 \
         --connect-timeout 3000 -R"
    );
}
