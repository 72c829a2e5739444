//! Opening: SYN-SENT, simultaneous open, options, ECN.

use crate::config::{SockOpts, TcpConfig};
use crate::conn::{Conn, Event, Isn, SocketError};
use crate::state::State;
use crate::testing::{Host, OUR_ISN, PEER_ISN, World, key, path, syn_opts};
use linerate_base::{DropReason, Seq};
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr, Timestamps};
use std::vec::Vec;

fn connecting(cfg: TcpConfig) -> Host {
    let mut w = World::new(cfg);
    let conn = Conn::connect(&mut w.cx(), key(false), path(), SockOpts::default(), Isn { iss: OUR_ISN, ts_offset: 0 });
    Host { w, conn, irs: PEER_ISN, iss: OUR_ISN, peer_ts: None, peer_ecn: 0, read_pos: 0, events: Vec::new() }
}

fn syn_ack(host: &Host, syn: &TcpRepr, opts: TcpOptions, ack: Seq) -> TcpRepr {
    let ts = opts.ts.map(|t| Timestamps { ecr: syn.opts.ts.map_or(0, |s| s.val), ..t });
    TcpRepr {
        seq: host.irs,
        ack,
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 60_000,
        opts: TcpOptions { ts, ..opts },
        src_port: 5000,
        dst_port: 8080,
        urgent: 0,
    }
}

#[test]
fn the_syn_of_the_linux_profile() {
    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    assert_eq!((syn.flags, syn.window, syn.seq), (TcpFlags::SYN, 65_535, OUR_ISN));
    let o = syn.opts;
    assert_eq!((o.mss, o.wscale, o.sack_permitted, o.ts.is_some()), (Some(1460), Some(8), true, true));
    host.finish();
}

#[test]
fn a_syn_ack_establishes_and_its_data_is_ignored() {
    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    let h = syn_ack(&host, &syn, syn_opts(Some(7)), OUR_ISN + 1);
    host.deliver(&h, b"early", 0).unwrap();
    assert_eq!(host.conn.state(), State::Established);
    let ack = host.acked(1);
    assert_eq!(ack.seq, OUR_ISN + 1);
    assert_eq!(ack.opts.ts.unwrap().ecr, 7);
    assert_eq!(host.conn.inq_bytes(), 0);
    assert_eq!(host.conn.tx.snd_wnd, 60_000, "a window on a SYN is not scaled");
    host.poll_events();
    assert!(host.events.contains(&Event::Connected));
    host.finish();
}

#[test]
fn options_count_only_when_both_offer_them_and_the_scale_is_at_most_14() {
    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    let opts = TcpOptions { mss: None, wscale: Some(200), sack_permitted: false, ts: None, ..TcpOptions::NONE };
    let h = syn_ack(&host, &syn, opts, OUR_ISN + 1);
    host.deliver(&h, &[], 0).unwrap();
    let n = *host.conn.negotiated();
    assert_eq!((n.snd_wscale, n.rcv_wscale, n.sack, n.ts, n.peer_mss_bytes), (14, 8, false, false, 536));
    assert_eq!(host.one().h.opts, TcpOptions::NONE);
    host.finish();

    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    let h = syn_ack(&host, &syn, TcpOptions { mss: Some(1000), ..TcpOptions::NONE }, OUR_ISN + 1);
    host.deliver(&h, &[], 0).unwrap();
    let n = *host.conn.negotiated();
    assert_eq!((n.wscale, n.snd_wscale, n.rcv_wscale, n.peer_mss_bytes), (false, 0, 0, 1000));
    assert_eq!(host.one().h.window, 65_535, "without a scale the window is what fits the field");
    host.finish();
}

