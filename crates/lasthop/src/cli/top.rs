//! `lasthop top`: the busiest ports and the worst drops, once a second, in the place of the terminal's text.
//!
//! The terminal is as it was when it ends, also by a panic: `ratatui::init` takes care of that.

mod view;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use api::v1::StatsDocument;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::client::Client;
use super::{Done, Failure, order};
use view::{Screen, draw};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows what ports do until somebody ends it.
pub(super) async fn top(client: &Client) -> Done {
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

async fn look(client: &Client) -> Result<(StatsDocument, Instant), Failure> {
    let stats = order::read(&client.get("/v1/stats").await?)?;
    Ok((stats, Instant::now()))
}

async fn show(
    terminal: &mut DefaultTerminal,
    client: &Client,
    first: (StatsDocument, Instant),
) -> Done {
    let mut last = first;
    let mut screen = Screen::between(&last.0, &last.0, PERIOD);
    loop {
        if wait(terminal, &screen).map_err(|e| Failure::Failed(e.to_string()))? {
            return Ok(());
        }
        match look(client).await {
            Ok(now) => {
                screen = Screen::between(&last.0, &now.0, now.1 - last.1);
                last = now;
            }
            // It may be back at the next look, as control is when it was killed.
            Err(failure) => screen.trouble = Some(failure.to_string()),
        }
    }
}

/// Shows the screen for a period; `true` when somebody wants it to end.
fn wait(terminal: &mut DefaultTerminal, screen: &Screen) -> io::Result<bool> {
    let end = Instant::now() + PERIOD;
    loop {
        terminal.draw(|frame| draw(frame, screen))?;
        if !event::poll(end.saturating_duration_since(Instant::now()))? {
            return Ok(false);
        }
        if matches!(event::read()?, Event::Key(key) if ends(key)) {
            return Ok(true);
        }
    }
}

/// `q`, Escape, and Ctrl-C, which is a key like others here.
fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let wanted = match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => control,
        _ => false,
    };
    wanted && key.kind == KeyEventKind::Press
}
