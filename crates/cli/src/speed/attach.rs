//! `--control`: the ends of a run, asked by `linerate ss` and the like.
//!
//! Only with the flag is an end's application wrapped in one that looks at its inbox before each step; without it the loop is
//! the same as ever, so no figure pays for what nobody asked. The client's end is shard 0, the server's shard 1. While the
//! kernel's flow has its slice both ends stand still, and a question waits for at most that second.

use std::path::Path;
use std::sync::Arc;

use linerate::control::{ControlPath, Inbox, Server};
use linerate_base::Instant;
use linerate_host::Unparker;
use linerate_stack::Shard;

use super::app::{App, Counters};
use super::setup::{End, Ends};

/// An application, and the questions to its shard.
struct Asked {
    app: Box<dyn App>,
    inbox: Inbox,
}

impl App for Asked {
    fn step(&mut self, shard: &mut Shard, now: Instant) -> Result<bool, String> {
        let asked = self.inbox.run(shard);
        Ok(self.app.step(shard, now)? | asked)
    }
    fn counters(&self) -> &Arc<Counters> {
        self.app.counters()
    }
    fn first_socket(&self) -> Option<linerate_stack::SockId> {
        self.app.first_socket()
    }
    fn latency(&self) -> Option<&hdrhistogram::Histogram<u64>> {
        self.app.latency()
    }
    fn digest(&mut self) -> Option<String> {
        self.app.digest()
    }
}

/// Listens at `path` for questions to both ends; `wakers` are those of their threads.
pub(crate) fn attach(path: &Path, ends: Ends, wakers: [Unparker; 2]) -> Result<(Ends, Server), String> {
    let [client, server] = wakers.map(Inbox::new);
    let doors = vec![client.door(), server.door()];
    let wrap = |end: End, inbox| End { app: Box::new(Asked { app: end.app, inbox }), ..end };
    let ends = Ends { client: wrap(ends.client, client), server: wrap(ends.server, server) };
    let listening = Server::start(&ControlPath::At(path.to_owned()), doors).map_err(|e| e.to_string())?;
    Ok((ends, listening))
}
