//! Combines shards of a small plan, and compares the result with one run of all trials.

use ccbench_proto::schedule::shard_trials;
use ccbench_tests::plans;
use polars::df;

use super::*;
use crate::backend::RunBackend;
use crate::model::{NodeClock, RunInfo, TrialKey};
use crate::part::write_parquet;
use crate::shard::tests::attempt;
use crate::store::RunDir;
use crate::summary::query::scan;
use crate::trial::tests::{good, info};
use crate::verify::verify;

fn plan_text() -> String {
    plans::of_lengths("name = \"merged\"\nseed = 3\nrepeat = 4", &["10s", "20s"])
}

fn plan() -> CheckedPlan {
    check::read(&plan_text(), &[]).unwrap().0
}

fn run_info(backend: RunBackend) -> RunInfo {
    RunInfo {
        plan_name: "merged".into(),
        plan_text: plan_text(),
        resolved_text: plan_text(),
        plan_sha256: ccbench_proto::plan::digest(&plan_text()),
        points: (0..2).map(|id| (id, vec![("length".to_owned(), id.to_string())])).collect(),
        repeat: 4,
        seed: 3,
        ccs: BTreeMap::from([("aimd.bpf.o".into(), b"object".to_vec())]),
        backend,
        ..info()
    }
}

/// Runs these trials. Another `skew` gives different tables.
fn run(root: &Path, backend: RunBackend, trials: &[ScheduledTrial], skew: u64) -> RunDir {
    let run = RunDir::create(root, &run_info(backend)).unwrap();
    for trial in trials {
        let ScheduledTrial { index, point_id, trial, seed } = *trial;
        let key = TrialKey { point_id, trial, seed, epoch: u64::from(index) + 1 };
        let clock = NodeClock::shared(5_000_000_000 + skew, 1_700_000_000_000_000_000);
        let clocks = BTreeMap::from([("src".to_owned(), clock)]);
        run.begin_trial(key, &[], clocks).unwrap().commit(&good()).unwrap();
    }
    run
}

/// A store with the output of shards, as a folder of results directories.
struct Shards {
    root: TempDir,
    sessions: Vec<Session>,
    commits: Vec<Commit>,
    dirs: BTreeMap<String, RunDir>,
}

impl Shards {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        Self { root, sessions: vec![], commits: vec![], dirs: BTreeMap::new() }
    }

    /// Runs an attempt at shard `number` of 3, and returns its commits.
    fn attempt(&mut self, id: &str, number: u32, backend: RunBackend, skew: u64) -> Vec<Commit> {
        let (attempt, root) = (attempt(id, number, 3), self.root.path().join(id));
        let trials = shard_trials(&plan(), Shard::new(number, 3).unwrap());
        let run = run(&root, backend, &trials, skew);
        self.sessions.push(run.session(&attempt));
        let commit = |trial: &ScheduledTrial| run.commit_of(&attempt, trial.point_id, trial.trial);
        let commits = trials.iter().filter_map(commit).collect();
        self.dirs.insert(id.to_owned(), run);
        commits
    }

    fn three() -> Self {
        let mut shards = Self::new();
        for number in 1..=3 {
            let commits = shards.attempt(&format!("a{number}"), number, RunBackend::Testbed, 0);
            shards.commits.extend(commits);
        }
        shards
    }

    fn merge(&self, duplicates: &[Commit]) -> Result<Merge> {
        let staging = Staging::new(&self.root.path().join("results")).unwrap();
        let first = self.dirs.values().next().unwrap();
        for name in first.run_files() {
            std::fs::copy(first.path().join(&name), staging.file(&name).unwrap()).unwrap();
        }
        Merge::new(staging, self.sessions.clone(), self.commits.clone(), duplicates)
    }

    /// Copies the files of all trials, and finishes the merge.
    fn finish(&self, merge: Merge) -> Result<PathBuf> {
        for commit in merge.commits() {
            let attempt = &commit.attempt;
            for (key, path) in merge.files(commit)? {
                let name = key.strip_prefix(&format!("files/{}/", attempt.id)).unwrap();
                std::fs::copy(self.dirs[&attempt.id].path().join(name), path).unwrap();
            }
            merge.check(commit)?;
        }
        merge.finish("merged".to_owned())
    }

    /// Returns how many entries `results` has, without hidden ones.
    fn results(&self) -> usize {
        let entries = std::fs::read_dir(self.root.path().join("results")).unwrap();
        entries.count()
    }
}

