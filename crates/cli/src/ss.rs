//! `linerate ss`: the sockets of a running Linerate, in the form of iproute2's `ss`.
//!
//! Flags, columns, names of states and the words of `-i` are `ss`'s; what Linerate does not have (users, cgroups, inodes) is
//! left out or zero. States and families are chosen by the server, so a million idle connections are not carried across to
//! find ten listeners; addresses and ports are chosen here ([`filter`]). Names are never resolved: `-n` is always on. A listener
//! of a stack with several shards is a socket in each of them, and a row for each; `-e` says which.
//!
//! Rows are printed in pages of [`PAGE_ROWS`], each with the widths of its own and all earlier rows: memory stays bounded, and
//! a list that fits a page looks as `ss`'s. A dump is no snapshot; see `linerate::control`.

mod filter;
mod format;
#[cfg(test)]
mod tests;

use clap::Args;
use linerate::control::{ControlError, SocketRecord, SocketsRequest};
use serde_json::{Value, json};

use self::filter::Filter;
use self::format::{Columns, Table};
use crate::attach::{Target, parse};
use crate::{Failure, Outcome};

/// Rows whose widths are looked at together.
const PAGE_ROWS: usize = 4096;

/// Sockets of a running Linerate, as iproute2's ss shows them.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  linerate ss -tie                                connections with all that TCP knows of them
  linerate ss -ltn                                who listens
  linerate ss -tn state time-wait dport = :443    by state, address and port, in ss's words")]
pub(crate) struct SsArgs {
    /// TCP
    #[arg(short, long)]
    pub(crate) tcp: bool,
    /// UDP
    #[arg(short, long)]
    pub(crate) udp: bool,
    /// Only those that listen
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) listening: bool,
    /// Those that listen, and those that do not
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Numbers instead of names: always so
    #[arg(short, long)]
    pub(crate) numeric: bool,
    /// What TCP knows of a connection
    #[arg(short, long)]
    pub(crate) info: bool,
    /// Timers, and the socket's number
    #[arg(short, long)]
    pub(crate) extended: bool,
    /// Memory
    #[arg(short, long)]
    pub(crate) memory: bool,
    /// Timers
    #[arg(short, long)]
    pub(crate) options: bool,
    /// Sockets of IPv4
    #[arg(short = '4', long = "ipv4")]
    pub(crate) v4: bool,
    /// Sockets of IPv6
    #[arg(short = '6', long = "ipv6")]
    pub(crate) v6: bool,
    /// Without the line of titles
    #[arg(short = 'H', long)]
    pub(crate) no_header: bool,
    /// One line for each socket
    #[arg(short = 'O', long)]
    pub(crate) oneline: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// `state NAME`, `exclude NAME`, and conditions on src, dst, sport and dport with and, or, not and parentheses
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

impl SsArgs {
    fn request(&self, filter: &Filter) -> SocketsRequest {
        let mut request = SocketsRequest::default();
        // None named: both.
        (request.tcp, request.udp) = (self.tcp || !self.udp, self.udp || !self.tcp);
        (request.v4, request.v6) = (self.v4 || !self.v6, self.v6 || !self.v4);
        request.states = filter.states(self.all, self.listening);
        request.info = self.info || self.json;
        request
    }
    fn columns(&self) -> Columns {
        Columns {
            // One kind of sockets needs no name.
            netid: self.tcp == self.udp,
            timers: self.options || self.extended,
            details: self.extended,
            memory: self.memory,
            info: self.info,
            oneline: self.oneline,
        }
    }
}

/// Runs the verb.
pub(crate) fn main(args: &SsArgs) -> Outcome {
    let filter = Filter::parse(&args.filter).map_err(Failure::Usage)?;
    let mut client = args.target.connect()?;
    let mut show = Show::new(args);
    let asked = client.request("sockets", &args.request(&filter), |key, value| {
        if key == "socket" {
            let socket: SocketRecord = parse(value)?;
            if filter.matches(&socket) {
                show.add(socket);
            }
        }
        // What can not be printed ends the dump, without being the server's fault.
        if show.failed.is_some() { Err(ControlError::Garbage(String::new())) } else { Ok(()) }
    });
    if let Some(message) = show.failed {
        return Err(message.into());
    }
    asked.map_err(|e| e.to_string())?;
    show.finish()
}

/// The output while it grows.
struct Show<'a> {
    args: &'a SsArgs,
    table: Table,
    rows: Vec<SocketRecord>,
    /// Something was printed.
    begun: bool,
    failed: Option<String>,
}

impl<'a> Show<'a> {
    fn new(args: &'a SsArgs) -> Self {
        Self { args, table: Table::new(args.columns()), rows: Vec::new(), begun: false, failed: None }
    }
    fn add(&mut self, socket: SocketRecord) {
        self.rows.push(socket);
        if self.rows.len() == PAGE_ROWS {
            self.page();
        }
    }
    fn page(&mut self) {
        let text = if self.args.json { self.json() } else { self.text() };
        self.begun = true;
        self.rows.clear();
        self.failed = self.failed.take().or(crate::print(&text).err());
    }
    fn text(&mut self) -> String {
        self.table.page(&self.rows, !self.begun && !self.args.no_header)
    }
    /// Rows of one array; what begins and ends it is printed around.
    fn json(&self) -> String {
        let mut text = String::new();
        for (nth, row) in self.rows.iter().enumerate() {
            let before = if nth == 0 && !self.begun { "{\"schema\":1,\"sockets\":[\n" } else { ",\n" };
            text += before;
            text += &json!(row).to_string();
        }
        text
    }
    fn finish(mut self) -> Outcome {
        if !self.rows.is_empty() || !self.args.json {
            self.page();
        }
        if self.args.json {
            let end = if self.begun {
                "\n]}\n".to_owned()
            } else {
                Value::to_string(&json!({"schema": 1, "sockets": []})) + "\n"
            };
            self.failed = self.failed.or(crate::print(&end).err());
        }
        self.failed.map_or(Ok(()), |message| Err(message.into()))
    }
}
