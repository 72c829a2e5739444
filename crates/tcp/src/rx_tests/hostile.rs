//! A hostile peer: any numbers, flags, options and payload, in any state. Nothing panics, memory is bounded, every skb has
//! an end, and what is delivered is a prefix of one stream.

use crate::config::{SockOpts, TcpConfig};
use crate::conn::{Conn, How, Isn};
use crate::testing::{Host, OUR_ISN, PEER_ISN, World, bytes, key, path, syn_opts};
use crate::tx::SendFlags;
use linerate_base::{Duration, Seq};
use linerate_wire::{SackBlocks, TcpFlags, TcpOptions, TcpRepr, Timestamps};
use proptest::prelude::*;
use std::vec::Vec;

#[derive(Clone, Debug)]
enum Step {
    Segment {
        seq: u32,
        ack: u32,
        near: bool,
        flags: u16,
        window: u16,
        len: usize,
        ts: Option<(u32, u32)>,
        sack: Vec<(u32, u32)>,
        ecn: u8,
        gso: u32,
    },
    Stream {
        back: u32,
        skip: u32,
        len: usize,
        fin: bool,
    },
    Wait(u32),
    Read(usize),
    Write(usize),
    Shutdown(u8),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let near = prop_oneof![0u32..3000, Just(0), Just(1), (0u32..200_000), any::<u32>()];
    let ts = prop::option::of((any::<u32>(), any::<u32>()));
    let sack = prop::collection::vec((0u32..5000, 0u32..5000), 0..3);
    let seg = (near.clone(), near, any::<bool>(), 0u16..512, any::<u16>(), 0usize..3000, ts, sack, 0u8..4, 0u32..1500)
        .prop_map(|(seq, ack, near, flags, window, len, ts, sack, ecn, gso)| Step::Segment {
            seq,
            ack,
            near,
            flags,
            window,
            len,
            ts,
            sack,
            ecn,
            gso,
        });
    prop_oneof![
        4 => seg,
        8 => (0u32..2000, 0u32..6000, 0usize..4000, prop::bool::weighted(0.02)).prop_map(|(back, skip, len, fin)| Step::Stream { back, skip, len, fin }),
        2 => (0u32..100_000_000).prop_map(Step::Wait),
        3 => (1usize..20_000).prop_map(Step::Read),
        2 => (1usize..20_000).prop_map(Step::Write),
        1 => (0u8..40).prop_map(Step::Shutdown),
        1 => prop::bool::weighted(0.1).prop_map(|c| if c { Step::Close } else { Step::Read(100) }),
    ]
}

fn start(kind: u8) -> Host {
    let opts = SockOpts {
        rcvbuf_bytes: if kind & 4 == 0 { 0 } else { 30_000 },
        keepalive: kind & 2 == 0,
        ..SockOpts::default()
    };
    if kind & 1 == 0 {
        return Host::established(
            TcpConfig { ecn: 2, ..TcpConfig::default() },
            opts,
            syn_opts(Some(100)).min_if(kind & 2 == 0),
        );
    }
    let mut w = World::new(TcpConfig { ecn: 1, ..TcpConfig::default() });
    let conn = Conn::connect(&mut w.cx(), key(false), path(), opts, Isn { iss: OUR_ISN, ts_offset: 0 });
    Host { w, conn, irs: PEER_ISN, iss: OUR_ISN, peer_ts: None, peer_ecn: 0, read_pos: 0, events: Vec::new() }
}

trait MinIf {
    fn min_if(self, bare: bool) -> Self;
}
impl MinIf for TcpOptions {
    fn min_if(self, bare: bool) -> Self {
        if bare { TcpOptions { mss: Some(1), ..TcpOptions::NONE } } else { self }
    }
}

/// Payload for a segment at `seq`: the one stream that this peer tells, so that any delivered byte can be checked.
fn payload(host: &Host, seq: Seq, len: usize) -> Vec<u8> {
    let first = host.conn.rx.irs + 1;
    (0..len as u32).map(|i| bytes(u64::from(seq + i - first), 1)[0]).collect()
}

