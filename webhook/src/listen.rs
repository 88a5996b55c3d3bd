//! The socket that is listened on. Where "all addresses" of IPv6, which are those of IPv4 as well, cannot be had because the
//! machine has no IPv6, it is those of IPv4 alone.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;
use tracing::warn;

/// Linux's "address family not supported", for which the standard library has no name.
const EAFNOSUPPORT: i32 = 97;

/// Listens there, or on all addresses that the machine has.
pub(crate) async fn listen(on: SocketAddr) -> io::Result<TcpListener> {
    by(TcpListener::bind, on).await
}

async fn by<F, L>(bind: impl Fn(SocketAddr) -> F, on: SocketAddr) -> io::Result<L>
where
    F: Future<Output = io::Result<L>>,
{
    let error = match bind(on).await {
        Err(error) if on.ip() == Ipv6Addr::UNSPECIFIED && is_for_want_of_ipv6(&error) => error,
        bound => return bound,
    };
    let instead = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), on.port());
    let bound = bind(instead).await;
    if bound.is_ok() {
        warn!(wanted = %on, %error, %instead, "this machine has no IPv6: listening on its addresses of IPv4 alone");
    }
    bound
}

fn is_for_want_of_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::net::TcpStream;

    use super::*;

    /// Where it listens in the end, and what was tried.
    async fn tried(on: &str, v6: fn() -> io::Error) -> (Result<String, io::ErrorKind>, Vec<String>) {
        let tried = RefCell::new(Vec::new());
        let bind = |on: SocketAddr| {
            tried.borrow_mut().push(on.to_string());
            async move { if on.is_ipv6() { Err(v6()) } else { Ok(on.to_string()) } }
        };
        let bound = by(bind, on.parse().unwrap()).await.map_err(|error| error.kind());
        (bound, tried.into_inner())
    }

    #[tokio::test]
    async fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let unsupported = || io::Error::from_raw_os_error(EAFNOSUPPORT);
        let none_there = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        for error in [unsupported, none_there] {
            let (bound, tried) = tried("[::]:9443", error).await;
            assert_eq!(bound.unwrap(), "0.0.0.0:9443");
            assert_eq!(tried, ["[::]:9443", "0.0.0.0:9443"]);
        }
    }

    #[tokio::test]
    async fn what_is_wrong_otherwise_and_one_address_of_ipv6_are_no_reason_for_another() {
        let in_use = || io::Error::from(io::ErrorKind::AddrInUse);
        assert_eq!(tried("[::]:9443", in_use).await.0, Err(io::ErrorKind::AddrInUse));
        let none_there = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        let (bound, tried) = tried("[::1]:9443", none_there).await;
        assert_eq!((bound, tried.len()), (Err(io::ErrorKind::AddrNotAvailable), 1));
    }

    #[tokio::test]
    async fn on_this_machine_ipv4_is_served_in_any_case() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (accepted, connected) =
            tokio::join!(listener.accept(), TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
        accepted.unwrap();
        connected.unwrap();
    }
}
