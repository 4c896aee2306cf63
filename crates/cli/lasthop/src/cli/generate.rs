//! Completions and man pages, generated from the arguments.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap::builder::Resettable;
use clap_complete::Shell;
use clap_mangen::Man;

use super::args::{Cli, EXIT_STATUSES};
use super::{ExitStatus, Failure, emit};

/// The example of a configuration in the man page; a test checks it.
const EXAMPLE: &str = include_str!("example.toml");

/// The sections of the man page that do not come from the arguments, in roff (`groff_man(7)`).
const MORE: &str = r#".SH CONFIGURATION
\fBlasthop run\fR reads one TOML file, described in \fBlasthop.toml\fR(5). An error names the file,
line and key, and nothing is started.
.PP
.EX
@EXAMPLE@.EE
.SH FILES
.TP
\fIDIR\fR/api.sock
The API: HTTP and JSON. Write access to this socket is full control of the switch.
.SH EXIT STATUS
@EXIT_STATUSES@.PP
With \fB--json\fR, an error is a JSON document on standard error; wrong usage is always plain text.
.SH SIGNALS
.TP
SIGHUP
\fBlasthop run\fR applies its configuration file again, as \fBlasthop reload\fR does. If the file is
invalid, or has a change that needs a restart, the error is logged and nothing is changed.
.TP
SIGTERM, SIGINT
\fBlasthop run\fR ends.
.SH SEE ALSO
\fBlasthop.toml\fR(5)
"#;

/// Prints the completion script of a shell.
pub(super) fn completions(shell: Shell) -> ExitStatus {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lasthop", &mut script);
    emit(&String::from_utf8_lossy(&script))
}

/// Prints the man page, or writes one for each command into a directory.
pub(super) fn man(out: Option<&Path>) -> ExitStatus {
    let page = main_page().map_err(|error| Failure::Failed(error.to_string()))?;
    let Some(dir) = out else {
        return emit(&page);
    };
    let failed =
        |error: io::Error| Failure::of_system(format!("{}: {error}", dir.display()), &error);
    std::fs::create_dir_all(dir).map_err(failed)?;
    let written = clap_mangen::generate_to(Cli::command(), dir)
        .and_then(|()| std::fs::write(dir.join("lasthop.1"), page));
    written.map_err(failed)
}

/// Returns the page `lasthop(1)`.
fn main_page() -> io::Result<String> {
    let mut page = Vec::new();
    // The section below replaces the exit statuses of `--help`.
    let command = Cli::command().after_help(Resettable::Reset);
    Man::new(command).render(&mut page)?;
    let page = String::from_utf8_lossy(&page);
    // roff prints a bare hyphen as a typographic one, which TOML does not accept.
    let example = EXAMPLE.replace('\\', "\\e").replace('-', "\\-");
    let statuses = EXIT_STATUSES.map(|(status, text)| {
        let text = text.replace('-', "\\-");
        format!(".TP\n{status}\n{text}\n")
    });
    let more = MORE
        .replace("@EXAMPLE@", &example)
        .replace("@EXIT_STATUSES@", &statuses.concat());
    Ok(format!("{page}{more}"))
}
