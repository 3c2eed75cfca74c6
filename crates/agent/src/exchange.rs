//! The exchange of one line with `ccbench pki serve`, by which a node gets a certificate.

use std::io;
use std::time::Duration;

use ccbench_proto::join::{JoinReply, JoinedNode, MAX_REPLY_BYTES, SERVER_NAME};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the authority has issued no certificate.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The tokio runtime could not be set up.
    #[error("start the tokio runtime: {0}")]
    Runtime(#[source] io::Error),
    /// The connection failed.
    #[error(
        "{controller}: {source}; does `ccbench pki serve` listen there? Without --until-stopped it ends when no token is left, and after \
         many refused requests it closes connections for a minute"
    )]
    Connection {
        /// The service.
        controller: String,
        /// Why.
        source: io::Error,
    },
    /// It took too long.
    #[error("{controller}: no answer within {} s", EXCHANGE_TIMEOUT.as_secs())]
    Timeout {
        /// The service.
        controller: String,
    },
    /// The service refuses to issue a certificate.
    #[error("{controller} refuses: {reason}")]
    Refused {
        /// The service.
        controller: String,
        /// Why.
        reason: String,
    },
    /// The answer cannot be parsed.
    #[error("the answer of {controller}: it cannot be read: {source}")]
    Malformed {
        /// The service.
        controller: String,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Sends a request to the service at `controller` (`HOST:PORT`), and returns what it has issued.
///
/// # Errors
/// The service cannot be reached, is not the one that `connector` accepts, or issues no certificate.
pub(crate) fn exchange(
    controller: &str,
    connector: TlsConnector,
    request: &impl Serialize,
) -> Result<JoinedNode, ExchangeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ExchangeError::Runtime)?;
    let line = exchange_lines(controller, connector, request);
    let line = async { tokio::time::timeout(EXCHANGE_TIMEOUT, line).await };
    let controller = controller.to_owned();
    match runtime.block_on(line) {
        Err(_) => Err(ExchangeError::Timeout { controller }),
        Ok(Err(source)) => Err(ExchangeError::Connection { controller, source }),
        Ok(Ok(line)) => match serde_json::from_str(&line) {
            Ok(JoinReply::Issued(node)) => Ok(node),
            Ok(JoinReply::Refused(reason)) => Err(ExchangeError::Refused { controller, reason }),
            Err(source) => Err(ExchangeError::Malformed { controller, source }),
        },
    }
}

async fn exchange_lines(
    controller: &str,
    connector: TlsConnector,
    request: &impl Serialize,
) -> io::Result<String> {
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    let stream = TcpStream::connect(controller).await?;
    let mut stream = connector.connect(name, stream).await?;
    let mut text = serde_json::to_string(request)?;
    text.push('\n');
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await?;
    let mut line = String::new();
    BufReader::new((&mut stream).take(MAX_REPLY_BYTES)).read_line(&mut line).await?;
    Ok(line)
}