#[test]
fn merged_shards_are_as_one_run() {
    let mut shards = Shards::three();
    // An attempt that did not add a trial.
    shards.attempt("failed", 2, RunBackend::Simulator { model_version: 1 }, 0);
    let merge = shards.merge(&[]).unwrap();
    assert_eq!((merge.commits().count(), merge.missing()), (8, vec![]));
    let path = shards.finish(merge).unwrap();
    assert_eq!(shards.results(), 1, "no temporary directory is left");
    let root = tempfile::tempdir().unwrap();
    let whole = run(root.path(), RunBackend::Testbed, &schedule::trials(&plan()), 0);
    whole.finish(RunStatus::Complete).unwrap();
    let (one, other) = (verify(whole.path()).unwrap(), verify(&path).unwrap());
    assert_eq!((&one.damaged, &other.damaged), (&vec![], &vec![]));
    assert_eq!((&one.not_covered, &other.not_covered), (&vec![], &vec![]));
    assert_eq!(one.digests, other.digests);
    assert_eq!(other.trials, 8);
    let merged = RunDir::open(&path).unwrap();
    assert_eq!(merged.trials(), whole.trials());
    assert_eq!(merged.run_files(), whole.run_files());
    assert!(merged.run_files().contains(&"cc/aimd.bpf.o".to_owned()), "{:?}", merged.run_files());
    assert_eq!((merged.status(), merged.planned()), (RunStatus::Complete, 8));
    let (record, _) = RunRecord::read(&path).unwrap();
    let attempts: Vec<&str> = record
        .sessions
        .iter()
        .map(|session| session.attempt.as_ref().unwrap().id.as_str())
        .collect();
    assert_eq!(attempts, ["a1", "a2", "a3"]);
    let mut notes = record.notes.clone();
    assert_eq!(notes.pop().unwrap(), "merged");
}

#[test]
fn a_compacted_run_has_the_same_rows_and_is_only_read() {
    let shards = Shards::three();
    let path = shards.finish(shards.merge(&[]).unwrap().compacted()).unwrap();
    let found = verify(&path).unwrap();
    assert_eq!((&found.damaged, &found.not_covered), (&vec![], &vec![]));
    let root = tempfile::tempdir().unwrap();
    let whole = run(root.path(), RunBackend::Testbed, &schedule::trials(&plan()), 0);
    let merged = RunDir::open(&path).unwrap();
    assert!(merged.is_compacted() && !whole.is_compacted());
    let mut tables = BTreeSet::new();
    for (one, other) in whole.trials().iter().zip(&merged.trials()) {
        assert_eq!(
            (one.point_id, one.trial, &one.rows),
            (other.point_id, other.trial, &other.rows)
        );
        for table in one.rows.keys() {
            let rows = |run: &RunDir, end: &TrialEnd| {
                scan(run, table, &[end]).unwrap().unwrap().collect().unwrap()
            };
            assert!(rows(&whole, one).equals_missing(&rows(&merged, other)), "{table}");
            tables.insert(table.clone());
        }
    }
    assert!(!tables.is_empty());
    // All trials except one in the middle.
    for table in &tables {
        let without = |run: &RunDir| {
            let ends = run.trials();
            let ends: Vec<&TrialEnd> = ends.iter().filter(|end| end.trial != 2).collect();
            scan(run, table, &ends).unwrap().unwrap().collect().unwrap()
        };
        assert!(without(&whole).equals_missing(&without(&merged)), "{table}");
        let names: Vec<PathBuf> = crate::layout::list(&path.join("tables").join(table)).unwrap();
        assert_eq!(names, [path.join("tables").join(table).join("part-0.parquet")]);
    }
    let refused = RunDir::resume(&path, &run_info(RunBackend::Testbed)).unwrap_err().to_string();
    assert!(refused.contains("is compacted"), "{refused}");
    // A damaged file fails all trials with rows in it.
    let table = tables.first().unwrap();
    let file = path.join("tables").join(table).join("part-0.parquet");
    let length = std::fs::read(&file).unwrap().len();
    std::fs::write(&file, vec![0; length]).unwrap();
    let damaged = RunDir::open(&path).unwrap();
    assert_eq!(damaged.counts(), (8, 0, 0), "sizes are the same");
    damaged.check(|_| true);
    assert_eq!(damaged.counts(), (0, 0, 8));
    assert_eq!(verify(&path).unwrap().damaged.len(), 1);
}

#[test]
fn merged_tables_of_earlier_versions_have_current_columns() {
    let mut shards = Shards::three();
    for (commit, column) in shards.commits.iter_mut().zip(["asked_t_ns", "requested_t_ns"]) {
        let (point_id, trial) = (commit.trial.point_id, commit.trial.trial);
        let run = &shards.dirs[&commit.attempt.id];
        let file = run.part("link_changes", point_id, trial);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        write_parquet(&df!(column => [7_i64]).unwrap(), &file).unwrap();
        let name = file.strip_prefix(run.path()).unwrap().to_string_lossy().into_owned();
        commit.trial.rows.insert("link_changes".to_owned(), 1);
        commit.trial.digests.insert(name, FileDigest::of_file(&file).unwrap());
    }
    for is_compacted in [false, true] {
        let merge = shards.merge(&[]).unwrap();
        let merge = if is_compacted { merge.compacted() } else { merge };
        let run = RunDir::open(&shards.finish(merge).unwrap()).unwrap();
        assert_eq!(run.is_compacted(), is_compacted);
        let ends = run.trials();
        let ends: Vec<&TrialEnd> = ends.iter().collect();
        let rows = scan(&run, "link_changes", &ends).unwrap().unwrap().collect().unwrap();
        let expected = df!("requested_t_ns" => [7_i64, 7]).unwrap();
        assert!(rows.equals(&expected), "{rows}");
    }
}

