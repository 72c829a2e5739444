//! The device over a socket pair: datagrams keep their boundaries as a TUN's packets do, and no privilege is needed.

use linerate_base::{DropCounters, DropReason, Instant};
use linerate_netdev::{RxCx, TxCx, TxDone};
use linerate_skb::{Csum, GsoType, MAX_FRAGS, PagePool, PoolConfig, Skb, SkbBatch, SkbCache, TxDoneToken};
use linerate_wire::IpRepr;
use linerate_wire::ip::proto;
use linerate_wire::virtio_net_hdr::{PartialCsum, VirtioGso, VirtioNetHdr};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

struct Bench {
    rx: Box<dyn RxQueue + Send>,
    tx: Box<dyn TxQueue + Send>,
    watched: Arc<Watched>,
    far: OwnedFd,
    pool: PagePool,
    skbs: SkbCache,
    drops: DropCounters,
    out: SkbBatch,
}

impl Bench {
    fn new(vnet_hdr: VnetHdr, offloads: Offloads, page_shift: u8, max_pages: u32) -> Self {
        Self::of(SocketType::SEQPACKET, vnet_hdr, offloads, page_shift, max_pages)
    }
    fn of(kind: SocketType, vnet_hdr: VnetHdr, offloads: Offloads, page_shift: u8, max_pages: u32) -> Self {
        let (near, far) = socketpair(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).expect("socketpair");
        let mut tun = Tun::from_fds("tun0", TunMode::Ip, vec![near], vnet_hdr, offloads, 1500).expect("a socket");
        let TunQueue { rx, tx, watched } = tun.take_queue(0).expect("one queue");
        assert!(tun.take_queue(0).is_none() && tun.take_queue(1).is_none());
        let pool = PagePool::new(PoolConfig { page_shift, max_pages, cache_pages: 64 });
        let (skbs, drops, out) = (SkbCache::new(256), DropCounters::default(), SkbBatch::new());
        Self { rx, tx, watched, far, pool, skbs, drops, out }
    }
    fn full() -> Self {
        Self::new(VnetHdr::V1, Offloads::ALL, 15, 64)
    }
    fn cx(&mut self) -> (RxCx<'_>, &mut Box<dyn RxQueue + Send>, &mut SkbBatch) {
        let cx = RxCx { now: Instant::ZERO, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        (cx, &mut self.rx, &mut self.out)
    }
    fn inject(&mut self, header: &[u8], packet: &[u8]) {
        rustix::io::write(&self.far, &[header, packet].concat()).expect("the pair has room");
    }
    fn poll(&mut self, budget: usize) -> usize {
        let (mut cx, rx, out) = self.cx();
        rx.poll_rx(&mut cx, budget, out)
    }
    /// Injects one packet and gives what came of it.
    fn one(&mut self, header: &[u8], packet: &[u8]) -> Option<Skb> {
        self.inject(header, packet);
        self.poll(64);
        self.out.pop_front()
    }
    fn xmit(&mut self, batch: &mut SkbBatch) -> usize {
        let mut cx = TxCx { now: Instant::ZERO, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        self.tx.xmit(&mut cx, batch)
    }
    fn completed(&mut self) -> Vec<(TxDoneToken, u32)> {
        let mut cx = TxCx { now: Instant::ZERO, pool: &mut self.pool, skbs: &mut self.skbs, drops: &mut self.drops };
        let mut done = TxDone::new();
        self.tx.poll_tx(&mut cx, &mut done);
        done.drain().collect()
    }
    fn free(&mut self, skb: Skb) {
        self.skbs.free(skb, &mut self.pool);
    }
    /// Everything is home but the pages that the receiver fills.
    #[track_caller]
    fn finish(mut self) {
        self.out.clear_with(&mut self.skbs, &mut self.pool);
        drop((self.rx, self.tx));
        self.pool.reclaim();
        assert_eq!((self.skbs.inflight(), self.skbs.silent_drops(), self.pool.inflight()), (0, 0, 0));
        assert_eq!(self.drops.get(DropReason::NotSpecified), 0);
    }
}

/// A packet of `payload` bytes with a checksum field of zero.
fn packet(v6: bool, kind: u8, options: usize, payload: usize) -> Vec<u8> {
    let l4 = match kind {
        proto::TCP => 20 + options,
        proto::UDP => 8,
        _ => 0,
    };
    let (src, dst) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    let (src, dst) = (src.parse().expect("address"), dst.parse().expect("address"));
    let ip = IpRepr::new(src, dst, kind, (l4 + payload) as u32);
    let mut bytes = vec![0; ip.header_len() + l4];
    ip.emit(&mut bytes);
    let at = ip.header_len();
    match kind {
        proto::TCP => bytes[at + 12] = ((l4 / 4) as u8) << 4,
        proto::UDP => bytes[at + 4..at + 6].copy_from_slice(&((8 + payload) as u16).to_be_bytes()),
        _ => {}
    }
    bytes.extend((0..payload).map(|i| (i * 7 + i / 251) as u8));
    bytes
}

fn gso(kind: VirtioGso, size: u16, start: u16, offset: u16) -> VirtioNetHdr {
    VirtioNetHdr {
        csum: Some(PartialCsum { start, offset }),
        gso: kind,
        gso_size: size,
        hdr_len: 40,
        ..VirtioNetHdr::default()
    }
}

#[test]
fn payloads_of_like_packets_follow_each_other_in_a_page() {
    let mut b = Bench::full();
    for _ in 0..8 {
        b.inject(&[0; 12], &packet(false, proto::TCP, 12, 1448));
    }
    assert_eq!(b.poll(64), 8);
    let skbs: Vec<Skb> = std::iter::from_fn(|| b.out.pop_front()).collect();
    for pair in skbs.windows(2) {
        assert_eq!((pair[0].head_len(), pair[0].nr_frags(), pair[0].data_len()), (52, 1, 1448));
        assert!(pair[0].frags()[0].is_followed_by(&pair[1].frags()[0]));
    }
    skbs.into_iter().for_each(|skb| b.free(skb));
    b.finish();
}

#[test]
fn a_super_packet_stays_one_skb_and_a_poll_keeps_to_its_budget() {
    let mut b = Bench::full();
    let big = packet(true, proto::TCP, 12, 64_000);
    for _ in 0..3 {
        b.inject(&gso(VirtioGso::TcpV6, 1428, 40, 16).emit(), &big);
    }
    assert_eq!((b.poll(2), b.rx.irq_enable()), (2, true));
    assert_eq!((b.poll(2), b.rx.irq_enable()), (1, false));
    while let Some(skb) = b.out.pop_front() {
        assert_eq!((skb.gso_size, skb.gso_segs, skb.gso_type), (1428, 45, GsoType::TcpV6));
        assert_eq!(skb.csum, Csum::Partial { start: skb.head_offset() + 40, offset: 16 });
        assert_eq!((skb.head_len(), skb.ip_version), (72, 6));
        assert!(skb.to_vec() == big && skb.truesize >= 64_000);
        b.free(skb);
    }
    let s = b.rx.qstats();
    assert_eq!((s.rx_skbs, s.rx_wire_pkts, s.rx_csum_unnecessary), (3, 135, 135));
    assert_eq!(s.rx_bytes, 3 * (64_000 + 45 * 72));
    b.finish();
}

#[test]
fn a_poll_ends_after_so_many_bytes_and_says_that_there_is_more() {
    let mut b = Bench::full();
    rustix::net::sockopt::set_socket_send_buffer_size(&b.far, 1 << 20).expect("SO_SNDBUF");
    let (header, big) = (gso(VirtioGso::TcpV6, 1428, 40, 16).emit(), packet(true, proto::TCP, 12, 60_000));
    for _ in 0..6 {
        b.inject(&header, &big);
    }
    // Five of them are the first to reach 256 KiB.
    assert_eq!((b.poll(64), b.rx.irq_enable()), (5, true));
    assert_eq!((b.poll(64), b.rx.irq_enable()), (1, false));
    while let Some(skb) = b.out.pop_front() {
        b.free(skb);
    }
    b.finish();
}

#[test]
fn plain_devices_get_a_longer_queue_unless_one_was_chosen() {
    assert_eq!(TunConfig::default().tx_queue_len, None);
    assert_eq!(TunConfig::default().plain().tx_queue_len, Some(PLAIN_QUEUE_LEN));
    assert_eq!(TunConfig::default().tx_queue_len(7).plain().tx_queue_len, Some(7));
    assert_eq!(TunConfig::default().plain().tx_queue_len(7).tx_queue_len, Some(7));
}

#[test]
fn contradictions_are_drops_with_a_reason() {
    use DropReason as R;
    let tcp = packet(false, proto::TCP, 0, 3000);
    let udp = packet(false, proto::UDP, 0, 3000);
    let good = gso(VirtioGso::TcpV4, 1400, 20, 16);
    let with = |change: &dyn Fn(&mut VirtioNetHdr)| {
        let mut h = good;
        change(&mut h);
        h.emit()
    };
    let raw = |at: usize, byte: u8| {
        let mut h = good.emit();
        h[at] = byte;
        h
    };
    let padded = [&tcp[..], &[0; 9]].concat();
    let cases: Vec<(&str, [u8; 12], &[u8], R)> = vec![
        ("a size of 0", raw(4, 0).map(|b| b).tap(|h| h[5] = 0), &tcp, R::DevHdr),
        ("an unknown type", raw(1, 9), &tcp, R::DevHdr),
        ("UDP fragments", raw(1, 3), &udp, R::DevHdr),
        ("hdr_len beyond the packet", with(&|h| h.hdr_len = 60_000), &tcp, R::DevHdr),
        ("csum_start beyond it", with(&|h| h.csum = Some(PartialCsum { start: 5000, offset: 16 })), &tcp, R::DevHdr),
        ("csum_offset beyond it", with(&|h| h.csum = Some(PartialCsum { start: 20, offset: 65_535 })), &tcp, R::DevHdr),
        (
            "a checksum in the payload",
            with(&|h| h.csum = Some(PartialCsum { start: 2000, offset: 0 })),
            &tcp,
            R::DevHdr,
        ),
        ("counts instead of a checksum", with(&|h| h.rsc_info = true), &tcp, R::DevHdr),
        ("ECN beside UDP", gso(VirtioGso::UdpL4, 1000, 20, 6).tap(|h| h.ecn = true).emit(), &udp, R::DevHdr),
        ("the other family", with(&|h| h.gso = VirtioGso::TcpV6), &tcp, R::SkbGsoSeg),
        ("TCP that is UDP", with(&|_| {}), &udp, R::SkbGsoSeg),
        ("UDP that is TCP", with(&|h| h.gso = VirtioGso::UdpL4), &tcp, R::SkbGsoSeg),
        ("no payload", with(&|_| {}), &tcp[..40], R::PktTooSmall),
        ("bytes behind the packet", with(&|_| {}), &padded, R::SkbGsoSeg),
        ("a packet cut short", with(&|_| {}), &tcp[..2000], R::PktTooSmall),
        ("no IP", with(&|_| {}), &[0x15; 200], R::UnhandledProto),
        ("nothing behind the header", [0; 12], &[], R::PktTooSmall),
    ];
    let mut b = Bench::full();
    for (what, header, packet, reason) in cases {
        let before = b.drops.get(reason);
        assert!(b.one(&header, packet).is_none(), "{what} was let through");
        assert_eq!(b.drops.get(reason), before + 1, "{what}: {:?}", b.drops.iter().collect::<Vec<_>>());
    }
    assert!(b.one(&good.emit(), &tcp).map(|skb| b.free(skb)).is_some(), "the queue goes on");
    rustix::io::write(&b.far, &[1; 7]).expect("write");
    assert_eq!((b.poll(64), b.drops.get(R::PktTooSmall)), (0, 4), "less than a virtio header");
    b.finish();
}

trait Tap: Sized {
    fn tap(mut self, f: impl FnOnce(&mut Self)) -> Self {
        f(&mut self);
        self
    }
}
impl<T> Tap for T {}

#[test]
fn what_was_not_negotiated_is_refused() {
    for offloads in [Offloads::CSUM, Offloads::NONE] {
        let mut b = Bench::new(VnetHdr::V1, offloads, 15, 64);
        let tcp = packet(false, proto::TCP, 0, 3000);
        assert!(b.one(&gso(VirtioGso::TcpV4, 1400, 20, 16).emit(), &tcp).is_none());
        let mut sum_only = gso(VirtioGso::None, 0, 20, 16);
        let came = b.one(&sum_only.emit(), &tcp).map(|skb| b.free(skb)).is_some();
        assert_eq!(came, offloads.csum);
        sum_only.csum = None;
        assert!(b.one(&sum_only.emit(), &tcp).map(|skb| b.free(skb)).is_some());
        assert_eq!(b.drops.get(DropReason::DevHdr), 1 + u64::from(!offloads.csum));
        b.finish();
    }
    let no_ecn = Offloads { tso_ecn: false, ..Offloads::ALL };
    let mut b = Bench::new(VnetHdr::V1, no_ecn, 15, 64);
    let h = gso(VirtioGso::TcpV4, 1400, 20, 16).tap(|h| h.ecn = true);
    assert!(b.one(&h.emit(), &packet(false, proto::TCP, 0, 3000)).is_none());
    b.finish();
}

#[test]
fn a_super_packet_of_one_segment_is_a_packet() {
    let mut b = Bench::full();
    let skb = b.one(&gso(VirtioGso::TcpV4, 1400, 20, 16).emit(), &packet(false, proto::TCP, 0, 1400));
    let skb = skb.expect("one segment");
    assert_eq!((skb.gso_size, skb.wire_pkts(), skb.gso_type), (0, 1, GsoType::None));
    b.free(skb);
    b.finish();
}

/// An inner packet's checksum, or ICMP's: it is finished, and the transport header is still to be verified.
#[test]
fn a_checksum_elsewhere_is_finished_here() {
    let mut b = Bench::full();
    let icmp = packet(false, proto::ICMP, 0, 64).tap(|p| p[22..24].fill(0));
    let h = gso(VirtioGso::None, 0, 20, 2);
    let skb = b.one(&h.emit(), &icmp).expect("ICMP");
    assert_eq!(skb.csum, Csum::None);
    let bytes = skb.to_vec();
    assert!(linerate_wire::checksum::is_valid(linerate_wire::checksum::sum(&bytes[20..])), "the sum is finished");
    b.free(skb);
    let h = VirtioNetHdr { data_valid: true, ..VirtioNetHdr::default() };
    let skb = b.one(&h.emit(), &packet(false, proto::TCP, 0, 9)).expect("TCP");
    assert_eq!(skb.csum, Csum::Unnecessary);
    b.free(skb);
    b.finish();
}

#[test]
fn without_pages_packets_are_read_and_counted() {
    let mut b = Bench::new(VnetHdr::V1, Offloads::ALL, 12, 30);
    let mut kept = Vec::new();
    let big = packet(false, proto::TCP, 0, 60_000);
    for _ in 0..4 {
        kept.extend(b.one(&gso(VirtioGso::TcpV4, 1400, 20, 16).emit(), &big));
    }
    assert_eq!((kept.len(), b.drops.get(DropReason::NoMem), b.rx.qstats().rx_alloc_fail), (1, 3, 3));
    assert!(!b.rx.irq_enable(), "all is read: the stack may sleep");
    kept.into_iter().for_each(|skb| b.free(skb));
    assert!(b.one(&[0; 12], &big).map(|skb| b.free(skb)).is_some(), "memory is back");
    b.finish();
}

#[test]
fn too_long_a_packet_is_not_taken_for_its_beginning() {
    let mut b = Bench::full();
    assert!(b.one(&[0; 12], &vec![0x45; 120_000]).is_none());
    assert_eq!(b.drops.get(DropReason::PktTooBig), 1);
    b.finish();
}

/// A message of no bytes is a packet of no bytes, and not the end.
#[test]
fn an_empty_message_is_a_drop_and_the_end_is_the_end() {
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        let mut b = Bench::of(kind, VnetHdr::Off, Offloads::NONE, 15, 64);
        b.inject(&[], &[]);
        b.inject(&[], &packet(false, proto::TCP, 0, 9));
        b.inject(&[], &[]);
        assert_eq!(
            (b.poll(64), b.drops.get(DropReason::PktTooSmall), b.watched.is_broken()),
            (1, 2, false),
            "{kind:?}"
        );
        // What was sent before the far end went is still received, though it went with our packet unread.
        let skb = b.out.pop_front().expect("one");
        assert_eq!(b.xmit(&mut SkbBatch::from_iter([skb])), 1);
        b.inject(&[], &packet(true, proto::UDP, 0, 5));
        let (_, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::empty(), None).expect("pair");
        b.far = other;
        assert_eq!(b.poll(64), 1, "{kind:?}");
        assert_eq!(b.watched.is_broken(), kind == SocketType::SEQPACKET, "{kind:?} has an end");
        assert!(!b.rx.irq_enable());
        let skb = b.out.pop_front().expect("the last");
        assert_eq!((b.xmit(&mut SkbBatch::from_iter([skb])), b.drops.get(DropReason::Shutdown)), (1, 1), "{kind:?}");
        b.finish();
    }
}

/// SIGPIPE must not end a program whose runtime does not ignore it: this one is started again, and does not.
#[test]
fn a_far_end_that_went_raises_no_signal() {
    const INSIDE: &str = "LINERATE_TEST_SIGPIPE";
    let name = "tun::tests::a_far_end_that_went_raises_no_signal";
    if std::env::var_os(INSIDE).is_none() {
        let exe = std::env::current_exe().expect("this binary");
        let out = std::process::Command::new(exe).args([name, "--exact"]).env(INSIDE, "1").output().expect("starts");
        assert!(out.status.success(), "{}", out.status);
        return;
    }
    // SAFETY: no handler is installed; the default action is what is wanted.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut b = Bench::full();
    let (_, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None).expect("pair");
    b.far = other;
    let skb = super_packet(&mut b, false, 3000);
    assert_eq!((b.xmit(&mut SkbBatch::from_iter([skb])), b.drops.get(DropReason::Shutdown)), (1, 1));
    b.finish();
}

#[test]
fn what_keeps_no_packets_apart_is_refused() {
    let (stream, _far) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).expect("socketpair");
    let (pipe, _write) = std::io::pipe().expect("pipe");
    let file = std::fs::File::open("/proc/self/exe").expect("this binary").into();
    for fd in [stream, pipe.into(), file] {
        let e = Tun::from_fds("x", TunMode::Ip, vec![fd], VnetHdr::Off, Offloads::NONE, 1500).expect_err("refused");
        assert!(matches!(e, TunError::NotPackets(_)), "{e}");
    }
}

