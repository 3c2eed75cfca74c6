//! Tests processes that are stopped for a time, replaced meanwhile, or killed because memory runs out.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ccbench_tests::skip::skip;
use rustix::process::Signal;

use crate::failure::Failure;
use crate::lane::{CLEAN, FaultResult, Lane, RUN, SHORT};
use crate::memory_cgroup::MemoryCgroup;
use crate::nodes::{controller, controller_into, read, send};
use crate::victim::Victim;

/// The processes that are stopped and that run out of memory.
const VICTIMS: [Victim; 2] = [Victim::Agent, Victim::Controller];
/// When a process is stopped, after the start of the controller: while nodes are prepared, in each trial, and at the end.
const AT_MS: [u64; 4] = [400, 1_200, 1_800, 2_600];
/// Shorter and longer than the tolerated silence.
const LENGTH_MS: [u64; 2] = [1_500, 8_000];
/// When a controller that is replaced by another one is stopped: while nodes are prepared, and in each trial.
const RIVAL_AT_MS: [u64; 3] = [800, 1_200, 1_800];
/// Memory limits in percent of what the process takes without a limit. Below 40 %, it hardly starts.
const PERCENT: [u64; 10] = [40, 45, 50, 55, 60, 65, 70, 75, 80, 85];

/// What happens to a process. Written as `stop:agent:400:8000`, `rival:800` or `oom:agent:70`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessFault {
    /// SIGSTOP, later SIGCONT.
    Stop { victim: Victim, at_ms: u64, length_ms: u64 },
    /// SIGSTOP of the controller, and SIGCONT after another one has used the nodes.
    Rival { at_ms: u64 },
    /// Its control group has less memory than the process takes.
    OutOfMemory { victim: Victim, percent: u64 },
}

impl fmt::Display for ProcessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop { victim, at_ms, length_ms } => {
                write!(f, "stop:{}:{at_ms}:{length_ms}", victim.name())
            }
            Self::Rival { at_ms } => write!(f, "rival:{at_ms}"),
            Self::OutOfMemory { victim, percent } => write!(f, "oom:{}:{percent}", victim.name()),
        }
    }
}

/// Text that names no such fault.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not stop:VICTIM:AT_MS:LENGTH_MS, rival:AT_MS or oom:VICTIM:PERCENT")]
pub struct NotAProcessFault(String);

impl FromStr for ProcessFault {
    type Err = NotAProcessFault;

    fn from_str(text: &str) -> Result<Self, NotAProcessFault> {
        let wrong = || NotAProcessFault(text.to_owned());
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let victim = |name: &str| {
            let named = Victim::named(name).filter(|victim| VICTIMS.contains(victim));
            named.ok_or_else(wrong)
        };
        match &text.split(':').collect::<Vec<_>>()[..] {
            ["stop", name, at_ms, length_ms] => {
                let (at_ms, length_ms) = (number(at_ms)?, number(length_ms)?);
                Ok(Self::Stop { victim: victim(name)?, at_ms, length_ms })
            }
            ["rival", at_ms] => Ok(Self::Rival { at_ms: number(at_ms)? }),
            ["oom", name, percent] => {
                Ok(Self::OutOfMemory { victim: victim(name)?, percent: number(percent)? })
            }
            _ => Err(wrong()),
        }
    }
}

/// Returns all of them; without control groups that limit memory, those that need none.
pub fn process_faults() -> Vec<ProcessFault> {
    let mut all = Vec::new();
    let limits_memory = MemoryCgroup::new().is_some();
    if !limits_memory {
        skip("no control group limits memory here: processes do not run out of it");
    }
    all.extend(RIVAL_AT_MS.map(|at_ms| ProcessFault::Rival { at_ms }));
    for victim in VICTIMS {
        for at_ms in AT_MS {
            let stop = |length_ms| ProcessFault::Stop { victim, at_ms, length_ms };
            all.extend(LENGTH_MS.map(stop));
        }
        if limits_memory {
            all.extend(PERCENT.map(|percent| ProcessFault::OutOfMemory { victim, percent }));
        }
    }
    all
}

impl Lane {
    pub fn fault_process(&mut self, fault: &ProcessFault) -> Result<FaultResult, Failure> {
        match *fault {
            ProcessFault::Stop { victim, at_ms, length_ms } => self.stop(victim, at_ms, length_ms),
            ProcessFault::Rival { at_ms } => self.replace_controller(at_ms),
            ProcessFault::OutOfMemory { victim, percent } => self.out_of_memory(victim, percent),
        }
    }

