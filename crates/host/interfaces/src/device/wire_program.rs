//! The XDP program of a prefilter at an interface with packet sockets: a frame ends before the
//! system makes a packet of it. All others pass to the system, which gives them to the sockets.
//!
//! The program is that of interfaces with `AF_XDP` sockets, and its map has no socket. Attaching
//! it needs bpf(2). It goes with the last descriptor of its link.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::interface::Control;
use super::namespace::{self, in_namespace};
use super::xdp::{Tags, attach, refused};
use super::{OpenError, context};
use crate::prefilter::XdpFilter;

/// See the module.
#[derive(Debug)]
pub(super) struct WireProgram {
    /// The attached program.
    link: OwnedFd,
    /// The program must see VLAN tags, which the interface would take off before.
    tags: Tags,
}

/// Parts of an attached program, for a supervisor that replaces another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WireProgramParts<Fd> {
    /// The attached program, which goes with the last copy of this.
    pub link: Fd,
    /// The socket for changes of the interface's VLAN offload.
    pub tags: Fd,
    /// It took tags off before.
    pub took_tags_off: bool,
}

impl WireProgram {
    /// Attaches a program to an interface.
    ///
    /// # Errors
    /// The kernel refuses, another program is attached, or bpf(2) is not allowed any more.
    pub(super) fn attach(
        interface: &str,
        control: &Control,
        filter: &XdpFilter,
    ) -> Result<Self, OpenError> {
        let what = || format!("interface {interface}");
        let index = context(control.index(interface), what)?;
        let namespace = context(namespace::of_socket(control), || {
            "the network namespace".to_owned()
        })?;
        let tags = in_namespace(namespace.as_fd(), || {
            Tags::leave(interface, context(Control::new(), what)?)
        })?;
        let link = in_namespace(namespace.as_fd(), || {
            attach(&filter.program, index as u32).map_err(|error| without_right(&error))
        })?;
        Ok(Self { link, tags })
    }

    /// Returns its parts. `pass` makes of a descriptor what the parts have instead.
    pub(super) fn parts<'a, Fd>(
        &'a self,
        mut pass: impl FnMut(BorrowedFd<'a>) -> Fd,
    ) -> WireProgramParts<Fd> {
        let (tags, took_tags_off) = self.tags.parts();
        WireProgramParts {
            link: pass(self.link.as_fd()),
            tags: pass(tags),
            took_tags_off,
        }
    }

    /// Returns the program at the interface of this name that these are the parts of.
    pub(super) fn of<Fd, E>(
        interface: &str,
        parts: WireProgramParts<Fd>,
        mut take: impl FnMut(Fd) -> Result<OwnedFd, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            link: take(parts.link)?,
            tags: Tags::of(interface, Control(take(parts.tags)?), parts.took_tags_off),
        })
    }
}

/// Returns the reason of a refusal, and what to do where the supervisor has given up bpf(2).
fn without_right(error: &io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => OpenError::new(
            "bpf(2) is given up at the start, unless the unit allows AF_XDP: the lines for \
             `driver = \"xdp\"`",
        ),
        _ => refused(error),
    }
}
