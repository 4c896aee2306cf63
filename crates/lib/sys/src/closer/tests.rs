use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::net::SendFlags;
use rustix::net::sockopt::set_socket_linger;

use super::*;
use crate::descriptors::send;
use crate::foreign::ForeignFd;

/// A time that no test reaches.
const LONG: Duration = Duration::from_secs(600);
/// A time that is only reached when something waits that must not.
const NEVER: Duration = Duration::from_secs(60);

/// Starts the threads of the test process, once.
fn started() {
    static STARTED: std::sync::Once = std::sync::Once::new();
    STARTED.call_once(|| start(|_| (), None).unwrap());
}

/// Returns a socket whose close waits for ten minutes, and its peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    set_socket_linger(&socket, Some(LONG)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &socket, &[0; 1 << 16]).is_ok() {}
    (socket, peer)
}

/// Returns a Unix socket in whose queue the descriptor lies, without another copy, and its peer.
fn queued(fd: impl Into<OwnedFd>) -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    send(&one, b"x", &[fd.into().as_fd()], SendFlags::empty()).unwrap();
    (other, one)
}

/// Waits until a job of this author is done, that is, all before it.
fn passes(author: Author) -> Receiver<()> {
    let (done, passed) = channel();
    run(author, move || {
        let _ = done.send(());
    });
    passed
}

/// Has a thread stand until the sender is dropped; as with a file system whose daemon does not
/// answer.
fn stand(author: Author) -> Sender<()> {
    let (end, ended) = channel();
    let (begin, begun) = channel();
    run(author, move || {
        begin.send(()).unwrap();
        let _: Result<(), _> = ended.recv();
    });
    begun.recv_timeout(NEVER).unwrap();
    end
}

#[test]
fn a_close_that_lingers_is_interrupted() {
    started();
    let author = Author::new(Some(1));
    let (direct, _direct_peer) = lingering();
    let (inner, _inner_peer) = lingering();
    let (outer, _outer_peer) = queued(inner);
    let (deep, _deep_peer) = lingering();
    let (deep, _a) = queued(deep);
    let (deep, _b) = queued(deep);
    drop(ForeignFd::new(direct, author));
    drop(ForeignFd::new(outer, author));
    ForeignFd::new(deep, author).hang_up();
    passes(author).recv_timeout(NEVER).unwrap();
}

