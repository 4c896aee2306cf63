//! The ioctls of netmap.
//!
//! Requests are copied, checked, and written back, as the kernel does. What is not there is refused
//! with netmap's error and a line that says so.

use std::os::fd::RawFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::abi::{
    self, Header, LegacyRequest, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC, Opt,
    PoolsInfo, PortHeader, PortInfo, Register, ValeList, flags, legacy, mode, req,
};
use crate::device::{DEVICES, Device};
use crate::names::Name;
use crate::pages::PAGE;
use crate::pipe::DEFAULT_SLOTS as PIPE_SLOTS;
use crate::port;
use crate::region::{OWN_MEMORY, Region};
use crate::registration::{self, Registration};
use crate::view::PRIVATE;
use crate::{SAY, refuse};

/// Options of a request at most; a list that goes in circles ends here.
const MAX_OPTIONS: usize = 16;
/// Types of options below this are netmap's.
const KNOWN_OPTIONS: usize = 6;

/// Whether a request is netmap's: no other descriptor has it.
#[must_use]
pub fn is_netmaps(request: u64) -> bool {
    let known = [NIOCTXSYNC, NIOCRXSYNC, NIOCCTRL, NIOCREGIF, NIOCGINFO];
    known.contains(&(request & 0xffff_ffff))
}

/// An ioctl of a netmap descriptor.
///
/// # Errors
/// netmap's, see `docs/user/netmap.md`. `ENOTTY`: it is none of netmap's.
///
/// # Safety
/// `argument` is what the request says: null, or the address of its structure, whose pointers lead
/// to theirs, all writable.
pub unsafe fn ioctl(fd: RawFd, request: u64, argument: *mut libc::c_void) -> Result<(), Errno> {
    let device = DEVICES.get(fd).ok_or(Errno::BADF)?;
    // The upper half of the number is not the kernel's business.
    match request & 0xffff_ffff {
        NIOCTXSYNC => device.sync(true),
        NIOCRXSYNC => device.sync(false),
        // SAFETY: the caller says that the argument is the request's structure.
        NIOCCTRL => unsafe { control(&device, argument.cast()) },
        // SAFETY: as above.
        NIOCREGIF => unsafe { legacy_register(&device, argument.cast()) },
        // SAFETY: as above.
        NIOCGINFO => unsafe { legacy_info(argument.cast()) },
        libc::FIONBIO => Ok(()),
        _ => Err(Errno::NOTTY),
    }
}

/// Copies a body in, lets `act` change it, and copies it back, also after an error, as netmap does.
///
/// # Safety
/// `at` is null or the address of a `T`, readable and writable.
unsafe fn with_body<T: Copy>(
    at: *mut T,
    act: impl FnOnce(&mut T) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if at.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller says so. Programs need not align it.
    let mut body = unsafe { at.read_unaligned() };
    let result = act(&mut body);
    // SAFETY: as above.
    unsafe { at.write_unaligned(body) };
    result
}

/// # Safety
/// As [`ioctl`].
unsafe fn control(device: &Device, at: *mut Header) -> Result<(), Errno> {
    if at.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller says that it is the address of a header.
    let mut header = unsafe { at.read_unaligned() };
    if !(abi::API..=abi::MAX_API).contains(&header.version) {
        let (got, known) = (header.version, abi::API);
        let why = format!("the program has API {got} of netmap, not {known}");
        return Err(refuse(Errno::INVAL, &why));
    }
    let body = header.body as *mut u8;
    // SAFETY: the header's pointers lead to what they should, says the caller.
    unsafe {
        check_options(&header)?;
        match header.reqtype {
            req::REGISTER => with_body(body.cast(), |body| register(device, &header.name, body)),
            req::PORT_INFO_GET => with_body(body.cast(), |body| port_info(&header.name, body)),
            req::POOLS_INFO_GET => with_body(body.cast(), |body| pools_info(&header.name, body)),
            req::PORT_HDR_SET => with_body(body.cast(), |body| set_header(&header.name, body)),
            req::PORT_HDR_GET => with_body(body.cast(), |body| get_header(&header.name, body)),
            req::VALE_LIST => {
                let listed = with_body(body.cast(), |body| list(&mut header.name, body));
                at.write_unaligned(header);
                listed
            }
            other => Err(not_there(other)),
        }
    }
}