#[expect(clippy::too_many_lines, reason = "one arm per kind of step")]
fn run(host: &mut Host, step: &Step) {
    match *step {
        Step::Segment { seq, ack, near, flags, window, len, ts, ref sack, ecn, gso } => {
            let (rcv, snd) = (host.conn.rx.nxt, host.conn.snd_nxt());
            let seq = if near { rcv + seq - 1000 } else { Seq(seq) };
            let mut blocks = SackBlocks::EMPTY;
            for &(l, r) in sack {
                blocks.push(snd - 2500 + l, snd - 2500 + r);
            }
            let ts = ts.map(|(val, ecr)| {
                if near {
                    Timestamps {
                        val: host.conn.rx.ts_recent.wrapping_add(val % 100),
                        ecr: host.conn.tsval(host.w.now).wrapping_sub(ecr % 50),
                    }
                } else {
                    Timestamps { val, ecr }
                }
            });
            let opts = TcpOptions {
                ts,
                sack: blocks,
                mss: (flags & 2 != 0).then_some(window | 1),
                wscale: (flags & 2 != 0).then_some(ecn * 60),
                sack_permitted: flags & 2 != 0,
                ..TcpOptions::NONE
            };
            let h = TcpRepr {
                src_port: 5000,
                dst_port: 8080,
                seq,
                ack: if near { snd - 500 + ack } else { Seq(ack) },
                flags: TcpFlags(flags),
                window,
                urgent: window,
                opts,
            };
            host.peer_ecn = ecn;
            let data = payload(host, seq + u32::from(flags & 2 != 0), len);
            let _any = host.deliver(&h, &data, gso);
        }
        Step::Stream { back, skip, len, fin } => {
            let seq = host.conn.rx.nxt - back + skip;
            let flags = if fin { TcpFlags::ACK | TcpFlags::FIN } else { TcpFlags::ACK };
            let ts = Some(Timestamps { val: host.conn.rx.ts_recent, ecr: host.conn.tsval(host.w.now) });
            let h = TcpRepr {
                src_port: 5000,
                dst_port: 8080,
                seq,
                ack: host.conn.snd_nxt(),
                flags,
                window: 1000,
                urgent: 0,
                opts: TcpOptions { ts, ..TcpOptions::NONE },
            };
            let data = payload(host, seq, len);
            let _any = host.deliver(&h, &data, 1000);
        }
        Step::Wait(us) => host.advance(Duration::from_micros(u64::from(us))),
        Step::Read(n) => {
            let _any = host.read(&mut std::vec![0; n]);
        }
        Step::Write(n) => {
            let _any = host.conn.write(&mut host.w.cx(), &std::vec![1; n], SendFlags::default());
        }
        Step::Shutdown(how) => {
            let how = [How::Rd, How::Wr, How::RdWr].get(usize::from(how)).copied();
            let _any = how.map(|how| host.conn.shutdown(&mut host.w.cx(), how));
        }
        Step::Close => {
            host.conn.close(&mut host.w.cx());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_breaks(kind in 0u8..8, steps in prop::collection::vec(step(), 1..120)) {
        let mut host = start(kind);
        host.sent();
        for s in &steps {
            run(&mut host, s);
            host.sent();
            host.poll_events();
            host.conn.take_reset_reply();
            let rx = &host.conn.rx;
            let limit = rx.rcvbuf.max(host.w.cfg.rmem_bytes[2].min(rx.rmem_alloc));
            prop_assert!(rx.rmem_alloc <= limit + 16_384);
            let held: u64 = rx.queue.iter().map(|s| u64::from(s.skb.truesize)).sum();
            prop_assert!(held <= u64::from(rx.rmem_alloc));
            host.conn.info(host.w.now);
        }
        host.finish();
    }
}
