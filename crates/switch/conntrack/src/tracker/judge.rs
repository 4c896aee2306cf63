//! The state of a frame, and the progress that its connection makes.

use crate::Direction;
use crate::datagram;
use crate::judgement::{Connection, Ingress, Judgement};
use crate::machine::{self, Context, Outcome};
use crate::packet::{Message, Packet, Reading};
use crate::progress::{Side, TcpState};
use crate::table::content::Content;
use crate::table::links::EntryRef;

use super::{FrameJudgement, Place, Probe, Tracking};

/// Attempts to store the progress of a frame beside others of its connection.
const ATTEMPTS: usize = 3;

impl<'a> Tracking<'a> {
    /// Judges a frame and has its connection advance: the third step. `epoch` is that of the rules
    /// of the frame's zone.
    #[inline]
    pub fn judge(
        &mut self,
        read: &Reading,
        probe: Probe,
        from: Ingress,
        epoch: u16,
    ) -> FrameJudgement {
        match read {
            Reading::Packet(packet) if packet.piece.is_none() => {
                self.judge_packet::<true>(packet, probe, from, epoch)
            }
            _ => self.judge_other(read, probe, from, epoch),
        }
    }

    /// Judges what has no transport header of its own, and first fragments.
    #[cold]
    fn judge_other(
        &mut self,
        read: &Reading,
        probe: Probe,
        from: Ingress,
        epoch: u16,
    ) -> FrameJudgement {
        let shared = self.batch.shared;
        let (port, time) = (from.port, (&shared.seed, self.batch.now));
        match read {
            Reading::Untracked(why) => {
                FrameJudgement::without_connection(Judgement::Untracked(*why))
            }
            Reading::Invalid(why, piece) => {
                if let Some(piece) = piece {
                    // The answer is the reason that is known already.
                    let _ = shared.fragments.remember(piece, (port, Err(*why)), time);
                }
                FrameJudgement::without_connection(Judgement::Invalid(*why))
            }
            Reading::Packet(packet) => {
                let belongs = (port, Ok((packet.tuple, packet.message)));
                if let Some(piece) = &packet.piece
                    && let Err(why) = shared.fragments.remember(piece, belongs, time)
                {
                    return FrameJudgement::without_connection(Judgement::Invalid(why));
                }
                let judged = self.judge_packet::<true>(packet, probe, from, epoch);
                // The numbers of a segment are not kept.
                if let (Judgement::Invalid(why), Message::Tcp(_), Some(piece)) =
                    (judged.judgement, &packet.message, &packet.piece)
                {
                    shared.fragments.refuse(piece, port, why, time);
                }
                judged
            }
            Reading::Later(piece) => match shared.fragments.later(piece, port, time) {
                None => FrameJudgement::without_connection(Judgement::EarlyFragment),
                Some(Err(why)) => FrameJudgement::without_connection(Judgement::Invalid(why)),
                Some(Ok((tuple, message))) => {
                    let packet = Packet {
                        tuple,
                        message,
                        piece: None,
                    };
                    let probe = self.approach(self.prepare(&tuple));
                    self.judge_packet::<false>(&packet, probe, from, epoch)
                }
            },
        }
    }

    #[inline(always)]
    pub(super) fn judge_packet<const ADVANCE: bool>(
        &mut self,
        packet: &Packet,
        probe: Probe,
        from: Ingress,
        epoch: u16,
    ) -> FrameJudgement {
        let message = &packet.message;
        if probe.word.is_free() {
            return self.unknown(message);
        }
        let candidate = self.batch.shared.links.check(probe.word, &packet.tuple);
        if let Some(found) = candidate
            && !found.life.is_second()
            && found.accepts(from.port)
        {
            if matches!(message, Message::Tcp(_)) {
                if let Some(sides) = self.batch.sides(&found) {
                    return self.judge_known::<ADVANCE>(message, (found, &sides), from, epoch);
                }
            } else if ADVANCE && let Some(judged) = self.judge_plain(message, &found, epoch) {
                return judged;
            }
        }
        self.judge_searched::<ADVANCE>(packet, probe, from, epoch)
    }

    /// Judges a frame of no candidate that is as usual.
    #[cold]
    fn judge_searched<const ADVANCE: bool>(
        &mut self,
        packet: &Packet,
        probe: Probe,
        from: Ingress,
        epoch: u16,
    ) -> FrameJudgement {
        match self.connection(packet, probe, from) {
            Some((found, sides)) => {
                self.judge_known::<ADVANCE>(&packet.message, (found, &sides), from, epoch)
            }
            None => self.unknown(&packet.message),
        }
    }

    /// Judges a frame of a protocol without windows that changes nothing but the time of its side:
    /// nearly all do. `None` for others, and for connections that are over.
    #[inline(always)]
    fn judge_plain(
        &self,
        message: &Message,
        found: &EntryRef<'a>,
        epoch: u16,
    ) -> Option<FrameJudgement> {
        let (entry, direction) = (found.entry, found.direction);
        let (ends, content, now) = (found.ends(), Content::of(found.life), self.batch.now);
        let progress = content.progress();
        if entry.has_windows() || *message == Message::Error || !self.batch.is_of_zone(entry) {
            return None;
        }
        let idle = self.batch.idle([entry.original.used(), entry.reply.used()]);
        let settings = self.batch.settings;
        let timeout = machine::timeout_without_windows(entry.protocol(), progress, settings);
        let streams = *message == Message::Udp;
        let time = (now, now.wrapping_sub(entry.created()));
        let step = datagram::judge(streams, direction, progress, &Side::new(now), time);
        // Both ports are known: its own is that of the frame.
        let changes = step.progress != progress || progress.is_denied();
        if ends.far().is_none() || timeout <= idle || changes {
            return None;
        }
        let (_, far) = ends.seen(direction);
        entry.line(direction).set_used(step.own.used);
        let connection = Connection {
            direction,
            replied: progress.is_replied(),
            stale: content.epoch() != epoch,
            moved: false,
            far,
        };
        Some(FrameJudgement {
            judgement: Judgement::Known {
                connection,
                refused: false,
            },
            place: Some(Place::of(found)),
            mark: ends.mark() as u8,
            is_middle: false,
        })
    }

