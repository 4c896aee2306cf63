//! Names of hosts. The C library asks resolvers by sockets of its own, past this library: where the
//! port has resolvers, they are asked here.

use super::*;
use std::ffi::CStr;

type GetaddrinfoFn = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const libc::addrinfo,
    *mut *mut libc::addrinfo,
) -> c_int;

/// The result of the C library for a name that it knows without a resolver, and the name else.
///
/// # Safety
/// As getaddrinfo(3).
unsafe fn asks<'a>(node: *const c_char, hints: *const libc::addrinfo) -> Option<&'a str> {
    if node.is_null() {
        return None;
    }
    // SAFETY: the caller says so.
    let (name, flags) = unsafe {
        let flags = hints.as_ref().map_or(0, |hints| hints.ai_flags);
        (CStr::from_ptr(node).to_str().ok()?, flags)
    };
    let is_number = name.parse::<std::net::IpAddr>().is_ok() || name.contains('%');
    (flags & libc::AI_NUMERICHOST == 0 && !is_number && name != "localhost").then_some(name)
}

/// getaddrinfo(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const libc::addrinfo,
    result: *mut *mut libc::addrinfo,
) -> c_int {
    // SAFETY: the arguments are the program's.
    let (name, hints_of) = unsafe { (asks(node, hints), hints.as_ref()) };
    let family = hints_of.map_or(libc::AF_UNSPEC, |hints| hints.ai_family);
    let found = name.and_then(|name| posix::resolve(name, family));
    let Some(addresses) = found else {
        let next = next::getaddrinfo.address();
        if next == 0 {
            return libc::EAI_SYSTEM;
        }
        // SAFETY: dlsym returned the address of the function with this name, and the arguments are
        // the caller's.
        return unsafe {
            std::mem::transmute::<usize, GetaddrinfoFn>(next)(node, service, hints, result)
        };
    };
    // SAFETY: as above.
    unsafe { chain(&addresses, service, hints, result) }
}

/// The results of the C library for addresses, one after the other, as those of one name.
///
/// # Safety
/// As getaddrinfo(3).
unsafe fn chain(
    addresses: &[std::net::IpAddr],
    service: *const c_char,
    hints: *const libc::addrinfo,
    result: *mut *mut libc::addrinfo,
) -> c_int {
    let address = next::getaddrinfo.address();
    if address == 0 || addresses.is_empty() {
        return libc::EAI_NONAME;
    }
    // SAFETY: dlsym returned the address of the function with this name.
    let next = unsafe { std::mem::transmute::<usize, GetaddrinfoFn>(address) };
    let mut end = result;
    for address in addresses {
        let Ok(text) = std::ffi::CString::new(address.to_string()) else {
            continue;
        };
        // SAFETY: `end` is the program's pointer, or that of the last result, which freeaddrinfo(3)
        // follows.
        unsafe {
            let failed = next(text.as_ptr(), service, hints, end);
            if failed != 0 {
                *end = std::ptr::null_mut();
                return if end == result { failed } else { 0 };
            }
            while let Some(entry) = (*end).as_mut() {
                end = &raw mut entry.ai_next;
            }
        }
    }
    0
}