#[test]
fn a_device_that_is_gone_is_left_alone() {
    let mut b = Bench::full();
    let (_, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None).expect("pair");
    b.far = other;
    assert_eq!((b.poll(64), b.watched.is_broken(), b.rx.irq_enable()), (0, true, false));
    let skb = super_packet(&mut b, false, 3000);
    let mut batch = SkbBatch::from_iter([skb]);
    assert_eq!((b.xmit(&mut batch), b.drops.get(DropReason::Shutdown)), (1, 1));
    assert_eq!(b.completed().len(), 1, "its socket is told all the same");
    b.finish();
}

/// As the stack sends it.
fn super_packet(b: &mut Bench, v6: bool, payload: usize) -> Skb {
    let bytes = packet(v6, proto::TCP, 12, payload);
    let head = bytes.len() - payload;
    let mut skb = b.skbs.alloc().expect("a descriptor");
    skb.reset_head(linerate_skb::HEAD_CAPACITY - head);
    assert!(skb.put_head_from(&bytes[..head]));
    let mut rest = &bytes[head..];
    skb.set_max_frags(MAX_FRAGS);
    while !rest.is_empty() {
        let mut page = b.pool.alloc().expect("a page");
        let frag = page.append(&Kernels::portable(), &rest[..rest.len().min(3000)]).expect("room");
        rest = &rest[frag.len() as usize..];
        skb.push_frag(frag).expect("a slot");
        b.pool.recycle_page(page);
    }
    skb.csum = Csum::Partial { start: skb.head_offset() + head as u16 - 32, offset: 16 };
    skb.gso_type = if v6 { GsoType::TcpV6 } else { GsoType::TcpV4 };
    (skb.gso_size, skb.gso_segs) = (1400, payload.div_ceil(1400) as u32);
    (skb.tx_done, skb.truesize) = (TxDoneToken(7), payload as u32);
    skb
}

