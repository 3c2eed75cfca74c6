//! Decides which kernel modules this agent may load for congestion controls.

use std::fmt;
use std::str::FromStr;

/// ccbench's modules, and every module that the kernel loads for a congestion control's name.
const DEFAULT: [&str; 2] = ["ccb_*", "tcp_*"];

/// The name of a kernel module, or a prefix if it ends in `*`. `-` equals `_`, as for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModulePattern(String);

/// The error of a text that names no module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the name of a kernel module; write tcp_bbr, or tcp_* for all names with this prefix"
)]
pub struct NotAModule(String);

impl FromStr for ModulePattern {
    type Err = NotAModule;

    fn from_str(text: &str) -> Result<Self, NotAModule> {
        let name = text.strip_suffix('*').unwrap_or(text);
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if text.is_empty() || !name.bytes().all(is_of_name) {
            return Err(NotAModule(text.to_owned()));
        }
        Ok(Self(text.replace('-', "_")))
    }
}

impl ModulePattern {
    fn matches(&self, module: &str) -> bool {
        let module = module.replace('-', "_");
        match self.0.strip_suffix('*') {
            Some(beginning) => module.starts_with(beginning),
            None => module == self.0,
        }
    }
}

/// The patterns of permitted modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedModules(Vec<ModulePattern>);

impl Default for AllowedModules {
    fn default() -> Self {
        Self(DEFAULT.map(|text| ModulePattern(text.to_owned())).to_vec())
    }
}

impl AllowedModules {
    /// Permits the given modules, or the default ones if none are given.
    pub fn new(given: &[ModulePattern]) -> Self {
        if given.is_empty() { Self::default() } else { Self(given.to_vec()) }
    }

    /// Whether the agent may load this module.
    pub fn permit(&self, module: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(module))
    }
}

impl fmt::Display for AllowedModules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|pattern| pattern.0.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(names: &[&str]) -> AllowedModules {
        let parsed: Vec<ModulePattern> = names.iter().map(|name| name.parse().unwrap()).collect();
        AllowedModules::new(&parsed)
    }

    #[test]
    fn names_and_beginnings_of_names_permit() {
        let default = allowed(&[]);
        assert_eq!(default.to_string(), "ccb_*, tcp_*");
        for module in ["ccb_ta", "tcp_bbr", "tcp-bbr"] {
            assert!(default.permit(module), "{module}");
        }
        assert!(!default.permit("sctp") && !default.permit("tcp"));
        let own = allowed(&["ccb_*", "tcp-vegas"]);
        assert!(own.permit("tcp_vegas") && own.permit("ccb_x"));
        assert!(!own.permit("tcp_vegas2") && !own.permit("tcp_veg") && !own.permit("tcp_bbr"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "tcp_*bbr", "**", "../x", "a b", "tcp_bbr,"] {
            let error = text.parse::<ModulePattern>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not the name")), "{error}");
        }
        assert!("*".parse::<ModulePattern>().unwrap().matches("anything"));
    }
}
