//! `lasthop capture`: what the API sends goes to a file, in whole blocks, so that the file can be read however it ends.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, IsTerminal, Seek, Write};
use std::path::Path;
use std::time::Duration;

use api::v1::CaptureQuery;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::time::timeout;

use super::args::Capture;
use super::client::{Client, Download, capture_path};
use super::stop::Stop;
use super::{Done, Failure, units};

/// What is on its way after the end was asked for comes within that.
const PATIENCE: Duration = Duration::from_secs(5);
/// No block of ours is longer.
const LONGEST_BLOCK: usize = 1 << 20;
/// Bytes that say what a block is and how long.
const BLOCK_HEAD: usize = 8;
/// Type of the block with which a file ends.
const STATISTICS: u32 = 5;
/// Type of a frame's block.
const PACKET: u32 = 6;

/// Copies a port's frames until it is told to stop.
pub(super) async fn capture(client: &Client, wish: &Capture) -> Done {
    let mut file = Output::open(&wish.write, wish.force)?;
    let path = capture_path(&wish.port, &wish.query());
    let download = match client.open(&path).await {
        Ok(download) => download,
        Err(failure) => {
            file.forget();
            return Err(failure);
        }
    };
    file.begin()?;
    let mut blocks = Blocks::default();
    let write = |bytes: &[u8]| file.write(bytes);
    let copied = copy(client, download, &mut blocks, write).await;
    let counts = blocks.counts.take();
    let frames = units::several(blocks.frames, "frame");
    match (copied, counts) {
        (Ok(()), Some(counts)) => {
            let (meant, lost) = (counts.meant, counts.lost);
            let lost = format!("{lost} of {meant} were dropped because the ring was full");
            // Without a standard error there is nobody to tell.
            drop(writeln!(io::stderr(), "{frames} captured, {lost}"));
            Ok(())
        }
        (Ok(()), None) => {
            let text = format!("the capture broke off after {frames}, all of which were written");
            Err(Failure::Failed(text))
        }
        (Err(failure), _) => Err(failure),
    }
}

/// Frames that have come.
pub(super) struct Collected {
    /// Them, as a pcapng file; empty if it broke off before anything came.
    pub(super) file: Vec<u8>,
    pub(super) frames: u64,
    /// It did not break off.
    pub(super) is_whole: bool,
}

/// Frames of a port, as many as the query says; fewer when it is interrupted before, or breaks off.
pub(super) async fn collect(
    client: &Client,
    port: &str,
    query: &CaptureQuery,
) -> Result<Collected, Failure> {
    let download = client.open(&capture_path(port, query)).await?;
    let (mut blocks, mut file) = (Blocks::default(), Vec::new());
    let keep = |bytes: &[u8]| {
        file.extend_from_slice(bytes);
        Ok(())
    };
    copy(client, download, &mut blocks, keep).await?;
    Ok(Collected {
        file,
        frames: blocks.frames,
        is_whole: blocks.counts.is_some(),
    })
}

/// Copies what comes, until its end.
async fn copy(
    client: &Client,
    mut download: Download,
    blocks: &mut Blocks,
    mut write: impl FnMut(&[u8]) -> Done,
) -> Done {
    let mut stop = Stop::new()?;
    let mut stopping = false;
    loop {
        let frame = tokio::select! {
            frame = patiently(stopping, download.body.frame()) => frame,
            () = stop.wanted(), if !stopping => {
                stopping = true;
                // A capture that has ended meanwhile needs no end; a Lasthop that is gone breaks it off.
                let _ = client.delete(&download.location).await;
                continue;
            }
        };
        let bytes: Bytes = match frame {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(_)) | None => return Ok(()),
        };
        blocks.add(&bytes, &mut write)?;
    }
}

/// Waits for something; for so long only when the end was asked for.
async fn patiently<T>(limited: bool, what: impl Future<Output = Option<T>>) -> Option<T> {
    match limited {
        true => timeout(PATIENCE, what).await.ok().flatten(),
        false => what.await,
    }
}

/// Where the file goes.
struct Output {
    name: String,
    file: File,
    kind: Kind,
    /// Bytes of whole blocks that it has.
    written: u64,
}

/// What it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A file that was made by us just now.
    Made,
    /// A file of before, which is overwritten.
    Old,
    /// A pipe, or a device.
    Stream,
}

impl Output {
    fn open(name: &str, force: bool) -> Result<Self, Failure> {
        let (file, kind) = match name {
            "-" => (standard_output()?, Kind::Stream),
            _ => open_file(name, force)?,
        };
        Ok(Self {
            name: name.to_owned(),
            file,
            kind,
            written: 0,
        })
    }

