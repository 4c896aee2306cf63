//! The loop of `lasthop top`: shows the busiest ports, flows, rules and senders at scheduled ports,
//! and the most drops, once a second.
//!
//! The terminal is restored at the end, also after a panic (`ratatui::init`).

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::screen::{Sample, Screen};
use crate::view::{self, View, draw};
use client::Client;
use client::Failure;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Number of rules that are requested, those with the most packets.
const RULES: usize = 200;

/// Shows the screen until the user quits.
pub(crate) async fn top(client: &Client) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let instead = "`lasthop top` needs a terminal; `lasthop stats --watch` does not";
        return Err(Failure::Invalid(instead.to_owned()));
    }
    // Without its terminal, waiting for keys would not end.
    client::end_without_reader(io::stdout(), Failure::OutputClosed)?;
    // A failure of the first sample is reported without a screen.
    let first = sample(client).await?;
    let mut terminal = ratatui::init();
    let shown = show(&mut terminal, client, first).await;
    if shown.is_err() && !client::has_reader(io::stdout()) {
        // There is nothing to restore, and the attempt would be reported as an error.
        std::mem::forget(terminal);
        return Err(Failure::OutputClosed);
    }
    ratatui::restore();
    shown
}

async fn sample(client: &Client) -> Result<Sample, Failure> {
    Ok(Sample {
        stats: client.read("/v1/stats").await?,
        egress: client.read("/v1/egress").await?,
        flows: client
            .read(&format!("/v1/flows?limit={}", view::LINES))
            .await?,
        rules: client
            .read(&format!("/v1/access/counts?limit={RULES}"))
            .await?,
    })
}

async fn show(
    terminal: &mut DefaultTerminal,
    client: &Client,
    first: Sample,
) -> Result<(), Failure> {
    let (mut last, mut at) = (first, Instant::now());
    let mut screen = Screen::between(&last, &last, PERIOD);
    let mut view = View::default();
    loop {
        if wait(terminal, &screen, &mut view).map_err(|e| Failure::Failed(e.to_string()))? {
            return Ok(());
        }
        match sample(client).await {
            Ok(now) => {
                screen = Screen::between(&last, &now, at.elapsed());
                (last, at) = (now, Instant::now());
            }
            // Control may be restarting; the next sample is another attempt.
            Err(failure) => screen.error = Some(failure.to_string()),
        }
    }
}

/// Shows the screen for a period and handles keys; `true`: quit.
fn wait(terminal: &mut DefaultTerminal, screen: &Screen, view: &mut View) -> io::Result<bool> {
    let end = Instant::now() + PERIOD;
    loop {
        let mut room = 0;
        terminal.draw(|frame| room = draw(frame, screen, *view))?;
        if !event::poll(end.saturating_duration_since(Instant::now()))? {
            return Ok(false);
        }
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && !handle_key(view, key, (room, screen.ports(view.sort).len()))
        {
            return Ok(true);
        }
    }
}

/// Handles a key, with `room` for some of all ports; `false`: quit. In raw mode Ctrl-C is a key,
/// not a signal.
fn handle_key(view: &mut View, key: KeyEvent, (room, ports): (usize, usize)) -> bool {
    let last = ports.saturating_sub(room);
    let offset = view.offset.min(last);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('?' | 'h') => view.help = !view.help,
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Up | KeyCode::Char('k') => view.offset = offset.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => view.offset = (offset + 1).min(last),
        KeyCode::PageUp => view.offset = offset.saturating_sub(room),
        KeyCode::PageDown => view.offset = (offset + room).min(last),
        KeyCode::Home => view.offset = 0,
        KeyCode::End => view.offset = last,
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrolling_stops_at_the_last_port() {
        let mut view = View::default();
        let mut press = |code| {
            assert!(
                handle_key(&mut view, KeyEvent::from(code), (5, 12)),
                "{code}"
            );
            view.offset
        };
        let codes = [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::Char('j'), 2),
            (KeyCode::Char('k'), 1),
            (KeyCode::PageDown, 6),
            (KeyCode::PageDown, 7),
            (KeyCode::Down, 7),
            (KeyCode::PageUp, 2),
            (KeyCode::End, 7),
            (KeyCode::Home, 0),
        ];
        for (code, offset) in codes {
            assert_eq!(press(code), offset, "{code}");
        }
    }

    #[test]
    fn q_esc_and_ctrl_c_quit() {
        let mut view = View::default();
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!handle_key(&mut view, control_c, (1, 1)));
        assert!(!handle_key(&mut view, KeyCode::Esc.into(), (1, 1)));
        assert!(!handle_key(&mut view, KeyCode::Char('q').into(), (1, 1)));
        assert!(handle_key(&mut view, KeyCode::Char('c').into(), (1, 1)));
        assert_eq!(view, View::default());
        assert!(handle_key(&mut view, KeyCode::Char('?').into(), (1, 1)));
        assert!(handle_key(&mut view, KeyCode::Char('s').into(), (1, 1)));
        assert!(view.help && view.sort.word() == "drops");
    }
}
