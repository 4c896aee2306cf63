//! Driver process; started by `lasthop run`.

#[path = "../process.rs"]
mod process;

fn main() -> std::process::ExitCode {
    process::main("lasthop-driver", None, driver::run)
}
