//! `lasthop capture`: writes the API's pcapng stream to a file, in whole blocks, so that the file
//! is readable after any end.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, IsTerminal, Seek, Write};
use std::path::Path;

use api::v1::CaptureQuery;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use ipc::timeouts::CAPTURE_END;
use pcap_parser::parse_interfacestatisticsblock_le;
use tokio::time::timeout;

use super::args::Capture;
use super::stop::Stop;
use super::{ExitStatus, Failure, units};
use client::{Client, Download, with_query};

/// Upper bound of a block's length in a capture by Lasthop.
const LONGEST_BLOCK: usize = 1 << 20;
/// Bytes of a block's type and length.
const BLOCK_HEAD: usize = 8;
/// Type of the interface statistics block, the last of a file.
const STATISTICS: u32 = 5;
/// Type of the enhanced packet block, one for each frame.
const PACKET: u32 = 6;

/// Writes a port's frames to a file until interrupted.
pub(super) async fn capture(client: &Client, args: &Capture) -> ExitStatus {
    let mut file = Output::open(&args.write, args.force)?;
    let download = match open_stream(client, &args.port, &args.query()).await {
        Ok(download) => download,
        Err(failure) => {
            file.discard();
            return Err(failure);
        }
    };
    file.truncate()?;
    let mut blocks = Blocks::default();
    let write = |bytes: &[u8]| file.write(bytes);
    let copied = copy(client, download, &mut blocks, write).await;
    let counts = blocks.counts.take();
    let frames = units::plural(blocks.frames, "frame");
    match (copied, counts) {
        (Ok(()), Some(counts)) => {
            let (matched, dropped) = (counts.matched, counts.dropped);
            let lost = format!("{dropped} of {matched} were dropped because the ring was full");
            // Without a standard error the counts are lost.
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

/// Captured frames.
pub(super) struct CollectedFrames {
    /// The frames as a pcapng file; empty if the stream broke off before the first block.
    pub(super) file: Vec<u8>,
    pub(super) frames: u64,
    /// The stream did not break off.
    pub(super) is_complete: bool,
}

/// Captures as many frames of a port as the query requests; fewer if the command is interrupted or
/// the stream breaks off.
pub(super) async fn collect(
    client: &Client,
    port: &str,
    query: &CaptureQuery,
) -> Result<CollectedFrames, Failure> {
    let download = open_stream(client, port, query).await?;
    let (mut blocks, mut file) = (Blocks::default(), Vec::new());
    let keep = |bytes: &[u8]| {
        file.extend_from_slice(bytes);
        Ok(())
    };
    copy(client, download, &mut blocks, keep).await?;
    Ok(CollectedFrames {
        file,
        frames: blocks.frames,
        is_complete: blocks.counts.is_some(),
    })
}

async fn open_stream(
    client: &Client,
    port: &str,
    query: &CaptureQuery,
) -> Result<Download, Failure> {
    let path = format!("/v1/ports/{port}/capture");
    client.open(&with_query(&path, query)?, None).await
}

/// Copies the stream to its end.
async fn copy(
    client: &Client,
    mut download: Download,
    blocks: &mut Blocks,
    mut write: impl FnMut(&[u8]) -> ExitStatus,
) -> ExitStatus {
    let mut stop = Stop::new()?;
    let mut stopping = false;
    loop {
        let frame = tokio::select! {
            frame = next_frame(stopping, download.body.frame()) => frame,
            () = stop.requested(), if !stopping => {
                stopping = true;
                // Errors are ignored: the capture may have ended, and without a Lasthop the stream
                // breaks off.
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

/// Waits for the next frame; with a time limit once the end was requested.
async fn next_frame<T>(limited: bool, frame: impl Future<Output = Option<T>>) -> Option<T> {
    if limited {
        timeout(CAPTURE_END, frame).await.ok().flatten()
    } else {
        frame.await
    }
}

/// The output file.
struct Output {
    name: String,
    file: File,
    kind: Kind,
    /// Bytes of whole blocks in the file.
    written: u64,
}

/// The kind of an output file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A file that this command has created.
    Created,
    /// An existing file that is overwritten.
    Existing,
    /// A pipe or a device.
    Stream,
}

impl Output {
    fn open(name: &str, force: bool) -> Result<Self, Failure> {
        let (file, kind) = match name {
            "-" => (standard_output()?, Kind::Stream),
            _ => open_file(name, force)?,
        };
        if kind == Kind::Stream {
            client::end_without_reader(&file, Failure::OutputClosed)?;
        }
        Ok(Self {
            name: name.to_owned(),
            file,
            kind,
            written: 0,
        })
    }

    /// Truncates an existing file, once the capture has started.
    fn truncate(&self) -> ExitStatus {
        match self.kind {
            Kind::Existing => self.file.set_len(0).map_err(|error| {
                let text = format!("cannot overwrite {}: {error}", self.name);
                Failure::Failed(text)
            }),
            Kind::Created | Kind::Stream => Ok(()),
        }
    }

    /// Writes whole blocks. If the disk is full, the file ends after the last whole block.
    fn write(&mut self, bytes: &[u8]) -> ExitStatus {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.written += bytes.len() as u64;
                Ok(())
            }
            // This may be seen before the process is ended.
            Err(_) if !client::has_reader(&self.file) => Err(Failure::OutputClosed),
            Err(error) => {
                if self.kind != Kind::Stream {
                    // If this fails, too, the file ends within a block; readers accept all blocks
                    // before it.
                    let _ = self.cut(bytes);
                }
                let text = format!("cannot write {}: {error}", self.name);
                Err(Failure::Failed(text))
            }
        }
    }

    /// Removes the partial block at the end of the file.
    fn cut(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = self.file.stream_position()?.saturating_sub(self.written);
        let fitting = whole_within(bytes, usize::try_from(room).unwrap_or(usize::MAX));
        self.file.set_len(self.written + fitting as u64)
    }

    /// Removes the file if this command has created it.
    fn discard(&self) {
        if self.kind == Kind::Created {
            let _ = std::fs::remove_file(&self.name);
        }
    }
}

fn standard_output() -> Result<File, Failure> {
    if io::stdout().is_terminal() {
        let text = "standard output is a terminal: name a file, or pipe it to a program";
        return Err(Failure::Invalid(text.to_owned()));
    }
    let fd = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned();
    fd.map(File::from)
        .map_err(|e| Failure::Failed(format!("cannot write to standard output: {e}")))
}

/// Creates a file or opens an existing pipe or device; an existing file only with `force`.
fn open_file(name: &str, force: bool) -> Result<(File, Kind), Failure> {
    let failed = |error: io::Error| Failure::Invalid(format!("cannot write {name}: {error}"));
    let created = OpenOptions::new().write(true).create_new(true).open(name);
    match created {
        Ok(file) => Ok((file, Kind::Created)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let kind = match (Path::new(name).is_file(), force) {
                (true, true) => Kind::Existing,
                (true, false) => {
                    let text = format!("{name} exists already: name another file, or use --force");
                    return Err(Failure::Invalid(text));
                }
                (false, _) => Kind::Stream,
            };
            let file = OpenOptions::new().write(true).open(name).map_err(failed)?;
            Ok((file, kind))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The counters of the interface statistics block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    matched: u64,
    dropped: u64,
}

/// A pcapng stream, split into blocks.
#[derive(Debug, Default)]
struct Blocks {
    /// The beginning of an incomplete block.
    pending: Vec<u8>,
    frames: u64,
    counts: Option<Counts>,
}

impl Blocks {
    /// Writes the whole blocks of the stream so far.
    fn add(&mut self, bytes: &[u8], write: &mut impl FnMut(&[u8]) -> ExitStatus) -> ExitStatus {
        self.pending.extend_from_slice(bytes);
        let mut whole = 0;
        while let Some(block) = first_block(&self.pending[whole..])? {
            whole += block.len();
            match word(block, 0) {
                PACKET => self.frames += 1,
                STATISTICS => self.counts = counts(block),
                _ => {}
            }
        }
        if whole > 0 {
            write(&self.pending[..whole])?;
            self.pending.drain(..whole);
        }
        Ok(())
    }
}

/// Returns the first block; `None` while it is incomplete.
fn first_block(bytes: &[u8]) -> Result<Option<&[u8]>, Failure> {
    if bytes.len() < BLOCK_HEAD {
        return Ok(None);
    }
    let len = word(bytes, 4) as usize;
    if (12..=LONGEST_BLOCK).contains(&len) && len.is_multiple_of(4) {
        return Ok(bytes.get(..len));
    }
    let text = "malformed capture from Lasthop";
    Err(Failure::Failed(text.to_owned()))
}

/// Returns the bytes of the first blocks that fit into `room` together.
fn whole_within(blocks: &[u8], room: usize) -> usize {
    let fitting = &blocks[..room.min(blocks.len())];
    let mut end = 0;
    while let Ok(Some(block)) = first_block(&fitting[end..]) {
        end += block.len();
    }
    end
}

/// Returns the word at `at`; zero behind the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(<[u8]>::first_chunk);
    four.map_or(0, |four| u32::from_le_bytes(*four))
}

/// Returns the counters of an interface statistics block.
fn counts(block: &[u8]) -> Option<Counts> {
    let (_, block) = parse_interfacestatisticsblock_le(block).ok()?;
    Some(Counts {
        matched: block.isb_ifrecv()?.ok()?,
        dropped: block.isb_ifdrop()?.ok()?,
    })
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
        let counts = ipc::capture::Counts { meant: 9, lost: 4 };
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
            assert_eq!(
                blocks.counts,
                Some(Counts {
                    matched: 9,
                    dropped: 4
                })
            );
            assert_eq!(blocks.frames, 1);
        }
    }

    #[test]
    fn only_whole_blocks_fit() {
        let blocks = [block(1, &[0; 8]), block(PACKET, &[7; 40]), statistics()].concat();
        let fits = |room| whole_within(&blocks, room);
        assert_eq!((fits(0), fits(19)), (0, 0));
        assert_eq!((fits(20), fits(71), fits(72)), (20, 20, 72));
        assert_eq!(
            (fits(blocks.len() - 1), fits(usize::MAX)),
            (72, blocks.len())
        );
        assert_eq!(whole_within(&[0; 9], 9), 0);
    }

    #[test]
    fn a_malformed_capture_is_refused() {
        for file in [block(1, &[0; 3]), vec![0; 8], vec![0xff; 8]] {
            assert!(Blocks::default().add(&file, &mut |_| Ok(())).is_err());
        }
    }

    #[test]
    fn an_existing_file_is_overwritten_only_by_force_and_not_too_early() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let name = path.to_str().unwrap();
        assert_eq!(open_file(name, true).unwrap().1, Kind::Created);
        let Err(Failure::Invalid(text)) = open_file(name, false) else {
            panic!("it was overwritten");
        };
        assert!(text.contains("exists already"), "{text}");
        std::fs::write(&path, "what was there before, and is long").unwrap();
        let mut file = Output::open(name, true).unwrap();
        file.discard();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("long"));
        file.truncate().unwrap();
        file.write(b"short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        for force in [false, true] {
            assert_eq!(open_file("/dev/null", force).unwrap().1, Kind::Stream);
        }
        let Err(Failure::Invalid(text)) = open_file("/nowhere/a.pcapng", true) else {
            panic!("it was created");
        };
        assert!(
            text.starts_with("cannot write /nowhere/a.pcapng: "),
            "{text}"
        );
    }
}
