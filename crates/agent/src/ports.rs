//! Checks that the ports of a trial's connections are free on this node.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ccbench_proto::schedule::NodeTask;
use socket2::{Domain, Socket, Type};

use crate::error::AgentError;
use crate::listening;

/// Checks the ports of all flow groups. Only a port in use is an error here: the traffic generator describes all others.
///
/// # Errors
/// Another socket uses one of them. A connection in TIME_WAIT also keeps its client port, for a minute.
pub fn check(task: &NodeTask) -> Result<(), AgentError> {
    for flow in &task.servers {
        check_port(&flow.group, SocketAddr::new(flow.to_ip, flow.server_port), true)?;
    }
    for flow in &task.clients {
        for port in (flow.client_port..).take(flow.plan.count as usize) {
            check_port(&flow.group, SocketAddr::new(flow.from_ip, port), false)?;
        }
    }
    Ok(())
}

fn check_port(group: &str, address: SocketAddr, listens: bool) -> Result<(), AgentError> {
    match bind(address, listens) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(in_use(format!("flow {group}"), address.ip(), address.port()))
        }
        _ => Ok(()),
    }
}

/// Binds a socket as iperf3 does, and closes it.
fn bind(address: SocketAddr, listens: bool) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(listens)?;
    socket.bind(&address.into())
}

/// Returns the error for a port in use, which `subject` needs.
pub fn in_use(subject: String, address: IpAddr, port: u16) -> AgentError {
    let listener = listening::occupant(address, port);
    AgentError::PortInUse { subject, address: SocketAddr::new(address, port), listener }
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_listener_and_a_closed_connection_keep_their_ports() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (here, there) = (client.local_addr().unwrap(), listener.local_addr().unwrap());
        client.shutdown(Shutdown::Write).unwrap();
        drop((server, client));

        let refused = check_port("f", there, true).unwrap_err().to_string();
        let holder = format!("pid {}) listens there", std::process::id());
        assert!(refused.starts_with("flow f: ") && refused.contains(&holder), "{refused}");
        let refused = check_port("f", here, false).unwrap_err().to_string();
        assert_eq!(refused, format!("flow f: {here}: Address already in use"), "in TIME_WAIT");
        // Another test's child process may hold a copy of the descriptor until its exec, so closing the socket does not
        // end listening reliably.
        socket2::SockRef::from(&listener).shutdown(Shutdown::Read).unwrap();
        drop(listener);
        check_port("f", there, true).unwrap();
    }
}
