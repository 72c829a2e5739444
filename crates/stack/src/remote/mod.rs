//! Remote sockets: the same verbs from other threads (DESIGN section 3, "Two ways to a socket").
//!
//! ```text
//!   ShardRemote  --- command ring ---> connect, listen            (Clone + Send; each clone has a ring of its own)
//!   SockHandle   --- SockCell ------> shard (see `cell`)          dirty stack, wake-up only if the shard sleeps (`wake`)
//! ```
//! The shard never waits for an application: it takes what is in the rings, and leaves in its queues what does not fit; a
//! full up-ring is a closed window. Once a turn it takes the dirty stack whole and serves each cell (`service`); after
//! the output pass it serves the sockets that something happened to. A turn without remote work costs two loads.
//!
//! A cell's number is used again only after both ends let go: the last `Arc` of the application is gone, and the stack of
//! marks does not hold it, so no late mark can name a stranger. Dropping the shard sets GONE in every cell and wakes all who wait.

mod cell;
mod handle;
mod service;
mod udp;
pub(crate) mod wake;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::SocketAddr;

use linerate_arch::Kernels;
use linerate_base::{Errno, Slab};
use linerate_skb::spsc::{Consumer, Producer, channel};
use linerate_skb::{Frag, PoolConfig};
use linerate_tcp::SockOpts;

use self::cell::{DOWN_FRAGS, Shared, SockCell, UP_FRAGS, event};
pub use self::cell::{ShardWaker, WakerRx, WakerTx, waker_ring};
pub use self::handle::{HandleError, Park, ReadHalf, RemoteListener, SockHandle, WriteHalf};
use self::udp::UdpStream;
pub use self::udp::{RemoteUdp, RemoteUdpOpts};
pub use self::wake::WaitFlag;
use crate::shard::Shard;
use crate::sock::SockId;
use crate::sync::Ordering;
use crate::tcp::BindOpts;
use crate::udp::BindOpts as UdpBindOpts;

/// Commands on their way to the shard, per [`ShardRemote`].
const COMMANDS: usize = 64;
/// Accepted connections on their way to a [`RemoteListener`].
const INCOMING: usize = 128;

/// The shard's side of a connection with a handle.
pub(crate) struct Stream {
    cell: Arc<SockCell>,
    /// `None` when the connection never came to be or is gone.
    sock: Option<SockId>,
    down: Consumer<Frag>,
    up: Producer<Frag>,
    /// Taken from the ring and not yet by the connection.
    held: Option<Frag>,
    /// Read from the connection and not yet in the ring.
    spill: VecDeque<Frag>,
    /// Bytes given to the connection in all.
    taken: u64,
    /// Bytes read from the connection in all.
    moved: u64,
    rd_wakers: WakerRx,
    wr_wakers: WakerRx,
    /// End of stream or error was read from the connection.
    ended: bool,
    /// FIN was asked for and passed on.
    shut: bool,
    /// Both ends let go.
    dead: bool,
}

/// The shard's side of a listener with a handle.
pub(crate) struct ListenStream {
    cell: Arc<SockCell>,
    sock: Option<SockId>,
    incoming: Producer<SockHandle>,
    wakers: WakerRx,
    /// Both ends let go.
    dead: bool,
}

/// One remote socket.
pub(crate) enum Slot {
    /// Being served: moved out for that time, so that it and the shard can be used together.
    Busy,
    Stream(Box<Stream>),
    Listener(Box<ListenStream>),
    Udp(Box<UdpStream>),
}

