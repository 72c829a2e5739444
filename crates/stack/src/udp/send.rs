//! From the application to the IP layer: one datagram, or a train of them as one super-packet.
//!
//! The data is copied once, into pages of the shard; where the device can not sum, the copy sums on its way. A train
//! (UDP_SEGMENT) is one skb with `gso_size`; it is cut by the device, or in software behind the qdisc, with checksums
//! filled in there (SYSTEMS B13). What leaves is charged to the socket until the device is done with it (`sndbuf`).
//!
//! Sizes: a datagram that does not fit the path MTU is cut to IP fragments or refused, as [`PmtuDisc`](super::PmtuDisc)
//! says; a train is at most 65,535 bytes and [`GSO_MAX_SEGS`] datagrams, none of which is ever cut. A packet that the
//! qdisc drops is not an error of `send`, as in Linux: it is counted.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use linerate_base::Duration;
use linerate_skb::{Csum, Frag, GsoType, SKB_TRUESIZE, Skb};
use linerate_wire::ip::proto;
use linerate_wire::udp::{CHECKSUM_OFFSET, HEADER_LEN};
use linerate_wire::{FlowKey, UdpRepr};

use super::{CachedRoute, UdpLayer, UdpSendError, canonical, conn_hash};
use crate::core_state::{Core, Memory};
use crate::ip_out::{self, IpTx, Xmit};
use crate::link::{AddrType, LOOPBACK};
use crate::route::{RouteError, RouteInfo};
use crate::sock::SockId;

/// Most datagrams in one train (Linux's `UDP_MAX_SEGMENTS`).
pub const GSO_MAX_SEGS: u32 = 128;
/// How long a looked-up route is used without asking again: path MTU exceptions expire without notice.
const ROUTE_LIFE: Duration = Duration::from_secs(1);

/// How to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendOpts {
    /// UDP_SEGMENT: the data is a train of datagrams of this many bytes, the last maybe shorter.
    pub gso_size: Option<u16>,
    /// The whole TOS byte, instead of the socket's.
    pub tos: Option<u8>,
    /// Hop limit, instead of the socket's.
    pub ttl: Option<u8>,
    /// Source address (IP_PKTINFO), instead of the route's.
    pub src: Option<IpAddr>,
}

impl UdpLayer {
    /// Sends `data` to `to`, or to the peer. Returns its length.
    ///
    /// # Errors
    /// See [`UdpSendError`].
    pub fn send_to(
        &mut self,
        core: &mut Core,
        id: SockId,
        data: &[u8],
        to: Option<SocketAddr>,
        opts: SendOpts,
    ) -> Result<usize, UdpSendError> {
        self.send(core, id, Payload::Bytes(data), to, opts)
    }

    /// As [`Self::send_to`], for data that stands in pages of somebody else. The fragments are taken when they are sent, and
    /// stay where they are with any error but a lack of descriptors.
    ///
    /// # Errors
    /// See [`UdpSendError`].
    pub(crate) fn send_frags(
        &mut self,
        core: &mut Core,
        id: SockId,
        frags: &mut Vec<Frag>,
        to: Option<SocketAddr>,
        gso_size: Option<u16>,
    ) -> Result<usize, UdpSendError> {
        let opts = SendOpts { gso_size, ..SendOpts::default() };
        self.send(core, id, Payload::Frags(frags), to, opts)
    }