/// The error of a request that is netmap's, and not there.
fn not_there(reqtype: u16) -> Errno {
    match reqtype {
        req::VALE_ATTACH | req::VALE_DETACH | req::VALE_NEWIF | req::VALE_DELIF => refuse(
            Errno::OPNOTSUPP,
            "ports are added and removed by `lasthop port`, not by programs",
        ),
        req::VALE_POLLING_ENABLE | req::VALE_POLLING_DISABLE => refuse(
            Errno::OPNOTSUPP,
            "polling of ports is a setting of the switch (`poll` in lasthop.toml)",
        ),
        req::SYNC_KLOOP_START | req::SYNC_KLOOP_STOP | req::CSB_ENABLE => refuse(
            Errno::OPNOTSUPP,
            "application CSB and sync loops are not there",
        ),
        other => refuse(
            Errno::INVAL,
            &format!("netmap has no request of type {other}"),
        ),
    }
}

/// Refuses options, each with a status of its own. None is there.
///
/// # Safety
/// As [`ioctl`].
unsafe fn check_options(header: &Header) -> Result<(), Errno> {
    let (mut at, mut result) = (header.options as *mut Opt, Ok(()));
    let mut seen = [false; KNOWN_OPTIONS];
    for _ in 0..MAX_OPTIONS {
        if at.is_null() {
            return result;
        }
        // SAFETY: the program's list leads from option to option.
        let mut option = unsafe { at.read_unaligned() };
        option.status = Errno::OPNOTSUPP.raw_os_error().cast_unsigned();
        // SAFETY: as above.
        unsafe { at.write_unaligned(option) };
        // A known one comes once.
        if let Some(seen) = seen.get_mut(option.reqtype as usize)
            && std::mem::replace(seen, true)
        {
            let why = format!("the option of type {} comes twice", option.reqtype);
            return Err(refuse(Errno::INVAL, &why));
        }
        let name = match option.reqtype {
            1 => "external memory (EXTMEM)",
            3 => "application CSB",
            5 => "offsets in buffers (OFFSETS)",
            _ => "a request option of the program",
        };
        SAY.once(&format!("{name} is not there"));
        result = Err(Errno::OPNOTSUPP);
        at = option.next as *mut Opt;
    }
    let why = format!("a request has more than {MAX_OPTIONS} options");
    Err(refuse(Errno::MSGSIZE, &why))
}

fn register(device: &Device, name: &[u8], request: &mut Register) -> Result<(), Errno> {
    if device.registration().is_some() {
        let why = "the program registers a port with a descriptor that has one already";
        return Err(refuse(Errno::BUSY, why));
    }
    let monitors = flags::MONITOR_TX | flags::MONITOR_RX | flags::ZCOPY_MON;
    if request.flags & monitors != 0 {
        let why = "monitors are not there; a [[mirror]] copies the frames of a port to another";
        return Err(refuse(Errno::OPNOTSUPP, why));
    }
    let name = match request.mode {
        mode::NULL => Name::Port(String::new()),
        _ => registration::pipe_of_mode(Name::read(name)?, request),
    };
    let epoll = device.epoll();
    device.bind(|| Registration::register(&name, request, epoll))?;
    Ok(())
}

/// Rings and slots of a port, whether this process has it or not.
fn geometry(name: &Name) -> Result<(u16, (u16, u16)), Errno> {
    match name {
        Name::Port(port) => match registration::open_port(port) {
            Some(port) => Ok((port.pairs(), port.slots())),
            None => {
                let offered = port::offered_by(name)?;
                Ok((offered.pairs, (offered.slots, offered.slots)))
            }
        },
        Name::Pipe { .. } => match registration::open_pipe(name) {
            Some(pipe) => Ok((1, (pipe.ring(true).slots(), pipe.ring(false).slots()))),
            None if name.socket().exists() => Ok((1, (PIPE_SLOTS, PIPE_SLOTS))),
            None => Err(no_socket(name)),
        },
    }
}

/// The error of a memory's number that is not that of the port.
fn no_memory(mem_id: u16) -> Errno {
    refuse(
        Errno::INVAL,
        &format!("memory {mem_id} is not that of the request's port"),
    )
}