impl Slot {
    fn cell(&self) -> Option<&Arc<SockCell>> {
        match self {
            Self::Stream(s) => Some(&s.cell),
            Self::Listener(l) => Some(&l.cell),
            Self::Udp(u) => Some(&u.cell),
            Self::Busy => None,
        }
    }
    /// Both ends let go.
    fn is_dead(&self) -> bool {
        match self {
            Self::Stream(s) => s.dead,
            Self::Listener(l) => l.dead,
            Self::Udp(u) => u.dead,
            Self::Busy => false,
        }
    }
    fn cell_mut(&mut self) -> Option<&mut Arc<SockCell>> {
        match self {
            Self::Stream(s) => Some(&mut s.cell),
            Self::Listener(l) => Some(&mut l.cell),
            Self::Udp(u) => Some(&mut u.cell),
            Self::Busy => None,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cell.post(event::GONE);
        if self.cell.rd_wait.notify() {
            self.rd_wakers.wake();
        }
        if self.cell.wr_wait.notify() {
            self.wr_wakers.wake();
        }
    }
}

impl Drop for ListenStream {
    fn drop(&mut self) {
        self.cell.post(event::GONE);
        if self.cell.rd_wait.notify() {
            self.wakers.wake();
        }
    }
}

/// What a [`ShardRemote`] asks for.
enum Command {
    /// Another remote was cloned: its ring.
    Register(Consumer<Command>),
    Connect {
        remote: SocketAddr,
        local: Option<SocketAddr>,
        opts: Box<SockOpts>,
        stream: Box<Stream>,
    },
    Listen {
        local: SocketAddr,
        backlog: u32,
        bind: BindOpts,
        opts: Box<SockOpts>,
        listen: Box<ListenStream>,
    },
    Udp {
        local: SocketAddr,
        bind: UdpBindOpts,
        opts: RemoteUdpOpts,
        stream: Box<UdpStream>,
    },
}

/// All remote sockets of a shard.
#[derive(Default)]
pub(crate) struct Remotes {
    shared: Option<Arc<Shared>>,
    commands: Vec<Consumer<Command>>,
    pub(crate) slots: Slab<Slot>,
    /// Slots whose both ends let go, until the application's last reference is gone.
    zombies: Vec<u32>,
    /// Pages of handles that the shard makes for accepted connections.
    pool: Option<PoolConfig>,
    /// Fragments of a datagram on its way up; empty between calls, kept for its capacity.
    scratch: Vec<Frag>,
}

impl Remotes {
    /// Announces sleep; `true` when there is work after all.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let Some(shared) = &self.shared else { return false };
        shared.asleep.prepare();
        let work = shared.has_work() || !self.zombies.is_empty();
        if work {
            shared.asleep.cancel();
        }
        work
    }
    /// Remote sockets, dead ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// A way to a shard from any thread: `connect` and `listen`. Clones are independent.
pub struct ShardRemote {
    ring: RefCell<Producer<Command>>,
    shared: Arc<Shared>,
    kernels: Kernels,
    pool: PoolConfig,
}

impl Clone for ShardRemote {
    /// A remote with a command ring of its own. When this one's ring is full the clone is dead: its commands fail with
    /// [`HandleError::Gone`].
    fn clone(&self) -> Self {
        let (tx, rx) = channel(COMMANDS);
        // A refused ring is dropped here, which closes it.
        let _ = self.send(Command::Register(rx));
        Self { ring: RefCell::new(tx), shared: self.shared.clone(), kernels: self.kernels, pool: self.pool }
    }
}

impl ShardRemote {
    fn send(&self, command: Command) -> Result<(), HandleError> {
        let pushed = self.ring.borrow_mut().push(command);
        match pushed {
            Ok(()) => {
                self.shared.commands.store(1, Ordering::Release);
                self.shared.nudge();
                Ok(())
            }
            Err(linerate_skb::spsc::PushError::Full(_)) => Err(HandleError::WouldBlock),
            Err(linerate_skb::spsc::PushError::Closed(_)) => Err(HandleError::Gone),
        }
    }

