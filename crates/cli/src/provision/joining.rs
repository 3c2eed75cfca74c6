//! The script that gives reserved nodes their certificates and starts their agents.

use std::fmt::Write as _;
use std::net::SocketAddr;

use ccbench_proto::manifest::{Access, ReservedNode};

use super::AGENT_PORT;

/// Where CloudLab checks out the repository of a profile.
const CLOUDLAB_SCRIPT: &str = "/local/repository/install-agent.sh";

const BEGIN: &str = "\
#!/bin/sh
# Written by `ccbench testbed`: gives each node a certificate and starts its agent.
#
#   sh join.sh PKI ADDRESS:PORT
#
# PKI is the directory of the certificate authority, which is created if need be. ADDRESS is this machine's in the control network:
# the nodes connect to it for their certificates.
set -eu
[ $# -eq 2 ] || { sed -n 's/^#   //p' \"$0\" >&2; exit 2; }
pki=$1 service=$2
[ -e \"$pki/ca.pem\" ] || ccbench pki init \"$pki\" >/dev/null

# A node that has a certificate keeps it and needs no token, so the script may be repeated.
token() {
    [ -e \"$pki/$1.pem\" ] || ccbench pki token \"$pki\" \"$1\"
}
";

const SERVE: &str = "
    log=$(mktemp)
    ccbench pki serve \"$pki\" --listen \"$service\" >\"$log\" &
    authority=$!
    trap 'kill \"$authority\" 2>/dev/null || :; rm -f \"$log\"' EXIT
    until grep -q '^listening' \"$log\"; do
        kill -0 \"$authority\"
        sleep 0.1
    done
fi

";

const END: &str = "
# No token of this script is unused; the service, which would also wait for others, is not needed any more.
echo \"every agent is started; run the plan with --pki $pki\"
";

/// Returns `join.sh` for these nodes, or `None` if the tool that wrote the manifest does its work. Names need no shell quoting
/// ([`ccbench_proto::manifest`]).
pub fn script<'n>(nodes: impl IntoIterator<Item = &'n ReservedNode>) -> Option<String> {
    let (mut tokens, mut all_tokens) = (String::new(), String::new());
    let mut joins = String::new();
    for (index, node) in nodes.into_iter().enumerate() {
        let (number, control) = (index + 1, node.control);
        let agent = SocketAddr::new(control, AGENT_PORT);
        let command = match &node.access {
            Access::Ssh { user, host, port } => {
                format!(
                    "ssh -p {port} {user}@{host} sudo {CLOUDLAB_SCRIPT} join \"$service\" '{agent}'"
                )
            }
            Access::Container(container) => {
                format!("docker exec -i {container} install-agent.sh join \"$service\" '{agent}'")
            }
            Access::Notebook => return None,
        };
        // Certificates must name these addresses, because the plan reaches agents at them.
        let _ = writeln!(tokens, "token_{number}=$(token {control})");
        let _ = write!(all_tokens, "$token_{number}");
        let _ =
            writeln!(joins, "echo {}\nprintf '%s\\n' \"$token_{number}\" | {command}", node.name);
    }
    let if_any = format!("\nif [ -n \"{all_tokens}\" ]; then");
    Some([BEGIN, &tokens, &if_any, SERVE, &joins, END].concat())
}
