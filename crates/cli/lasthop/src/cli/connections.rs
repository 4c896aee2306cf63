//! `lasthop connections`: tracked connections.

use api::v1::{
    ConnectionDirection, ConnectionEntry, ConnectionFlag, ConnectionsCount, ConnectionsDocument,
    ConnectionsFlush,
};

use super::args::Connections;
use super::run::{get_and_print, print};
use super::tables::Table;
use super::{ExitStatus, show};
use client::units::{bytes, duration, plural};
use client::{Client, with_query};

/// Runs a command.
pub(super) async fn run(client: &Client, command: Connections) -> ExitStatus {
    match command {
        Connections::List(list) => {
            let path = with_query("/v1/connections", &list.query())?;
            get_and_print(client, &path, list.selection.output, table).await
        }
        Connections::Count(of) => {
            let path = with_query("/v1/connections/count", &of.query())?;
            let number = |document: &ConnectionsCount| format!("{}\n", document.count);
            get_and_print(client, &path, of.output, number).await
        }
        Connections::Flush(of) => {
            let path = with_query("/v1/connections", &of.query())?;
            let response = client.delete(&path).await?;
            print::<ConnectionsFlush>(of.output, &response, |flushed| match flushed.done {
                true => "connections flushed\n".to_owned(),
                false => "flushing; the event connections_flushed has their number at the end\n"
                    .to_owned(),
            })
        }
    }
}

/// Returns connections as a table, and whether there are more.
fn table(document: &ConnectionsDocument) -> String {
    let none = match document.table {
        Some(_) => "no connections",
        None => "no connections: no rule is allow-stateful",
    };
    let text = Table::of(&document.connections)
        .text("PROTOCOL", |of| of.protocol.clone())
        .text("STATE", state)
        .text("FROM", |of| show::or_none(of.original.port.as_ref()))
        .text("SOURCE", source)
        .text("TO", |of| show::or_none(of.reply.port.as_ref()))
        .text("DESTINATION", |of| of.original.destination.clone())
        .text("SEGMENT", |of| of.segment.clone())
        .text("RULE", rule)
        .number("AGE", |of| duration(u64::from(of.age_ms) / 1000))
        .number("EXPIRES", |of| duration(u64::from(of.expires_ms) / 1000))
        .text("SENT", |of| traffic(&of.original))
        .text("ANSWERED", |of| traffic(&of.reply))
        .format_or(none);
    let shown = document.connections.len();
    match document.more {
        true => format!("{text}\nmore than {shown} connections: --limit shows up to 1024\n"),
        false => text,
    }
}

/// Returns the state of TCP, and the flags of others.
fn state(of: &ConnectionEntry) -> String {
    let flags = of.flags.iter().map(|flag| ConnectionFlag::as_str(*flag));
    let flags = flags.filter(|flag| of.state.is_none() || *flag != "assured");
    let words: Vec<_> = of.state.as_deref().into_iter().chain(flags).collect();
    match words[..] {
        [] => "replied".to_owned(),
        _ => words.join(" "),
    }
}

/// Returns the source with the identifier of an ICMP query.
fn source(of: &ConnectionEntry) -> String {
    let source = &of.original.source;
    match of.identifier {
        Some(identifier) => format!("{source} id {identifier}"),
        None => source.clone(),
    }
}

/// Returns the rule with its list.
fn rule(of: &ConnectionEntry) -> String {
    let names = of.list.as_ref().zip(of.rule.as_ref());
    show::or_none(names.map(|(list, rule)| format!("{list}/{rule}")))
}

fn traffic(of: &ConnectionDirection) -> String {
    let of = of.traffic;
    format!("{}, {}", plural(of.packets, "frame"), bytes(of.bytes))
}
