//! The control process; started by `lasthop run`.

#[path = "../process.rs"]
mod process;

fn main() -> std::process::ExitCode {
    process::main(
        "lasthop-control",
        Some(sandbox::Process::Control),
        control::engine::run,
    )
}
