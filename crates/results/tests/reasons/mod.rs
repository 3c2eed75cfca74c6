//! Tests how the reasons of degraded and failed trials are printed.

use ccbench_results::reason::ReasonCode;
use ccbench_tests::run_files::edit_record;

use super::*;

/// A trial: its reasons, and its host samples (CPU steal in percent, and length in milliseconds).
type Trial<'a> = (&'a [(&'a str, &'a str)], &'a [(f64, u64)]);

/// Creates a run with one point.
fn run_with(root: &Path, trials: &[Trial], backend: RunBackend) -> PathBuf {
    let points = vec![(0, vec![])];
    let repeat = trials.len() as u32;
    let notes = backend.notes();
    let run = RunInfo { points, repeat, backend, notes, ..info() };
    let run = RunDir::create(root, &run).unwrap();
    for ((reasons, samples), trial) in trials.iter().zip(1..) {
        let mut writer = begin(&run, 0, trial);
        fill(&mut writer, 0.0);
        let mut at_ns = T0_NS[0].1;
        for (cpu_steal_pct, gap_ms) in *samples {
            let gap_ns = gap_ms * 1_000_000;
            at_ns += gap_ns;
            let sample = wire::HostSample {
                at_ns,
                gap_ns,
                cpu_steal_pct: *cpu_steal_pct,
                ..Default::default()
            };
            push(&mut writer, "src", Payload::HostSample(sample));
        }
        let status = if reasons.is_empty() { Status::Ok } else { Status::Degraded };
        writer.commit(&verdict(status, reasons)).unwrap();
    }
    run.finish(RunStatus::Complete).unwrap();
    run.path().to_path_buf()
}

fn printed(trials: &[Trial]) -> String {
    let root = tempfile::tempdir().unwrap();
    text_of(&run_with(root.path(), trials, RunBackend::Testbed))
}

fn text_of(run: &Path) -> String {
    table::text(&RunSummary::compute(run, TrialFilter::default()).unwrap(), 120)
}

const ADVICE: &str = "What helps: `--lab` (virtual time, independent of the host's load), `--sim` (no kernel, in seconds), fewer nodes per CPU core, an idle machine.\n";

#[test]
fn prints_each_reason_once_with_measured_steal_and_advice() {
    let late = ("link_late", "link delay: 3.4 % of 1000 packets left late");
    let later = ("link_late", "link delay: 5.1 % of 1000 packets left late");
    let low = ("link_rate_low", "link bottleneck: 80 Mbit/s");
    let text = printed(&[
        (&[late, low], &[(30.0, 1_000), (10.0, 3_000)]),
        (&[], &[(90.0, 1_000)]),
        (&[later], &[(2.0, 1_000), (4.0, 1_000)]),
    ]);
    let expected = "\
degraded: link_late [trials 1, 3 of 3]: trial 1: link delay: 3.4 % of 1000 packets left late
degraded: link_rate_low [trial 1 of 3]: link bottleneck: 80 Mbit/s

CPU steal (mean over a trial): 15.0 % in trial 1, 3.0 % in trial 3. The hypervisor gave CPU time to other virtual machines.
";
    assert!(text.contains(&format!("{expected}{ADVICE}")), "{text}");
}

#[test]
fn a_single_trial_is_named_once() {
    let lost = [("tcp_events_lost", "src: 1 row"), ("tcp_events_lost", "src: 2 rows")];
    let text = printed(&[(&lost, &[])]);
    assert!(text.contains("degraded: tcp_events_lost [trial 1 of 1]: src: 1 row\n"), "{text}");
}

#[test]
fn separates_reasons_of_different_links() {
    let [one, two] = ["a", "b"].map(|link| format!("link {link}: late"));
    let text = printed(&[(&[("link_late", &one), ("link_late", &two)], &[])]);
    assert!(text.contains("link_late [trial 1 of 1]: link a: late\n"), "{text}");
    assert!(text.contains("link_late [trial 1 of 1]: link b: late\n"), "{text}");
    assert!(
        text.contains("CPU steal (mean over a trial): not measured. ccbench did not"),
        "{text}"
    );
}