    /// Opens a connection. The handle is usable at once; [`SockHandle::wait_connected`] or
    /// [`ReadHalf::poll_connected`] say when the handshake is done, or why it failed.
    ///
    /// # Errors
    /// `WouldBlock` when too many commands wait, `Gone` without a shard.
    pub fn connect(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        opts: &SockOpts,
    ) -> Result<SockHandle, HandleError> {
        let (stream, handle) = pair(&self.shared, self.kernels, self.pool, remote);
        self.send(Command::Connect { remote, local, opts: Box::new(opts.clone()), stream })?;
        Ok(handle)
    }

    /// Listens. Whether the address could be had shows at the first `accept`.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn listen(
        &self,
        local: SocketAddr,
        backlog: u32,
        bind: BindOpts,
        opts: &SockOpts,
    ) -> Result<RemoteListener, HandleError> {
        let cell = SockCell::new(self.shared.clone());
        let (tx, rx) = channel(INCOMING);
        let (wakers, wakers_rx) = waker_ring();
        let listen =
            Box::new(ListenStream { cell: cell.clone(), sock: None, incoming: tx, wakers: wakers_rx, dead: false });
        self.send(Command::Listen { local, backlog, bind, opts: Box::new(opts.clone()), listen })?;
        Ok(RemoteListener { cell, incoming: rx, wakers })
    }
}

impl ShardRemote {
    /// Opens a UDP socket bound to `local`; port 0 chooses one. The handle is usable at once; [`RemoteUdp::poll_bound`] says
    /// when it is bound, or why not.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn udp(&self, local: SocketAddr, bind: UdpBindOpts, opts: &RemoteUdpOpts) -> Result<RemoteUdp, HandleError> {
        let (stream, handle) = udp::pair(&self.shared, self.kernels, self.pool);
        self.send(Command::Udp { local, bind, opts: *opts, stream })?;
        Ok(handle)
    }
}

/// Both sides of a remote connection.
fn pair(shared: &Arc<Shared>, kernels: Kernels, pool_cfg: PoolConfig, peer: SocketAddr) -> (Box<Stream>, SockHandle) {
    let cell = SockCell::new(shared.clone());
    let (down_tx, down) = channel(DOWN_FRAGS);
    let (up, up_rx) = channel(UP_FRAGS);
    let (rd_tx, rd_wakers) = waker_ring();
    let (wr_tx, wr_wakers) = waker_ring();
    let stream = Box::new(Stream {
        cell: cell.clone(),
        sock: None,
        down,
        up,
        held: None,
        spill: VecDeque::new(),
        taken: 0,
        moved: 0,
        rd_wakers,
        wr_wakers,
        ended: false,
        shut: false,
        dead: false,
    });
    let read = ReadHalf { cell: cell.clone(), up: up_rx, wakers: rd_tx, kernels, current: None, read: 0, copied: 0 };
    let write = WriteHalf {
        cell,
        down: down_tx,
        wakers: wr_tx,
        kernels,
        pool_cfg,
        pool: None,
        page: None,
        written: 0,
        starved: false,
        shut: false,
        copied: 0,
    };
    (stream, SockHandle { read, write, peer })
}

impl Shard {
    /// The first way in for other threads. `waker` ends the sleep of the thread that turns this shard; `pool` is what each
    /// handle's own pages are made of. A second call gives another way in, with a pool of its own and the first call's
    /// waker: one thread turns a shard, so there is one sleep to end.
    pub fn remote(&mut self, waker: Arc<dyn ShardWaker>, pool: PoolConfig) -> ShardRemote {
        let shared = match &self.remotes.shared {
            Some(shared) => shared.clone(),
            None => Arc::new(Shared::new(waker)),
        };
        self.remotes.shared = Some(shared.clone());
        self.remotes.pool = Some(pool);
        let (tx, rx) = channel(COMMANDS);
        self.remotes.commands.push(rx);
        ShardRemote { ring: RefCell::new(tx), shared, kernels: self.core.kernels, pool }
    }

