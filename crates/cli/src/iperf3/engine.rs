//! What the two roles share: how a loop drives them, socket options from parameters, and sending buffers.
//!
//! An [`Engine`] is stepped between the turns of its shard, on the shard's thread, with the time as an argument: it never
//! waits, reads no clock and prints nothing. So the same engine runs over a TUN, over the software NIC in a test, and in
//! virtual time. What it wants to say it hands out as text; when it must be stepped again though nothing
//! arrived, it says by [`Engine::next_deadline`].

use linerate_base::rng::Rng;
use linerate_base::{Duration, Instant};
use linerate_netdev::IfIndex;
use linerate_skb::{Frag, PagePool, PoolConfig};
use linerate_stack::{Shard, SockId, SockOpts};

use super::cpu::Usage;
use super::proto::Params;
use super::stream::Buffers;

/// How long the peer may take for a step of the protocol.
pub(crate) const CONTROL_TIMEOUT: Duration = Duration::from_secs(15);
/// A stream that breaks is often the shadow of a good-bye: for so long the control connection may still say which.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// A client or a server.
pub(crate) trait Engine {
    /// Does what can be done now; true when anything was.
    fn step(&mut self, shard: &mut Shard, now: Instant) -> bool;
    /// When time alone makes something to do.
    fn next_deadline(&self) -> Option<Instant>;
    /// Text for standard output.
    fn take_out(&mut self) -> String;
    /// Messages for standard error.
    fn take_errors(&mut self) -> Vec<String>;
    /// How it ended; `None` while it goes on.
    fn outcome(&self) -> Option<Result<(), String>>;
    /// The user wants no more: says what was measured so far, tells the peer, and ends.
    fn interrupt(&mut self, shard: &mut Shard, now: Instant);
}

/// What the engine must know about the device and the program around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    /// The device whose counters are reported.
    pub(crate) ifindex: IfIndex,
    /// Its frames are cut to the MTU.
    pub(crate) wire_cut: bool,
    /// How payload arrives from it: "ref" or "copy".
    pub(crate) dma: &'static str,
    /// Seed of cookies and payload.
    pub(crate) seed: u64,
    /// CPU time of the process.
    pub(crate) usage: fn() -> Usage,
}

/// What is the same for every test of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Time between reports.
    pub(crate) interval: Option<Duration>,
    pub(crate) json: bool,
    /// `--skip-rx-copy`.
    pub(crate) discard: bool,
    /// `--zerocopy`.
    pub(crate) zerocopy: bool,
    pub(crate) around: Surroundings,
}

/// Options of the sockets of a test, congestion control excepted (its name must be looked up).
pub(crate) fn sock_opts(params: &Params) -> SockOpts {
    let mut opts = SockOpts::default();
    opts.nodelay = params.nodelay;
    opts.user_mss_bytes = params.mss;
    if params.window > 0 {
        opts.rcvbuf_bytes = linerate_stack::opts::rcvbuf_stored(params.window);
        opts.sndbuf_bytes = linerate_stack::opts::sndbuf_stored(params.window);
    }
    // The two ECN bits are the transport's.
    (opts.tos, opts.tclass) = (params.tos & 0xfc, params.tos & 0xfc);
    opts
}

/// Sets what of the parameters concerns a UDP socket.
pub(crate) fn set_udp_opts(shard: &mut Shard, sock: SockId, params: &Params) {
    if let Some(opts) = shard.udp_mut().opts_mut(sock) {
        // Trains arrive as one: a call takes them whole.
        opts.gro = true;
        opts.tos = params.tos & 0xfc;
        if params.window > 0 {
            opts.rcvbuf_bytes = linerate_stack::opts::rcvbuf_stored(params.window);
            opts.sndbuf_bytes = linerate_stack::opts::sndbuf_stored(params.window);
        }
    }
}

/// What a test sends and receives with: random bytes.
pub(crate) fn buffers(shard: &Shard, params: &Params, settings: &Settings, rng: &mut Rng) -> Buffers {
    let mut buffers = Buffers::new(params, settings.discard, |bytes| rng.fill(bytes));
    if settings.zerocopy
        && let Some(page) = page(shard, params.len, rng)
    {
        buffers.send_by_reference(page);
    }
    buffers
}

/// A page with `len` random bytes. Its pool may go: the page lives as long as references to it.
fn page(shard: &Shard, len: usize, rng: &mut Rng) -> Option<Frag> {
    let shift = len.next_power_of_two().trailing_zeros().clamp(12, 21) as u8;
    let mut pool = PagePool::new(PoolConfig { page_shift: shift, max_pages: 1, cache_pages: 1 });
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    pool.alloc()?.append(&shard.config().kernels, &bytes)
}

/// The earlier of two times.
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}

/// The congestion control that a connection uses, by name.
pub(crate) fn congestion_name(shard: &Shard, params: &Params) -> String {
    params.congestion.clone().unwrap_or_else(|| shard.config().tcp.congestion_control.to_owned())
}
