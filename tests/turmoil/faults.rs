//! The faults of a simulation. The seed determines them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

/// Number of nodes, and of controllers.
pub const PEERS: usize = 2;
/// Number of kinds of faults.
pub const KINDS: usize = 7;
/// Faults begin within this time.
const BEGIN_MS: u64 = 40_000;
/// Maximum length of a fault. Some are longer than the silence that a connection survives.
const LENGTH_MS: u64 = 20_000;

/// A fault. Peers are given by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Messages between the two are lost.
    Cut { controller: usize, node: usize },
    /// Messages to the node are lost.
    CutToNode { controller: usize, node: usize },
    /// Messages from the node are lost.
    CutFromNode { controller: usize, node: usize },
    /// Messages between the two arrive at the end of the fault.
    Hold { controller: usize, node: usize },
    /// The agent is killed, and starts again at the end of the fault.
    CrashNode { node: usize },
    /// The same for a controller.
    CrashController { controller: usize },
    /// All messages are late.
    Slow,
}

impl Fault {
    /// Returns whether the controller and the node do not reach each other.
    pub fn separates(self, of_controller: usize, of_node: usize) -> bool {
        match self {
            Self::Cut { controller, node }
            | Self::CutToNode { controller, node }
            | Self::CutFromNode { controller, node }
            | Self::Hold { controller, node } => (controller, node) == (of_controller, of_node),
            Self::CrashController { controller } => controller == of_controller,
            Self::CrashNode { .. } | Self::Slow => false,
        }
    }

    /// Returns what is affected: a pair, a node, a controller, or all.
    fn target(self) -> (Option<usize>, Option<usize>) {
        match self {
            Self::Cut { controller, node }
            | Self::CutToNode { controller, node }
            | Self::CutFromNode { controller, node }
            | Self::Hold { controller, node } => (Some(controller), Some(node)),
            Self::CrashNode { node } => (None, Some(node)),
            Self::CrashController { controller } => (Some(controller), None),
            Self::Slow => (None, None),
        }
    }
}

/// A fault and when it is in effect.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    pub fault: Fault,
    pub begin_ms: u64,
    pub end_ms: u64,
}

impl Planned {
    /// Returns whether the two affect the same at the same time. turmoil would end both with the first one.
    fn collides(&self, other: &Self) -> bool {
        let overlap = self.begin_ms <= other.end_ms && other.begin_ms <= self.end_ms;
        overlap && self.fault.target() == other.fault.target()
    }
}

/// Draws the faults of a seed.
pub fn draw(seed: u64) -> Vec<Planned> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut below = |bound: u64| random.next_u64() % bound;
    let mut drawn: Vec<Planned> = Vec::new();
    for _ in 0..2 + below(7) {
        let begin_ms = below(BEGIN_MS);
        let end_ms = begin_ms + 100 + below(LENGTH_MS);
        let [controller, node] = [(); 2].map(|()| below(PEERS as u64) as usize);
        let fault = match below(KINDS as u64) {
            0 => Fault::Cut { controller, node },
            1 => Fault::CutToNode { controller, node },
            2 => Fault::CutFromNode { controller, node },
            3 => Fault::Hold { controller, node },
            4 => Fault::CrashNode { node },
            5 => Fault::CrashController { controller },
            _ => Fault::Slow,
        };
        let planned = Planned { fault, begin_ms, end_ms };
        if !drawn.iter().any(|other| other.collides(&planned)) {
            drawn.push(planned);
        }
    }
    drawn
}
