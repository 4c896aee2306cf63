//! An honest VMM that asks for features again and again.

use std::path::Path;
use std::time::Duration;

use super::book::{Book, LATE, Schedule};
use testkit::frontend::{FrontEnd, FrontError};

/// From one message to the next.
const MESSAGE_EVERY: Duration = Duration::from_millis(5);

/// Talks until the book says stop; begins anew where a conversation broke.
pub(super) fn talk(path: &Path, book: &Book) {
    while let Err(error) = conversation(path, book) {
        book.fault(format!("an honest VMM's message: {error}"));
        std::thread::sleep(MESSAGE_EVERY);
    }
    book.messages.close();
}

/// One message at a time, as the protocol has it: one that has to wait for another's answer counts
/// as late all the same.
fn conversation(path: &Path, book: &Book) -> Result<(), FrontError> {
    if !book.on() {
        return Ok(());
    }
    let mut front = FrontEnd::connect(path, LATE)?;
    let schedule = Schedule::new(MESSAGE_EVERY);
    for number in 0.. {
        let due = schedule.wait(number);
        if !book.on() {
            break;
        }
        front.get_features()?;
        book.messages.came(due);
    }
    Ok(())
}
