//! `lasthop top`: the busiest ports and flows, and the worst drops, once a second, in the place of the terminal's text.
//!
//! The terminal is as it was when it ends, also by a panic: `ratatui::init` takes care of that.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use api::v1::{FlowsDocument, StatsDocument};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::failure::Failure;
use crate::view::{self, Screen, draw};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

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

/// What was seen at some time.
struct Look {
    stats: StatsDocument,
    flows: FlowsDocument,
    at: Instant,
}

async fn look(client: &Client) -> Result<Look, Failure> {
    let stats = read(&client.get("/v1/stats").await?)?;
    let path = format!("/v1/flows?limit={}", view::FLOWS);
    let flows = read(&client.get(&path).await?)?;
    let at = Instant::now();
    Ok(Look { stats, flows, at })
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Failure> {
    let unclear =
        |error| Failure::Failed(format!("the server's answer is not understood: {error}"));
    serde_json::from_slice(answer).map_err(unclear)
}

async fn show(terminal: &mut DefaultTerminal, client: &Client, first: Look) -> Result<(), Failure> {
    let mut last = first;
    let mut screen = Screen::between(&last.stats, &last.stats, PERIOD);
    loop {
        if wait(terminal, &screen).map_err(|e| Failure::Failed(e.to_string()))? {
            return Ok(());
        }
        match look(client).await {
            Ok(now) => {
                screen = Screen::between(&last.stats, &now.stats, now.at - last.at);
                screen.add_flows(&now.flows);
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
