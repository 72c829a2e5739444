//! Half-open and finished connections, and resets for none.

use crate::config::{SockOpts, TcpConfig};
use crate::conn::Isn;
use crate::cx::RxMeta;
use crate::minisocks::{Disposition, ReqSock, ReqTimer, TwVerdict, reset_for};
use crate::state::State;
use crate::testing::{Host, OUR_ISN, PEER_ISN, World, key, path, syn_opts};
use linerate_base::{DropReason, Duration, Seq};
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

fn syn() -> TcpRepr {
    TcpRepr {
        seq: PEER_ISN,
        flags: TcpFlags::SYN,
        window: 1000,
        opts: syn_opts(Some(100)),
        src_port: 5000,
        dst_port: 8080,
        ..TcpRepr::default()
    }
}

fn half_open(w: &mut World, opts: &SockOpts) -> ReqSock {
    let isn = Isn { iss: OUR_ISN, ts_offset: 3 };
    ReqSock::new(&mut w.cx(), opts, key(false), path(), &syn(), RxMeta::default(), isn)
}

fn ack_of(w: &World, seq: Seq, ack: Seq) -> TcpRepr {
    let ts = Some(Timestamps { val: 101, ecr: w.now.as_millis() as u32 + 3 });
    TcpRepr { seq, ack, flags: TcpFlags::ACK, opts: TcpOptions { ts, ..TcpOptions::NONE }, ..syn() }
}

fn synack(w: &mut World, req: &mut ReqSock) -> TcpRepr {
    let skb = req.emit_synack(&mut w.cx()).unwrap();
    let (h, _) = TcpRepr::parse(skb.head()).unwrap();
    w.skbs.consume(skb);
    h
}

#[test]
fn the_syn_ack_and_its_retries() {
    let mut w = World::new(TcpConfig::default());
    let mut req = half_open(&mut w, &SockOpts::default());
    let h = synack(&mut w, &mut req);
    assert_eq!((h.flags, h.seq, h.ack, h.window), (TcpFlags::SYN | TcpFlags::ACK, OUR_ISN, PEER_ISN + 1, 65_535));
    assert_eq!((h.opts.mss, h.opts.wscale, h.opts.ts.unwrap().ecr), (Some(1460), Some(8), 100));
    let start = w.now;
    let mut at = std::vec::Vec::new();
    loop {
        w.now = req.deadline();
        at.push(w.now.since(start).as_secs());
        match req.on_timer(&w.cx()) {
            ReqTimer::Resend => {}
            other => {
                assert_eq!(other, ReqTimer::Expired);
                break;
            }
        }
    }
    assert_eq!(at, [1, 3, 7, 15, 31, 63]);
    w.finish();
}

#[test]
fn what_segments_mean_to_a_half_open_connection() {
    let mut w = World::new(TcpConfig::default());
    let mut req = half_open(&mut w, &SockOpts::default());
    synack(&mut w, &mut req);
    let cases = [
        (syn(), Disposition::ResendSynAck),
        (syn(), Disposition::Drop(DropReason::RateLimited)),
        (ack_of(&w, PEER_ISN + 1, OUR_ISN), Disposition::Reset(DropReason::TcpAckUnsentData)),
        (TcpRepr { seq: PEER_ISN + 1, flags: TcpFlags::NONE, ..syn() }, Disposition::Drop(DropReason::TcpFlags)),
        (
            TcpRepr { flags: TcpFlags::RST, seq: PEER_ISN + 500_000, ..syn() },
            Disposition::Drop(DropReason::TcpOverwindow),
        ),
        (TcpRepr { flags: TcpFlags::RST, seq: PEER_ISN + 1, ..syn() }, Disposition::Remove(DropReason::TcpReset)),
        (TcpRepr { seq: PEER_ISN + 9, ..syn() }, Disposition::ResetAndRemove(DropReason::TcpInvalidSyn)),
        (ack_of(&w, PEER_ISN + 1, OUR_ISN + 1), Disposition::Complete),
    ];
    for (h, want) in cases {
        assert_eq!(req.on_segment(&mut w.cx(), &h, 0), want, "{h:?}");
    }
    w.now += Duration::from_secs(1);
    let mut old = ack_of(&w, PEER_ISN + 500_000, OUR_ISN + 1);
    old.opts.ts = None;
    assert_eq!(req.on_segment(&mut w.cx(), &old, 10), Disposition::SendAck(DropReason::TcpOverwindow));
    let answer = req.ack_repr(&w.cx());
    assert_eq!((answer.seq, answer.ack, answer.flags), (OUR_ISN + 1, PEER_ISN + 1, TcpFlags::ACK));
    w.finish();
}

#[test]
fn defer_accept_waits_for_data() {
    let mut w = World::new(TcpConfig::default());
    let mut req = half_open(&mut w, &SockOpts { defer_accept_s: 3, ..SockOpts::default() });
    synack(&mut w, &mut req);
    let ack = ack_of(&w, PEER_ISN + 1, OUR_ISN + 1);
    assert_eq!(req.on_segment(&mut w.cx(), &ack, 0), Disposition::Drop(DropReason::TcpMinisock));
    assert_eq!(req.on_segment(&mut w.cx(), &ack, 5), Disposition::Complete);
    assert_eq!(req.on_timer(&w.cx()), ReqTimer::Wait);
    assert_eq!(req.on_timer(&w.cx()), ReqTimer::Resend, "the last chance to say something");
    w.finish();
}