    fn send(
        &mut self,
        core: &mut Core,
        id: SockId,
        data: Payload<'_>,
        to: Option<SocketAddr>,
        opts: SendOpts,
    ) -> Result<usize, UdpSendError> {
        let len = data.len();
        let dst = self.check(core, id, to)?;
        if !self.autobind(core, id) {
            return Err(UdpSendError::NoPort);
        }
        let route = self.route(core, id, dst.ip(), opts.src)?;
        let Size { gso_size, frag_mtu } = self.size(core, id, &route, len, opts.gso_size)?;
        let sock = self.sock_mut(id).ok_or(UdpSendError::BadSocket)?;
        if sock.wmem_bytes >= sock.opts.sndbuf_bytes {
            core.mibs.udp.sndbuf_errors += 1;
            return Err(UdpSendError::WouldBlock);
        }
        let src = SocketAddr::new(route.src, sock.local.port());
        let mut skb = build(core, &route, src, dst, data, gso_size).ok_or(UdpSendError::NoMem)?;
        skb.tx_done = id.token();
        sock.wmem_bytes = sock.wmem_bytes.saturating_add(skb.truesize);
        let (truesize, wire_pkts) = (skb.truesize, skb.wire_pkts());
        let tx = IpTx {
            tos: opts.tos.unwrap_or(sock.opts.tos),
            ttl: opts.ttl.unwrap_or(sock.opts.ttl),
            frag_mtu,
            ..IpTx::new(&route, dst.ip(), proto::UDP)
        };
        match ip_out::xmit(core, skb, &tx) {
            Xmit::Ok => {
                core.mibs.udp.out_datagrams += u64::from(wire_pkts);
                Ok(len)
            }
            other => {
                let sock = self.sock_mut(id).ok_or(UdpSendError::BadSocket)?;
                sock.wmem_bytes = sock.wmem_bytes.saturating_sub(truesize);
                core.mibs.udp.sndbuf_errors += 1;
                if matches!(other, Xmit::TooBig { .. }) { Err(UdpSendError::TooBig) } else { Ok(len) }
            }
        }
    }

    /// Whether and how so many bytes may be sent.
    fn size(
        &self,
        core: &Core,
        id: SockId,
        route: &RouteInfo,
        len: usize,
        gso_size: Option<u16>,
    ) -> Result<Size, UdpSendError> {
        let opts = &self.sock(id).ok_or(UdpSendError::BadSocket)?.opts;
        let v4 = route.src.is_ipv4();
        let disc = if v4 { opts.mtu_discover } else { opts.mtu_discover6 };
        let dev_mtu = || core.links.device(route.ifindex).map(|d| d.mtu_bytes);
        let mtu = if disc.uses_path_mtu() { None } else { dev_mtu() }.unwrap_or(route.path.mtu_bytes);
        let may_cut = disc.may_cut() && (v4 || !opts.dont_frag6);
        let (gso_size, fits) = check_size(mtu, v4, len, gso_size, may_cut)?;
        let df = disc.sets_df() && !(disc == super::PmtuDisc::Want && route.path.mtu_locked);
        Ok(Size { gso_size, frag_mtu: if fits && (df || !v4) { 0 } else { mtu } })
    }

    /// The destination, if the socket may send there now.
    fn check(&mut self, core: &Core, id: SockId, to: Option<SocketAddr>) -> Result<SocketAddr, UdpSendError> {
        let sock = self.sock_mut(id).ok_or(UdpSendError::BadSocket)?;
        if let Some(errno) = sock.error.take() {
            return Err(UdpSendError::Pending(errno));
        }
        let dst = to.map(canonical).or(sock.peer).ok_or(UdpSendError::NoDestination)?;
        let local = sock.local.ip();
        let bound_elsewhere = !local.is_unspecified() && local.is_ipv4() != dst.is_ipv4();
        let wrong_family = if sock.v6 { dst.is_ipv4() && sock.bind.v6only } else { dst.is_ipv6() };
        if dst.port() == 0 || bound_elsewhere || wrong_family {
            return Err(UdpSendError::Invalid);
        }
        let to_all = core.links.addr_type(dst.ip(), LOOPBACK) == AddrType::Broadcast;
        if to_all && !sock.opts.broadcast { Err(UdpSendError::Broadcast) } else { Ok(dst) }
    }

    fn route(&mut self, core: &Core, id: SockId, dst: IpAddr, src: Option<IpAddr>) -> Result<RouteInfo, UdpSendError> {
        let (now, generation) = (core.now, core.links.generation());
        let sock = self.sock_mut(id).ok_or(UdpSendError::BadSocket)?;
        let fresh = |c: &CachedRoute| {
            c.dst == dst && c.info.generation == generation && now.since(c.at) < ROUTE_LIFE && src.is_none()
        };
        if let Some(c) = sock.route.filter(fresh) {
            return Ok(c.info);
        }
        let local = Some(sock.local.ip()).filter(|a| !a.is_unspecified());
        let info = core.links.route(dst, src.or(local), None, now).map_err(|e| match e {
            RouteError::NoRoute => UdpSendError::NoRoute,
            RouteError::LinkDown => UdpSendError::LinkDown,
            RouteError::NoSource => UdpSendError::NoSource,
            RouteError::Family => UdpSendError::Invalid,
        })?;
        if src.is_none() {
            sock.route = Some(CachedRoute { dst, info, at: now });
        }
        Ok(info)
    }
}

