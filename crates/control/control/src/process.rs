//! The control process: the engine, and the thread of the API.

use std::io;
use std::os::fd::OwnedFd;

use ipc::link::Link;

use crate::command::engine_channel;
use crate::engine::{Engine, EngineParts, receive_start};
use crate::server;
use crate::server::api_thread::ApiThread;

/// API requests that may be queued.
const MAX_COMMANDS: usize = 64;

/// Runs control until the supervisor stops it or is gone. `link` is the supervision link. `close`
/// is called once all threads are there, before a message of the switch or of a client is read.
///
/// # Errors
/// A failed start, or the loss of the switch.
pub fn run(link: OwnedFd, close: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Beside the wait for the first message.
    let routes = std::thread::Builder::new().name("routes".into());
    let routes = sys::thread::start(routes, server::build_routes)?;
    let mut link = Link::new(link);
    let start = receive_start(&mut link)?;
    sys::closer::start(process::log::closers::logger(), None)?;
    let (parts, server_gate) = EngineParts::new(start.frozen)?;
    parts.pipes.start(parts.events())?;
    let (handle, commands) = engine_channel(MAX_COMMANDS, parts.events());
    let api_thread = ApiThread(server_gate).start(start.api.try_clone()?, handle)?;
    // It ends with system calls that are forbidden then.
    drop(routes.join());
    close()?;
    let mut engine = runtime.block_on(Engine::start(start, link, parts))?;
    api_thread.begin();
    runtime.block_on(engine.run(commands))
}
