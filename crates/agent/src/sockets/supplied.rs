//! Supplied congestion controls: the files of a request, and which of them this agent may load. [`ccbench_proto::cc::supplied`]
//! parses them. `load.rs` loads them, BPF objects with `struct_ops/supplied.rs` and kernel modules with `supplied_module.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccbench_proto::cc::supplied::{self, CcFacts};
use ccbench_proto::plan::{Cc, digest_bytes};

use super::error::SocketError;
use crate::files::{Content, Contents};

/// The SHA-256 digests, in hexadecimal, of the supplied congestion controls that this agent loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedDigests {
    /// Any: whoever reaches this agent may do everything on this machine anyway.
    Any,
    /// Only these.
    Only(BTreeSet<String>),
}

impl AllowedDigests {
    fn permit(&self, sha256: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(digests) => digests.contains(sha256),
        }
    }
}

/// The files of a request.
#[derive(Debug, Clone, Copy)]
pub struct Supplied<'a> {
    /// The contents, by path in the plan.
    pub files: &'a Contents,
    /// The files that may be loaded.
    pub allowed: &'a AllowedDigests,
}

/// A file that may be loaded.
#[derive(Debug, Clone)]
pub struct SuppliedCc {
    /// The file, which its instances share.
    pub content: Arc<Content>,
    /// What it contains.
    pub facts: CcFacts,
}

impl Supplied<'_> {
    /// Whether a file with this digest may be loaded.
    ///
    /// # Errors
    /// The file may not be loaded.
    pub fn permit(&self, path: &str, sha256: &str) -> Result<(), SocketError> {
        if self.allowed.permit(sha256) {
            return Ok(());
        }
        Err(SocketError::DigestNotAllowed { path: path.to_owned(), sha256: sha256.to_owned() })
    }

    /// Returns the file of an instance; `None` if it has none.
    ///
    /// # Errors
    /// The file is missing, not allowed, not a congestion control, or not the one that the plan names.
    pub fn read(&self, cc: &Cc) -> Result<Option<SuppliedCc>, SocketError> {
        let Some((path, _)) = cc.supplied() else { return Ok(None) };
        let missing = || SocketError::FileMissing { path: path.to_owned() };
        let content = self.files.get(path).ok_or_else(missing)?;
        // The digest is checked before anything parses the contents.
        let sha256 = digest_bytes(content.bytes());
        self.permit(path, &sha256)?;
        let facts = supplied::facts(content.bytes())
            .map_err(|source| SocketError::NoCongestionControl { path: path.to_owned(), source })?;
        let wrong = facts.check(cc);
        if wrong.is_empty() {
            return Ok(Some(SuppliedCc { content: Arc::clone(content), facts }));
        }
        Err(SocketError::Params(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_must_be_allowed_before_the_file_is_read() {
        let content = Arc::new(Content::from(b"no object".to_vec()));
        let files = Contents::from([("mine.bpf.o".to_owned(), content)]);
        let sha256 = digest_bytes(b"no object");
        let cc = Cc { file: Some("mine.bpf.o".to_owned()), ..Cc::new("") };
        let read = |allowed: &AllowedDigests| {
            Supplied { files: &files, allowed }.read(&cc).unwrap_err().to_string()
        };
        let refused = read(&AllowedDigests::Only(BTreeSet::from(["0".repeat(64)])));
        assert!(refused.contains(&format!("--allow-cc-digest {sha256}")), "{refused}");
        for allowed in [AllowedDigests::Any, AllowedDigests::Only([sha256].into())] {
            let why = read(&allowed);
            assert!(why.starts_with("`mine.bpf.o`: it is not an intact 64-bit ELF file"), "{why}");
        }
        let other = Cc { file: Some("other.bpf.o".to_owned()), ..Cc::new("") };
        let allowed = AllowedDigests::Any;
        let missing = Supplied { files: &files, allowed: &allowed }.read(&other).unwrap_err();
        assert!(missing.to_string().contains("`other.bpf.o` is missing"), "{missing}");
        let own = Supplied { files: &files, allowed: &allowed }.read(&Cc::new("ta")).unwrap();
        assert!(own.is_none(), "{own:?}");
    }
}
