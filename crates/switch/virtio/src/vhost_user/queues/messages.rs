//! Messages about single queues.

use super::{F_LOG, MAX_QUEUE_SIZE, PACKED_START, duplicate};
use crate::vhost_user::backend::Backend;
use crate::vhost_user::fault::Refusal;
use crate::vhost_user::message::{Payload, VringAddr, VringState};
use crate::vhost_user::record::StoredDescriptor;
use crate::vhost_user::session::{Answer, Request, Session};

/// Bit of `SET_VRING_KICK` and similar messages: no descriptor is attached.
pub(in crate::vhost_user) const NO_FD: u64 = 1 << 8;

impl Session {
    /// Returns the place of the queue `index`; all 32 bits count (CVE-2020-10723).
    fn queue_at(&self, index: u32) -> Result<usize, Refusal> {
        let count = self.queues.len();
        match usize::try_from(index) {
            Ok(at) if at < count => Ok(at),
            _ => Err(format!(
                "queue {index}: this port has {} queue pairs, queues 0 to {}",
                count / 2,
                count - 1
            )
            .into()),
        }
    }

    /// Returns queue and descriptor of `SET_VRING_KICK`, `CALL` and `ERR`.
    fn vring_file(
        &mut self,
        request: &mut Request,
        backend: &mut dyn Backend,
    ) -> Result<(usize, Option<StoredDescriptor>), Refusal> {
        let value: u64 = request.parse()?;
        if value & !(NO_FD | 0xff) != 0 {
            return Err(format!("unknown bits in {value:#x}").into());
        }
        let at = self.queue_at((value & 0xff) as u32)?;
        let fd = request.fds.pop();
        if fd.is_some() == (value & NO_FD != 0) {
            return Err("the flag for \"no descriptor\" says otherwise".into());
        }
        let Some(fd) = fd else {
            return Ok((at, None));
        };
        sys::event::check(&fd)?;
        let number = self.keep(&fd, backend);
        Ok((at, Some(StoredDescriptor { number, fd })))
    }
}

type Outcome = Result<Answer, Refusal>;

/// `SET_VRING_NUM`: 1 to 4096. The power of two that a split queue needs is checked at the start,
/// when the format is known.
pub(in crate::vhost_user) fn set_num(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let state: VringState = request.parse()?;
    let at = session.queue_at(state.index)?;
    let size = u16::try_from(state.num).unwrap_or(u16::MAX);
    if size == 0 || size > MAX_QUEUE_SIZE {
        return Err(format!(
            "queue of {} entries, 1 to {MAX_QUEUE_SIZE} are served",
            state.num
        )
        .into());
    }
    if session.queues[at].size == Some(size) {
        return Ok(Answer::Done);
    }
    Ok(session.change(at, backend, |vring| vring.size = Some(size)))
}

/// `SET_VRING_ADDR`. The addresses are translated when the queue starts, in the memory of that time
/// (CVE-2020-10725). A running queue continues when only the logging of its used ring changes, as
/// at the start and the end of a migration: with the log on, writes to rings are logged in any
/// case, where the rings are.
pub(in crate::vhost_user) fn set_addr(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let addr: VringAddr = request.parse()?;
    let at = session.queue_at(addr.index)?;
    if addr.flags & !F_LOG != 0 {
        return Err(format!("unknown flags {:#x}", addr.flags).into());
    }
    let vring = &mut session.queues[at];
    let stays = vring
        .addr
        .is_some_and(|before| before.is_at_place_of(&addr));
    if stays && vring.running.is_some() {
        vring.addr = Some(addr);
        return Ok(Answer::Done);
    }
    Ok(session.change(at, backend, |vring| vring.addr = Some(addr)))
}

/// `SET_VRING_BASE`.
pub(in crate::vhost_user) fn set_base(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let state: VringState = request.parse()?;
    let at = session.queue_at(state.index)?;
    Ok(session.change(at, backend, |vring| vring.base = Some(state.num)))
}

/// `GET_VRING_BASE` stops the queue and returns its position. It runs again after the next
/// `SET_VRING_KICK`.
pub(in crate::vhost_user) fn get_base(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let state: VringState = request.parse()?;
    let at = session.queue_at(state.index)?;
    session.stop(at, backend);
    if !session.any_running() {
        // QEMU does not revoke what the guest unmaps while no queue runs: its next driver uses the
        // same addresses for other pages.
        session.forget_translations();
    }
    let fresh = if session.packed() { PACKED_START } else { 0 };
    let vring = &mut session.queues[at];
    vring.kick = None;
    vring.problem = None;
    let answer = VringState {
        index: state.index,
        num: vring.base.or(vring.last_position).unwrap_or(fresh),
    };
    Ok(Answer::payload(answer.to_bytes()))
}

/// `SET_VRING_KICK`, the last message before a queue starts. A queue without a descriptor would
/// need polling, which is not supported.
pub(in crate::vhost_user) fn set_kick(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let (at, fd) = session.vring_file(&mut request, backend)?;
    if fd.is_none() {
        return Err("a queue without a kick descriptor would have to be polled".into());
    }
    Ok(session.change(at, backend, |vring| vring.kick = fd))
}

/// `SET_VRING_CALL`; without a descriptor the guest polls. QEMU changes it all the time, so a
/// running queue continues.
pub(in crate::vhost_user) fn set_call(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let (at, fd) = session.vring_file(&mut request, backend)?;
    if session.queues[at].running.is_some() {
        let copy = fd.as_ref().map(duplicate).transpose()?;
        backend.set_call(at as u16, copy);
    }
    session.queues[at].call = fd;
    Ok(Answer::Done)
}

/// `SET_VRING_ERR`, signalled by [`Session::queue_failed`].
pub(in crate::vhost_user) fn set_err(
    session: &mut Session,
    mut request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let (at, fd) = session.vring_file(&mut request, backend)?;
    session.queues[at].err = fd;
    Ok(Answer::Done)
}

/// `SET_VRING_ENABLE`. QEMU sends it before `SET_FEATURES`, too.
pub(in crate::vhost_user) fn set_enable(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let state: VringState = request.parse()?;
    let at = session.queue_at(state.index)?;
    if state.num > 1 {
        return Err(format!("{} is neither on nor off", state.num).into());
    }
    if session.negotiated() && !session.rings_start_disabled() {
        return Err("protocol features were not negotiated, so rings are always enabled".into());
    }
    let on = state.num == 1;
    let before = session.enabled(&session.queues[at]);
    session.queues[at].enabled = Some(on);
    if session.queues[at].running.is_some() && before != on {
        backend.enable_queue(at as u16, on);
    }
    Ok(Answer::Done)
}
