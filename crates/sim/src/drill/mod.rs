//! The packetdrill language, run in virtual time against any stack behind `Backend`.
//!
//! A script is a timed list of system calls, packets that arrive and packets that must leave (CONFORMANCE section 3).
//! The way of a script: `lex` -> `parse` -> `ast`; the runner walks the events, resolves calls (`call`),
//! builds and matches packets (`packet`, `matcher`), and moves the virtual clock through the `Backend`. Time is exact:
//! what the script injects or calls happens at its very instant, so a run costs no waiting and repeats to the bit.
//! Every script runs in three variants (IPv4, IPv4 through AF_INET6 sockets, IPv6), by `run_paths`.
//! Limits: one connection is looked at at a time; code blocks, GRE/MPLS/PSP encapsulation and descriptors that are no
//! sockets are parsed and reported as unsupported with their place, never skipped.

#![cfg_attr(not(test), allow(dead_code))]

mod ast;
mod lex;
mod packet;
mod parse;
