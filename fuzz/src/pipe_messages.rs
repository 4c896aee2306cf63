//! Messages of the ends of pipes, and the server that they meet at: what is decoded is encoded as
//! it was; whatever the ends send and in whatever order, the server keeps connections only that are
//! open, no pipe without an end, a bounded number of both, and joins an end once.

use std::collections::BTreeSet;

use arbitrary::{Result, Unstructured};
use pipes::{Answer, Block, Conn, End, MAX_PIPES, MAX_WAITING, Offer, Output, Register};
use pipes::{Request, Rings, Server};

/// Runs one input: the first byte chooses the part.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((0, bytes)) => decode(bytes),
        Some((_, bytes)) => drop(meet(&mut Unstructured::new(bytes))),
        None => {}
    }
}

fn decode(bytes: &[u8]) {
    if let Ok(request) = Request::from_bytes(bytes) {
        let again = match request {
            Request::Register(register) => register.to_bytes().to_vec(),
            Request::Offer(offer) => offer.to_bytes().to_vec(),
        };
        assert_eq!(Request::from_bytes(&again), Ok(request));
    }
    if let Ok(answer) = Answer::from_bytes(bytes) {
        assert_eq!(Answer::from_bytes(&answer.to_bytes()), Ok(answer));
    }
}

/// The connections as the system has them.
#[derive(Default)]
struct Open {
    all: BTreeSet<Conn>,
    joined: BTreeSet<Conn>,
    next: Conn,
}

fn meet(u: &mut Unstructured<'_>) -> Result<()> {
    let mut server = Server::new(u.arbitrary()?);
    let (mut open, mut now_ms) = (Open::default(), 0);
    while !u.is_empty() {
        let mut out = Vec::new();
        step(u, &mut server, &mut open, &mut now_ms, &mut out)?;
        for output in out {
            match output {
                Output::Send(conn, answer, fds) => {
                    assert!(open.all.contains(&conn));
                    assert_eq!(fds.len(), answer.descriptors());
                    let joins = matches!(answer, Answer::Join(_));
                    assert!(!joins || open.joined.insert(conn), "joined twice");
                }
                Output::Close(conn) => {
                    assert!(open.all.remove(&conn));
                    open.joined.remove(&conn);
                }
                Output::Log(_) => {}
            }
        }
        let known: BTreeSet<Conn> = server.connections().collect();
        assert_eq!(known, open.all);
        let pipes: Vec<_> = server.pipes().collect();
        let ends = pipes.iter().map(|pipe| pipe.ends.iter().flatten().count());
        let ends: Vec<usize> = ends.collect();
        assert!(pipes.len() <= MAX_PIPES && !ends.contains(&0));
        let registered: usize = ends.iter().sum();
        assert!(known.len() - registered <= MAX_WAITING);
        assert!(server.descriptors() <= 9 * pipes.len());
    }
    Ok(())
}

fn step(
    u: &mut Unstructured<'_>,
    server: &mut Server<u8>,
    open: &mut Open,
    now_ms: &mut u64,
    out: &mut Vec<Output<u8>>,
) -> Result<()> {
    let which = usize::from(u.arbitrary::<u8>()?);
    let conn = open.all.iter().nth(which % open.all.len().max(1)).copied();
    let mut receive = |bytes: &[u8], fds| {
        if let Some(conn) = conn {
            server.received(conn, bytes, fds, *now_ms, out);
        }
    };
    match u.arbitrary::<u8>()? % 6 {
        0 => {
            open.next += 1;
            open.all.insert(open.next);
            server.connected(open.next, 7, *now_ms, out);
        }
        1 => receive(&register(u)?.to_bytes(), Vec::new()),
        2 => receive(&offer(u)?.to_bytes(), vec![1, 2, 3]),
        3 => {
            let length = u.int_in_range(0..=100)?;
            receive(
                u.bytes(length)?,
                vec![0; usize::from(u.arbitrary::<u8>()? % 5)],
            );
        }
        4 => {
            if let Some(conn) = conn {
                open.all.remove(&conn);
                open.joined.remove(&conn);
                server.closed(conn, *now_ms, out);
            }
        }
        _ => {
            *now_ms += u64::from(u.arbitrary::<u16>()?);
            server.expire(*now_ms, out);
            assert!(server.next_expiry().is_none_or(|at| at > *now_ms));
        }
    }
    Ok(())
}

fn register(u: &mut Unstructured<'_>) -> Result<Register> {
    Ok(Register {
        id: u16::from(u.arbitrary::<u8>()?),
        end: End::BOTH[usize::from(u.arbitrary::<bool>()?)],
        instance: u128::from(u.arbitrary::<u8>()? % 4),
        slots: u.arbitrary()?,
        program: u.arbitrary()?,
    })
}

fn offer(u: &mut Unstructured<'_>) -> Result<Offer> {
    let block = |slots| Block {
        slots,
        lines: slots + 0x8000,
    };
    Ok(Offer {
        instance: u128::from(u.arbitrary::<u8>()? % 4),
        rings: Rings {
            slots: 64 << (u.arbitrary::<u8>()? % 8),
            file_size: 1 << 20,
            pool: 0x2_0000,
            buffer_size: 2048,
            buffers: 64,
            blocks: [block(0), block(0x1_0000)],
        },
    })
}
