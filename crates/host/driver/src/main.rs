//! Driver process; started by `lasthop run`.

fn main() -> std::process::ExitCode {
    process::main("lasthop-driver", None, driver::run)
}
