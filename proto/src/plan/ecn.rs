//! The ECN field, which classes match and links rewrite.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The IP header's ECN field (RFC 3168, RFC 9331).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ecn {
    /// 00, not ECN-capable or not IP.
    #[default]
    NotEct = 0,
    /// 01, ECN-capable, L4S.
    Ect1 = 1,
    /// 10, ECN-capable, classic.
    Ect0 = 2,
    /// 11, congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// By number, in the order of declaration.
    pub const ALL: [Self; 4] = [Self::NotEct, Self::Ect1, Self::Ect0, Self::Ce];

    /// The field's two bits.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// The value of the two lowest of these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self::ALL[(bits & 3) as usize]
    }
}
