//! Places concurrent lab trials (`--jobs`): each gets a CPU of its own, and all of them fit in memory.

use std::path::PathBuf;

use super::{MEMORY_MIB, cpu, uml};
use crate::jobs;

/// The resources of this machine that a guest gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestResources {
    /// The CPU. `None` means the least busy one at the start (engine uml), or any (qemu).
    pub cpu: Option<usize>,
    /// Directory of the guest's memory with the engine uml. `None` means the first one with enough space.
    pub memory_folder: Option<PathBuf>,
}

/// Returns the resources of each concurrent trial, and a note if there are fewer trials than wanted. `in_folder` means that guests keep their
/// memory in files (engine uml).
pub fn guest_resources(
    wanted: Option<u32>,
    trials: usize,
    in_folder: bool,
) -> (Vec<GuestResources>, Option<String>) {
    let wanted_jobs = jobs::count(wanted, trials);
    let folders = if in_folder { uml::memory_folders() } else { Vec::new() };
    let memory = HostMemory { available_mib: available_mib(), folders };
    let (jobs, memory_folder, note) = memory.for_jobs(wanted_jobs);
    if jobs == 1 {
        return (vec![GuestResources { cpu: None, memory_folder: None }], note);
    }
    (on_cpus(&cpu::least_busy_first(), jobs, memory_folder.as_ref()), note)
}

/// Returns the resources of each job. Jobs share CPUs only if there are more jobs than CPUs.
fn on_cpus(cpus: &[usize], jobs: usize, memory_folder: Option<&PathBuf>) -> Vec<GuestResources> {
    let with_cpu =
        |cpu: &usize| GuestResources { cpu: Some(*cpu), memory_folder: memory_folder.cloned() };
    cpus.iter().cycle().take(jobs).map(with_cpu).collect()
}

/// Memory available for guests.
struct HostMemory {
    /// Available memory of this machine; `None` if unknown.
    available_mib: Option<u64>,
    /// Directories for the guests' memory, in order of preference, with their free space in MiB; empty if guests need none.
    folders: Vec<(PathBuf, u64)>,
}

impl HostMemory {
    /// Returns the number of jobs that fit, the directory for their memory, and a note if they are fewer than wanted.
    fn for_jobs(&self, wanted: usize) -> (usize, Option<PathBuf>, Option<String>) {
        let guests = |mib: u64| usize::try_from(mib / u64::from(MEMORY_MIB)).unwrap_or(usize::MAX);
        let in_memory = self.available_mib.map_or(wanted, guests);
        // Takes the first directory with room for all, or else the one with the most space.
        let all = self.folders.iter().find(|(_, mib)| guests(*mib) >= wanted);
        let folder = all.or_else(|| self.folders.iter().max_by_key(|(_, mib)| *mib));
        let in_folder = folder.map_or(wanted, |(_, mib)| guests(*mib));
        let jobs = wanted.min(in_memory).min(in_folder).max(1);
        let memory_folder = folder.map(|(folder, _)| folder.clone());
        if jobs == wanted {
            return (jobs, memory_folder, None);
        }
        let room = match (self.available_mib, folder) {
            (_, Some((folder, mib))) if in_folder <= in_memory => {
                format!("{mib} MiB are free in {}", folder.display())
            }
            (available, _) => format!("{} MiB of memory are available", available.unwrap_or(0)),
        };
        let note = format!(
            "--jobs {jobs} instead of {wanted}: each running trial needs {MEMORY_MIB} MiB, and {room}"
        );
        (jobs, memory_folder, Some(note))
    }
}

/// Returns the memory that processes can get without swapping, in MiB.
fn available_mib() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(available_mib: u64, folders: &[(&str, u64)]) -> HostMemory {
        let folders = folders.iter().map(|(folder, mib)| (PathBuf::from(folder), *mib)).collect();
        HostMemory { available_mib: Some(available_mib), folders }
    }

    #[test]
    fn jobs_fit_into_memory_and_folder() {
        let shm = Some(PathBuf::from("/shm"));
        let large = memory(9000, &[("/shm", 5000), ("/disk", 9000)]);
        assert_eq!(large.for_jobs(4), (4, shm.clone(), None));
        let (jobs, folder, note) = memory(9000, &[("/shm", 1600), ("/disk", 900)]).for_jobs(4);
        assert_eq!((jobs, folder), (2, shm.clone()));
        assert!(note.unwrap().contains("768 MiB, and 1600 MiB are free in /shm"));
        let (jobs, _, note) = memory(1600, &[("/shm", 9000)]).for_jobs(4);
        assert_eq!(jobs, 2);
        assert!(note.unwrap().contains("--jobs 2 instead of 4"), "names what it does");
        let disk = memory(9000, &[("/shm", 64), ("/disk", 9000)]).for_jobs(3);
        assert_eq!(disk, (3, Some("/disk".into()), None), "the first that has room for all");
        let (jobs, _, note) = memory(100, &[]).for_jobs(2);
        assert!(jobs == 1 && note.unwrap().contains("100 MiB of memory are available"));
        let unknown = HostMemory { available_mib: None, folders: vec![] };
        assert_eq!(unknown.for_jobs(3), (3, None, None));
    }

    #[test]
    fn each_job_has_its_own_cpu_while_there_are_enough() {
        let cpus = |jobs| -> Vec<_> {
            on_cpus(&[2, 0], jobs, None).iter().filter_map(|guest| guest.cpu).collect()
        };
        assert_eq!(cpus(1), [2]);
        assert_eq!(cpus(2), [2, 0]);
        assert_eq!(cpus(3), [2, 0, 2]);
    }

    #[test]
    fn reads_the_available_memory() {
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:    2048000 kB\n";
        assert_eq!(available_in(meminfo), Some(2000));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
    }
}
