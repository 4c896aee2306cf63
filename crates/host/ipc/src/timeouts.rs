//! Deadlines between our processes, and of their clients. One that waits for another's reply must
//! be longer than everything that this reply waits for, or the caller gives up on a process that
//! works: the order is checked when this crate is compiled.
//!
//! ```text
//! a request   LINK_ROOM, USER_TABLE < PEER < COMMAND < API_CLIENT < API_EXCHANGE
//! a process   LINK_ROOM < HEARTBEAT * HEARTBEATS
//! an upgrade  SELF_CHECK, PREPARE, RESTORE, QUIESCE, RESTORE again, TAKE_OVER < UPGRADE_REPLY
//! ```
//!
//! Waits of a single process (back-off, polling, a killed child) stay where they are used.

use std::time::Duration;

/// Limit of a wait for room for a message in a link: 1 second.
pub const LINK_ROOM: Duration = Duration::from_secs(1);
/// Time within which the supervisor or the switch replies to control: 5 seconds.
pub const PEER: Duration = Duration::from_secs(5);
/// Time within which the driver of a user port answers a question for a part of a table: 2
/// seconds.
pub const USER_TABLE: Duration = Duration::from_secs(2);
/// Time within which control's engine replies to the API's thread: 10 seconds.
pub const COMMAND: Duration = Duration::from_secs(10);
/// Limit of one exchange of the command line with the API: 15 seconds. The server's limit for its
/// engine is shorter, and gives a better error.
pub const API_CLIENT: Duration = Duration::from_secs(15);
/// Time for the head of a request to the API: 10 seconds.
pub const API_HEAD: Duration = Duration::from_secs(10);
/// Time for the rest of a request to the API and its response: 20 seconds.
pub const API_EXCHANGE: Duration = Duration::from_secs(20);
/// Time for which the end of the API waits for requests under way: 1 second.
pub const API_SHUTDOWN: Duration = Duration::from_secs(1);
/// Time in which control and the switch may end by themselves: 3 seconds.
pub const STOP: Duration = Duration::from_secs(3);
/// Time limit for the rest of a capture after its end was requested: 5 seconds.
pub const CAPTURE_END: Duration = Duration::from_secs(5);
/// Time limit for a new connection to the event stream after it has ended, by an upgrade as a rule:
/// 30 seconds.
pub const EVENTS_RECONNECT: Duration = Duration::from_secs(30);

/// Interval of the heartbeat: 500 milliseconds.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// Missed heartbeats in a row after which control or the switch hangs.
pub const HEARTBEATS: u32 = 5;
/// Most time that a new driver may take to set up its queues with the switch, in which it sends no
/// message: 5 seconds.
pub const DRIVER_SETUP: Duration = Duration::from_secs(5);
/// Time in which a start retries the socket paths of a run that was killed: 1 second.
pub const LISTEN: Duration = Duration::from_secs(1);

/// Time in which a client must send its request to the supervisor: 5 seconds.
pub const ADMIN_REQUEST: Duration = Duration::from_secs(5);
/// Time for all self-checks before an upgrade together: 5 seconds.
pub const SELF_CHECK: Duration = Duration::from_secs(5);
/// Time in which the new control and switch must be ready except for their connections: 10 seconds.
pub const PREPARE: Duration = Duration::from_secs(10);
/// Time in which the old switch must quiesce: 2 seconds. It needs milliseconds, but may wait
/// for a core of a busy host.
pub const QUIESCE: Duration = Duration::from_secs(2);
/// Time for which a switch that quiesces waits for the decisions of open upcalls: 20 milliseconds.
pub const QUIESCE_UPCALLS: Duration = Duration::from_millis(20);
/// Time that full interfaces have, all of them together, to take what waits for them in a switch
/// that quiesces: 50 milliseconds.
pub const QUIESCE_INTERFACES: Duration = Duration::from_millis(50);
/// Time in which the new switch must read the saved sessions, before the old one quiesces and once
/// more after that: 2 seconds.
pub const RESTORE: Duration = Duration::from_secs(2);
/// Time in which the new switch must take over: 2 seconds.
pub const TAKE_OVER: Duration = Duration::from_secs(2);
/// Time limit of one line of the supervisor's reply to an upgrade: 60 seconds.
pub const UPGRADE_REPLY: Duration = Duration::from_secs(60);

const fn ms(time: Duration) -> u128 {
    time.as_millis()
}

/// The steps of an upgrade between two lines of the reply, at most.
const UPGRADE_MS: u128 =
    ms(SELF_CHECK) + ms(PREPARE) + ms(QUIESCE) + 2 * ms(RESTORE) + ms(TAKE_OVER);

const _: () = assert!(ms(USER_TABLE) < ms(PEER));
const _: () = assert!(ms(LINK_ROOM) < ms(PEER) && ms(PEER) < ms(COMMAND));
const _: () = assert!(ms(COMMAND) < ms(API_CLIENT) && ms(API_CLIENT) < ms(API_EXCHANGE));
const _: () = assert!(ms(LINK_ROOM) < ms(HEARTBEAT) * HEARTBEATS as u128);
const _: () = assert!(ms(API_SHUTDOWN) < ms(STOP));
const _: () = assert!(ms(QUIESCE_UPCALLS) + ms(QUIESCE_INTERFACES) < ms(QUIESCE));
const _: () = assert!(UPGRADE_MS < ms(EVENTS_RECONNECT));
const _: () = assert!(ms(EVENTS_RECONNECT) < ms(UPGRADE_REPLY));
