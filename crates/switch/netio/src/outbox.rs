//! Frames to send. Before they are sent, those of a flow are brought together ([`coalesce`]). A
//! group of frames leaves by one message or write.

mod coalesce;
mod frames;

use std::fmt;

use wire::virtio::net;

use crate::BATCH;
use coalesce::Coalescer;
pub(crate) use frames::ALL_PIECES;
use frames::{Frames, iovec};
pub use frames::{MAX_HEAD, MAX_PIECES};
pub use wire::coalesce::HEAD;

/// Frames that leave together.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Number of frames.
    count: usize,
    /// The place of its first frame.
    first: u8,
    /// The checksum of its first frame is known to be right.
    is_right: bool,
}

impl Group {
    fn new(first: u8) -> Self {
        Self {
            count: 1,
            first,
            is_right: false,
        }
    }

    fn is_super_frame(&self) -> bool {
        self.count > 1
    }
}

/// Frames that leave together, as the coalescing of a batch has arranged them.
#[derive(Clone, Copy, Debug)]
pub struct ArrangedGroup<'a> {
    outbox: &'a Outbox,
    group: Group,
    places: &'a [u8],
}

impl<'a> ArrangedGroup<'a> {
    /// Returns virtio's header and the headers of a super-frame; `None` for a single frame.
    #[must_use]
    pub fn headers(&self) -> Option<[&'a [u8]; 2]> {
        let is_super_frame = self.group.is_super_frame();
        is_super_frame.then(|| self.outbox.coalescer.headers(&self.group))
    }

    /// Returns number and bytes of its frames, virtio headers included.
    pub fn frames(&self) -> impl Iterator<Item = (u16, u32)> + use<'a> {
        let frames = &self.outbox.frames;
        let places = self.places.iter();
        places.map(|place| (frames.id(*place), frames.len(*place)))
    }

    /// Returns the number of frames that it is cut into.
    #[must_use]
    pub fn frames_on_the_wire(&self) -> u64 {
        let places = self.places.iter();
        places
            .map(|place| self.outbox.frames.segments(*place))
            .sum()
    }

    /// Appends the pieces to send: `header_len` bytes of virtio's header, and the bytes of one
    /// frame. They are good until the outbox is changed.
    pub(crate) fn describe(&self, header_len: usize, pieces: &mut Vec<libc::iovec>) {
        let frames = &self.outbox.frames;
        let Some([header, headers]) = self.headers() else {
            return frames.describe(self.group.first, header_len, pieces);
        };
        pieces.push(iovec(header.as_ptr(), header_len));
        pieces.push(iovec(headers.as_ptr(), headers.len()));
        for place in self.places {
            frames.for_payload(*place, headers.len(), |start, len| {
                pieces.push(iovec(start, len));
            });
        }
    }
}

/// Frames to send: at most [`BATCH`].
pub struct Outbox {
    frames: Box<Frames>,
    /// Places of the frames, in the order of sending.
    order: Vec<u8>,
    /// Number of frames at the begin of `order` that have left.
    gone: usize,
    /// Groups of the frames.
    groups: Vec<Group>,
    /// Number of groups that have left.
    groups_gone: usize,
    /// The groups are those of all frames.
    is_arranged: bool,
    coalescer: Coalescer,
}

// SAFETY: the caller of `push` promises that the pieces stay mapped, in all threads; the outbox
// only reads them.
unsafe impl Send for Outbox {}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outbox").field(&self.len()).finish()
    }
}

impl Outbox {
    /// Returns one for an interface that takes super-frames of TCP, and of UDP if `uso`.
    #[must_use]
    pub fn new(uso: bool) -> Self {
        Self {
            frames: Box::default(),
            order: Vec::with_capacity(BATCH),
            gone: 0,
            groups: Vec::with_capacity(BATCH),
            groups_gone: 0,
            is_arranged: true,
            coalescer: Coalescer::new(uso),
        }
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len() - self.gone
    }

