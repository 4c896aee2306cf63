//! Notification of a service manager (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::environment::NOTIFY_SOCKET;

/// Notifies the service manager, if there is one, that Lasthop is ready.
///
/// # Errors
/// The socket cannot be reached.
pub(super) fn ready() -> io::Result<()> {
    let Some(name) = std::env::var_os(NOTIFY_SOCKET) else {
        return Ok(());
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not block the supervisor.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(b"READY=1", &address(&name)?)?;
    Ok(())
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name),
        None => SocketAddr::from_pathname(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_abstract_names() {
        let path = address(OsStr::new("/run/systemd/notify")).unwrap();
        assert_eq!(path.as_pathname().unwrap(), "/run/systemd/notify");
        let name = address(OsStr::new("@manager")).unwrap();
        assert_eq!(name.as_abstract_name().unwrap(), b"manager");
        assert!(address(OsStr::new(&"x".repeat(200))).is_err());
    }
}