/// Messages that differ only in measured values, even before their first colon, are one reason.
#[test]
fn measured_values_do_not_separate_reasons() {
    let root = tempfile::tempdir().unwrap();
    let trial = |trial, counted: u32| {
        let message = format!("senders counted {counted} CE marks (limits 9 to {counted}: 2 %)");
        let reasons = vec![Reason::about(ReasonCode::CeCountOff, "", message)];
        (0, trial, 0.0, Verdict { status: Status::Degraded, reasons })
    };
    let run = made_of(root.path(), [trial(1, 5), trial(2, 7)]);
    let text = text_of(&run);
    assert_eq!(text.matches("ce_count_off").count(), 1, "{text}");
    assert!(text.contains(", trials 1, 2]: point 0, trial 1: senders counted 5"), "{text}");
}

#[test]
fn low_steal_blames_this_machine() {
    let text = printed(&[(&[("cpu_bound", "src: busy")], &[(0.2, 1_000)])]);
    assert!(text.contains("0.2 % in trial 1. Steal is low: other processes"), "{text}");
}

#[test]
fn many_trials_are_summarised_as_a_range() {
    let late = [("link_late", "link delay: late")];
    let steal: Vec<[(f64, u64); 1]> = (1..=6).map(|pct| [(f64::from(pct), 1_000)]).collect();
    let trials: Vec<Trial> = steal.iter().map(|samples| (&late[..], &samples[..])).collect();
    let text = printed(&trials);
    assert!(text.contains("link_late [trials 1 to 6 of 6]: link delay: late"), "{text}");
    assert!(text.contains("1.0 to 6.0 % in 6 trials."), "{text}");
}

#[test]
fn gives_no_advice_without_a_lack_of_cpu_time() {
    let text = printed(&[(&[("base_rtt", "flows.x: 12 ms")], &[(50.0, 1_000)])]);
    assert!(text.contains("degraded: base_rtt [trial 1 of 1]: flows.x: 12 ms"), "{text}");
    assert!(!text.contains("steal") && !text.contains("What helps"), "{text}");
}

/// Without it, simulated claims would pass for those of a kernel.
#[test]
fn claims_of_a_simulated_run_have_its_note() {
    let root = tempfile::tempdir().unwrap();
    let run = run_with(root.path(), &[(&[], &[])], RunBackend::Simulator { model_version: 3 });
    let summary = RunSummary::compute(&run, TrialFilter::default()).unwrap();
    let mut out = Vec::new();
    table::print_claims(&summary, &mut out, 120).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("\nnote: simulated: model 3,"), "{text}");
}

/// On a virtual clock, the host's load cannot cause reasons.
#[test]
fn gives_no_advice_on_a_virtual_clock() {
    let trials: &[Trial] = &[(&[("samples_missing", "flows.x: 3 of 9")], &[(50.0, 1_000)])];
    assert!(printed(trials).contains("What helps"));
    let root = tempfile::tempdir().unwrap();
    let simulator = RunBackend::Simulator { model_version: 3 };
    for backend in [RunBackend::Lab { images: vec![] }, simulator] {
        let text = text_of(&run_with(root.path(), trials, backend));
        assert!(text.contains("samples_missing") && !text.contains("What helps"), "{text}");
    }
    // Runs of earlier versions have only a note.
    let run = run_with(root.path(), trials, RunBackend::Simulator { model_version: 2 });
    edit_record(&run, |record| {
        assert!(record.as_object_mut().unwrap().remove("backend").is_some());
        record["topology"] = "Topology { nodes: {} }".into();
    });
    let text = text_of(&run);
    assert!(text.contains("note: simulated: model 2,") && !text.contains("What helps"), "{text}");
}
