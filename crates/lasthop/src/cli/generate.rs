//! What is generated from the arguments: completions and man pages.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::args::Cli;
use super::{Done, Failure, emit};

/// The configuration in the man page. A test reads it, so it is right.
const EXAMPLE: &str = include_str!("example.toml");

/// What the arguments do not say, in roff (`groff_man(7)`).
const MORE: &str = r#".SH CONFIGURATION
\fBlasthop run\fR reads one TOML file. An error names its file, line and key, and nothing is started.
.PP
.EX
@EXAMPLE@.EE
.SH FILES
.TP
\fIDIR\fR/api.sock
The API: HTTP and JSON. Who may write to this socket may do everything.
.SH EXIT STATUS
.TP
0
Done.
.TP
1
It was asked for rightly and failed, or broke off: nobody answers, somebody else was faster, there are too many already. Asked again
it may be done.
.TP
2
What was asked for is wrong, and nothing was changed: usage, configuration, a file that cannot be read, a port or anything else that there
is not, a name that is taken, something that is needed still.
.TP
3
\fBapply\fR, \fBreload\fR or \fBport set\fR with \fB--dry-run\fR would change something.
.TP
4
Something else would become of a frame than \fBtrace --expect\fR says.
.PP
With \fB--json\fR, what goes wrong is told as a JSON document on standard error, unless it is wrong usage.
.SH SIGNALS
.TP
SIGHUP
\fBlasthop run\fR applies its configuration file again, as \fBlasthop reload\fR does. What cannot change while it runs, or cannot be had, is
logged, and nothing is changed.
.TP
SIGTERM, SIGINT
It ends.
"#;

/// Prints the completions of a shell.
pub(super) fn completions(shell: Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lasthop", &mut script);
    emit(&String::from_utf8_lossy(&script))
}

/// Prints the man page, or writes one for each command into a directory.
pub(super) fn man(out: Option<&Path>) -> Done {
    let page = main_page().map_err(|error| Failure::Failed(error.to_string()))?;
    let Some(dir) = out else {
        return emit(&page);
    };
    let told = |error: io::Error| format!("{}: {error}", dir.display());
    std::fs::create_dir_all(dir).map_err(|error| Failure::Wrong(told(error)))?;
    let written = clap_mangen::generate_to(Cli::command(), dir)
        .and_then(|()| std::fs::write(dir.join("lasthop.1"), page));
    written.map_err(|error| Failure::Failed(told(error)))
}

/// The page `lasthop(1)`.
fn main_page() -> io::Result<String> {
    let mut page = Vec::new();
    Man::new(Cli::command()).render(&mut page)?;
    let page = String::from_utf8_lossy(&page);
    // A bare hyphen in roff is a typographic one, which nobody can paste into a file.
    let example = EXAMPLE.replace('\\', "\\e").replace('-', "\\-");
    Ok(format!("{page}{}", MORE.replace("@EXAMPLE@", &example)))
}
