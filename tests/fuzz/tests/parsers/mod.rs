//! Lists the modules that parse bytes from outside the process.

use std::collections::BTreeSet;
use std::path::Path;

/// The modules, each with the targets that pass inputs to it.
const PARSERS: &[(&str, &[&str])] = &[
    ("proto/src/cc/supplied.rs", &["cc_object"]),
    ("proto/src/join.rs", &["join"]),
    ("proto/src/manifest.rs", &["manifest"]),
    ("proto/src/plan/parse.rs", &["plan", "plan_set", "prepare"]),
    ("proto/src/sealed_line.rs", &["sealed_line"]),
    ("proto/src/testbed.rs", &["records"]),
    ("proto/src/tools/iperf3.rs", &["iperf3", "iperf3_lines"]),
    ("proto/src/tools/text.rs", &["tools"]),
    ("proto/src/trace.rs", &["trace"]),
    ("proto/src/trace/netem.rs", &["trace_json"]),
    ("proto/src/units.rs", &["units"]),
    ("proto/src/wire.rs", &["message", "lab_messages"]),
    ("crates/io/src/certificate.rs", &["certificate"]),
    ("crates/collector/src/acks/record.rs", &["acks"]),
    ("crates/collector/src/cc_info.rs", &["inet_diag"]),
    ("crates/collector/src/diag_msg.rs", &["inet_diag"]),
    ("crates/collector/src/host/procfs.rs", &["procfs"]),
    ("crates/collector/src/tcp_info.rs", &["inet_diag"]),
    ("crates/shaper/src/capture/pcapng.rs", &["pcapng"]),
    ("crates/shaper/src/datapath/coalesce.rs", &["frame"]),
    ("crates/shaper/src/datapath/header.rs", &["frame"]),
    ("crates/shaper/src/datapath/segment.rs", &["frame"]),
    ("crates/shaper/src/datapath/tcp_header.rs", &["frame"]),
    ("crates/shaper/src/datapath/vnet.rs", &["frame"]),
    ("crates/shaper/src/netlink/message.rs", &["qdisc", "rtnetlink"]),
    ("crates/shaper/src/netlink/tc_message.rs", &["qdisc"]),
    ("crates/shaper/src/offload.rs", &["rtnetlink"]),
    ("crates/shaper/src/route.rs", &["rtnetlink"]),
    ("crates/shaper/src/saved.rs", &["undo_journal"]),
    ("crates/shaper/src/stack.rs", &["rtnetlink"]),
    ("crates/agent/src/boot_loader/grub.rs", &["grub_config", "grub_environment"]),
    ("crates/agent/src/boot_loader/systemd_boot.rs", &["systemd_boot"]),
    ("crates/agent/src/caller.rs", &["caller"]),
    ("crates/agent/src/cgroup.rs", &["procfs"]),
    ("crates/agent/src/executor/read.rs", &["prepare"]),
    ("crates/agent/src/loader.rs", &["loader_request"]),
    ("crates/agent/src/mountinfo.rs", &["procfs"]),
    ("crates/agent/src/probe/http.rs", &["http"]),
    ("crates/agent/src/probe/ping.rs", &["echo_reply"]),
    ("crates/agent/src/sockets/cc_state.rs", &["cc_state"]),
    ("crates/agent/src/sockets/journal.rs", &["cc_journal"]),
    ("crates/agent/src/testbed/control_input.rs", &["control_input"]),
    ("crates/agent/src/testbed/record.rs", &["records"]),
    ("crates/agent/src/undo/journal.rs", &["undo_journal"]),
    ("crates/results/src/artifact/tar.rs", &["archive"]),
    ("crates/results/src/columns.rs", &["table"]),
    ("crates/results/src/journal.rs", &["results_journal"]),
    ("crates/results/src/parquet_file.rs", &["parquet", "parquet_table"]),
    ("crates/results/src/record.rs", &["run_record"]),
    ("crates/results/src/shard.rs", &["commit"]),
    ("crates/results/src/verdict.rs", &["verdict"]),
];

/// Targets whose input is not parsed by the product: plans and reports are generated from it.
const GENERATORS: [&str; 2] = ["generator_report", "simulation"];

/// Modules without a target, and why. Those of the controller are in a crate on which the targets do not depend.
const WITHOUT_TARGET: &[(&str, &str)] = &[
    ("crates/cli/src/pki/renewals.rs", "the controller's; lines of an authority's own file"),
    ("crates/cli/src/pki/revocations.rs", "the controller's; lines of an authority's own file"),
    ("crates/cli/src/pki/tokens.rs", "the controller's; lines of an authority's own file"),
    ("crates/cli/src/view/http.rs", "the controller's; hyper parses the requests"),
    ("crates/agent/src/rtnetlink.rs", "netlink-packet-route parses the kernel's answers"),
];

#[test]
fn every_parser_has_a_target_with_a_corpus() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut named: BTreeSet<String> = GENERATORS.map(str::to_owned).into();
    for (module, targets) in PARSERS {
        assert!(root.join(module).is_file(), "{module}, which is listed here, does not exist");
        assert!(!targets.is_empty(), "{module} has no target");
        for target in *targets {
            let inputs = super::corpus().join(target).read_dir().map_or(0, Iterator::count);
            assert!(inputs > 0, "the target {target} of {module} has no corpus");
            named.insert((*target).to_owned());
        }
    }
    assert_eq!(named, super::folders(), "each corpus is of a target of a parser");
    for (module, reason) in WITHOUT_TARGET {
        assert!(root.join(module).is_file(), "{module} ({reason}) does not exist");
        assert!(PARSERS.iter().all(|(parser, _)| parser != module), "{module} has a target");
    }
}