#[test]
fn a_merged_run_has_the_name_of_its_plan() {
    let mut shards = Shards::three();
    for session in &mut shards.sessions {
        session.record.plan_name = "../outside".to_owned();
    }
    let path = shards.finish(shards.merge(&[]).unwrap()).unwrap();
    assert_eq!(path.parent(), Some(shards.root.path().join("results").as_path()));
    assert_eq!(RunRecord::read(&path).unwrap().0.plan_name, "merged");
}

#[test]
fn a_merged_run_can_be_resumed() {
    let mut shards = Shards::three();
    let lost = shards.commits.pop().unwrap();
    let merge = shards.merge(&[]).unwrap();
    let trial = (lost.trial.point_id, lost.trial.trial);
    let missing = vec![Missing { shard: Shard::new(3, 3), trials: vec![trial] }];
    assert_eq!(merge.missing(), missing);
    let path = shards.finish(merge).unwrap();
    let run = RunDir::resume(&path, &run_info(RunBackend::Testbed)).unwrap();
    assert_eq!(run.finished().len(), 7);
    assert!(!run.finished().contains(&trial));
}

#[test]
fn shards_of_two_partitions_are_not_named() {
    let mut shards = Shards::three();
    shards.commits.pop();
    shards.sessions[0].attempt.shards = 4;
    let missing = shards.merge(&[]).unwrap().missing();
    assert_eq!((missing.len(), missing[0].shard), (1, None));
}

#[test]
fn a_duplicate_is_compared_with_the_trial_that_is_used() {
    let mut shards = Shards::three();
    let equal = shards.attempt("b", 1, RunBackend::Testbed, 0);
    let other = shards.attempt("c", 1, RunBackend::Testbed, 1);
    let merge = shards.merge(&[equal[0].clone(), other[0].clone()]).unwrap();
    let found: Vec<(&str, &str, bool)> = merge
        .duplicates()
        .iter()
        .map(|found| (found.used.as_str(), found.discarded.as_str(), found.equal))
        .collect();
    assert_eq!(found, [("a1", "b", true), ("a1", "c", false)]);
    assert!(!merge.is_repeatable());
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let refused = |change: &dyn Fn(&mut Shards)| {
        let mut shards = Shards::three();
        change(&mut shards);
        let error = shards.merge(&[]).and_then(|merge| shards.finish(merge)).unwrap_err();
        assert_eq!(shards.results(), 0, "nothing is left");
        error.to_string()
    };
    let error = refused(&|shards| shards.commits[1].plan_sha256 = "0".repeat(64));
    assert!(error.contains("belongs to another plan"), "{error}");
    let error = refused(&|shards| shards.sessions[1].record.plan_sha256 = "0".repeat(64));
    assert!(error.starts_with("sessions/a2.json belongs to another plan"), "{error}");
    let error = refused(&|shards| shards.commits[1].trial.seed += 1);
    assert!(error.contains("is not a trial of the plan, or has another seed"), "{error}");
    let error = refused(&|shards| shards.commits[1].trial.trial = 5);
    assert!(error.contains("is not a trial of the plan"), "{error}");
    let error = refused(&|shards| {
        shards.sessions.clear();
        shards.commits.clear();
    });
    assert!(error.starts_with("no shard has started"), "{error}");
    // The other sessions have one backend, but do not show this trial's.
    let error = refused(&|shards| {
        let other = shards.attempt("sim", 1, RunBackend::Simulator { model_version: 1 }, 0);
        shards.commits[0] = other[0].clone();
        shards.sessions.retain(|session| session.attempt.id != "sim");
    });
    let expected = "sessions/sim.json is missing, so the backend on which attempt sim of shard 1/3 ran commits/point=";
    assert!(error.starts_with(expected), "{error}");
    let error = refused(&|shards| {
        let other = shards.attempt("sim", 1, RunBackend::Simulator { model_version: 1 }, 0);
        shards.commits[0] = other[0].clone();
    });
    assert!(error.contains("ran on different backends"), "{error}");
    let error = refused(&|shards| {
        let digests = &mut shards.commits[0].trial.digests;
        digests.values_mut().next().unwrap().sha256 = "0".repeat(64);
    });
    assert!(error.contains("its SHA-256 differs"), "{error}");
    assert!(error.contains("remove commits/point="), "{error}");
    let error = refused(&|shards| {
        let digests = &mut shards.commits[0].trial.digests;
        let digest = digests.values().next().unwrap().clone();
        digests.insert("tables/../../../x".to_owned(), digest);
    });
    assert!(error.contains("is damaged"), "{error}");
    for table in ["../../outside", "..", "flow_samples/point=0"] {
        let error = refused(&|shards| {
            shards.commits[0].trial.rows.insert(table.to_owned(), 0);
        });
        assert!(error.contains("is damaged"), "{error}");
    }
    let error = refused(&|shards| {
        let mut session = shards.sessions[0].clone();
        session.attempt.id = "../a1".to_owned();
        shards.commits[0].attempt = session.attempt.clone();
        shards.sessions.push(session);
    });
    assert!(error.contains("is damaged"), "{error}");
}
