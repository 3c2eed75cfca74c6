//! Texts in a plan that have a schema but no Rust type; see [`super::schema`].

/// A plan's name.
pub(super) const PLAN_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$";
/// A sha256 as text, in lower case as `sha256sum` prints it.
pub(super) const SHA256: &str = "^[0-9a-f]{64}$";

/// A name that an author chooses; it becomes a value in the results.
pub(super) struct Name;
/// An IP address.
pub(super) struct Address;
/// A factor's level, or several.
pub(super) struct Levels;
/// A factor's level.
pub(super) struct Scalar;