    /// Returns the connection of a frame and its sides, the original first.
    pub(super) fn connection(
        &mut self,
        packet: &Packet,
        probe: Probe,
        from: Ingress,
    ) -> Option<(EntryRef<'a>, [Side; 2])> {
        if probe.word.is_free() {
            return None;
        }
        let shared = self.batch.shared;
        if let Some(found) = shared.links.check(probe.word, &packet.tuple)
            && !found.life.is_second()
            && found.accepts(from.port)
            && let Some(sides) = self.batch.sides(&found)
        {
            return Some((found, sides));
        }
        self.search(packet, probe, from)
    }

    /// Searches all connections of the tuple: the port's own come before those
    /// of a station that has moved to it.
    #[cold]
    fn search(
        &mut self,
        packet: &Packet,
        probe: Probe,
        from: Ingress,
    ) -> Option<(EntryRef<'a>, [Side; 2])> {
        let (tuple, hash) = (&packet.tuple, probe.hash);
        let own = self.batch.find(tuple, hash, from.port);
        let found = match own {
            None if from.is_home => {
                let source = from.stations.source;
                let is_here =
                    |found: &EntryRef<'_>| found.entry.line(found.direction).station() == source;
                self.batch.find_where(tuple, hash, is_here)
            }
            own => own,
        }?;
        let sides = self.batch.sides(&found)?;
        Some((found, sides))
    }

    /// Judges a frame of no known connection.
    #[inline]
    fn unknown(&self, message: &Message) -> FrameJudgement {
        match machine::open(message, self.batch.now, self.batch.settings) {
            Ok((progress, _)) => FrameJudgement {
                is_middle: progress.tcp() == TcpState::Established,
                ..FrameJudgement::without_connection(Judgement::New)
            },
            Err(why) => FrameJudgement::without_connection(Judgement::Invalid(why)),
        }
    }

    #[inline(always)]
    fn judge_known<const ADVANCE: bool>(
        &mut self,
        message: &Message,
        (found, sides): (EntryRef<'a>, &[Side; 2]),
        from: Ingress,
        epoch: u16,
    ) -> FrameJudgement {
        let (ends, content) = (found.ends(), Content::of(found.life));
        let (own, far) = ends.seen(found.direction);
        let is_own = own == Some(from.port);
        let connection = Connection {
            direction: found.direction,
            replied: content.progress().is_replied(),
            stale: content.is_stale(epoch),
            moved: !is_own || far.is_none(),
            far,
        };
        let judged = |judgement| FrameJudgement {
            judgement,
            place: Some(Place::of(&found)),
            mark: ends.mark() as u8,
            is_middle: false,
        };
        if *message == Message::Error {
            return judged(Judgement::Related(connection));
        }
        let refused = match self.advance(message, found, sides, ADVANCE && is_own) {
            Some(Outcome::Known) => false,
            Some(Outcome::Refused) => true,
            Some(Outcome::Reopens) => {
                return FrameJudgement::without_connection(Judgement::New);
            }
            Some(Outcome::Invalid(why)) => {
                return FrameJudgement::without_connection(Judgement::Invalid(why));
            }
            None => return self.unknown(message),
        };
        judged(Judgement::Known {
            connection,
            refused,
        })
    }

    /// Judges a frame of a connection, and stores the progress that it makes if it is `stored`;
    /// `None` if another thread has ended the connection.
    #[inline(always)]
    fn advance(
        &self,
        message: &Message,
        mut found: EntryRef<'a>,
        sides: &[Side; 2],
        stored: bool,
    ) -> Option<Outcome> {
        let [original, reply] = sides;
        let sides = match found.direction {
            Direction::Original => (original, reply),
            Direction::Reply => (reply, original),
        };
        let (now, settings) = (self.batch.now, self.batch.settings);
        for attempt in 0.. {
            let content = Content::of(found.life);
            let known = Context {
                direction: found.direction,
                progress: content.progress(),
                created: found.entry.created(),
            };
            let step = machine::judge(message, known, sides, now, settings);
            let counts = matches!(step.outcome, Outcome::Known | Outcome::Refused);
            if !stored || !counts || known.progress.is_denied() {
                return Some(step.outcome);
            }
            let after = Content::new(step.progress, content.epoch());
            if after != content && attempt < ATTEMPTS {
                match self.batch.advance(&found, after) {
                    Ok(_) => {}
                    // A frame of the other direction was first.
                    Err(Some(life)) => {
                        found.life = life;
                        continue;
                    }
                    Err(None) => return None,
                }
            }
            let line = found.entry.line(found.direction);
            match message {
                Message::Tcp(_) => line.set(&step.own),
                _ => line.set_used(step.own.used),
            }
            return Some(step.outcome);
        }
        None
    }
}