    /// Returns whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether it may have no room for one more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.frames.is_full()
    }

    /// Drops all frames.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.order.clear();
        self.groups.clear();
        (self.gone, self.groups_gone) = (0, 0);
        self.is_arranged = true;
    }

    /// Adds a frame: virtio `header`, the first bytes of the frame, which are copied, and the rest,
    /// in pieces of memory. A frame of TCP or UDP can be coalesced with others only if all its
    /// headers are in the first [`HEAD`] bytes of `head`. A short frame is best copied whole.
    ///
    /// Returns whether it was added: not if the outbox is [full](Self::is_full), `head` has more
    /// than [`MAX_HEAD`] bytes, or the rest more than [`MAX_PIECES`] pieces.
    ///
    /// # Safety
    /// The pieces are mapped until the frame has left the outbox. Others may write them: then the
    /// system sends what they make of them. Where the mapping has no memory (`SIGBUS`), a send
    /// stops with [`Stop::Fault`](crate::Stop::Fault); but coalescing and [`copy`](Self::copy) read
    /// them here.
    #[must_use]
    pub unsafe fn push(
        &mut self,
        id: u16,
        header: [u8; net::LEN],
        head: &[u8],
        rest: impl IntoIterator<Item = (*const u8, usize)>,
    ) -> bool {
        self.make_room();
        let place = self.frames.add(id, header, head, rest);
        self.add(place)
    }

    /// Adds a frame that is in one piece, with its virtio header: `len` bytes at `start`. It is
    /// sent from there: for memory of the caller's own, or for bytes that no one has checked.
    /// Returns whether it was added: not if the outbox is [full](Self::is_full), or the frame not
    /// longer than its header.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    #[must_use]
    pub unsafe fn push_whole(&mut self, id: u16, start: *const u8, len: u32) -> bool {
        self.make_room();
        let place = self.frames.add_whole(id, start, len);
        self.add(place)
    }

    fn add(&mut self, place: Option<u8>) -> bool {
        self.order.extend(place);
        self.is_arranged &= place.is_none();
        place.is_some()
    }

    /// Forgets what has left.
    fn make_room(&mut self) {
        if self.gone > 0 {
            self.order.drain(..self.gone);
            self.groups.drain(..self.groups_gone);
            (self.gone, self.groups_gone) = (0, 0);
            self.frames.keep(&self.order);
        }
    }

    /// Places of the frames, in the order of sending.
    fn places(&self) -> &[u8] {
        &self.order[self.gone..]
    }

    /// Returns the numbers of the frames, in the order of sending.
    pub fn ids(&self) -> impl Iterator<Item = u16> {
        self.places().iter().map(|place| self.frames.id(*place))
    }

    /// Returns the bytes of virtio header and frame of each, in the order of sending.
    pub fn lens(&self) -> impl Iterator<Item = u32> {
        self.places().iter().map(|place| self.frames.len(*place))
    }

    /// Copies frame `at`, in the order of sending, with its virtio header, to the begin of `to`.
    /// Returns its bytes; `None` if there is no such frame, or it is longer than `to`.
    pub fn copy(&self, at: usize, to: &mut [u8]) -> Option<usize> {
        let place = self.places().get(at)?;
        self.frames.copy(*place, to)
    }

    /// Returns the pieces of the frame that [`Stop::Fault`](crate::Stop::Fault) is about, each by
    /// address and length in bytes.
    pub fn first_group(&self) -> impl Iterator<Item = (*const u8, usize)> {
        let count = self.groups().first().map_or(0, |group| group.count);
        let places = self.places().iter().take(count);
        places.flat_map(|place| self.frames.pieces(*place))
    }

    /// Drops the frame that [`Stop::Fault`](crate::Stop::Fault) is about, as one that was not sent:
    /// appends it to `done`, and returns how many frames that are.
    pub fn drop_first_group(&mut self, done: &mut Vec<(u16, bool)>) -> usize {
        let before = self.len();
        self.leave(1, false, done);
        before - self.len()
    }

    fn groups(&self) -> &[Group] {
        &self.groups[self.groups_gone..]
    }

    /// Returns the groups of [arranged](Self::arrange) frames, in the order of sending.
    pub fn arranged(&self) -> impl Iterator<Item = ArrangedGroup<'_>> {
        let mut places = self.places();
        self.groups().iter().map(move |group| {
            let (these, behind) = places.split_at(group.count.min(places.len()));
            places = behind;
            ArrangedGroup {
                outbox: self,
                group: *group,
                places: these,
            }
        })
    }

    /// Makes groups of the frames, each of one frame unless it `coalesces`; a
    /// [`Sender`](crate::Sender) does that itself.
    pub fn arrange(&mut self, coalesces: bool) {
        if !self.is_arranged {
            self.groups.clear();
            self.groups_gone = 0;
            let order = &mut self.order[self.gone..];
            self.coalescer
                .arrange(order, &self.frames, &mut self.groups, coalesces);
            self.is_arranged = true;
        }
    }

    /// Returns whether the first group is a super-frame.
    pub(crate) fn is_super_frame(&self) -> bool {
        self.groups().first().is_some_and(Group::is_super_frame)
    }

    /// The interface does not take the first group, which is a super-frame: there are no more of
    /// its kind.
    pub(crate) fn refuse_super_frame(&mut self) {
        if let Some(group) = self.groups().first().copied() {
            self.coalescer.refuse(&group);
            self.is_arranged = false;
            self.arrange(true);
        }
    }

    /// Makes the frames of the first group go singly.
    pub(crate) fn split_first_group(&mut self) {
        let Some(count) = self.groups().first().map(|group| group.count) else {
            return;
        };
        let places = self.order[self.gone..].iter().take(count);
        let singles = places.map(|place| Group::new(*place));
        let at = self.groups_gone;
        self.groups.splice(at..=at, singles);
    }

    /// The first groups have left. Returns the number of frames on the wire.
    pub(crate) fn leave(
        &mut self,
        groups: usize,
        is_sent: bool,
        done: &mut Vec<(u16, bool)>,
    ) -> u64 {
        let groups = groups.min(self.groups().len());
        let counts = self.groups()[..groups].iter().map(|group| group.count);
        let count = counts.sum::<usize>();
        let mut segments = 0;
        for place in &self.order[self.gone..self.gone + count] {
            segments += self.frames.segments(*place);
            done.push((self.frames.id(*place), is_sent));
            self.frames.remove(*place);
        }
        self.gone += count;
        self.groups_gone += groups;
        if self.is_empty() {
            self.clear();
        }
        segments
    }
}