#[test]
fn resets_for_no_connection() {
    let h =
        TcpRepr { seq: Seq(100), ack: Seq(500), flags: TcpFlags::ACK, src_port: 1, dst_port: 2, ..TcpRepr::default() };
    let r = reset_for(&h, 10).unwrap();
    assert_eq!((r.seq, r.flags, r.src_port, r.dst_port), (Seq(500), TcpFlags::RST, 2, 1));
    let r = reset_for(&TcpRepr { flags: TcpFlags::SYN | TcpFlags::FIN, ..h }, 10).unwrap();
    assert_eq!((r.seq, r.ack, r.flags), (Seq(0), Seq(112), TcpFlags::RST | TcpFlags::ACK));
    assert_eq!(reset_for(&TcpRepr { flags: TcpFlags::RST, ..h }, 0), None);
}

/// A host whose connection has just reached TIME-WAIT.
fn time_wait() -> (Host, crate::minisocks::TwSock) {
    let mut host = Host::new();
    host.conn.close(&mut host.w.cx());
    host.sent();
    host.segment(TcpFlags::ACK | TcpFlags::FIN, 1, 0, 2).unwrap();
    host.sent();
    let tw = host.conn.time_wait_sock(&host.w.cx());
    (host, tw)
}

#[test]
fn time_wait_answers_and_reopens_only_for_newer_syns() {
    let (mut host, mut tw) = time_wait();
    host.w.now += Duration::from_secs(30);
    let fin_again = host.header(TcpFlags::ACK | TcpFlags::FIN, 1, 2);
    assert_eq!(tw.on_segment(&mut host.w.cx(), &fin_again, 0), TwVerdict::Ack(DropReason::TcpMinisock));
    assert_eq!(tw.deadline(host.w.now).since(host.w.now), Duration::from_secs(60), "renewed");
    let ack = tw.ack_repr(&host.w.cx());
    assert_eq!((ack.seq - host.iss, ack.ack - host.irs, ack.flags), (2, 2, TcpFlags::ACK));
    assert_eq!(tw.on_segment(&mut host.w.cx(), &fin_again, 0), TwVerdict::Drop(DropReason::TcpMinisock), "limited");

    let old_syn = TcpRepr { opts: TcpOptions::NONE, ..host.header(TcpFlags::SYN, 0, 0) };
    assert!(matches!(tw.on_segment(&mut host.w.cx(), &old_syn, 0), TwVerdict::Drop(_) | TwVerdict::Ack(_)));
    let new_syn = TcpRepr { seq: host.irs + 100, ..old_syn };
    let iss = host.iss + 2 + 65_537;
    assert_eq!(tw.on_segment(&mut host.w.cx(), &new_syn, 0), TwVerdict::NewSyn(iss));
    let mut by_ts = old_syn;
    by_ts.opts.ts = Some(Timestamps { val: 101, ecr: 0 });
    assert_eq!(tw.on_segment(&mut host.w.cx(), &by_ts, 0), TwVerdict::NewSyn(iss), "RFC 6191: a newer timestamp");
    let paws = TcpRepr { opts: TcpOptions { ts: Some(Timestamps { val: 5, ecr: 0 }), ..TcpOptions::NONE }, ..new_syn };
    assert!(!matches!(tw.on_segment(&mut host.w.cx(), &paws, 0), TwVerdict::NewSyn(_)));
    host.finish();
}

#[test]
fn time_wait_assassination() {
    let (mut host, mut tw) = time_wait();
    let rst = host.header(TcpFlags::RST, 2, 0);
    assert_eq!(tw.on_segment(&mut host.w.cx(), &rst, 0), TwVerdict::Kill(DropReason::TcpReset));
    host.w.cfg.rfc1337 = true;
    assert_eq!(tw.on_segment(&mut host.w.cx(), &rst, 0), TwVerdict::Drop(DropReason::TcpMinisock));
    host.finish();
}

#[test]
fn connect_reuses_time_wait_after_a_second() {
    let (mut host, tw) = time_wait();
    assert_eq!(tw.reuse_for_connect(&host.w.cx()), None);
    host.w.now += Duration::from_millis(2100);
    let (isn, ts_recent, _) = tw.reuse_for_connect(&host.w.cx()).unwrap();
    assert_eq!((isn.iss - host.iss, ts_recent), (2 + 65_537, 100));
    host.finish();
}

#[test]
fn the_fin_wait_2_minisock() {
    let mut host = Host::new();
    host.conn.close(&mut host.w.cx());
    host.sent();
    host.segment(TcpFlags::ACK, 1, 0, 2).unwrap();
    let tw = host.conn.time_wait_sock(&host.w.cx());
    assert_eq!(tw.state(), State::FinWait2);
    let w = &mut host.w;
    let h = |flags, seq| TcpRepr { seq: PEER_ISN + seq, ack: OUR_ISN + 2, flags, ..TcpRepr::default() };
    let ack = TcpFlags::ACK;
    let data = TwVerdict::Reset { reason: DropReason::TcpAbortOnData, remove: true };
    assert_eq!(tw.clone().on_segment(&mut w.cx(), &h(ack, 1), 10), data);
    assert_eq!(tw.clone().on_segment(&mut w.cx(), &h(ack, 1), 0), TwVerdict::Drop(DropReason::TcpMinisock));
    assert_eq!(tw.clone().on_segment(&mut w.cx(), &h(TcpFlags::RST, 1), 0), TwVerdict::Kill(DropReason::TcpReset));
    let mut tw = tw;
    assert_eq!(tw.on_segment(&mut w.cx(), &h(ack | TcpFlags::FIN, 1), 0), TwVerdict::Ack(DropReason::TcpMinisock));
    assert_eq!(tw.state(), State::TimeWait);
    host.finish();
}
