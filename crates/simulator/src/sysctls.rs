//! Settings of a node, taken from its sysctls and congestion controls.

use std::collections::BTreeMap;

use ccbench_proto::plan::{Cc, Ecn, SysctlValue};
use ccbench_proto::schedule::NodeTask;

use crate::congestion_control::{CcRequirements, CongestionControl};
use crate::ecn_negotiation::EcnVariant;
use crate::error::SimulatorError;
use crate::tcp::{EcnMode, SenderConfig, SocketBuffer};

/// The second and third number of `tcp_wmem` and `tcp_rmem`.
const WMEM: SocketBuffer = SocketBuffer { default_bytes: 16_384, max_bytes: 4_194_304 };
const RMEM: SocketBuffer = SocketBuffer { default_bytes: 131_072, max_bytes: 6_291_456 };
/// Maximum value of these numbers.
const INT_MAX: u64 = i32::MAX as u64;
/// `gso_max_segs` of an interface (GSO_MAX_SEGS), and its value after an agent has turned the segmentation offloads off.
const GSO_MAX_SEGS: u32 = 65_535;
const ONE_SEGMENT: u32 = 1;

/// Settings of a node.
pub struct Sysctls<'a>(pub &'a NodeTask);

impl Sysctls<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let known = self.0.sysctls.iter().rev().find(|(key, _)| key == name);
        known.map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, at: usize) -> Option<u64> {
        self.get(name)?.split_whitespace().nth(at)?.parse().ok()
    }

    /// Returns the second and third number of `tcp_wmem` or `tcp_rmem`.
    fn buffer(&self, name: &str, kernel: SocketBuffer) -> SocketBuffer {
        let number = |at| self.number(name, at).map(|bytes| bytes.min(INT_MAX));
        let max_bytes = number(2).unwrap_or(kernel.max_bytes);
        let default_bytes = number(1).unwrap_or(kernel.default_bytes).min(max_bytes);
        SocketBuffer { default_bytes, max_bytes }
    }

    /// Returns `tcp_ecn`.
    pub fn ecn(&self) -> u64 {
        self.number("net.ipv4.tcp_ecn", 0).unwrap_or(2)
    }

    /// Returns what a connecting socket requests (`enum tcp_ecn_mode`).
    pub fn ecn_request(&self) -> EcnVariant {
        match self.ecn() {
            1 | 4 => EcnVariant::Rfc3168,
            3 => EcnVariant::AccEcn,
            _ => EcnVariant::NoEcn,
        }
    }

    /// Returns the highest variant that a listening socket accepts.
    pub fn ecn_accept(&self) -> EcnVariant {
        match self.ecn() {
            1 | 2 => EcnVariant::Rfc3168,
            3..=5 => EcnVariant::AccEcn,
            _ => EcnVariant::NoEcn,
        }
    }

    /// Returns `tcp_ecn_fallback`.
    pub fn ecn_fallback(&self) -> bool {
        self.number("net.ipv4.tcp_ecn_fallback", 0) != Some(0)
    }

    /// Returns the ECN field of data sent with the congestion control of this name in the plan, if that counts marks.
    pub fn counted_ect(&self, name: &str, requirements: CcRequirements) -> Option<Ecn> {
        let ect1 = self.0.cc.get(name).and_then(|cc| cc.ect1).unwrap_or(requirements.ect1);
        requirements.ecn.then_some(if ect1 { Ecn::Ect1 } else { Ecn::Ect0 })
    }

    /// Returns the configuration of a sending socket before the handshake. `seed` is that of its congestion control.
    pub fn sender_config(&self, send_bytes: u64, seed: u64) -> SenderConfig {
        SenderConfig {
            ecn: EcnMode::Off,
            sndbuf: self.buffer("net.ipv4.tcp_wmem", WMEM),
            send_bytes,
            slow_start_after_idle: self.number("net.ipv4.tcp_slow_start_after_idle", 0) != Some(0),
            gso_max_segs: if self.0.keep_offloads { GSO_MAX_SEGS } else { ONE_SEGMENT },
            seed: seed.max(1),
        }
    }

    /// Returns the receive buffer of a socket.
    pub fn rcvbuf(&self) -> SocketBuffer {
        self.buffer("net.ipv4.tcp_rmem", RMEM)
    }

    /// Creates the congestion control with this name in the plan. `subject` is what uses it.
    pub fn congestion_control(
        &self,
        subject: &str,
        name: &str,
    ) -> Result<CongestionControl, SimulatorError> {
        let instance = self.0.cc.get(name);
        let algorithm = instance.map_or(name, |cc| cc.algorithm.as_str());
        let params = instance.map_or(Ok(BTreeMap::new()), |cc| params(subject, cc))?;
        CongestionControl::new(algorithm, &params).map_err(|source| {
            SimulatorError::CongestionControl { subject: subject.to_owned(), source }
        })
    }
}

fn params(subject: &str, cc: &Cc) -> Result<BTreeMap<String, u32>, SimulatorError> {
    let number = |(name, value): (&String, &SysctlValue)| {
        let value = value.to_string();
        match value.trim().parse() {
            Ok(number) => Ok((name.clone(), number)),
            Err(_) => {
                let (subject, name) = (subject.to_owned(), name.clone());
                Err(SimulatorError::Parameter { subject, name, value })
            }
        }
    };
    cc.params.iter().map(number).collect()
}
