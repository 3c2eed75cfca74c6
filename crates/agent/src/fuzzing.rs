//! Exposes private parsers to the fuzz targets (`tests/fuzz`). Nothing here changes the machine.

use std::io;
use std::path::PathBuf;

use ccbench_proto::scope::Scopes;
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::caller::{self, CallerError};
use crate::control_interface::Peer;
use crate::identity::Identity;
use crate::sockets::module_loader::Request;
use crate::{cgroup, loader, mountinfo};

pub use crate::boot_loader::grub::{entries as grub_entries, with_variable as grub_with_variable};
pub use crate::boot_loader::systemd_boot::{
    release_of_image as systemd_boot_release_of_image, releases as systemd_boot_releases,
    without_counter as systemd_boot_without_counter,
};
pub use crate::executor::task_of;
pub use crate::generator::{Connection, report_lines};
pub use crate::probe::ping::echo_reply_of;
pub use crate::sockets::cc_state::Record;
pub use crate::sockets::journal::{Step as CcStep, steps as cc_journal};
pub use crate::testbed::plan_length;
pub use crate::undo::read_journal as undo_journal;

/// Returns the client of a request whose metadata is this text.
///
/// # Errors
/// As [`caller::of_request`].
pub fn caller_of_text(text: &[u8], limit: Scopes) -> Result<(Identity, Option<Peer>), CallerError> {
    let mut headers = HeaderMap::new();
    // A header of HTTP has no other values.
    if let Ok(value) = HeaderValue::from_bytes(text) {
        headers.insert(caller::KEY, value);
    }
    caller::of_request(&headers, limit)
}

/// Returns the client of a request whose metadata has this message.
///
/// # Errors
/// As [`caller::of_request`].
pub fn caller_of_message(
    message: &[u8],
    limit: Scopes,
) -> Result<(Identity, Option<Peer>), CallerError> {
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(caller::KEY, MetadataValue::from_bytes(message));
    caller::of_request(&metadata.into_headers(), limit)
}

/// Reads what a client sends to `ccbench-agent loader`.
///
/// # Errors
/// The request is malformed, too long or incomplete.
pub fn loader_request(bytes: &[u8]) -> io::Result<(Request, Vec<u8>)> {
    loader::receive(bytes)
}

/// Returns the root and the mount point of every mount in a mountinfo.
pub fn mounts(mountinfo: &str) -> Vec<(String, PathBuf)> {
    mountinfo::mounts(mountinfo).map(|mount| (mount.root, mount.point)).collect()
}

/// Returns the mount point of control groups, and the folder of the group that a `/proc/self/cgroup` names.
pub fn cgroup_folder(mountinfo: &str, cgroup: &str) -> Option<(PathBuf, PathBuf)> {
    let mount = cgroup::mount(mountinfo)?;
    let folder = mount.folder(cgroup::own_path(cgroup)?)?;
    Some((mount.point, folder))
}
