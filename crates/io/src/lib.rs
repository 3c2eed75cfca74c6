//! Input and output of controller and agent: [`console`] escapes untrusted text, [`input`] limits files that a user names,
//! [`certificate`] reads certificates, [`replace`](mod@replace) writes files atomically, and [`owner`] checks who can change a directory.
#![forbid(unsafe_code)]

pub mod certificate;
pub mod console;
pub mod input;
pub mod owner;
pub mod replace;
