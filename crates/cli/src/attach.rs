//! Which running Linerate a verb asks: `--control PATH`, `--pid P`, or the only one there is.
//!
//! ```text
//!   --control PATH ──────────────────────────────▶ Client
//!   --pid P, or nothing ─▶ running() ─▶ just one ─▶ Client        none, several: an error with what there is
//! ```
//! Processes are found by their sockets in this user's directory (`linerate::control::running`). None, or several, is an
//! error that says where was looked, or which there are. What a server refuses is passed on in its own words.

use std::path::PathBuf;

use clap::Args;
use linerate::control::{Client, ControlError, Running, running};

/// The flags that name a process.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which process")]
pub(crate) struct Target {
    /// Ask the process of this number
    #[arg(long, value_name = "PID", conflicts_with = "control")]
    pub(crate) pid: Option<u32>,
    /// Ask the process that listens at PATH [default: the only one of this user]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

impl Target {
    /// Connects to the process that is meant.
    pub(crate) fn connect(&self) -> Result<Client, String> {
        let path = match &self.control {
            Some(path) => path.clone(),
            None => self.choose(running().map_err(|e| e.to_string())?)?.path,
        };
        Client::connect(&path).map_err(|e| e.to_string())
    }

    fn choose(&self, mut found: Vec<Running>) -> Result<Running, String> {
        if let Some(pid) = self.pid {
            found.retain(|running| running.pid == pid);
        }
        match (found.len(), self.pid) {
            (0, None) => Err("no Linerate with a control socket is running; start one, as `linerate iperf3 -s`, \
                              or name its socket with --control PATH"
                .into()),
            (0, Some(pid)) => Err(format!("process {pid} has no control socket here; name its path with --control")),
            (1, _) => Ok(found.swap_remove(0)),
            _ => {
                let way_out = if self.pid.is_some() { "--control PATH" } else { "--pid or --control" };
                Err(format!("several are running: {}; choose with {way_out}", describe(&found)))
            }
        }
    }
}

/// Number, socket and command of each.
fn describe(found: &[Running]) -> String {
    let one = |running: &Running| {
        let name = running.connect().and_then(|mut client| client.about()).map(|about| about.name);
        format!("{} {} ({})", running.pid, name.unwrap_or_default(), running.path.display())
    };
    found.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// An answer's value as what it should be.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T, ControlError> {
    serde_json::from_value(value).map_err(|e| ControlError::Garbage(e.to_string()))
}
