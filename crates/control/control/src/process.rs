//! The control process: the engine, and the thread of the API.

use std::io;
use std::os::fd::OwnedFd;

use ipc::link::Link;

use crate::command::engine_channel;
use crate::engine::Engine;
use crate::server::api_thread::ApiThread;

/// API requests that may be queued.
const MAX_COMMANDS: usize = 64;

/// Runs control until the supervisor stops it or is gone. `link` is the supervision link. `close`
/// is called once everything is set up, before the first client is served.
///
/// # Errors
/// A failed start, or the loss of the switch.
pub fn run(link: OwnedFd, close: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut engine, api) = runtime.block_on(Engine::start(Link::new(link)))?;
    engine.pipe_server().start(engine.events())?;
    let (handle, commands) = engine_channel(MAX_COMMANDS, engine.events());
    let api_thread = ApiThread(engine.install_gate()).start(api, handle)?;
    sys::closer::start(process::log::closers::logger(), None)?;
    close()?;
    api_thread.begin();
    runtime.block_on(engine.run(commands))
}