    /// Obeys the commands of all remotes.
    fn run_commands(&mut self) {
        let mut at = 0;
        while at < self.remotes.commands.len() {
            let Some(ring) = self.remotes.commands.get_mut(at) else { break };
            match ring.pop() {
                Some(command) => self.run_command(command),
                None if ring.is_closed() && ring.is_empty() => drop(self.remotes.commands.swap_remove(at)),
                None => at += 1,
            }
        }
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Register(ring) => self.remotes.commands.push(ring),
            Command::Connect { remote, local, opts, mut stream } => {
                let opened = self.tcp_connect(remote, local, &opts);
                match opened {
                    Ok(id) => {
                        stream.sock = Some(id);
                        if let Some(local) = self.local_addr(id) {
                            stream.cell.set_local(local);
                        }
                    }
                    Err(e) => stream.cell.post_error(e.errno()),
                }
                self.adopt(Slot::Stream(stream), opened.ok());
            }
            Command::Listen { local, backlog, bind, opts, mut listen } => {
                let opened = self.tcp_listen(local, backlog, &opts, bind);
                match opened {
                    Ok(id) => {
                        listen.sock = Some(id);
                        if let Some(local) = self.local_addr(id) {
                            listen.cell.set_local(local);
                        }
                        listen.cell.post(event::CONNECTED);
                    }
                    Err(e) => listen.cell.post_error(e.errno()),
                }
                self.adopt(Slot::Listener(listen), opened.ok());
            }
            Command::Udp { local, bind, opts, stream } => self.open_udp(local, bind, &opts, stream),
        }
    }

    fn open_udp(&mut self, local: SocketAddr, bind: UdpBindOpts, opts: &RemoteUdpOpts, mut stream: Box<UdpStream>) {
        let opened = self.udp_bind(local, bind);
        match opened {
            Ok(id) => {
                stream.sock = Some(id);
                if let Some(o) = self.udp.opts_mut(id) {
                    udp::apply(o, opts);
                }
                if let Some(local) = self.udp.local_addr(id) {
                    stream.cell.set_local(local);
                }
                stream.cell.post(event::CONNECTED);
                if stream.cell.rd_wait.notify() {
                    stream.rd_wakers.wake();
                }
            }
            Err(e) => stream.cell.post_error(e.errno()),
        }
        self.adopt(Slot::Udp(stream), opened.ok());
    }

    /// Gives a remote socket its number, and looks at what the application did before it had one.
    fn adopt(&mut self, slot: Slot, sock: Option<SockId>) -> u32 {
        let index = self.remotes.slots.insert(slot).index;
        if let Some(id) = sock {
            match self.tcp.sock_mut(id) {
                Some(sock) => sock.remote = index,
                None => self.udp.set_remote(id, index),
            }
        }
        if let Some(cell) = self.remotes.slots.get_by_index(index).and_then(Slot::cell) {
            cell.link.adopt(index);
        }
        self.service(index);
        index
    }

    /// A handle for an accepted connection, which the shard serves from now on. `None` without remotes.
    fn hand_out(&mut self, id: SockId) -> Option<SockHandle> {
        let (shared, pool) = (self.remotes.shared.clone()?, self.remotes.pool?);
        let (mut stream, handle) = pair(&shared, self.core.kernels, pool, self.peer_addr(id)?);
        stream.sock = Some(id);
        if let Some(local) = self.local_addr(id) {
            stream.cell.set_local(local);
        }
        stream.cell.post(event::CONNECTED);
        self.adopt(Slot::Stream(stream), Some(id));
        Some(handle)
    }

    /// The stack is about to reset everything: whoever reads must not take that for the end of the stream.
    pub(crate) fn remote_abort_all(&mut self) {
        let mut at = 0;
        while let Some(key) = self.remotes.slots.next_from(at) {
            at = key.index + 1;
            if let Some(cell) = self.remotes.slots.get(key).and_then(Slot::cell) {
                cell.post_error(Errno::ECONNABORTED);
            }
        }
    }

    /// Remote sockets that the shard serves.
    pub fn remote_count(&self) -> usize {
        self.remotes.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