#[test]
fn what_is_sent_is_what_is_received() {
    for (vnet_hdr, v6, payload) in [(VnetHdr::V1, false, 64_000), (VnetHdr::Legacy, true, 30_000)] {
        let mut a = Bench::new(vnet_hdr, Offloads::ALL, 15, 64);
        let mut b = Bench::new(vnet_hdr, Offloads::ALL, 15, 64);
        let mut skb = super_packet(&mut a, v6, payload);
        let cwr = skb.head_len() - 32 + 13;
        skb.head_mut()[cwr] = 0x80;
        let (bytes, segs) = (skb.to_vec(), skb.gso_segs);
        assert_eq!(a.xmit(&mut SkbBatch::from_iter([skb])), 1);
        assert_eq!(a.completed(), [(TxDoneToken(7), payload as u32)]);
        let mut wire = vec![0; 70_000];
        let n = rustix::io::read(&a.far, &mut wire[..]).expect("one write");
        let len = vnet_hdr.len_bytes();
        assert_eq!((n, wire[1] & 0x80), (len + bytes.len(), 0x80), "one write, marked for ECN");
        let got = b.one(&wire[..len], &wire[len..n]).expect("received");
        assert_eq!((got.gso_size, got.gso_segs, got.to_vec() == bytes), (1400, segs, true));
        assert!(matches!(got.csum, Csum::Partial { offset: 16, .. }));
        b.free(got);
        let s = a.tx.qstats();
        assert_eq!((s.tx_skbs, s.tx_kicks, s.tx_wire_pkts), (1, 1, u64::from(segs)));
        a.finish();
        b.finish();
    }
}

