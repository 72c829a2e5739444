//! The control socket: looking into a running stack from another process, as `ss`, `nstat` and `ip` look into Linux.
//!
//! ```text
//!   linerate ss ──▶ Client ══ Unix socket ══▶ Server (one thread, asleep in poll)      Command: what a request became
//!                                               │  Door::call: a closure, and the thread of the shard is woken
//!                                               ▼
//!                                             shard, between two turns: a bounded piece of work ──▶ Answer, bell
//! ```
//! **Nothing runs unless asked for.** A stack has a control socket only if [`Builder::control`](crate::Builder::control)
//! (or [`Server::start`], for shards that the program turns itself) says so. The server's thread sleeps without a time
//! limit. A shard pays one load a turn, which it pays for [`StackHandle::with_shard`](crate::StackHandle::with_shard)
//! anyway.
//!
//! **Where.** `$XDG_RUNTIME_DIR/linerate/PID.sock`; without that variable `/tmp/linerate-UID/PID.sock`; or a path of the
//! caller's. The directory is private (0700, ours) and the socket 0600: whoever may connect is the same user. It goes away with
//! its server; what a dead process left is replaced.
//!
//! **The language** is lines of JSON. A request is one object, `{"schema":1,"cmd":"sockets","tcp":true}`; its answer is any
//! number of lines with one key each (`{"socket":{...}}`), and then `{"done":{...}}` or
//! `{"error":{"errno":"EINVAL","message":"...","hint":"..."}}`. Requests of one client are answered in order. Readers skip keys
//! that they do not know; a change that would mislead them is a new [`SCHEMA`]. `{"schema":1,"cmd":"about"}` lists the commands.
//!
//! **A client can not hold a shard.** A shard does one bounded piece per request of the server (64 sockets), and the
//! server asks for the next piece only when the client has taken the last. What a client may do is limited: a line's length
//! ([`MAX_LINE_BYTES`]), how many clients there are ([`MAX_CLIENTS`]; a new one takes the place of one that asks nothing),
//! what waits to be read by it. Whatever it sends, it gets an error that says what is wrong, or is cut off.
//!
//! **Dumps are no snapshots.** The stack goes on between two pieces; see [`linerate_stack::diag`] for what that means for a
//! list of sockets. Counters are of one moment for each shard.
//!
//! A new command is a row of `command::VERBS` and a `Command`: a state machine on the server's thread that asks shards
//! and emits lines; streams that last are commands that do not end.

mod base64;
mod capture;
mod client;
mod command;
mod counters;
mod devices;
mod door;
mod drops;
mod path;
mod peer;
mod proto;
mod server;
mod sockets;

pub use capture::{CaptureRequest, DropNoteRecord, PacketRecord, PointRecord};
pub use client::{Client, ControlError, Stopper};
pub use door::{Door, Inbox};
pub use drops::{DropRecord, DropsRequest};
pub use linerate_host::{Parker, Unparker};
pub use path::{ControlPath, Running, running};
pub use proto::{
    About, DeviceRecord, MAX_LINE_BYTES, QueueRecord, Refusal, SCHEMA, SkMemRecord, SocketRecord, SocketsRequest,
    TimerRecord,
};
pub use server::{MAX_CLIENTS, Server};
