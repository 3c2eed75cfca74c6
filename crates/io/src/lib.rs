//! Input and output of controller and agent: [`console`] escapes untrusted text, [`input`] limits files that a user names,
//! [`certificate`] reads certificates, and [`replace`](mod@replace) writes files atomically.
#![forbid(unsafe_code)]

pub mod certificate;
pub mod console;
pub mod input;
pub mod replace;