/// The error of a name without a socket.
fn no_socket(name: &Name) -> Errno {
    let path = name.socket();
    let why = format!("{name}: there is no such port ({})", path.display());
    refuse(Errno::NXIO, &why)
}

fn is_empty(name: &[u8]) -> bool {
    name.first() == Some(&0)
}

fn port_info(name: &[u8], info: &mut PortInfo) -> Result<(), Errno> {
    if !is_empty(name) {
        let (pairs, (send, receive)) = geometry(&Name::read(name)?)?;
        (info.tx_rings, info.rx_rings) = (pairs, pairs);
        (info.tx_slots, info.rx_slots) = (send.into(), receive.into());
        (info.host_tx_rings, info.host_rx_rings) = (1, 1);
    } else if info.mem_id > OWN_MEMORY {
        return Err(no_memory(info.mem_id));
    }
    let region = memory_of(name)?;
    info.memsize = region.view.size();
    info.mem_id = region.mem_id;
    Ok(())
}

/// Returns the memory of an open pipe; else that of the ports. All have the same size.
fn memory_of(name: &[u8]) -> Result<Arc<Region>, Errno> {
    let open = match is_empty(name) {
        true => None,
        false => registration::open_pipe(&Name::read(name)?),
    };
    match open {
        Some(pipe) => Ok(Arc::clone(pipe.region())),
        None => Region::own().cloned(),
    }
}

fn pools_info(name: &[u8], info: &mut PoolsInfo) -> Result<(), Errno> {
    if is_empty(name) {
        return Err(refuse(
            Errno::NXIO,
            "the program asks for the memory of no port",
        ));
    }
    geometry(&Name::read(name)?)?;
    let region = memory_of(name)?;
    if info.mem_id != 0 && info.mem_id != region.mem_id {
        return Err(no_memory(info.mem_id));
    }
    info.memsize = region.view.size();
    info.mem_id = region.mem_id;
    // Interfaces and rings share the private part.
    let pages = (PRIVATE / PAGE) as u32;
    (info.if_pool_offset, info.ring_pool_offset) = (0, 0);
    (info.if_pool_objtotal, info.if_pool_objsize) = (pages, PAGE as u32);
    (info.ring_pool_objtotal, info.ring_pool_objsize) = (pages, PAGE as u32);
    info.buf_pool_offset = region.pool_in_view();
    info.buf_pool_objtotal = region.geometry.buffers;
    info.buf_pool_objsize = region.geometry.buffer_size;
    Ok(())
}

/// A port's name; pipes have no header.
fn port_name(name: &[u8]) -> Result<String, Errno> {
    let name = Name::read(name)?;
    let Name::Port(port) = &name else {
        return Err(refuse(
            Errno::OPNOTSUPP,
            &format!("{name}: pipes have no header"),
        ));
    };
    if registration::open_port(port).is_none() && !name.socket().exists() {
        return Err(no_socket(&name));
    }
    Ok(port.clone())
}

fn set_header(name: &[u8], request: &PortHeader) -> Result<(), Errno> {
    let header = match request.hdr_len {
        0 => 0,
        10 => 10,
        12 => 12,
        other => {
            let why = format!("a header has 0, 10 or 12 bytes, not {other}");
            return Err(refuse(Errno::INVAL, &why));
        }
    };
    registration::set_header(&port_name(name)?, header)
}

fn get_header(name: &[u8], request: &mut PortHeader) -> Result<(), Errno> {
    request.hdr_len = registration::header_of(&port_name(name)?).into();
    Ok(())
}

