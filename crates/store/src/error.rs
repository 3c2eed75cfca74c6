//! Why a store cannot be opened, written or read.

use std::io;
use std::path::{Path, PathBuf};

/// Who has to act on an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The user: the URL, the credentials or the kind of store is wrong, so the same command fails again.
    Command,
    /// The store, the network or the disk failed, so the same command may succeed later.
    Environment,
}

/// A store cannot be opened, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A file cannot be read or written.
    #[error("cannot {op} {}: {source}", path.display())]
    File {
        /// The operation.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A request to the object store failed.
    #[error("cannot {op} {url}: {source}{}", hint(url, source))]
    Request {
        /// The operation.
        op: &'static str,
        /// The object.
        url: String,
        /// The client's error.
        source: object_store::Error,
    },
    /// The location is not the URL of a bucket.
    #[error(
        "`{url}` is not the URL of a bucket; write s3://BUCKET or s3://BUCKET/PREFIX, az:// for a container of Azure, gs:// for a bucket of \
         Google Cloud, or a directory"
    )]
    Url {
        /// The URL.
        url: String,
    },
    /// An object is larger than anything that ccbench stores there.
    #[error(
        "{url} has {bytes} bytes, more than ccbench writes there; remove it, or give another place"
    )]
    TooLarge {
        /// The object.
        url: String,
        /// Its size.
        bytes: u64,
    },
    /// The store overwrites an object although the request forbids it.
    #[error(
        "{location} replaces objects although the request forbids it (`If-None-Match: *`), so two machines could commit the same trial; \
         use a store with conditional writes, or a shared directory"
    )]
    Unconditional {
        /// The store.
        location: String,
    },
}

impl ObjectError {
    /// Returns whether the error means that the object does not exist.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::Request { source, .. } => {
                matches!(source, object_store::Error::NotFound { .. })
            }
            Self::Url { .. } | Self::TooLarge { .. } | Self::Unconditional { .. } => false,
        }
    }

    /// Returns who has to act.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::Url { .. } | Self::TooLarge { .. } | Self::Unconditional { .. } => Cause::Command,
            Self::Request { source, .. } if is_denied(source) => Cause::Command,
            Self::Request { .. } | Self::File { .. } => Cause::Environment,
        }
    }
}

const fn is_denied(error: &object_store::Error) -> bool {
    matches!(
        error,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }
    )
}

/// Returns a hint for errors whose message does not suggest a fix.
fn hint(url: &str, error: &object_store::Error) -> &'static str {
    if !is_denied(error) {
        ""
    } else if url.starts_with("az://") {
        "; set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY to those of an account that may read, write, list \
         and delete objects of the container"
    } else if url.starts_with("gs://") {
        "; set GOOGLE_SERVICE_ACCOUNT to the key file of an account that may read, write, list and delete objects of the bucket"
    } else {
        "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to those of an account that may read, write, list and delete objects of the bucket"
    }
}

/// Adds the operation and the path to an I/O error.
pub(crate) fn file_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ObjectError {
    let path = path.to_path_buf();
    move |source| ObjectError::File { op, path, source }
}
