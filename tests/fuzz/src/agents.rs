//! Fuzzes what an agent reads from other processes of ccbench on its machine: a front, a client of the module loader, a testbed.

use ccbench_agent::fuzzing::{self, caller_of_message, caller_of_text};
use ccbench_agent::sockets::module_loader::Request;
use ccbench_agent::testbed::record::Record;
use ccbench_proto::scope::{Scope, Scopes};
use ccbench_proto::testbed::{AgentDied, Ready};

use crate::text;

/// Checks that JSON that is read as this type is the same after it is written.
macro_rules! check_json {
    ($kind:ty, $text:expr) => {
        if let Ok(read) = serde_json::from_str::<$kind>($text) {
            let written = serde_json::to_string(&read).ok();
            let again = written.and_then(|text| serde_json::from_str::<$kind>(&text).ok());
            assert_eq!(again, Some(read));
        }
    };
}

/// What a front says about its client: the metadata of a request, and the message in it. It never gets a scope that the worker withholds.
pub fn caller(data: &[u8]) {
    for limit in [Scopes::all(), [Scope::Run, Scope::HostNet].into_iter().collect()] {
        for found in [caller_of_text(data, limit), caller_of_message(data, limit)] {
            match found {
                Ok((identity, _)) => {
                    assert!(identity.scopes.iter().all(|scope| limit.has(scope)));
                    assert!(!identity.withheld.iter().any(|scope| limit.has(scope)));
                    assert!(identity.name.len() + identity.serial.len() <= data.len());
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}

/// A request to the module loader, and the file that follows it.
pub fn loader_request(data: &[u8]) {
    let Ok((request, file)) = fuzzing::loader_request(data) else { return };
    let bytes = match &request {
        Request::InitModule { bytes, .. } => *bytes,
        Request::Find { .. } | Request::Modprobe { .. } | Request::DeleteModule { .. } => 0,
    };
    assert_eq!(file.len() as u64, bytes);
    assert!(request.module().len() + file.len() <= data.len());
    let written = serde_json::to_string(&request).unwrap_or_default();
    assert_eq!(serde_json::from_str::<Request>(&written).ok(), Some(request));
}

/// Records of testbeds, and what testbeds print for the controller, one per line.
pub fn records(data: &[u8]) {
    for line in text(data).into_iter().flat_map(str::lines) {
        check_json!(Record, line);
        check_json!(Ready, line);
        check_json!(AgentDied, line);
    }
}
