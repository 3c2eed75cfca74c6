//! ECN negotiation in the handshake: RFC 3168, section 6.1.1, and RFC 9768 (AccECN), section 3.1 and its Table 2, as implemented in
//! include/net/tcp_ecn.h of Linux 7.3. SYN and SYN-ACK are not ECN-capable.

use ccbench_proto::plan::Ecn;

use crate::congestion_control::CcRequirements;
use crate::tcp::EcnMode;

/// A variant of ECN feedback, with its number in `tcpi_ecn_mode`. Higher numbers are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum EcnVariant {
    /// TCPI_ECN_MODE_DISABLED.
    #[default]
    NoEcn = 0,
    /// TCPI_ECN_MODE_RFC3168.
    Rfc3168 = 1,
    /// TCPI_ECN_MODE_ACCECN.
    AccEcn = 2,
}

impl EcnVariant {
    /// Returns what a congestion control needs at both ends.
    pub fn needed_by(requirements: CcRequirements) -> Self {
        match (requirements.ecn, requirements.ect1) {
            (false, _) => Self::NoEcn,
            (true, false) => Self::Rfc3168,
            (true, true) => Self::AccEcn,
        }
    }

    /// Returns the flags AE, CWR and ECE of a SYN that requests this variant: `tcp_ecn_send_syn()`.
    pub fn syn_ace(self) -> u8 {
        match self {
            Self::NoEcn => 0b000,
            Self::Rfc3168 => 0b011,
            Self::AccEcn => 0b111,
        }
    }

    /// Returns what a listener that accepts at most this variant makes of a SYN: `tcp_ecn_create_request()`. All combinations of flags ask
    /// for AccECN, except those of RFC 3168 and none (`tcp_accecn_syn_requested()`).
    pub fn of_syn(self, ace: u8) -> Self {
        match self {
            Self::AccEcn if !matches!(ace, 0b000 | 0b011) => Self::AccEcn,
            Self::AccEcn | Self::Rfc3168 if ace & 0b011 == 0b011 => Self::Rfc3168,
            _ => Self::NoEcn,
        }
    }

    /// Returns the flags of the SYN-ACK of a listener that has accepted this variant: `tcp_ecn_make_synack()`. With AccECN they echo the
    /// SYN's ECN field in the IP header, Not-ECT.
    pub fn syn_ack_ace(self) -> u8 {
        match self {
            Self::NoEcn => 0b000,
            Self::Rfc3168 => 0b001,
            Self::AccEcn => 0b010,
        }
    }

    /// Returns what the end that has requested this variant makes of a SYN-ACK: `tcp_ecn_rcv_synack()`.
    pub fn of_syn_ack(self, ace: u8) -> Self {
        match (self, ace) {
            (Self::NoEcn, _) => Self::NoEcn,
            (_, 0b001 | 0b101) => Self::Rfc3168,
            (Self::AccEcn, 0b010 | 0b011 | 0b100 | 0b110) => Self::AccEcn,
            _ => Self::NoEcn,
        }
    }

    /// Returns the feedback of a connection that has negotiated this variant. `counted_ect` is the code point of data if the congestion
    /// control counts marks: at both ends, such a congestion control echoes each mark even without AccECN (RFC 8257).
    pub fn feedback(self, counted_ect: Option<Ecn>) -> EcnMode {
        match (self, counted_ect) {
            (Self::NoEcn, _) => EcnMode::Off,
            (_, Some(ect)) => EcnMode::Accurate { ect },
            (Self::AccEcn, None) => EcnMode::Accurate { ect: Ecn::Ect0 },
            (Self::Rfc3168, None) => EcnMode::Classic,
        }
    }
}

/// What the two ends of a connection may negotiate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EcnSettings {
    /// What the connecting end requests.
    pub request: EcnVariant,
    /// The highest variant that the listening end accepts.
    pub accept: EcnVariant,
    /// `tcp_ecn_fallback` of the connecting end.
    pub has_fallback: bool,
}

