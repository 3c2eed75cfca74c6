//! Compares the BPF JIT of the engine uml, a patch of ours, with the kernel's interpreter: the same trials must have the same tables. An
//! earlier version of the patch made programs read zeros, which gave plausible numbers and no error.

use ccbench_tests::run_files::{Contents, tables};
use ccbench_tests::{Bench, text};

use crate::{cores, path_with, plan};

/// What BPF programs compute here: congestion controls through struct_ops (`ect1` adds the classifier on tcx), rows at every
/// acknowledgement through fexit and tp_btf, and the program that sets the congestion control before the handshake.
const SCHEMES: [(&str, &str); 7] = [
    ("vegas", ""),
    ("ta", ""),
    ("cx", ""),
    ("dctcp", "ect1 = true\n"),
    ("prague", ""),
    ("bbr2", ""),
    ("bbr3", ""),
];

/// `nsenter` and iperf3 in the guest, under the names of tools that a trial does not need. The guest has tools because a script replaces
/// iperf3.
const NSENTER: &str = "dmesg";
const REAL_IPERF3: &str = "tcpdump";

/// Returns a plan with a point for each of ccbench's congestion controls.
fn plan_with_all_schemes() -> String {
    let instance =
        |(name, more): &(&str, &str)| format!("[cc.own_{name}]\nalgorithm = \"{name}\"\n{more}");
    let instances: String = SCHEMES.iter().map(instance).collect();
    let names: Vec<String> = SCHEMES.iter().map(|(name, _)| format!("own_{name}")).collect();
    let dualpi2 = "kind = \"dualpi2\", limit = \"1000p\", target = \"15ms\", step_thresh = \"1ms\"";
    let base = plan(1).replace("kind = \"fq_codel\"", dualpi2);
    let base = base.replace("cc = \"cubic\"", "cc = \"cubic\"\ntool = \"iperf3\"");
    format!(
        "{base}\n{instances}[sample]\nacks = \"every-ack\"\n[matrix]\n\"flows.f.cc\" = {names:?}\n"
    )
}

/// Returns the tables of a run in which the nodes load BPF programs after `bpf_jit_enable` was set: agents ask iperf3 for its version when
/// they describe their node, as root and before any program of a trial is loaded. The sysctl exists only in the first network namespace. It
/// is not set on the kernel's command line, which would change the kernel's random numbers.
fn run(bpf_jit_enable: u8) -> Contents {
    let bench = Bench::new();
    let file = "/proc/sys/net/core/bpf_jit_enable";
    let set = format!("echo {bpf_jit_enable} > {file}");
    // `read` fails although it has the value: the shell reads byte by byte, and the second read of a sysctl returns end of file.
    let is_set = format!("{{ read is < {file}; [ $is = {bpf_jit_enable} ]; }}");
    let iperf3 = format!(
        "#!/bin/sh\ncase \"$*\" in *--version*) /bin/{NSENTER} -t 1 -n /bin/sh -c '{set} && {is_set}' || exit 1;; esac\n\
         exec /bin/{REAL_IPERF3} \"$@\"\n"
    );
    let path = path_with(&bench, &[("nsenter", NSENTER), ("iperf3", REAL_IPERF3)], &iperf3);
    let plan = bench.write("plan.toml", &plan_with_all_schemes());
    let mut command = bench.command(&["run", &plan.to_string_lossy(), "--lab", "--engine", "uml"]);
    let done = command.env("PATH", path).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let record = std::fs::read_to_string(bench.results().join("run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    for node in ["a", "b"] {
        let version = &record["sessions"][0]["nodes"][node]["iperf3_version"];
        assert!(version.as_str().is_some_and(|text| !text.is_empty()), "{file}, {node}: {record}");
    }
    let mut found = tables(&bench);
    // Events contain the digest of the userland, which includes the script.
    found.retain(|name, _| !name.starts_with("events/"));
    found
}

#[test]
fn interpreter_gives_the_same_tables() {
    assert_eq!(cores(), SCHEMES.map(|(name, _)| name));
    let (jit, interpreter) = (run(1), run(0));
    for point in 0..SCHEMES.len() {
        for table in ["flow_samples", "acks", "ack_counts", "tcp_events", "cc_state"] {
            let name = format!("{table}/point={point}/trial-01/part-0.parquet");
            assert!(jit.contains_key(&name), "{name}: {:?}", jit.keys());
        }
    }
    assert_eq!(jit.keys().collect::<Vec<_>>(), interpreter.keys().collect::<Vec<_>>());
    let differs = jit.iter().filter(|(name, bytes)| interpreter[*name] != **bytes);
    let different: Vec<&String> = differs.map(|(name, _)| name).collect();
    assert!(different.is_empty(), "these differ with the interpreter: {different:#?}");
}
