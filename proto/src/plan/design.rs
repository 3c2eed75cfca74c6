//! `design`: which combinations of the matrix are points.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Points of the matrix, instead of every combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// Kind of design.
    pub kind: DesignKind,
    /// `latin-hypercube`: number of points; required for this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub points: Option<u32>,
    /// `fractional-factorial`: resolution; required for this kind. With 3, main effects are not confounded with each other; with 4,
    /// nor with interactions of two factors; with 5, nor are those with each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 3, max = 5))]
    pub resolution: Option<u32>,
}

/// Kinds of designs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DesignKind {
    /// A random sample in which each level of a factor occurs equally often, to within one point. Of a factor with more levels than
    /// points, one level is taken from each of as many equal parts of the list as there are points.
    LatinHypercube,
    /// A small regular fraction, with the given resolution, of a design with two levels of each factor.
    FractionalFactorial,
}