impl EcnSettings {
    /// Returns the flags of a SYN after this many retransmissions. If a SYN gets no answer, the next one does not request ECN (RFC 3168,
    /// section 6.1.1.1); with AccECN, the one after the next (RFC 9768, section 3.1.4.1): `__tcp_retransmit_skb()`.
    pub fn syn_ace(&self, retransmits: u32) -> u8 {
        let tries = if self.request == EcnVariant::AccEcn { 1 } else { 0 };
        match self.has_fallback && retransmits > tries {
            true => EcnVariant::NoEcn.syn_ace(),
            false => self.request.syn_ace(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::EcnVariant::{AccEcn, NoEcn, Rfc3168};
    use super::*;

    /// Client, server, flags of SYN and SYN-ACK, and the result: the rows of RFC 9768, Table 2, for a SYN that is not ECN-capable, and RFC
    /// 3168, section 6.1.1.
    const TABLE: [(EcnVariant, EcnVariant, u8, u8, EcnVariant); 9] = [
        (AccEcn, AccEcn, 0b111, 0b010, AccEcn),
        (AccEcn, Rfc3168, 0b111, 0b001, Rfc3168),
        (AccEcn, NoEcn, 0b111, 0b000, NoEcn),
        (Rfc3168, AccEcn, 0b011, 0b001, Rfc3168),
        (Rfc3168, Rfc3168, 0b011, 0b001, Rfc3168),
        (Rfc3168, NoEcn, 0b011, 0b000, NoEcn),
        (NoEcn, AccEcn, 0b000, 0b000, NoEcn),
        (NoEcn, Rfc3168, 0b000, 0b000, NoEcn),
        (NoEcn, NoEcn, 0b000, 0b000, NoEcn),
    ];

    #[test]
    fn flags_and_results_are_those_of_the_rfcs() {
        for (client, server, syn, syn_ack, result) in TABLE {
            let what = format!("{client:?} {server:?}");
            assert_eq!(client.syn_ace(), syn, "{what}");
            let accepted = server.of_syn(syn);
            assert_eq!(accepted.syn_ack_ace(), syn_ack, "{what}");
            assert_eq!((accepted, client.of_syn_ack(syn_ack)), (result, result), "{what}");
        }
    }

    #[test]
    fn other_syn_acks_are_read_as_table_2_says() {
        // The SYN's ECN field as the server reports it: Not-ECT, ECT(1), ECT(0), CE.
        for ace in [0b010, 0b011, 0b100, 0b110] {
            assert_eq!(AccEcn.of_syn_ack(ace), AccEcn);
        }
        // ECN Nonce, and a broken server that reflects the flags of the SYN.
        assert_eq!((AccEcn.of_syn_ack(0b101), AccEcn.of_syn_ack(0b111)), (Rfc3168, NoEcn));
        // An ECN-setup SYN-ACK has ECE but not CWR (RFC 3168, section 6.1.1).
        assert_eq!((Rfc3168.of_syn_ack(0b011), NoEcn.of_syn_ack(0b001)), (NoEcn, NoEcn));
    }

    #[test]
    fn flags_that_the_path_clears_leave_no_ecn() {
        for client in [Rfc3168, AccEcn] {
            for server in [Rfc3168, AccEcn] {
                // The SYN's flags are cleared: the server does not use ECN, and the client learns that.
                let accepted = server.of_syn(0b000);
                let learned = client.of_syn_ack(accepted.syn_ack_ace());
                assert_eq!((accepted, learned), (NoEcn, NoEcn));
                // The flags of the SYN-ACK are cleared.
                assert_eq!(client.of_syn_ack(0b000), NoEcn);
            }
        }
        // Only AE is cleared, by a path that takes it for a reserved bit: the remaining flags request RFC 3168.
        assert_eq!(AccEcn.of_syn(AccEcn.syn_ace() & 0b011), Rfc3168);
    }

    #[test]
    fn repeated_syns_fall_back() {
        let aces = |request, has_fallback| {
            let settings = EcnSettings { request, has_fallback, ..EcnSettings::default() };
            [0, 1, 2, 3].map(|retransmits| settings.syn_ace(retransmits))
        };
        assert_eq!(aces(Rfc3168, true), [0b011, 0, 0, 0]);
        assert_eq!(aces(AccEcn, true), [0b111, 0b111, 0, 0]);
        assert_eq!((aces(Rfc3168, false), aces(NoEcn, true)), ([0b011; 4], [0; 4]));
    }
}
