//! What a journal undoes: a change to the whole machine, and how to undo it. Only what the kernel reports as missing counts as gone: any
//! other failure of a look-up, for example without a free descriptor, is an error, so that the step is tried again.

use std::io;

use serde::{Deserialize, Serialize};

use super::{lock_modules, other_uses};
use crate::sockets::error::SocketError;
use crate::sockets::{module_loader, sysfs};

/// One thing to undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Step {
    /// Restore a module's parameter.
    Parameter {
        /// The module.
        module: String,
        /// The parameter.
        name: String,
        /// Its previous value.
        before: String,
    },
    /// Remove an instance from one of ccbench's modules.
    Instance {
        /// The module.
        module: String,
        /// The instance's name in the kernel.
        name: String,
    },
    /// Unload a module that was loaded for an experiment, if it is unused.
    Module {
        /// The module.
        module: String,
    },
    /// Unload a supplied module, if no other process has loaded it, too.
    SuppliedModule(ModuleUse),
    /// Unregister a BPF instance that has no link.
    Bpf {
        /// Its name in the kernel.
        name: String,
    },
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Parameter { module, name, before } => {
                write!(f, "parameter {module}.{name} = {before}")
            }
            Self::Instance { module, name } => write!(f, "instance {name} of {module}"),
            Self::Module { module } => write!(f, "module {module}"),
            Self::SuppliedModule(used) => write!(f, "module {}", used.module),
            Self::Bpf { name } => write!(f, "BPF instance {name}"),
        }
    }
}

impl Step {
    pub(super) fn undo(&self) -> Result<(), SocketError> {
        match self {
            Self::Parameter { module, name, before } => {
                let path = sysfs::parameter(module, name);
                if !path.try_exists().map_err(SocketError::file("look up", &path))? {
                    return Ok(());
                }
                sysfs::write(&path, before)
            }
            Self::Instance { module, name } => {
                if !sysfs::registered()?.contains(name) {
                    return Ok(());
                }
                sysfs::write(&sysfs::parameter(module, "remove"), name)
            }
            Self::Module { module } => {
                if !sysfs::look_up_module(module)? {
                    return Ok(());
                }
                let _lock = lock_modules()?;
                // Another agent has an instance, and this step in its journal; the last agent unloads the module.
                if instances(module)? > 1 {
                    return Ok(());
                }
                module_loader::unload(module)
            }
            Self::SuppliedModule(used) => used.end(),
            Self::Bpf { name } => {
                if !sysfs::registered()?.contains(name) {
                    return Ok(());
                }
                unregister(name)
            }
        }
    }
}

/// Returns how many instances a module of ccbench has; 0 if it is not loaded.
fn instances(module: &str) -> Result<usize, SocketError> {
    let path = sysfs::parameter(module, "instances");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().count()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(SocketError::file("read", &path)(error)),
    }
}

/// A process's use of a supplied module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleUse {
    /// The module.
    pub module: String,
    /// The SHA-256 of its file, in hexadecimal.
    pub sha256: String,
    /// Its parameters, as the kernel accepts them: `a=1 b=2`.
    pub params: String,
    /// The congestion controls that the kernel had before the module was loaded.
    pub before: Vec<String>,
    /// Distinguishes the uses of one module.
    pub id: String,
}

impl ModuleUse {
    /// Ends the use; the last one unloads the module. A process whose journal still exists counts as a user, even when it is
    /// about to end its use: see [`super::Journal::undo`].
    pub(super) fn end(&self) -> Result<(), SocketError> {
        if !sysfs::look_up_module(&self.module)? {
            return Ok(());
        }
        let _lock = lock_modules()?;
        if !other_uses(&self.module, &self.id)?.is_empty() {
            return Ok(());
        }
        module_loader::unload(&self.module)
    }
}

#[cfg(feature = "ebpf")]
fn unregister(name: &str) -> Result<(), SocketError> {
    Ok(crate::sockets::bpf::unregister(name)?)
}

#[cfg(not(feature = "ebpf"))]
fn unregister(name: &str) -> Result<(), SocketError> {
    Err(SocketError::UnregisterWithoutEbpf { name: name.to_owned() })
}
