//! A peer that says anything: whatever it claims, the counters equal the queue and nothing panics.
//!
//! Every step of a random conversation is followed by `check_invariants`, which recounts the in-flight equation from the
//! queue, and every payload byte that leaves is compared with what was written.

use super::*;
use proptest::prelude::*;

/// One step of a conversation. Numbers are scaled to the connection's state when the step is taken.
#[derive(Clone, Debug)]
enum Step {
    Write(u16, bool, bool),
    Send,
    Pass(u32),
    /// ACK at a fraction of what is out, window, SACK blocks as fractions of it, echo, ECE.
    Ack(u16, u32, Vec<(u16, u16)>, u8, bool, bool),
    /// Raw numbers.
    Wild(u32, u32, Vec<(u32, u32)>),
    Mtu(u16),
    Cork(bool),
    Fin,
}

fn step() -> impl Strategy<Value = Step> {
    let ack = (
        prop_oneof![3 => Just(0_u16), 2 => any::<u16>(), 1 => Just(u16::MAX)],
        prop_oneof![6 => Just(1 << 20), 1 => Just(0_u32), 2 => 0..5000_u32],
        prop::collection::vec((any::<u16>(), any::<u16>()), 0..4),
        any::<u8>(),
        any::<bool>(),
        prop::bool::weighted(0.05),
    );
    prop_oneof![
        4 => (1..20_000_u16, any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(n, m, e)| Step::Write(n, m, e)),
        4 => Just(Step::Send),
        4 => prop_oneof![0..3000_u32, 0..400_000_u32, 0..5_000_000_u32].prop_map(Step::Pass),
        12 => ack.prop_map(|(a, w, s, t, m, e)| Step::Ack(a, w, s, t, m, e)),
        2 => (any::<u32>(), any::<u32>(), prop::collection::vec((any::<u32>(), any::<u32>()), 0..4))
            .prop_map(|(a, w, s)| Step::Wild(a, w, s)),
        1 => (100..1500_u16).prop_map(Step::Mtu),
        1 => any::<bool>().prop_map(Step::Cork),
        1 => Just(Step::Fin),
    ]
}

#[expect(clippy::too_many_lines, reason = "one arm a step: splitting them would hide what a step does")]
fn run(sack: bool, ts: bool, iss: u32, steps: Vec<Step>) {
    let mut s = Setup { iss, ..Setup::default() };
    s.cfg.sack = sack;
    s.cfg.timestamps = ts;
    s.cfg.congestion_control = if iss & 1 == 0 { "cubic" } else { "reno" };
    s.rtt_us = 100 + u64::from(iss % 100_000);
    let mut p = Peer::with(s);
    let mut echoes = std::vec![0, p.last_tsval];
    let mut fin = false;
    for step in steps {
        if p.conn.state == State::Closed {
            break;
        }
        match step {
            Step::Write(n, more, eor) if !fin => {
                let _ = p.write_with(usize::from(n), SendFlags { more, eor });
            }
            Step::Send => {
                p.sent();
                echoes.push(p.last_tsval);
            }
            Step::Pass(us) => {
                p.pass_us(u64::from(us));
            }
            Step::Ack(at, wnd, blocks, echo, whole, ece) => {
                let (una, nxt) = (p.conn.tx.snd_una, p.conn.tx.snd_nxt);
                let out = nxt - una;
                let mss = p.conn.tx.cc.mss.max(1);
                let scale = |f: u16| {
                    let off = (u64::from(out) * u64::from(f) / 65_535) as u32;
                    if whole { off / mss * mss } else { off }
                };
                let mut seg = p.seg(0);
                seg.ack = una + if at == u16::MAX { out } else { scale(at) / 2 };
                seg.wnd = wnd;
                seg.ece = ece && p.conn.neg.ecn;
                for (a, b) in blocks {
                    let (a, b) = (scale(a), scale(b));
                    seg.sack.push(una + a.min(b), una + a.max(b));
                }
                let ecr = echoes.get(usize::from(echo) % echoes.len()).copied().unwrap_or(0);
                seg.ts = ts.then_some(Timestamps { val: 1, ecr });
                p.feed(&seg);
            }
            Step::Wild(ack, wnd, blocks) => {
                let mut seg = p.seg(ack % 40_000);
                seg.wnd = wnd & 0x3fff_ffff;
                seg.seq = p.seq + (wnd & 7);
                seg.gso_segs = 1 + (wnd >> 28);
                for (l, r) in blocks {
                    seg.sack.push(p.iss + (l & 0x80_ffff), p.iss + (r & 0x80_ffff));
                }
                let _ = p.conn.on_ack(cx!(p), &seg);
                p.conn.check_invariants();
            }
            Step::Mtu(mtu) => {
                let seq = p.conn.tx.snd_una;
                let e = crate::path::IcmpError { kind: crate::path::IcmpKind::PktTooBig, mtu: u32::from(mtu), seq };
                p.conn.on_icmp(cx!(p), e);
                p.conn.check_invariants();
            }
            Step::Cork(on) => {
                p.conn.opts.make_mut().cork = on;
                if !on {
                    p.conn.push_now();
                }
            }
            Step::Fin if !fin => {
                fin = true;
                p.close_write();
                p.conn.check_invariants();
            }
            Step::Write(..) | Step::Fin => {}
        }
    }
    settle(&mut p);
    p.finish();
}