    /// Frames will come: what was in the file is not lost before.
    fn begin(&self) -> Done {
        match self.kind {
            Kind::Old => self.file.set_len(0).map_err(|error| {
                let text = format!("cannot overwrite {}: {error}", self.name);
                Failure::Failed(text)
            }),
            Kind::Made | Kind::Stream => Ok(()),
        }
    }

    /// Writes whole blocks. Where there is no room for all of them, the file ends behind those before.
    fn write(&mut self, bytes: &[u8]) -> Done {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.written += bytes.len() as u64;
                Ok(())
            }
            // Whoever reads has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Unread),
            Err(error) => {
                if self.kind != Kind::Stream {
                    // If that fails, too, the file is as it is after a loss of power: readable up to there.
                    let _ = self.cut(bytes);
                }
                let text = format!("cannot write {}: {error}", self.name);
                Err(Failure::Failed(text))
            }
        }
    }

    /// Cuts off the block of `bytes` that did not fit.
    fn cut(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = self.file.stream_position()?.saturating_sub(self.written);
        let fitting = whole_within(bytes, usize::try_from(room).unwrap_or(usize::MAX));
        self.file.set_len(self.written + fitting as u64)
    }

    /// Nothing is to be written: leaves nothing behind.
    fn forget(&self) {
        if self.kind == Kind::Made {
            let _ = std::fs::remove_file(&self.name);
        }
    }
}

fn standard_output() -> Result<File, Failure> {
    if io::stdout().is_terminal() {
        let text = "standard output is a terminal: name a file, or pipe it to a program";
        return Err(Failure::Wrong(text.to_owned()));
    }
    let fd = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned();
    fd.map(File::from)
        .map_err(|e| Failure::Failed(format!("cannot write to standard output: {e}")))
}

/// Makes a file, or opens what is there and is none: a pipe, a device. A file that is there only by `force`.
fn open_file(name: &str, force: bool) -> Result<(File, Kind), Failure> {
    let wrong = |error: io::Error| Failure::Wrong(format!("cannot write {name}: {error}"));
    let made = OpenOptions::new().write(true).create_new(true).open(name);
    match made {
        Ok(file) => Ok((file, Kind::Made)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let kind = match (Path::new(name).is_file(), force) {
                (true, true) => Kind::Old,
                (true, false) => {
                    let text = format!("{name} exists already: name another file, or use --force");
                    return Err(Failure::Wrong(text));
                }
                (false, _) => Kind::Stream,
            };
            let file = OpenOptions::new().write(true).open(name).map_err(wrong)?;
            Ok((file, kind))
        }
        Err(error) => Err(wrong(error)),
    }
}

/// What the end of a file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    meant: u64,
    lost: u64,
}

/// A pcapng file as it comes, cut into blocks.
#[derive(Debug, Default)]
struct Blocks {
    /// The begin of a block whose end has not come.
    pending: Vec<u8>,
    frames: u64,
    counts: Option<Counts>,
}

impl Blocks {
    /// Takes what has come, and has the whole blocks written: those that came in one piece from where they are.
    fn add(&mut self, bytes: &[u8], write: &mut impl FnMut(&[u8]) -> Done) -> Done {
        let bytes = self.complete(bytes, write)?;
        let mut whole = 0;
        while let Some(len) = block_len(&bytes[whole..])? {
            let Some(block) = bytes[whole..].get(..len) else {
                break;
            };
            self.count(block);
            whole += len;
        }
        if whole > 0 {
            write(&bytes[..whole])?;
        }
        self.pending.extend_from_slice(&bytes[whole..]);
        Ok(())
    }

    /// Has the block written that had begun before, if this is its end; what is left.
    fn complete<'a>(
        &mut self,
        mut bytes: &'a [u8],
        write: &mut impl FnMut(&[u8]) -> Done,
    ) -> Result<&'a [u8], Failure> {
        while !self.pending.is_empty() && !bytes.is_empty() {
            let wanted = block_len(&self.pending)?.unwrap_or(BLOCK_HEAD);
            let missing = (wanted - self.pending.len()).min(bytes.len());
            self.pending.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if block_len(&self.pending)? == Some(self.pending.len()) {
                let block = std::mem::take(&mut self.pending);
                self.count(&block);
                write(&block)?;
            }
        }
        Ok(bytes)
    }

    fn count(&mut self, block: &[u8]) {
        match word(block, 0) {
            PACKET => self.frames += 1,
            STATISTICS => self.counts = Some(counts(block)),
            _ => {}
        }
    }
}

