//! Descriptors that are kept for undoing: a process that has as many open files as it may (`RLIMIT_NOFILE`) could otherwise undo nothing.

use std::fs::File;

/// More than undoing opens at the same time: a netlink socket, a namespace, a journal and its copy, a file of procfs or sysfs.
const DESCRIPTORS: usize = 16;

/// Descriptors of /dev/null, which are closed while the process undoes.
#[derive(Debug, Default)]
pub(super) struct Reserve(Vec<File>);

impl Reserve {
    /// Takes the descriptors. Take them early: if the limit is lowered, the kernel permits only descriptors with low numbers.
    pub(super) fn take() -> Self {
        let mut reserve = Self::default();
        reserve.refill();
        reserve
    }

    /// Closes the descriptors.
    pub(super) fn release(&mut self) {
        self.0.clear();
    }

    /// Takes the descriptors again, as many as the process gets.
    pub(super) fn refill(&mut self) {
        while self.0.len() < DESCRIPTORS {
            match File::open("/dev/null") {
                Ok(file) => self.0.push(file),
                Err(error) => {
                    let (held, wanted) = (self.0.len(), DESCRIPTORS);
                    tracing::warn!(%error, held, wanted, "reserve descriptors for undoing");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn descriptors_are_held_released_and_taken_again() {
        let mut reserve = Reserve::take();
        let is_open = |number: i32| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok();
        let numbers: Vec<i32> = reserve.0.iter().map(AsRawFd::as_raw_fd).collect();
        assert_eq!(numbers.len(), DESCRIPTORS);
        assert!(numbers.iter().all(|number| is_open(*number)), "{numbers:?}");
        reserve.release();
        assert!(reserve.0.is_empty());
        reserve.refill();
        assert_eq!(reserve.0.len(), DESCRIPTORS);
    }
}
