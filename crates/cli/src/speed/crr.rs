//! Complete connections (`--test crr`): handshake, request, response, FIN in both directions.
//!
//! The client keeps a few dozen connections open at a time, each from the next of 4,096 addresses, so that ports and
//! TIME-WAIT do not run out at hundreds of thousands of connections a second. It counts a transaction when its socket is
//! gone: both FINs were sent and acknowledged. The server answers and closes after the client did.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use linerate_base::Instant;
use linerate_stack::{Ready, RecvError, Shard, SockId, SockOpts};

use super::app::{App, Counters};

/// Client addresses in use (DESIGN: connection rate is measured over 4,096 clients).
pub(crate) const CLIENT_ADDRESSES: u32 = 4096;
/// Connections that the client keeps open at a time.
const CONCURRENT: usize = 64;

#[derive(Clone, Copy, Default)]
struct Progress {
    asked: bool,
    received: usize,
}

/// What is open, by the index of its socket: an application that serves sockets by the thousand keeps its state so.
#[derive(Default)]
struct Open {
    slots: Vec<Option<(SockId, Progress)>>,
    len: usize,
}

impl Open {
    fn slot(sock: SockId) -> usize {
        // The lower half of an id is its index; the upper half tells uses of the index apart.
        sock.as_u64() as u32 as usize
    }
    fn insert(&mut self, sock: SockId) {
        let slot = Self::slot(sock);
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, None);
        }
        self.len += usize::from(self.slots[slot].replace((sock, Progress::default())).is_none());
    }
    fn get_mut(&mut self, sock: SockId) -> Option<&mut Progress> {
        let (id, progress) = self.slots.get_mut(Self::slot(sock))?.as_mut()?;
        (*id == sock).then_some(progress)
    }
    fn remove(&mut self, sock: SockId) {
        if self.get_mut(sock).is_some() {
            self.slots[Self::slot(sock)] = None;
            self.len -= 1;
        }
    }
}

/// The connecting end.
pub(crate) struct CrrClient {
    server: SocketAddr,
    addresses: Vec<IpAddr>,
    next: usize,
    open: Open,
    request: Vec<u8>,
    buf: Vec<u8>,
    resp: usize,
    opts: SockOpts,
    counters: Arc<Counters>,
}

impl CrrClient {
    pub(crate) fn new(server: SocketAddr, addresses: Vec<IpAddr>, req: usize, resp: usize, opts: SockOpts) -> Self {
        Self {
            server,
            addresses,
            next: 0,
            open: Open::default(),
            request: vec![0x51; req],
            buf: vec![0; resp.max(1)],
            resp,
            opts,
            counters: Arc::default(),
        }
    }

    fn open_more(&mut self, shard: &mut Shard) -> Result<bool, String> {
        let mut progress = false;
        while self.open.len < CONCURRENT {
            let local = SocketAddr::new(self.addresses[self.next % self.addresses.len()], 0);
            self.next += 1;
            let sock = shard
                .tcp_connect(self.server, Some(local), &self.opts)
                .map_err(|e| format!("connect from {local}: {e}"))?;
            self.open.insert(sock);
            progress = true;
        }
        Ok(progress)
    }

    fn on_ready(&mut self, sock: SockId, ready: Ready, shard: &mut Shard) -> Result<(), String> {
        let Some(state) = self.open.get_mut(sock) else { return Ok(()) };
        if !state.asked && ready.contains(Ready::WRITABLE) {
            let wrote = shard.write(sock, &self.request).map_err(|e| format!("write: {e}"))?;
            if wrote != self.request.len() {
                return Err("a request did not fit an empty send buffer".into());
            }
            state.asked = true;
        }
        loop {
            match shard.read(sock, &mut self.buf) {
                Ok(0) => return Err("the server closed too early".into()),
                Ok(got) => state.received += got,
                Err(RecvError::WouldBlock) => break,
                Err(error) => return Err(format!("read: {error}")),
            }
            if state.received >= self.resp {
                self.open.remove(sock);
                shard.close(sock).map_err(|e| format!("close: {e}"))?;
                Counters::add(&self.counters.transactions, 1);
                break;
            }
        }
        Ok(())
    }
}

impl App for CrrClient {
    fn step(&mut self, shard: &mut Shard, _now: Instant) -> Result<bool, String> {
        let mut progress = self.open_more(shard)?;
        while let Some((sock, ready)) = shard.next_ready() {
            self.on_ready(sock, ready, shard)?;
            progress = true;
        }
        Ok(progress)
    }
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// The accepting end.
pub(crate) struct CrrServer {
    listener: SockId,
    open: Open,
    req: usize,
    response: Vec<u8>,
    buf: Vec<u8>,
    counters: Arc<Counters>,
}

impl CrrServer {
    pub(crate) fn new(listener: SockId, req: usize, resp: usize) -> Self {
        Self {
            listener,
            open: Open::default(),
            req,
            response: vec![0x52; resp],
            buf: vec![0; req.max(1)],
            counters: Arc::default(),
        }
    }

    fn on_ready(&mut self, sock: SockId, shard: &mut Shard) -> Result<(), String> {
        let Some(state) = self.open.get_mut(sock) else { return Ok(()) };
        loop {
            match shard.read(sock, &mut self.buf) {
                Ok(0) => {
                    self.open.remove(sock);
                    shard.close(sock).map_err(|e| format!("close: {e}"))?;
                    Counters::add(&self.counters.finished, 1);
                    return Ok(());
                }
                Ok(got) => state.received += got,
                Err(RecvError::WouldBlock) => break,
                Err(error) => return Err(format!("read: {error}")),
            }
            if !state.asked && state.received >= self.req {
                state.asked = true;
                shard.write(sock, &self.response).map_err(|e| format!("write: {e}"))?;
            }
        }
        Ok(())
    }
}

impl App for CrrServer {
    fn step(&mut self, shard: &mut Shard, _now: Instant) -> Result<bool, String> {
        let mut progress = false;
        while let Some((sock, _)) = shard.next_ready() {
            progress = true;
            if sock != self.listener {
                self.on_ready(sock, shard)?;
                continue;
            }
            while let Ok(child) = shard.accept(self.listener) {
                self.open.insert(child);
                self.on_ready(child, shard)?;
            }
        }
        Ok(progress)
    }
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
