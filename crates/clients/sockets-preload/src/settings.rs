//! The interface of this library for programs that are linked with it (`lasthop_net.h`).

use super::*;
use std::ffi::CStr;

/// Takes settings in place of those of the environment: lines of `KEY=VALUE`, with the names of
/// the variables behind `LASTHOP_NET_`. Plugs in, and returns 0; else -1 with errno: `EINVAL` a
/// setting is wrong, `EALREADY` there are settings already, `ENETDOWN` the port cannot be used. A
/// line on standard error says why.
///
/// # Safety
/// The settings are a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn lasthop_net_open(settings: *const c_char) -> c_int {
    if settings.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller says so.
    let Ok(text) = unsafe { CStr::from_ptr(settings) }.to_str() else {
        return fail(libc::EINVAL);
    };
    let config = sockets::Config::from_text(text).map_err(|_| Errno::INVAL);
    let opened = config.and_then(|config| {
        posix::configure(config)?;
        posix::open_port().map(|_| 0)
    });
    done(opened)
}