/// Ports in the runtime directory, in the order of their names, as ports of one switch "vale0".
fn list(name: &mut [u8; 64], request: &mut ValeList) -> Result<(), Errno> {
    let probe = Name::Port("x".to_owned()).socket();
    let folder = probe.parent().ok_or(Errno::NOENT)?;
    let entries = std::fs::read_dir(folder).map_err(|_| Errno::NOENT)?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|file| Some(file.to_str()?.strip_suffix(".netmap")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    if is_empty(name) {
        let at = request.port_idx as usize;
        let found = names.get(at).filter(|_| request.bridge_idx == 0);
        let text = format!("vale0:{}", found.ok_or(Errno::NOENT)?);
        *name = [0; 64];
        let len = text.len().min(63);
        name[..len].copy_from_slice(&text.as_bytes()[..len]);
        return Ok(());
    }
    let port = Name::read(name)?;
    let at = names.iter().position(|listed| listed == port.base());
    request.bridge_idx = 0;
    request.port_idx = at.ok_or(Errno::NOENT)? as u32;
    Ok(())
}

/// Refuses requests that are older than the older ones.
fn check_version(old: &LegacyRequest) -> Result<(), Errno> {
    if old.version >= 11 {
        return Ok(());
    }
    let why = format!(
        "the program has API {} of netmap, not 11 or later",
        old.version
    );
    Err(refuse(Errno::INVAL, &why))
}

/// The request of today that an older one means.
fn of_legacy(old: &LegacyRequest) -> Result<([u8; 64], Register), Errno> {
    check_version(old)?;
    if old.cmd != 0 {
        let why = "the commands of old vale-ctl are not there";
        return Err(refuse(Errno::OPNOTSUPP, why));
    }
    let mut new = Register {
        tx_slots: old.tx_slots,
        rx_slots: old.rx_slots,
        tx_rings: old.tx_rings,
        rx_rings: old.rx_rings,
        mem_id: old.arg2,
        ringid: old.ringid & legacy::RING_MASK,
        extra_bufs: old.arg3,
        mode: old.flags & legacy::MODE_MASK,
        flags: u64::from(old.flags & !legacy::MODE_MASK),
        ..Register::default()
    };
    if new.mode == 0 {
        new.mode = match old.ringid & (legacy::HW_RING | legacy::SW_RING) {
            0 => mode::ALL_NIC,
            legacy::HW_RING => mode::ONE_NIC,
            legacy::SW_RING => mode::SW,
            _ => {
                return Err(refuse(
                    Errno::INVAL,
                    "a request for a ring and all host rings",
                ));
            }
        };
    }
    if old.ringid & legacy::NO_TX_POLL != 0 {
        new.flags |= flags::NO_TX_POLL;
    }
    if old.ringid & legacy::DO_RX_POLL != 0 {
        new.flags |= flags::DO_RX_POLL;
    }
    let mut name = [0; 64];
    name[..15].copy_from_slice(&old.name[..15]);
    Ok((name, new))
}

/// # Safety
/// As [`ioctl`].
unsafe fn legacy_register(device: &Device, at: *mut LegacyRequest) -> Result<(), Errno> {
    // SAFETY: the caller says that it is the address of such a request.
    unsafe {
        with_body(at, |old| {
            let converted = of_legacy(old);
            old.version = abi::API.into();
            let (name, mut new) = converted?;
            register(device, &name, &mut new)?;
            old.offset = u32::try_from(new.offset).map_err(|_| Errno::OVERFLOW)?;
            old.memsize = u32::try_from(new.memsize).map_err(|_| Errno::OVERFLOW)?;
            (old.tx_slots, old.rx_slots) = (new.tx_slots, new.rx_slots);
            (old.tx_rings, old.rx_rings) = (new.tx_rings, new.rx_rings);
            old.arg2 = new.mem_id;
            old.arg3 = new.extra_bufs;
            Ok(())
        })
    }
}

/// # Safety
/// As [`ioctl`].
unsafe fn legacy_info(at: *mut LegacyRequest) -> Result<(), Errno> {
    // SAFETY: the caller says that it is the address of such a request.
    unsafe {
        with_body(at, |old| {
            let is_known = check_version(old);
            old.version = abi::API.into();
            is_known?;
            let mut name = [0; 64];
            name[..15].copy_from_slice(&old.name[..15]);
            let mut info = PortInfo::default();
            port_info(&name, &mut info)?;
            old.memsize = u32::try_from(info.memsize).map_err(|_| Errno::OVERFLOW)?;
            (old.tx_slots, old.rx_slots) = (info.tx_slots, info.rx_slots);
            (old.tx_rings, old.rx_rings) = (info.tx_rings, info.rx_rings);
            old.arg2 = info.mem_id;
            Ok(())
        })
    }
}