#[test]
fn a_listener_with_connections_that_nobody_accepted_lingers_no_longer() {
    started();
    let dir = std::env::temp_dir().join(format!("lasthop-closer-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&dir).unwrap();
    let connection = UnixStream::connect(&dir).unwrap();
    std::fs::remove_file(&dir).unwrap();
    let (inner, _peer) = lingering();
    send(&connection, b"x", &[inner.as_fd()], SendFlags::empty()).unwrap();
    drop(inner);
    let author = Author::new(Some(1));
    drop(ForeignFd::new(listener, author));
    passes(author).recv_timeout(NEVER).unwrap();
}

#[test]
fn an_author_that_stands_delays_no_other() {
    started();
    let users: Vec<_> = (10..13).map(|user| Author::new(Some(user))).collect();
    let ends: Vec<_> = users.iter().map(|author| stand(*author)).collect();
    let same = passes(users[0]);
    for other in [
        Author::new(Some(10)),
        Author::new(Some(99)),
        Author::new(None),
    ] {
        passes(other).recv_timeout(NEVER).unwrap();
    }
    assert!(same.try_recv().is_err(), "it waits for its author's first");
    drop(ends);
    same.recv_timeout(NEVER).unwrap();
}

/// Has a descriptor to close.
fn job() -> Job {
    Job::Run(Box::new(|| ()))
}

fn queue_of(threads: usize, share: usize) -> Queue {
    let mut queue = Queue::new();
    (queue.threads, queue.share) = (threads, share);
    queue
}

#[test]
fn one_user_keeps_few_threads_whatever_its_connections() {
    let (mut queue, now) = (queue_of(THREADS, 1 << 20), Instant::now());
    for _ in 0..THREADS {
        queue.add(Author::new(Some(1)), job());
    }
    let other = Author::new(Some(2));
    queue.add(other, job());
    let taken: Vec<_> = std::iter::from_fn(|| Some(queue.take(now)?.0)).collect();
    assert_eq!(taken.len(), USER_THREADS + 1);
    assert!(taken.contains(&other));
    assert!(!queue.has_work());
    queue.done(taken[0], now);
    assert!(queue.has_work());
    assert_eq!(queue.take(now).unwrap().0.user, Some(1));
}

#[test]
fn jobs_of_an_author_are_done_in_turn_with_those_of_others() {
    let (mut queue, now) = (queue_of(1, 1 << 20), Instant::now());
    let [one, two] = [1, 2].map(|user| Author::new(Some(user)));
    for author in [one, one, one, two] {
        queue.add(author, job());
    }
    let mut order = Vec::new();
    while let Some((author, _)) = queue.take(now) {
        assert!(queue.take(now).is_none_or(|(next, _)| {
            queue.done(next, now);
            order.push(next);
            next != author
        }));
        order.push(author);
        queue.done(author, now);
    }
    assert_eq!(order.len(), 4);
    assert_eq!(queue.jobs(), 0);
    assert!(queue.admits(one));
}

#[test]
fn an_author_that_stands_is_reported_once_and_when_all_its_jobs_are_done() {
    let (mut queue, start) = (queue_of(THREADS, 1 << 20), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let (slow, quick) = (Author::new(Some(7)).labelled(3), Author::new(Some(8)));
    for author in [slow, slow, slow, quick] {
        queue.add(author, job());
    }
    assert_eq!(queue.next_report(), None, "nothing is under way");
    assert!(queue.take(start).is_some_and(|(author, _)| author == slow));
    assert!(queue.take(at(2)).is_some_and(|(author, _)| author == quick));
    assert_eq!(queue.next_report(), Some(start + STANDS));
    assert_eq!(queue.take_reports(at(4)), []);
    let stands = Report {
        user: Some(7),
        label: Some(3),
        connection: slow.id,
        time: Duration::from_secs(6),
        waiting: 2,
        has_ended: false,
    };
    assert_eq!(queue.take_reports(at(6)), [stands]);
    assert_eq!(queue.take_reports(at(6)), [], "once");
    assert_eq!(queue.next_report(), Some(at(2) + STANDS));
    queue.done(quick, at(6));
    assert_eq!(queue.next_report(), None);
    assert_eq!(queue.take_reports(at(60)), [], "it did not stand");
    // The next jobs of this author stand as well: nothing new.
    for (begin, end) in [(8, 20), (20, 40)] {
        queue.done(slow, at(begin));
        assert!(queue.take(at(begin)).is_some());
        assert_eq!(queue.take_reports(at(end)), []);
    }
    assert!(!queue.has_reports());
    queue.done(slow, at(41));
    assert!(queue.has_reports());
    let ended = Report {
        time: Duration::from_secs(41),
        waiting: 0,
        has_ended: true,
        ..stands
    };
    assert_eq!(queue.take_reports(at(41)), [ended]);
    assert_eq!(queue.take_reports(at(99)), []);
}

#[test]
fn reports_that_are_not_taken_are_bounded() {
    let (mut queue, start) = (queue_of(THREADS, 1 << 20), Instant::now());
    for _ in 0..2 * THREADS {
        let author = Author::new(Some(1));
        queue.add(author, job());
        assert!(queue.take(start).is_some());
        // The end of the others is reported, too: it is put back.
        let ended = queue.take_reports(start + STANDS);
        queue
            .ended
            .extend(ended.into_iter().filter(|report| report.has_ended));
        queue.done(author, start + STANDS);
    }
    assert_eq!(queue.take_reports(start + STANDS).len(), THREADS);
}

#[test]
fn a_closer_is_known_by_its_name() {
    started();
    let names = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        names.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut numbers: Vec<_> = names
        .filter_map(|name| number_of(name.trim_end()))
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..THREADS));
    assert_eq!(number_of("closer report"), None);
}

#[test]
fn an_author_and_a_user_have_a_share_and_leave_some_for_the_next() {
    let mut queue = queue_of(1, 16 * AUTHOR_JOBS);
    let fill = |queue: &mut Queue, author: Author| {
        let mut added = 0;
        while queue.admits(author) {
            queue.add(author, job());
            added += 1;
        }
        added
    };
    let one = Some(1);
    let mut first = 0;
    while queue.admits_user(one) {
        assert_eq!(fill(&mut queue, Author::new(one)), AUTHOR_JOBS);
        first += AUTHOR_JOBS;
    }
    assert_eq!(first, 8 * AUTHOR_JOBS, "half of all");
    // A connection that is there has its share, whatever others of its user do.
    let mut small = queue_of(1, 32);
    assert_eq!(fill(&mut small, Author::new(one)), 2);
    assert_eq!(fill(&mut queue, Author::new(one)), AUTHOR_JOBS);
    assert!(queue.admits_user(Some(2)));
    assert_eq!(fill(&mut queue, Author::new(Some(2))), AUTHOR_JOBS);
    assert!(queue.admits_user(Some(3)));
}

/// A link between processes of ours must not end because others have used up their share.
#[test]
fn a_process_of_ours_is_always_received_from() {
    assert!(Author::ours().may_send());
    assert_ne!(
        Author::ours(),
        Author::ours(),
        "each link has an author of its own"
    );
    let mut queue = queue_of(1, 4);
    while queue.admits_user(Some(1)) {
        queue.add(Author::new(Some(1)), job());
    }
    assert_eq!(queue.jobs(), 2);
    assert!(!queue.is_full());
}

#[test]
fn small_files_of_memory_are_closed_at_once() {
    let memory = |bytes: u64| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("small", flags).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
        file
    };
    assert!(is_small_memory(&memory(SMALL)));
    assert!(!is_small_memory(&memory(SMALL + 4096)));
    let other = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    assert!(!is_small_memory(&other));
}

