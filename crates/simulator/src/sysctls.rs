//! Settings of a node, from its sysctls and congestion controls.

use std::collections::BTreeMap;

use ccbench_proto::plan::{Cc, SysctlValue};
use ccbench_proto::schedule::NodeTask;

use crate::congestion_control::CongestionControl;
use crate::error::SimulatorError;
use crate::tcp::{EcnMode, SenderConfig, SocketBuffer};

/// The second and third numbers of `tcp_wmem` and `tcp_rmem`.
const WMEM: SocketBuffer = SocketBuffer { default_bytes: 16_384, max_bytes: 4_194_304 };
const RMEM: SocketBuffer = SocketBuffer { default_bytes: 131_072, max_bytes: 6_291_456 };
/// Highest value of these numbers.
const INT_MAX: u64 = i32::MAX as u64;
/// `gso_max_segs` of an interface (GSO_MAX_SEGS), and where an agent has switched the segmentation offloads off.
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

    /// The second and third number of `tcp_wmem` or `tcp_rmem`.
    fn buffer(&self, name: &str, kernel: SocketBuffer) -> SocketBuffer {
        let number = |at| self.number(name, at).map(|bytes| bytes.min(INT_MAX));
        let max_bytes = number(2).unwrap_or(kernel.max_bytes);
        let default_bytes = number(1).unwrap_or(kernel.default_bytes).min(max_bytes);
        SocketBuffer { default_bytes, max_bytes }
    }

    /// `tcp_ecn`.
    pub fn ecn(&self) -> u64 {
        self.number("net.ipv4.tcp_ecn", 0).unwrap_or(2)
    }

    /// Of a socket that sends, with this seed of its congestion control.
    pub fn sender_config(&self, ecn: EcnMode, send_bytes: u64, seed: u64) -> SenderConfig {
        SenderConfig {
            ecn,
            sndbuf: self.buffer("net.ipv4.tcp_wmem", WMEM),
            send_bytes,
            slow_start_after_idle: self.number("net.ipv4.tcp_slow_start_after_idle", 0) != Some(0),
            gso_max_segs: if self.0.keep_offloads { GSO_MAX_SEGS } else { ONE_SEGMENT },
            seed: seed.max(1),
        }
    }

    /// The receive buffer of a socket.
    pub fn rcvbuf(&self) -> SocketBuffer {
        self.buffer("net.ipv4.tcp_rmem", RMEM)
    }

    /// The congestion control with this name in the plan; `subject` is what uses it.
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
