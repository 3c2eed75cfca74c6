//! Why a trial cannot be simulated.

use crate::core::CoreError;

/// An error of the simulator.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// A flow's congestion control does not exist or refuses its parameters.
    #[error("flow {flow}: {source}")]
    CongestionControl {
        /// Flow group.
        flow: String,
        /// Why.
        source: CoreError,
    },
    /// A link cannot be emulated in userspace.
    #[error("link {link}: {reason}")]
    Link {
        /// Its name in the plan.
        link: String,
        /// Why.
        reason: String,
    },
    /// Two nodes are not connected.
    #[error("there is no path from {from} to {to}: connect them in [wires]")]
    NoPath {
        /// Node.
        from: String,
        /// Node.
        to: String,
    },
    /// A parameter of a congestion control is not a number.
    #[error("flow {flow}: parameter {name} = {value:?} is not a whole number below 2^32")]
    Parameter {
        /// Flow group.
        flow: String,
        /// The parameter.
        name: String,
        /// Its value in the plan.
        value: String,
    },
    /// A congestion control returned an impossible value.
    #[error(
        "flow {flow}: the congestion control returned an impossible value: {what}; this is a defect of its C core, so report \
         it with the plan"
    )]
    Violation {
        /// Flow group.
        flow: String,
        /// Which.
        what: String,
    },
    /// Its owner wants no more.
    #[error("the simulation was stopped")]
    Stopped,
}