/// BIG TCP: IPv4 with a length of 0, IPv6 with a jumbo header, both as the `wire` crate reads them.
#[test]
fn what_is_longer_than_a_length_field_is_sent_as_linux_takes_it() {
    for v6 in [false, true] {
        let mut b = Bench::new(VnetHdr::V1, Offloads::ALL, 15, 256);
        let mut shape = Shape {
            vnet_len: 12,
            link_len: 0,
            offloads: Offloads::ALL,
            kernels: Kernels::portable(),
            mtu_bytes: 1500,
            gso_max_size_bytes: 180_000,
        };
        b.tx = Box::new(tx::TunTx::new(b.watched.clone(), shape, true));
        let skb = super_packet(&mut b, v6, 150_000);
        let (bytes, head) = (skb.to_vec(), skb.head_len());
        assert_eq!(b.xmit(&mut SkbBatch::from_iter([skb])), 1);
        let mut wire = vec![0; 200_000];
        let n = rustix::io::read(&b.far, &mut wire[..]).expect("one write");
        let more = if v6 { 8 } else { 0 };
        assert_eq!(n, 12 + bytes.len() + more);
        assert!(wire[12 + more + head..n] == bytes[head..], "the payload is as it was");
        let h = VirtioNetHdr::parse(&wire).expect("a header");
        let l4 = head - 32 + more;
        assert_eq!((h.hdr_len as usize, h.csum.map(|c| usize::from(c.start))), (head + more, Some(l4)));
        let (ip, at) = IpRepr::parse_head(&wire[12..200], (n - 12) as u32, true).expect("a super-packet");
        assert_eq!((at, ip.payload_len, ip.proto), (l4, 150_032, proto::TCP));
        shape.gso_max_size_bytes = IP_MAX_BYTES;
        b.tx = Box::new(tx::TunTx::new(b.watched.clone(), shape, true));
        let skb = super_packet(&mut b, v6, 150_000);
        assert_eq!((b.xmit(&mut SkbBatch::from_iter([skb])), b.drops.get(DropReason::PktTooBig)), (1, 1));
        b.finish();
    }
}

