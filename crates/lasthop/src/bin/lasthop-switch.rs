//! The switch process; started by `lasthop run`.

#[path = "../process.rs"]
mod process;

fn main() -> std::process::ExitCode {
    process::main(
        "lasthop-switch",
        Some(sandbox::Process::Switch),
        datapath::process::run,
    )
}