/// A peer that behaves from now on receives everything.
fn settle(p: &mut Peer) {
    p.wnd = 1 << 20;
    for _ in 0..2000 {
        if p.conn.state == State::Closed {
            return;
        }
        // Far ahead, so that the window update is the most recent word.
        p.seq = p.conn.tx.snd_wl1 + 1;
        let nxt = p.conn.tx.snd_nxt - p.iss;
        p.ack(nxt);
        p.conn.opts.make_mut().cork = false;
        p.conn.push_now();
        p.sent();
        if p.conn.tx.fl.q.is_empty() {
            return;
        }
        p.pass_us(300_000);
    }
    panic!("the queue does not drain: {:?}", p.conn.tx.fl.q.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn no_peer_breaks_the_equation(sack in any::<bool>(), ts in any::<bool>(), iss in any::<u32>(),
                                   steps in prop::collection::vec(step(), 1..120)) {
        run(sack, ts, iss, steps);
    }
}

#[test]
fn acks_beyond_what_was_sent_or_far_below_are_refused() {
    let mut p = Peer::new();
    p.write(3000);
    p.sent();
    let seg = p.seg(3002);
    assert_eq!(p.conn.on_ack(cx!(p), &seg), Err(linerate_base::DropReason::TcpAckUnsentData));
    p.ack(3001);
    let mut seg = p.seg(0);
    seg.ack = p.iss - 100_000;
    assert_eq!(p.conn.on_ack(cx!(p), &seg), Err(linerate_base::DropReason::TcpTooOldAck));
    let old = p.seg(2001);
    assert!(p.conn.on_ack(cx!(p), &old).unwrap().old);
    p.finish();
}

#[test]
fn cutting_does_not_exhaust_memory() {
    let mut s = Setup::default();
    s.path.init_cwnd_segs = 1000;
    s.mss = 100;
    s.opts.sndbuf_bytes = 100_000;
    s.cfg.limit_output_bytes = 1 << 30;
    let mut p = Peer::with(s);
    p.write(200_000);
    p.sent();
    let end = p.conn.tx.snd_nxt - p.iss;
    for i in (1..end / 100).step_by(2) {
        p.sack(1, &[(i * 100 + 1, i * 100 + 101)]);
    }
    assert!(p.conn.tx.wmem_queued < 2 * (100_000 + 2 * 65_536) + 4096);
    p.finish();
}