/// A TAP: offsets count from the Ethernet header, which stays in front; what is not IP is all header.
#[test]
fn behind_an_ethernet_header_all_is_the_same() {
    let mut b = Bench::full();
    let shape = Shape {
        vnet_len: 12,
        link_len: 14,
        offloads: Offloads::ALL,
        kernels: Kernels::portable(),
        mtu_bytes: 1500,
        gso_max_size_bytes: IP_MAX_BYTES,
    };
    b.rx = Box::new(rx::TunRx::new(b.watched.clone(), shape, true));
    b.tx = Box::new(tx::TunTx::new(b.watched.clone(), shape, true));
    assert_eq!(b.tx.features().hard_header_len, 14);
    let link = |kind: u16| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind.to_be_bytes()].concat();
    let frame = |v6| [link(if v6 { 0x86dd } else { 0x0800 }), packet(v6, proto::TCP, 12, 40_000)].concat();
    for v6 in [false, true] {
        let (kind, l4) = if v6 { (VirtioGso::TcpV6, 54) } else { (VirtioGso::TcpV4, 34) };
        let header = gso(kind, 1400, l4, 16);
        let skb = b.one(&header.emit(), &frame(v6)).expect("a super-packet");
        assert_eq!((skb.head_len(), skb.gso_segs, skb.to_vec() == frame(v6)), (usize::from(l4) + 32, 29, true));
        assert_eq!(skb.csum, Csum::Partial { start: skb.head_offset() + l4, offset: 16 });
        assert_eq!(b.xmit(&mut SkbBatch::from_iter([skb])), 1);
        let mut wire = vec![0; 70_000];
        let n = rustix::io::read(&b.far, &mut wire[..]).expect("one write");
        let sent = VirtioNetHdr::parse(&wire).expect("a header");
        assert_eq!((sent.csum, sent.gso, sent.hdr_len), (header.csum, kind, l4 + 32));
        assert!(wire[12..n] == frame(v6));
        for start in [0, 13] {
            assert!(b.one(&gso(kind, 1400, start, 0).emit(), &frame(v6)).is_none(), "a sum over the link header");
        }
    }
    assert_eq!(b.drops.get(DropReason::DevHdr), 4);
    let arp = [link(0x0806), vec![9; 28]].concat();
    for frame in [&arp, &arp[..20].to_vec(), &[link(0x0806), vec![9; 200]].concat()] {
        let skb = b.one(&[0; 12], frame).expect("not IP");
        assert_eq!((skb.to_vec() == *frame, skb.head_len()), (true, frame.len().min(128)));
        b.free(skb);
    }
    let short = b.one(&[0; 12], &[7; 5]).expect("for the stack to refuse");
    b.free(short);
    let h = gso(VirtioGso::None, 0, 0, 0).emit();
    assert!(b.one(&h, &[7; 5]).is_none(), "shorter than its link header");
    b.finish();
}

