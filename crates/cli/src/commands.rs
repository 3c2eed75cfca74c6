//! The sub-commands of `ccbench`, one file each. What a command refuses itself is an error in its module `error`.

pub mod agent;
pub mod artifact;
pub mod check;
pub mod describe;
pub mod doctor;
pub mod exec;
pub mod import;
pub mod lab;
pub mod merge;
pub mod new;
pub mod pki;
pub mod plan;
pub mod record;
pub mod reproduce;
pub mod reset;
pub mod results;
pub mod run;
pub mod scorecard;
pub mod submit;
pub mod testbed;
pub mod trace;
pub mod view;
