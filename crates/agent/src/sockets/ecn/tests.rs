use std::collections::BTreeMap;

use ccbench_proto::plan::{Cc, Flow, SysctlValue, Via};

use super::*;

const PRAGUE: EcnNeeds = EcnNeeds { accecn: true, echo: true, ect1: true };
const DCTCP: EcnNeeds = EcnNeeds { accecn: false, echo: true, ect1: false };

fn kernel(ops_flags: u32, accecn_sysctl: bool) -> Capabilities {
    Capabilities { accecn_sysctl, ops_flags, ops_reason: "no BTF".into() }
}

fn cc(algorithm: &str, via: Via) -> Cc {
    Cc { via, ..Cc::new(algorithm) }
}

#[test]
fn chooses_the_best_mode_of_the_kernel() {
    let mode = |flags, sysctl, needs, via| decide(&kernel(flags, sysctl), needs, via, None).mode;
    for (flags, sysctl, needs, via, wanted) in [
        (0x1f, false, PRAGUE, Via::Bpf, Mode::AccecnStructOps),
        (0x0f, true, PRAGUE, Via::Bpf, Mode::AccecnStructOps),
        (0x1f, true, PRAGUE, Via::Module, Mode::AccecnStructOps),
        (0x03, false, PRAGUE, Via::Bpf, Mode::DctcpFeedback),
        (0x07, false, PRAGUE, Via::Bpf, Mode::DctcpFeedback),
        (0x00, false, PRAGUE, Via::Module, Mode::DctcpFeedback),
        (0x00, true, PRAGUE, Via::Module, Mode::AccecnSysctl),
        (0x03, true, PRAGUE, Via::Bpf, Mode::AccecnSysctl),
        (0x03, true, DCTCP, Via::Bpf, Mode::DctcpFeedback),
        (0x1f, true, DCTCP, Via::Bpf, Mode::DctcpFeedback),
        (0x1f, true, DCTCP, Via::Builtin, Mode::DctcpFeedback),
        (0x1f, true, EcnNeeds::default(), Via::Bpf, Mode::None),
    ] {
        assert_eq!(
            mode(flags, sysctl, needs, via),
            wanted,
            "{flags:#x} {sysctl} {needs:?} {via:?}"
        );
    }
    let kernels_prague = EcnNeeds { accecn: true, ..EcnNeeds::default() };
    assert_eq!(mode(0x1f, true, kernels_prague, Via::Builtin), Mode::AccecnSysctl);
    assert_eq!(mode(0x1f, false, kernels_prague, Via::Builtin), Mode::Rfc3168);
}

#[test]
fn flags_match_the_mode() {
    let flags =
        |kernel_flags, needs| decide(&kernel(kernel_flags, false), needs, Via::Bpf, None).flags;
    assert_eq!(flags(0x1f, PRAGUE), 0x1f, "no fallback to RFC 3168 where it can be excluded");
    assert_eq!(flags(0x0f, PRAGUE), 0x0f);
    assert_eq!(flags(0x03, PRAGUE), 0x03);
    assert_eq!(flags(0x1f, DCTCP), 0x03);
    assert_eq!(flags(0x1f, EcnNeeds::default()), 0x01);
}

#[test]
fn plan_can_disable_ecn() {
    let off = decide(&kernel(0x1f, true), PRAGUE, Via::Bpf, Some("0"));
    assert_eq!((off.mode, off.flags), (Mode::None, flag::NON_RESTRICTED));
    assert!(off.reason.contains("tcp_ecn = 0"), "{}", off.reason);
    assert_eq!(
        decide(&kernel(0x1f, true), PRAGUE, Via::Bpf, Some("1")).mode,
        Mode::AccecnStructOps
    );
}

