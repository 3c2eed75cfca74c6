//! A user of this machine as an argument of the command line.

use nix::unistd::User;

/// A user was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this machine has no such user; create `ccbench-front` with `systemd-sysusers`, or give a numeric user ID"
)]
pub(crate) struct UserError;

/// Returns the UID of a user, which is given by name or by number.
pub(crate) fn uid(text: &str) -> Result<u32, UserError> {
    let known = User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
    known.or_else(|| text.parse().ok()).ok_or(UserError)
}
