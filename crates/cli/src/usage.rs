//! Bad usage in one line: what is wrong, which values there are, and where to read more.
//!
//! clap explains over several lines, with a usage text that hides the one word that matters. Here its explanation is
//! joined into one line, and the usage text is left to `--help`. Two things stay as clap prints them: help and version
//! (standard output, status 0), and the help that a bare `linerate` gets (standard error, status 2). Writing to a closed
//! standard error is not an error either.

use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;

/// One line on standard error.
pub(crate) fn complain(message: &str) {
    let _ = writeln!(std::io::stderr(), "linerate: {message}");
}

/// Says what clap found and gives the status to leave with.
pub(crate) fn exit(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            let is_verb = |word: &String| crate::verbs().any(|verb| verb == *word);
            let verb = std::env::args().nth(1).filter(is_verb);
            complain(&in_one_line(&error.to_string(), verb.as_deref()));
            ExitCode::from(2)
        }
    }
}

/// clap's paragraphs without the usage text, joined.
fn in_one_line(text: &str, verb: Option<&str>) -> String {
    let said: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let said = said.join(" ");
    let help = verb.map_or(String::from("linerate --help"), |verb| format!("linerate {verb} --help"));
    format!("{}; see '{help}'", said.strip_prefix("error: ").unwrap_or(&said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_a_line() {
        let page = "error: invalid value 'x' for '--wire <WIRE>'\n  [possible values: full]\n\n  tip: a word\n\nUsage: linerate speed\n\nFor more information, try '--help'.\n";
        assert_eq!(
            in_one_line(page, Some("speed")),
            "invalid value 'x' for '--wire <WIRE>' [possible values: full] tip: a word; see 'linerate speed --help'"
        );
        assert_eq!(in_one_line("error: no", None), "no; see 'linerate --help'");
    }
}