#[test]
fn every_decision_says_why() {
    for flags in [0, 3, 0x1f] {
        for via in [Via::Bpf, Via::Module, Via::Builtin] {
            for needs in [PRAGUE, DCTCP, EcnNeeds::default()] {
                assert!(!decide(&kernel(flags, false), needs, via, None).reason.is_empty());
            }
        }
    }
    let old = decide(&kernel(3, false), PRAGUE, Via::Bpf, None).reason;
    assert!(old.contains("0x3 accepted") && old.contains("0xf needed"), "{old}");
    assert!(decide(&kernel(0, false), PRAGUE, Via::Bpf, None).reason.contains("no BTF"));
}

#[test]
fn algorithms_have_ecn_needs() {
    assert_eq!(ecn_needs("p", Some(&cc("prague", Via::Bpf))), PRAGUE);
    assert_eq!(ecn_needs("d", Some(&cc("dctcp", Via::Bpf))), DCTCP);
    assert_eq!(ecn_needs("d", Some(&cc("dctcp", Via::Builtin))), DCTCP);
    let ect1 = Cc { ect1: Some(true), ..cc("dctcp", Via::Bpf) };
    assert_eq!(ecn_needs("d", Some(&ect1)), EcnNeeds { ect1: true, ..DCTCP });
    let ect0 = Cc { ect1: Some(false), ..cc("prague", Via::Bpf) };
    assert_eq!(ecn_needs("p", Some(&ect0)), EcnNeeds { ect1: false, ..PRAGUE });
    assert_eq!(ecn_needs("dctcp", None), DCTCP, "the kernel's");
    assert_eq!(
        ecn_needs("prague", None),
        EcnNeeds { accecn: true, ..EcnNeeds::default() },
        "the kernel's"
    );
    for plain in ["cubic", "bbr", "reno"] {
        assert!(!ecn_needs(plain, None).any());
    }
    assert!(!ecn_needs("t", Some(&cc("ta", Via::Auto))).any());
    assert!(!ecn_needs("b", Some(&cc("bbr3", Via::Bpf))).any());
    let params = BTreeMap::from([("ecn_enable".to_owned(), SysctlValue::Number(1))]);
    let bbr = Cc { params, ect1: Some(true), ..cc("bbr3", Via::Bpf) };
    assert_eq!(ecn_needs("b", Some(&bbr)), EcnNeeds { ect1: true, ..DCTCP });
}

#[test]
fn lists_available_modes_best_first() {
    assert_eq!(kernel(0x1f, false).modes(), ["accecn_struct_ops", "dctcp_feedback", "rfc3168"]);
    assert_eq!(kernel(0, true).modes(), ["accecn_sysctl", "rfc3168"]);
}

#[test]
fn chooses_only_flows_that_need_ecn() {
    let flow = |group: &str, cc: &str, client_port, reverse| FlowTask {
        group: group.into(),
        plan: Flow { cc: Some(cc.into()), count: 2, reverse, ..Flow::new("a", "b") },
        client_port,
        ..crate::flow::example_task()
    };
    let plan = ccbench_proto::plan::parse::parse(include_str!("tests.toml")).unwrap();
    let (plan, _) = ccbench_proto::plan::check::check(plan).unwrap();
    let mut task = ccbench_proto::schedule::task_for(&plan, "a", &Default::default());
    task.cc = BTreeMap::from([("p".to_owned(), cc("prague", Via::Bpf))]);
    task.clients = vec![flow("l4s", "p", 10_000, false), flow("classic", "cubic", 10_002, false)];
    task.servers = vec![flow("back", "p", 10_004, true)];
    let found = endpoints(&task, |name| Some((format!("k_{name}"), Via::Bpf)));
    let chosen: Vec<_> = found.iter().map(|end| (end.group.as_str(), end.sends)).collect();
    assert_eq!(chosen, [("l4s", true), ("back", true)]);
    assert!(found.iter().all(|end| end.kernel_name == "k_p" && end.cc == "p"));
    assert_eq!(found[1].peer, std::net::IpAddr::from([10, 0, 0, 1]));
}
