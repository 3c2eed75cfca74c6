//! The faults of a simulation. The seed determines them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

/// Number of nodes, and of controllers.
pub const PEERS: usize = 2;
/// Names of the kinds of faults.
pub const KINDS: [&str; 9] = [
    "partition",
    "partition to node",
    "partition from node",
    "hold",
    "crash of node",
    "crash of node in a call",
    "crash of controller",
    "failed undo",
    "slow",
];
/// Faults begin within this time.
const BEGIN_MS: u64 = 40_000;
/// Maximum length of a fault. Some are longer than the silence that a connection survives.
const LENGTH_MS: u64 = 20_000;
/// An agent that is killed in a call of the kernel makes at most this number of calls before: about as many as in two trials.
const CALLS: u64 = 20;
/// The calls that undo a trial remove the link, restore the root qdisc (only after a crash), and restore the offloads.
const UNDO_CALLS: u64 = 3;

/// A fault. Peers are given by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Messages between the two are lost.
    Partition { controller: usize, node: usize },
    /// Messages to the node are lost.
    PartitionToNode { controller: usize, node: usize },
    /// Messages from the node are lost.
    PartitionFromNode { controller: usize, node: usize },
    /// Messages between the two arrive at the end of the fault.
    Hold { controller: usize, node: usize },
    /// The agent is killed, and starts again at the end of the fault.
    CrashNode { node: usize },
    /// The agent is killed in this call of the kernel, counted from the beginning of the fault, and starts again at its end. The call has no
    /// effect.
    CrashNodeInCall { node: usize, call: u64 },
    /// The controller is killed, and starts again at the end of the fault.
    CrashController { controller: usize },
    /// This call that undoes a change fails, counted from the beginning of the fault.
    FailUndo { node: usize, call: u64 },
    /// All messages are late.
    Slow,
}

/// What a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Pair { controller: usize, node: usize },
    Node(usize),
    Undo(usize),
    Controller(usize),
    All,
}

impl Fault {
    /// Returns its kind, as an index of [`KINDS`].
    pub fn kind(self) -> usize {
        match self {
            Self::Partition { .. } => 0,
            Self::PartitionToNode { .. } => 1,
            Self::PartitionFromNode { .. } => 2,
            Self::Hold { .. } => 3,
            Self::CrashNode { .. } => 4,
            Self::CrashNodeInCall { .. } => 5,
            Self::CrashController { .. } => 6,
            Self::FailUndo { .. } => 7,
            Self::Slow => 8,
        }
    }

    /// Returns whether the controller and the node do not reach each other.
    pub fn separates(self, of_controller: usize, of_node: usize) -> bool {
        match self.target() {
            Target::Pair { controller, node } => (controller, node) == (of_controller, of_node),
            Target::Controller(controller) => controller == of_controller,
            Target::Node(_) | Target::Undo(_) | Target::All => false,
        }
    }

    /// Returns whether it affects the trials of this controller on this node.
    pub fn affects(self, of_controller: usize, of_node: usize) -> bool {
        match self.target() {
            Target::Node(node) | Target::Undo(node) => node == of_node,
            Target::All => true,
            Target::Pair { .. } | Target::Controller(_) => self.separates(of_controller, of_node),
        }
    }

    fn target(self) -> Target {
        match self {
            Self::Partition { controller, node }
            | Self::PartitionToNode { controller, node }
            | Self::PartitionFromNode { controller, node }
            | Self::Hold { controller, node } => Target::Pair { controller, node },
            Self::CrashNode { node } | Self::CrashNodeInCall { node, .. } => Target::Node(node),
            Self::FailUndo { node, .. } => Target::Undo(node),
            Self::CrashController { controller } => Target::Controller(controller),
            Self::Slow => Target::All,
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
        let kind = below(KINDS.len() as u64);
        let begin_ms = below(BEGIN_MS);
        let end_ms = begin_ms + 100 + below(LENGTH_MS);
        let [controller, node] = [(); 2].map(|()| below(PEERS as u64) as usize);
        let fault = match kind {
            0 => Fault::Partition { controller, node },
            1 => Fault::PartitionToNode { controller, node },
            2 => Fault::PartitionFromNode { controller, node },
            3 => Fault::Hold { controller, node },
            4 => Fault::CrashNode { node },
            5 => Fault::CrashNodeInCall { node, call: 1 + below(CALLS) },
            6 => Fault::CrashController { controller },
            7 => Fault::FailUndo { node, call: 1 + below(UNDO_CALLS) },
            _ => Fault::Slow,
        };
        let planned = Planned { fault, begin_ms, end_ms };
        if !drawn.iter().any(|other| other.collides(&planned)) {
            drawn.push(planned);
        }
    }
    drawn
}
