//! The processes that get faults.

/// A process that gets faults at its system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// `ccbench-agent serve` on node a, which makes the most changes.
    Agent,
    /// `ccbench run`.
    Controller,
    /// `ccbench-agent worker`, which makes the changes of a node with a front.
    Worker,
    /// `ccbench-agent front` of such a node.
    Front,
    /// `ccbench-agent loader` of such a node.
    Loader,
    /// `ccbench-agent undo`, after the end of an agent.
    Undo,
    /// `ccbench-agent clean`, after the end of an agent.
    Clean,
    /// `ccbench-agent testbed` and the agents that it starts.
    Testbed,
}

impl Victim {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Agent,
        Self::Controller,
        Self::Worker,
        Self::Front,
        Self::Loader,
        Self::Undo,
        Self::Clean,
        Self::Testbed,
    ];

    /// Returns its name in the text of a fault.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Controller => "controller",
            Self::Worker => "worker",
            Self::Front => "front",
            Self::Loader => "loader",
            Self::Undo => "undo",
            Self::Clean => "clean",
            Self::Testbed => "testbed",
        }
    }

    /// Returns the process with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|victim| victim.name() == name)
    }

    /// Returns how many of its faults `make test-faults` injects.
    pub fn sampled(self) -> usize {
        match self {
            Self::Agent | Self::Controller => 20,
            Self::Worker | Self::Testbed => 10,
            Self::Undo => 8,
            Self::Front => 6,
            Self::Loader | Self::Clean => 4,
        }
    }
}

#[test]
fn a_victim_has_a_name_of_its_own() {
    for victim in Victim::ALL {
        assert_eq!(Victim::named(victim.name()), Some(victim));
    }
    assert_eq!(Victim::named("nobody"), None);
}