/// How data is sent.
struct Size {
    /// Bytes per datagram when it is a train, 0 when it is one datagram.
    gso_size: u32,
    /// See [`IpTx::frag_mtu`].
    frag_mtu: u32,
}

/// Bytes per datagram when the data is a train, 0 when it is one datagram; and whether that fits `mtu` bytes.
fn check_size(
    mtu: u32,
    v4: bool,
    len: usize,
    gso_size: Option<u16>,
    may_cut: bool,
) -> Result<(u32, bool), UdpSendError> {
    let headers = if v4 { 20 } else { 40 } + HEADER_LEN;
    let room = (mtu as usize).saturating_sub(headers);
    // IPv6 without a jumbo header ends at 65535 bytes behind the fixed header.
    let most = usize::from(u16::MAX) - if v4 { headers } else { HEADER_LEN };
    if len > most {
        return Err(UdpSendError::TooBig);
    }
    match gso_size.map(usize::from) {
        Some(0) => Err(UdpSendError::BadGsoSize),
        Some(size) if len > size => {
            let segs = len.div_ceil(size);
            if size > room || segs > GSO_MAX_SEGS as usize {
                return Err(UdpSendError::BadGsoSize);
            }
            Ok((size as u32, true))
        }
        _ if len > room && !may_cut => Err(UdpSendError::TooBig),
        _ => Ok((0, len <= room)),
    }
}

/// What is sent: bytes to be copied, or pages that hold them already.
enum Payload<'a> {
    Bytes(&'a [u8]),
    Frags(&'a mut Vec<Frag>),
}

impl Payload<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Frags(frags) => frags.iter().map(|f| f.len() as usize).sum(),
        }
    }
    /// Puts it into `skb`. A sum of pages that are there already is made where the frame is prepared.
    fn put(self, mem: &mut Memory, k: linerate_arch::Kernels, skb: &mut Skb, sum: bool) -> bool {
        match self {
            Self::Bytes(bytes) => copy_in(mem, k, skb, bytes, sum),
            Self::Frags(frags) => {
                // Small pages make many fragments of a long datagram.
                skb.set_max_frags(frags.len().max(skb.max_frags()));
                frags.drain(..).all(|f| skb.push_frag(f).is_ok())
            }
        }
    }
}

/// The skb: UDP header in the head, data in pages.
fn build(
    core: &mut Core,
    route: &RouteInfo,
    src: SocketAddr,
    dst: SocketAddr,
    data: Payload<'_>,
    gso_size: u32,
) -> Option<Skb> {
    let len = data.len() as u32;
    let sums = core.links.device(route.ifindex).is_none_or(|d| d.features().tx_csum);
    let sum_now = !sums && gso_size == 0;
    let mut skb = core.mem.skbs.alloc()?;
    let udp = UdpRepr { src_port: src.port(), dst_port: dst.port(), payload_len: len };
    let copied = data.put(&mut core.mem, core.kernels, &mut skb, sum_now);
    let header = skb.push_head(HEADER_LEN).filter(|_| copied);
    let Some(header) = header else {
        core.consume(skb);
        return None;
    };
    udp.emit(header);
    skb.csum = Csum::Partial { start: skb.head_offset(), offset: CHECKSUM_OFFSET as u16 };
    skb.hash = conn_hash(&core.hash_key, &FlowKey::new(src, dst, proto::UDP)) as u32;
    skb.truesize = SKB_TRUESIZE.saturating_add(len);
    if gso_size != 0 {
        skb.gso_type = GsoType::UdpL4;
        skb.gso_size = gso_size;
        skb.gso_segs = len.div_ceil(gso_size);
    }
    Some(skb)
}

/// Copies `data` into the shard's transmit page (and further ones), with its sum where that is wanted.
fn copy_in(mem: &mut Memory, k: linerate_arch::Kernels, skb: &mut Skb, mut data: &[u8], sum: bool) -> bool {
    while !data.is_empty() {
        let Some(page) = mem.writable_page() else { return false };
        let n = page.room().min(data.len());
        let (now, later) = data.split_at(n);
        let pushed = if sum {
            page.append_sum(&k, now).map(|(f, s)| skb.push_frag_sum(f, s).is_ok())
        } else {
            page.append(&k, now).map(|f| skb.push_frag(f).is_ok())
        };
        if pushed != Some(true) {
            return false;
        }
        data = later;
    }
    true
}
