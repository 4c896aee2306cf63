//! A driver's queue, and a switch that writes anything to the rings at any time: a buffer comes
//! back at most as often as it was submitted, with no more bytes than were submitted, and never
//! without a submission; after a violation the queue has ended.

use arbitrary::{Arbitrary, Unstructured};
use driver::testing::{DriverQueue, ENTRIES, Fault, ROOM};

/// Submitted bytes of each buffer; 0 for one that the driver owns.
type Owned = [u32; ENTRIES as usize];

enum Step {
    /// The driver submits a buffer that it owns.
    Submit {
        id: u8,
        start: u16,
        len: u16,
        publish: bool,
    },
    /// The driver takes what came back.
    Take,
    /// The driver requests a notification.
    Arm,
    /// The switch returns a buffer, most often one that it has.
    Return {
        id: u8,
        len: u16,
    },
    /// The switch writes an element, or the index.
    Element {
        slot: u8,
        id: u32,
        len: u32,
    },
    Index(u16),
    /// The switch writes anywhere.
    Scribble {
        at: u16,
        value: u16,
    },
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let kind: u8 = u.arbitrary()?;
        Ok(match kind % 7 {
            0 => Self::Submit {
                id: u.arbitrary()?,
                start: u.arbitrary()?,
                len: u.arbitrary()?,
                publish: u.arbitrary()?,
            },
            1 => Self::Take,
            2 => Self::Arm,
            3 => Self::Return {
                id: u.arbitrary()?,
                len: u.arbitrary()?,
            },
            4 => Self::Element {
                slot: u.arbitrary()?,
                id: u.arbitrary()?,
                len: u.arbitrary()?,
            },
            5 => Self::Index(u.arbitrary()?),
            _ => Self::Scribble {
                at: u.arbitrary()?,
                value: u.arbitrary()?,
            },
        })
    }
}

/// The direction, then steps of both sides.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(from_switch) = input.arbitrary() else {
        return;
    };
    let mut queue = DriverQueue::new(from_switch).expect("memory");
    let mut submitted: Owned = [0; ENTRIES as usize];
    let mut used = 0;
    while !input.is_empty() {
        let Ok(step) = Step::arbitrary(&mut input) else {
            return;
        };
        if make(&step, &mut queue, &mut submitted, &mut used, from_switch).is_err() {
            return;
        }
        let all_here = submitted.iter().all(|len| *len == 0);
        assert_eq!(queue.is_empty(), all_here);
    }
}

/// Makes a step; an error ends the queue.
fn make(
    step: &Step,
    queue: &mut DriverQueue,
    submitted: &mut Owned,
    used: &mut u16,
    from_switch: bool,
) -> Result<(), Fault> {
    match *step {
        Step::Submit {
            id,
            start,
            len,
            publish,
        } => {
            let id = u16::from(id) % ENTRIES;
            let start = u32::from(start) % ROOM;
            let len = 1 + u32::from(len) % (ROOM - start);
            let place = &mut submitted[usize::from(id)];
            if *place == 0 {
                *place = len;
                queue.submit(id, start, len, publish);
            }
        }
        Step::Take => {
            while let Some((id, len)) = queue.take()? {
                let room = std::mem::take(&mut submitted[usize::from(id)]);
                assert!(room > 0, "buffer {id} was not submitted");
                assert!(len <= room && (from_switch || len == 0));
            }
        }
        Step::Arm => {
            queue.arm()?;
        }
        Step::Return { id, len } => {
            queue.set_used(*used, u32::from(id) % u32::from(ENTRIES), len.into());
            *used = used.wrapping_add(1);
            queue.set_used_index(*used);
        }
        Step::Element { slot, id, len } => queue.set_used(slot.into(), id, len),
        Step::Index(index) => queue.set_used_index(index),
        Step::Scribble { at, value } => queue.scribble(at, value),
    }
    Ok(())
}