/// The length of the block that begins here, as soon as its head says it.
fn block_len(bytes: &[u8]) -> Result<Option<usize>, Failure> {
    if bytes.len() < BLOCK_HEAD {
        return Ok(None);
    }
    let len = word(bytes, 4) as usize;
    if (12..=LONGEST_BLOCK).contains(&len) && len.is_multiple_of(4) {
        return Ok(Some(len));
    }
    let text = "what Lasthop sends makes no sense as a capture";
    Err(Failure::Failed(text.to_owned()))
}

/// Bytes of the first blocks that have room together.
fn whole_within(blocks: &[u8], room: usize) -> usize {
    let mut end = 0;
    while let Some(head) = blocks[end..].first_chunk::<8>() {
        let next = end + (word(head, 4) as usize).max(head.len());
        if next > room.min(blocks.len()) {
            break;
        }
        end = next;
    }
    end
}

/// Four bytes at `at`; zero behind the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(<[u8]>::first_chunk);
    four.map_or(0, |four| u32::from_ne_bytes(*four))
}

/// The options of an interface statistics block: isb_ifrecv and isb_ifdrop.
fn counts(block: &[u8]) -> Counts {
    let (mut counts, mut rest) = (Counts::default(), block.get(20..).unwrap_or_default());
    while rest.len() >= 12 {
        let (code, len) = (word(rest, 0) as u16, (word(rest, 0) >> 16) as usize);
        let value = u64::from(word(rest, 4)) | u64::from(word(rest, 8)) << 32;
        match code {
            0 => break,
            4 => counts.meant = value,
            5 => counts.lost = value,
            _ => {}
        }
        rest = rest.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (body.len() as u32 + 12).to_ne_bytes();
        [&kind.to_ne_bytes()[..], &len, body, &len].concat()
    }

    fn statistics() -> Vec<u8> {
        let mut file = Vec::new();
        let counts = channel::capture::Counts { meant: 9, lost: 4 };
        control::capture::pcapng::end(&mut file, 1, counts, 5);
        file
    }

    #[test]
    fn only_whole_blocks_are_written_whatever_the_pieces() {
        let file = [block(1, &[0; 8]), block(PACKET, &[7; 40]), statistics()].concat();
        for piece in 1..file.len() {
            let (mut blocks, mut written) = (Blocks::default(), Vec::new());
            let ends = [0, 20, 72, file.len()];
            let mut write = |whole: &[u8]| {
                written.extend_from_slice(whole);
                assert!(ends.contains(&written.len()), "{}", written.len());
                Ok(())
            };
            for bytes in file.chunks(piece) {
                blocks.add(bytes, &mut write).unwrap();
            }
            assert_eq!(written, file);
            assert_eq!(blocks.counts, Some(Counts { meant: 9, lost: 4 }));
            assert_eq!(blocks.frames, 1);
        }
    }

    #[test]
    fn what_has_room_is_whole_blocks() {
        let blocks = [block(1, &[0; 8]), block(PACKET, &[7; 40]), statistics()].concat();
        let fits = |room| whole_within(&blocks, room);
        assert_eq!((fits(0), fits(19)), (0, 0));
        assert_eq!((fits(20), fits(71), fits(72)), (20, 20, 72));
        assert_eq!(
            (fits(blocks.len() - 1), fits(usize::MAX)),
            (72, blocks.len())
        );
        assert_eq!(whole_within(&[0; 9], 9), 8);
    }

    #[test]
    fn nonsense_ends_it() {
        for file in [block(1, &[0; 3]), vec![0; 8], vec![0xff; 8]] {
            assert!(Blocks::default().add(&file, &mut |_| Ok(())).is_err());
        }
    }

    #[test]
    fn a_file_that_exists_is_overwritten_only_by_force_and_not_too_early() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let name = path.to_str().unwrap();
        assert_eq!(open_file(name, true).unwrap().1, Kind::Made);
        let Err(Failure::Wrong(text)) = open_file(name, false) else {
            panic!("it was overwritten");
        };
        assert!(text.contains("exists already"), "{text}");
        std::fs::write(&path, "what was there before, and is long").unwrap();
        let mut file = Output::open(name, true).unwrap();
        file.forget();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("long"));
        file.begin().unwrap();
        file.write(b"short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        for force in [false, true] {
            assert_eq!(open_file("/dev/null", force).unwrap().1, Kind::Stream);
        }
        let Err(Failure::Wrong(text)) = open_file("/nowhere/a.pcapng", true) else {
            panic!("it was made");
        };
        assert!(
            text.starts_with("cannot write /nowhere/a.pcapng: "),
            "{text}"
        );
    }
}