#[test]
fn without_room_the_rest_stays_and_the_sleeper_waits_for_room() {
    let mut b = Bench::new(VnetHdr::V1, Offloads::ALL, 15, 4096);
    let mut batch = SkbBatch::new();
    for _ in 0..20 {
        let skb = super_packet(&mut b, false, 40_000);
        batch.push(skb);
    }
    let first = b.xmit(&mut batch);
    assert!((1..20).contains(&first), "{first} fit the socket's buffer");
    assert_eq!((batch.len(), b.tx.is_stopped(), b.tx.qstats().tx_stop), (20 - first, true, 1));
    assert_eq!(b.completed().len(), 1, "a run of one socket is one row");
    let mut sink = vec![0; 70_000];
    let mut received = 0;
    while !batch.is_empty() {
        while rustix::io::read(&b.far, &mut sink[..]).is_ok() {
            received += 1;
        }
        b.xmit(&mut batch);
    }
    assert!(!b.tx.is_stopped() && received >= first);
    assert_eq!((b.tx.qstats().tx_skbs, b.drops.total()), (20, 0));
    b.finish();
}

#[test]
fn what_can_never_be_sent_is_dropped_with_a_reason() {
    let mut plain = Bench::new(VnetHdr::Off, Offloads::ALL, 15, 64);
    let mut batch = SkbBatch::new();
    batch.push(super_packet(&mut plain, false, 3000));
    assert_eq!((plain.xmit(&mut batch), plain.drops.get(DropReason::DevHdr)), (1, 1), "no header to say it in");
    plain.finish();
    let mut b = Bench::full();
    let empty = b.skbs.alloc().expect("a descriptor");
    let summed = super_packet(&mut b, false, 3000).tap(|skb| skb.csum = Csum::None);
    let typeless = super_packet(&mut b, false, 3000).tap(|skb| skb.gso_type = GsoType::None);
    let mut batch = SkbBatch::from_iter([empty, summed, typeless]);
    assert_eq!(b.xmit(&mut batch), 3);
    let got: Vec<_> = b.drops.iter().collect();
    assert_eq!(got, [(DropReason::PktTooSmall, 1), (DropReason::SkbGsoSeg, 2)]);
    b.finish();
}

fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![Just(proto::TCP), Just(proto::UDP), Just(proto::ICMP), Just(99_u8)];
    let payload = prop_oneof![0..200_usize, 1000..3000_usize, 30_000..65_000_usize];
    (any::<bool>(), kind, 0..11_usize, payload).prop_map(|(v6, kind, words, n)| packet(v6, kind, words * 4, n))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever was predicted: the head holds the headers, the fragments the payload, and no byte differs.
    #[test]
    fn bytes_arrive_split_at_the_payload(packets in proptest::collection::vec(any_packet(), 1..12), shift in 12..17_u8) {
        let mut b = Bench::new(VnetHdr::Off, Offloads::ALL, shift, 4096);
        for sent in &packets {
            let got = b.one(&[], sent).expect("a packet");
            prop_assert!(got.to_vec() == *sent);
            let ip = if sent[0] >> 4 == 4 { 20 } else { 40 };
            let l4 = match sent[if ip == 20 { 9 } else { 6 }] {
                proto::TCP => usize::from(sent[ip + 12] >> 4) * 4,
                proto::UDP | proto::ICMP => 8,
                _ => 0,
            };
            prop_assert_eq!(got.head_len(), (ip + l4).min(sent.len()));
            b.free(got);
        }
        b.finish();
    }

    /// No header and no packet makes the reader panic, lose memory, or believe a super-packet that contradicts itself.
    #[test]
    fn hostile_headers_are_survived(
        cases in proptest::collection::vec((any::<[u8; 12]>(), any_packet(), any::<(u16, u8)>(), any::<bool>()), 1..8),
    ) {
        let mut b = Bench::full();
        for (mut header, mut packet, (at, flip), likely) in cases {
            if likely {
                // Near the truth, so that the later checks are reached.
                header[0] &= 1;
                header[1] = [0, 1, 4, 5][usize::from(header[1] % 4)];
                header[3] = 0;
                let field = [16, 6][usize::from(header[8] % 2)];
                let l4 = if packet[0] >> 4 == 4 { 20 } else { 40 };
                header[6..10].copy_from_slice(&[l4, 0, field, 0]);
            }
            let n = packet.len();
            packet[usize::from(at) % n] ^= flip;
            let before = b.drops.total();
            let got = b.one(&header, &packet);
            prop_assert_eq!(b.drops.total() - before, u64::from(got.is_none()));
            let Some(skb) = got else { continue };
            prop_assert_eq!(skb.len() as usize, n);
            if skb.is_gso() {
                prop_assert_eq!(skb.gso_segs, skb.data_len().div_ceil(skb.gso_size));
                prop_assert!(skb.gso_segs > 1 && skb.gso_type != GsoType::None);
            }
            if let Csum::Partial { start, offset } = skb.csum {
                prop_assert!(usize::from(start - skb.head_offset()) + usize::from(offset) + 2 <= skb.head_len());
            }
            b.free(skb);
        }
        b.finish();
    }
}
