use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::*;
use testkit::frontend::{Event, wait_any};
use testkit::wait::wait_for;

/// Two guests' NICs and a wire between them, which may lose frames.
#[derive(Debug)]
struct Side {
    /// Received frames, and the event to wake the receiver.
    mine: Arc<(Mutex<VecDeque<Vec<u8>>>, Event)>,
    theirs: Arc<(Mutex<VecDeque<Vec<u8>>>, Event)>,
    /// Of so many frames that are sent, the last is lost.
    lost: Option<u64>,
    sent: u64,
}

fn wire(lost: Option<u64>) -> [Side; 2] {
    let queue = || Arc::new((Mutex::default(), Event::new().unwrap()));
    let (a, b) = (queue(), queue());
    let side = |mine: &Arc<_>, theirs: &Arc<_>, lost| Side {
        mine: Arc::clone(mine),
        theirs: Arc::clone(theirs),
        lost,
        sent: 0,
    };
    [side(&a, &b, lost), side(&b, &a, None)]
}

impl Nic for Side {
    fn interrupted(&mut self) -> bool {
        self.mine.1.take() > 0
    }

    fn mask(&mut self) {}

    fn unmask(&mut self) -> bool {
        !self.mine.0.lock().unwrap().is_empty()
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, GuestError> {
        let next = self.mine.0.lock().unwrap().pop_front();
        let there = next.is_some();
        frame.clear();
        frame.extend(next.into_iter().flatten());
        Ok(there)
    }

    fn send(&mut self, frame: &[u8], _: &NetHeader) -> Result<bool, GuestError> {
        self.sent += 1;
        if self.lost.is_none_or(|lost| !self.sent.is_multiple_of(lost)) {
            self.theirs.0.lock().unwrap().push_back(frame.to_owned());
            self.theirs.1.signal();
        }
        Ok(true)
    }

    fn kicks(&self) -> u64 {
        self.sent
    }

    fn sleep(&mut self, time: Duration) {
        let _ = wait_any(&[&self.mine.1], time);
    }
}

const FREE: Costs = Costs {
    exit: Duration::ZERO,
    interrupt: Duration::ZERO,
    frame: Duration::ZERO,
};
const TIME: Duration = Duration::from_millis(60);

/// Guest 1 with a task, guest 2 that serves. Returns the reports of both about the first run that
/// meets the expectation: on a busy machine a thread may not run for the time of a whole run.
fn exchange(
    task: &Task,
    lost: Option<u64>,
    is_expected: impl Fn(&VcpuReport, &VcpuReport) -> bool,
) -> [VcpuReport; 2] {
    let [first, second] = wire(lost);
    let start = |name: &str, number, side| {
        VcpuThread::start(name, None, move || Ok(Vcpu::new(side, number, FREE))).unwrap()
    };
    let guests = [start("vcpu-1", 1, first), start("vcpu-2", 2, second)];
    let mut number = 0;
    let mut run = || {
        number += 1;
        guests[1].begin(Task::Serve, number, TIME);
        guests[0].begin(task.clone(), number, TIME);
        [&guests[0], &guests[1]].map(|guest| guest.report().unwrap())
    };
    // What an earlier run left there must not count.
    run();
    wait_for("a run as expected", || {
        let [first, second] = run();
        is_expected(&first, &second).then_some([first, second])
    })
}

#[test]
fn requests_are_answered_and_timed() {
    let task = Task::Request {
        peer: 2,
        outstanding: 3,
        payload: MIN_PAYLOAD,
    };
    let has_answers = |asks: &VcpuReport, _: &VcpuReport| asks.answers > 0 && asks.stalls == 0;
    let [asks, serves] = exchange(&task, None, has_answers);
    assert_eq!(asks.round_trips.count(), asks.answers);
    assert!(asks.sent >= asks.answers && asks.sent <= asks.answers + 3);
    assert!(serves.sent >= asks.answers);
    assert_eq!(asks.kicks, asks.sent);
}

#[test]
fn lost_requests_do_not_stop_it() {
    let task = Task::Request {
        peer: 2,
        outstanding: 1,
        payload: 100,
    };
    exchange(&task, Some(2), |asks, _| {
        asks.stalls > 0 && asks.answers > 0
    });
}

#[test]
fn paced_requests_have_their_rate_and_are_timed_from_when_they_were_due() {
    let [side, _] = wire(None);
    let mut vcpu = Vcpu::new(side, 1, FREE);
    let total: Duration = (0..20_000).map(|_| vcpu.gap(1e4)).sum();
    assert!((1.94..2.06).contains(&total.as_secs_f64()), "{total:?}");
    let task = Task::Pace {
        peer: 2,
        rate: 1e4,
        payload: 100,
    };
    let [asks, _] = exchange(&task, None, |asks, _| asks.answers > 0);
    assert_eq!(asks.round_trips.count(), asks.answers);
}

#[test]
fn data_are_acknowledged_and_never_exceed_the_window() {
    for payload in [100, 1460, 60_000] {
        let task = Task::Stream {
            peers: vec![2],
            payload,
            window: 4 * payload,
        };
        let has_data = |sends: &VcpuReport, gets: &VcpuReport| gets.bytes > 0 && sends.stalls == 0;
        let [sends, gets] = exchange(&task, None, has_data);
        assert!(gets.bytes.is_multiple_of(payload as u64));
        let acknowledged = sends.received * u64::from(ACKNOWLEDGED);
        assert!(sends.sent <= acknowledged + 4, "{payload}");
    }
}

#[test]
fn lost_data_do_not_stop_a_stream() {
    let task = Task::Stream {
        peers: vec![2],
        payload: 1000,
        window: 1000,
    };
    exchange(&task, Some(3), |sends, gets| {
        sends.stalls > 0 && gets.bytes >= 2000
    });
}

#[test]
fn messages_come_back_as_they_were_written() {
    let mut templates = Templates::new(1);
    for kind in [
        Kind::Request,
        Kind::Answer,
        Kind::Data,
        Kind::Acknowledgement,
    ] {
        for payload in [MIN_PAYLOAD, 1460, 65_000] {
            let message = Message {
                kind,
                run: 7,
                from: 1,
                number: 1 << 40,
                stamp: 5,
                payload,
            };
            let (frame, header) = templates.write(2, &message);
            assert_eq!(Message::read(frame), Some(message));
            assert_eq!(header.gso_size > 0, kind == Kind::Data && payload > 1460);
        }
    }
    assert_eq!(Message::read(&[0; 41]), None);
}
