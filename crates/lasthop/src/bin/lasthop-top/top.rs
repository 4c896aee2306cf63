//! `lasthop top`: the busiest ports, flows and rules, and the worst drops, once a second, in the place of the terminal's text.
//!
//! The terminal is as it was when it ends, also by a panic: `ratatui::init` takes care of that.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::failure::Failure;
use crate::screen::{Look, Screen};
use crate::view::{self, View, draw};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Rules of which it is known how often each was used: who is not among those with the most packets is not busy.
const RULES: usize = 200;

/// Shows what ports do until somebody ends it.
pub(crate) async fn top(client: &Client) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let instead = "`lasthop top` needs a terminal; `lasthop stats --watch` does not";
        return Err(Failure::Wrong(instead.to_owned()));
    }
    // Who is not there is told without a screen.
    let first = look(client).await?;
    let mut terminal = ratatui::init();
    let shown = show(&mut terminal, client, first).await;
    ratatui::restore();
    shown
}

async fn look(client: &Client) -> Result<Look, Failure> {
    Ok(Look {
        stats: read(&client.get("/v1/stats").await?)?,
        flows: read(
            &client
                .get(&format!("/v1/flows?limit={}", view::LINES))
                .await?,
        )?,
        rules: read(
            &client
                .get(&format!("/v1/access/counts?limit={RULES}"))
                .await?,
        )?,
    })
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Failure> {
    let unclear =
        |error| Failure::Failed(format!("the server's answer is not understood: {error}"));
    serde_json::from_slice(answer).map_err(unclear)
}

async fn show(terminal: &mut DefaultTerminal, client: &Client, first: Look) -> Result<(), Failure> {
    let (mut last, mut at) = (first, Instant::now());
    let mut screen = Screen::between(&last, &last, PERIOD);
    let mut view = View::default();
    loop {
        if wait(terminal, &screen, &mut view).map_err(|e| Failure::Failed(e.to_string()))? {
            return Ok(());
        }
        match look(client).await {
            Ok(now) => {
                screen = Screen::between(&last, &now, at.elapsed());
                (last, at) = (now, Instant::now());
            }
            // It may be back at the next look, as control is when it was killed.
            Err(failure) => screen.trouble = Some(failure.to_string()),
        }
    }
}

/// Shows the screen for a period; `true` when somebody wants it to end.
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
            && !changed(view, key, (room, screen.ports(view.sort).len()))
        {
            return Ok(true);
        }
    }
}

/// Does what a key says, where there is room for so many of all ports; `false`: it is to end. Ctrl-C is a key like others here.
fn changed(view: &mut View, key: KeyEvent, (room, ports): (usize, usize)) -> bool {
    let last = ports.saturating_sub(room);
    let above = view.above.min(last);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('?' | 'h') => view.help = !view.help,
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Up | KeyCode::Char('k') => view.above = above.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => view.above = (above + 1).min(last),
        KeyCode::PageUp => view.above = above.saturating_sub(room),
        KeyCode::PageDown => view.above = (above + room).min(last),
        KeyCode::Home => view.above = 0,
        KeyCode::End => view.above = last,
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_scroll_no_further_than_there_are_ports() {
        let mut view = View::default();
        let mut press = |code| {
            assert!(changed(&mut view, KeyEvent::from(code), (5, 12)), "{code}");
            view.above
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
        for (code, above) in codes {
            assert_eq!(press(code), above, "{code}");
        }
    }

    #[test]
    fn some_keys_end_it_and_others_do_not() {
        let mut view = View::default();
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!changed(&mut view, control_c, (1, 1)));
        assert!(!changed(&mut view, KeyCode::Esc.into(), (1, 1)));
        assert!(!changed(&mut view, KeyCode::Char('q').into(), (1, 1)));
        assert!(changed(&mut view, KeyCode::Char('c').into(), (1, 1)));
        assert_eq!(view, View::default());
        assert!(changed(&mut view, KeyCode::Char('?').into(), (1, 1)));
        assert!(changed(&mut view, KeyCode::Char('s').into(), (1, 1)));
        assert!(view.help && view.sort.word() == "drops");
    }
}
