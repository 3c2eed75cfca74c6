//! Reasons why a trial cannot be simulated.

use ccbench_shaper::ShaperError;

use crate::congestion_control::{CoreError, Violation};

/// An error of the simulator.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// A congestion control does not exist or refuses its parameters.
    #[error("{subject}: {source}")]
    CongestionControl {
        /// What uses it: "flow first", "probe page".
        subject: String,
        /// The cause.
        source: CoreError,
    },
    /// A link cannot be emulated in userspace.
    #[error("link {link}: {source}")]
    Link {
        /// Its name in the plan.
        link: String,
        /// The cause.
        source: ShaperError,
    },
    /// No interface of a link's node leads to the link's other end.
    #[error("link {link}: no interface of its node carries it; connect the node in [wires]")]
    NoInterface {
        /// Its name in the plan.
        link: String,
    },
    /// Two nodes are not connected.
    #[error("there is no path from {from} to {to}: connect them in [wires]")]
    NoPath {
        /// Source node.
        from: String,
        /// Destination node.
        to: String,
    },
    /// A parameter of a congestion control is not a number.
    #[error("{subject}: parameter {name} = {value:?} is not a whole number below 2^32")]
    Parameter {
        /// What uses it.
        subject: String,
        /// The parameter.
        name: String,
        /// Its value in the plan.
        value: String,
    },
    /// A congestion control returned an impossible value.
    #[error(
        "{subject}: the congestion control returned an impossible value: {violation}; this is a defect of its C core, so report \
         it with the plan"
    )]
    Violation {
        /// What uses it.
        subject: String,
        /// The violated invariant.
        violation: Violation,
    },
    /// `should_continue` returned false.
    #[error("the simulation was stopped")]
    Stopped,
}