#[test]
fn streams_that_have_ended_are_closed_at_once_if_nothing_lies_in_them() {
    use rustix::net::{AddressFamily, Shutdown, SocketFlags, shutdown, socketpair};
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let pair = |kind| {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
            .expect("a pair of sockets")
    };
    let ended = |kind, sends: &dyn Fn(&OwnedFd)| {
        let (ours, theirs) = pair(kind);
        sends(&theirs);
        shutdown(&ours, Shutdown::Both).unwrap();
        is_empty_stream(&ours)
    };
    assert!(ended(SocketType::STREAM, &|_| {}));
    assert!(!ended(SocketType::STREAM, &|peer| {
        send(peer, b"x", &[null().as_fd()], SendFlags::empty()).unwrap();
    }));
    assert!(!ended(SocketType::STREAM, &|peer| {
        send(peer, b"x", &[null().as_fd()], SendFlags::OOB).unwrap();
    }));
    assert!(!ended(SocketType::SEQPACKET, &|peer| {
        send(peer, b"", &[null().as_fd()], SendFlags::empty()).unwrap();
    }));
    assert!(!ended(SocketType::SEQPACKET, &|_| {}));

    let (ours, theirs) = pair(SocketType::STREAM);
    assert!(!is_empty_stream(&ours), "it has not ended");
    shutdown(&theirs, Shutdown::Write).unwrap();
    assert!(!is_empty_stream(&ours), "its peer can be sent to, not more");
    drop(theirs);
    assert!(is_empty_stream(&ours), "its peer has gone");

    let path = std::env::temp_dir().join(format!("closer-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    shutdown(&listener, Shutdown::Both).unwrap();
    assert!(
        !is_empty_stream(&listener.into()),
        "connections may lie in it"
    );
    let unconnected = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    assert!(!is_empty_stream(&unconnected), "it may listen later");
    let (tcp, peer) = lingering();
    shutdown(&tcp, Shutdown::Both).unwrap();
    let tcp = OwnedFd::from(tcp);
    let is_empty = is_empty_stream(&tcp);
    // Without its peer it does not linger.
    drop(peer);
    assert!(!is_empty);
}
