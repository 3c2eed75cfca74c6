//! An accepted connection: its bytes, its client, and its end. It fails when the client's certificate is no longer
//! accepted, or when this process closes it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::per_client::Place;
use super::{Client, ConnectionHandle};
use crate::control_interface::Peer;

/// Resolves when the client's certificate is no longer accepted, or when this process closes the connection.
pub(super) type Rejection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An accepted connection.
pub struct Connection {
    pub(super) id: u64,
    pub(super) stream: Stream,
    pub(super) client: Client,
    pub(super) rejection: Rejection,
    /// Dropped with the connection, which resolves [`ConnectionHandle::wait`].
    pub(super) end: watch::Sender<()>,
    /// Makes `rejection` resolve.
    pub(super) close: Arc<Notify>,
    pub(super) _slot: OwnedSemaphorePermit,
    /// Present if the client has a certificate.
    pub(super) _place: Option<Place>,
}

/// The bytes of a connection that is neither TCP nor a Unix socket, such as one of a simulated network.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The bytes of a connection.
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Other(Box<dyn Transport>),
}

impl Connection {
    /// Fails once the connection is rejected. Also registers the task to be woken then.
    fn check_accepted(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.rejection.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        // For the next call: a completed future must not be polled again.
        self.rejection = Box::pin(std::future::ready(()));
        let why = "the client's certificate is no longer accepted, or the worker is gone";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> ConnectionHandle {
        let peer = match &self.stream {
            Stream::Unix(_) | Stream::Other(_) => None,
            Stream::Tcp(stream) => peer(stream),
            Stream::Tls(stream) => peer(stream.get_ref().0),
        };
        let (client, close) = (self.client.clone(), Arc::clone(&self.close));
        ConnectionHandle { id: self.id, peer, client, end: self.end.subscribe(), close }
    }
}

fn peer(stream: &TcpStream) -> Option<Peer> {
    let address = stream.peer_addr().ok()?;
    let scope_id = match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    };
    let local = stream.local_addr().ok().map(|local| local.ip().to_canonical());
    Some(Peer { ip: address.ip().to_canonical(), local, scope_id })
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_accepted(cx)?;
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Other(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_accepted(cx)?;
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Other(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_accepted(cx)?;
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Other(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Other(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
