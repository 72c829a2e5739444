//! The packetdrill language, run in virtual time against any stack behind [`Backend`].
//!
//! A script is a timed list of system calls, packets that arrive and packets that must leave (CONFORMANCE section 3).
//! The way of a script: `lex` -> `parse` -> `ast`; `run` walks the events, resolves calls (`call`), builds and judges
//! packets (`packet`, `matcher`, `focus`), and moves the virtual clock through the [`Backend`]. Time is exact: what the
//! script injects or calls happens at its very instant, so a run costs no waiting and repeats to the bit.
//! Every script runs in three variants (IPv4, IPv4 under AF_INET6 sockets, IPv6) by [`run_paths`].
//! Limits: one connection is looked at at a time; code blocks, encapsulation and descriptors that are no sockets are
//! parsed and reported as unsupported with their place, never skipped.

mod ast;
mod backend;
mod call;
mod config;
mod drive;
#[cfg(test)]
mod fake;
mod focus;
mod host;
mod icmp;
mod lex;
mod matcher;
mod packet;
mod parse;
mod paths;
mod posix_backend;
mod process;
mod run;
mod shell;
mod symbols;
mod tun;

pub use backend::{
    Addr, Backend, BlockToken, Buf, Call, CallState, Cmsg, Completion, EpollEvent, Outcome, Output, PollFd, ShellOp,
};
pub use config::{VariantConfig, variants};
pub use drive::drill_main;
pub use paths::{CaseResult, RunOptions, Summary, run_paths};
pub use posix_backend::PosixBackend;
pub use process::ProcessBackend;
pub use run::{RunReport, Verdict};
pub use symbols::lookup as symbol;