#[test]
fn a_wrong_ack_in_syn_sent_is_answered_by_a_reset_and_changes_nothing() {
    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    for wrong in [OUR_ISN, OUR_ISN + 2, OUR_ISN - 1000] {
        let h = syn_ack(&host, &syn, syn_opts(Some(7)), wrong);
        assert_eq!(host.deliver(&h, &[], 0), Err(DropReason::TcpAckUnsentData));
        assert!(host.conn.take_reset_reply());
        assert_eq!(host.conn.state(), State::SynSent);
        let rst = TcpRepr { flags: TcpFlags::RST | TcpFlags::ACK, ..h };
        assert!(host.deliver(&rst, &[], 0).is_err());
        assert!(!host.conn.take_reset_reply(), "a reset is never answered");
        assert_eq!(host.conn.state(), State::SynSent);
    }
    host.finish();
}

#[test]
fn an_exact_reset_refuses() {
    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    let h = syn_ack(&host, &syn, TcpOptions::NONE, OUR_ISN + 1);
    let blind = TcpRepr { flags: TcpFlags::RST, ..h };
    assert!(host.deliver(&blind, &[], 0).is_err());
    assert_eq!(host.conn.state(), State::SynSent, "a RST without ACK proves nothing");
    let rst = TcpRepr { flags: TcpFlags::RST | TcpFlags::ACK, ..h };
    assert_eq!(host.deliver(&rst, &[], 0), Err(DropReason::TcpReset));
    assert_eq!(host.conn.state(), State::Closed);
    assert_eq!(host.conn.take_error(), Some(SocketError::Refused));
    assert_eq!(host.conn.take_error(), None, "reported once");
    host.finish();
}

#[test]
fn simultaneous_open() {
    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    let theirs = TcpRepr { flags: TcpFlags::SYN, ack: Seq(0), ..syn_ack(&host, &syn, syn_opts(Some(50)), OUR_ISN) };
    host.deliver(&theirs, &[], 0).unwrap();
    assert_eq!(host.conn.state(), State::SynRcvd);
    let sa = host.one().h;
    assert_eq!((sa.flags, sa.seq, sa.ack), (TcpFlags::SYN | TcpFlags::ACK, OUR_ISN, PEER_ISN + 1));
    assert_eq!(sa.window, 65_535, "not scaled on a SYN");
    let back = syn_ack(&host, &syn, syn_opts(Some(51)), OUR_ISN + 1);
    assert_eq!(host.deliver(&back, &[], 0), Err(DropReason::TcpOldData), "its SYN is old by now");
    assert_eq!(host.conn.state(), State::Established);
    host.sent();
    host.peer_ts = Some(52);
    host.data(1, 1000).unwrap();
    assert_eq!(host.read_all(), 1000);
    host.finish();
}

#[test]
fn a_wrong_ack_in_syn_received_resets_the_sender_only() {
    let mut host = connecting(TcpConfig::default());
    let syn = host.one().h;
    let theirs = TcpRepr { flags: TcpFlags::SYN, ack: Seq(0), ..syn_ack(&host, &syn, syn_opts(None), OUR_ISN) };
    host.deliver(&theirs, &[], 0).unwrap();
    host.sent();
    let wrong = TcpRepr { seq: PEER_ISN + 1, ack: OUR_ISN + 77, flags: TcpFlags::ACK, ..theirs };
    assert!(host.deliver(&wrong, &[], 0).is_err());
    assert!(host.conn.take_reset_reply());
    assert_eq!(host.conn.state(), State::SynRcvd);
    host.finish();
}

#[test]
fn ecn_is_agreed_by_ece_without_cwr() {
    let cfg = TcpConfig { ecn: 1, ..TcpConfig::default() };
    for (flags, agreed) in [(TcpFlags::ECE, true), (TcpFlags::ECE | TcpFlags::CWR, false), (TcpFlags::NONE, false)] {
        let mut host = connecting(cfg.clone());
        let syn = host.one();
        assert!(syn.h.flags.contains(TcpFlags::ECE | TcpFlags::CWR) && !syn.ect);
        let mut h = syn_ack(&host, &syn.h, syn_opts(Some(7)), OUR_ISN + 1);
        h.flags |= flags;
        host.deliver(&h, &[], 0).unwrap();
        assert_eq!(host.conn.negotiated().ecn, agreed, "{flags:?}");
        host.finish();
    }
}