    fn stop(&mut self, victim: Victim, at_ms: u64, length_ms: u64) -> Result<FaultResult, Failure> {
        self.ensure_started()?;
        let mut child = controller(&self.bench, &self.nodes[0], &[], &SHORT).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(at_ms));
        let injected = child.try_wait().unwrap().is_none();
        let pid = match victim {
            Victim::Agent => self.nodes[0].pid(),
            _ => injected.then(|| child.id()),
        };
        send(pid, Signal::STOP);
        std::thread::sleep(Duration::from_millis(length_ms));
        send(pid, Signal::CONT);
        let status = self.wait(child)?;
        self.check_code(status, false)?;
        self.check_logs()?;
        self.check_results(status.success().then_some(2))?;
        self.check_after()?;
        Ok(FaultResult { code: status.code(), injected })
    }

    /// The second controller's run is ok as soon as the nodes are free. The first controller then disturbs nothing.
    fn replace_controller(&mut self, at_ms: u64) -> Result<FaultResult, Failure> {
        self.ensure_started()?;
        let files = ["first-out", "first-err"];
        let mut first = controller_into(&self.bench, &self.nodes[0], &[], &SHORT, files);
        let mut first = first.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(at_ms));
        let injected = first.try_wait().unwrap().is_none();
        let pid = injected.then(|| first.id());
        send(pid, Signal::STOP);
        let second = self.wait_until_unchanged(&[0, 1]).and_then(|()| self.expect_ok(&CLEAN));
        send(pid, Signal::CONT);
        let status = self.wait(first)?;
        second?;
        let printed = read(&self.bench.path(files[1]));
        if printed.contains("panicked") {
            return Err(Failure::Panicked { printed });
        }
        self.check_code(status, false)?;
        self.check_logs()?;
        self.check_results(None)?;
        self.check_after()?;
        Ok(FaultResult { code: status.code(), injected })
    }

    fn out_of_memory(&mut self, victim: Victim, percent: u64) -> Result<FaultResult, Failure> {
        let peak = match self.peaks[victim as usize] {
            Some(peak) => peak,
            None => self.measure_peak(victim)?,
        };
        let group = MemoryCgroup::new().unwrap();
        group.set_limit(peak * percent / 100);
        let code = match victim {
            Victim::Agent => {
                let status = self.run_with_agent(victim, &group.wrapper(), &SHORT)?;
                self.check_agent(status, true)?
            }
            _ => {
                self.ensure_started()?;
                let status = self.run(&group.wrapper(), &RUN)?;
                self.check_controller(status, true)?;
                status.code()
            }
        };
        Ok(FaultResult { code, injected: group.kills() > 0 })
    }

    /// Returns the memory that a process takes in a run without a fault, in bytes.
    fn measure_peak(&mut self, victim: Victim) -> Result<u64, Failure> {
        let group = MemoryCgroup::new().unwrap();
        let (wrapper, plain) = (group.wrapper(), Vec::new());
        // The same run as the one with the limit.
        let (of_agent, of_controller, arguments) = match victim {
            Victim::Agent => (&wrapper, &plain, &SHORT[..]),
            _ => (&plain, &wrapper, &RUN[..]),
        };
        self.start(of_agent)?;
        let status = self.run(of_controller, arguments)?;
        self.check_code(status, false)?;
        self.nodes[0].stop()?;
        let peak = group.peak();
        self.peaks[victim as usize] = Some(peak);
        self.check_after_measurement()?;
        Ok(peak)
    }

    /// Prepares for the next fault: an agent without a limit, and no results.
    fn check_after_measurement(&mut self) -> Result<(), Failure> {
        self.start(&[])?;
        self.wait_until_free(&[0, 1])?;
        self.remove_results();
        Ok(())
    }
}

#[test]
fn a_process_fault_is_read_back() {
    for text in ["stop:controller:400:8000", "rival:800", "oom:agent:70"] {
        assert_eq!(text.parse::<ProcessFault>().unwrap().to_string(), text);
    }
    for text in ["stop:agent:400", "oom:nobody:70", "oom:front:70", "agent:sendto:KILL:17"] {
        assert!(text.parse::<ProcessFault>().is_err(), "{text}");
    }
}
