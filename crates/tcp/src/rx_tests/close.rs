//! Closing: who closes first, unread data, linger, shutdown, orphans, keepalive.

use crate::config::{SockOpts, TcpConfig};
use crate::conn::{CloseReason, Closing, Event, How, RecvError, SocketError};
use crate::state::State;
use crate::testing::{Host, syn_opts};
use crate::tx::{SendError, SendFlags};
use linerate_base::{DropReason, Duration};
use linerate_wire::TcpFlags;

const FIN_ACK: TcpFlags = TcpFlags(0x11);

#[test]
fn the_peer_closes_first() {
    let mut host = Host::new();
    host.segment(FIN_ACK, 1, 500, 1).unwrap();
    assert_eq!(host.conn.state(), State::CloseWait);
    host.silent();
    host.advance(Duration::from_millis(40));
    host.acked(502);
    host.poll_events();
    assert!(host.events.contains(&Event::PeerClosed));
    assert_eq!(host.read_all(), 500);
    assert_eq!(host.read(&mut [0; 4]), Ok(0));
    assert_eq!(host.conn.close(&mut host.w.cx()), Closing::Orphan);
    assert_eq!(host.conn.state(), State::LastAck);
    let fin = host.one().h;
    assert_eq!((fin.flags, fin.seq - host.iss), (FIN_ACK, 1));
    host.segment(TcpFlags::ACK, 502, 0, 2).unwrap();
    assert_eq!(host.conn.state(), State::Closed);
    assert_eq!(host.conn.poll_event(), Some(Event::Closed(CloseReason::Done { time_wait: false })));
    assert_eq!(host.w.mib.curr_estab, 0);
    host.finish();
}

#[test]
fn we_close_first_and_keep_time_wait() {
    let mut host = Host::new();
    host.conn.close(&mut host.w.cx());
    assert_eq!(host.conn.state(), State::FinWait1);
    assert_eq!(host.one().h.flags, FIN_ACK);
    host.segment(FIN_ACK, 1, 0, 2).unwrap();
    assert_eq!(host.conn.state(), State::TimeWait);
    host.acked(2);
    assert_eq!(host.conn.poll_event(), Some(Event::Closed(CloseReason::Done { time_wait: true })));
    let tw = host.conn.time_wait_sock(&host.w.cx());
    assert_eq!(tw.state(), State::TimeWait);
    assert_eq!(tw.deadline(host.w.now).since(host.w.now), Duration::from_secs(60));
    host.finish();
}

#[test]
fn simultaneous_close() {
    let mut host = Host::new();
    host.conn.shutdown(&mut host.w.cx(), How::Wr).unwrap();
    host.sent();
    host.segment(FIN_ACK, 1, 0, 1).unwrap();
    assert_eq!(host.conn.state(), State::Closing);
    host.acked(2);
    host.segment(TcpFlags::ACK, 2, 0, 2).unwrap();
    assert_eq!(host.conn.state(), State::TimeWait);
    assert_eq!(host.conn.info(host.w.now).state, 7, "the socket shows CLOSE");
    host.finish();
}

#[test]
fn half_close_reads_on() {
    let mut host = Host::new();
    host.conn.shutdown(&mut host.w.cx(), How::Wr).unwrap();
    host.sent();
    host.segment(TcpFlags::ACK, 1, 0, 2).unwrap();
    assert_eq!(host.conn.state(), State::FinWait2);
    host.segment(TcpFlags::ACK, 1, 3000, 2).unwrap();
    assert_eq!(host.read_all(), 3000);
    let refused = host.conn.write(&mut host.w.cx(), b"x", SendFlags::default());
    assert_eq!(refused, Err(SendError::BrokenPipe));
    assert!(host.conn.next_timer().is_none(), "a socket with an owner waits for ever");
    host.segment(FIN_ACK, 3001, 0, 2).unwrap();
    assert_eq!(host.conn.state(), State::TimeWait);
    assert_eq!(host.read(&mut [0; 4]), Ok(0));
    host.finish();
}

#[test]
fn shutdown_rd_reads_what_is_there_and_then_the_end() {
    let mut host = Host::new();
    host.data(1, 100).unwrap();
    host.conn.shutdown(&mut host.w.cx(), How::Rd).unwrap();
    assert_eq!(host.read_all(), 100);
    assert_eq!(host.read(&mut [0; 4]), Ok(0));
    host.sent();
    host.data(101, 100).unwrap();
    host.acked(201);
    assert_eq!(host.read_all(), 100, "Linux still takes data");
    host.finish();
}

#[test]
fn closing_with_unread_data_resets() {
    let mut host = Host::new();
    host.data(1, 100).unwrap();
    host.sent();
    assert_eq!(host.conn.close(&mut host.w.cx()), Closing::Gone);
    let rst = host.one().h;
    assert!(rst.flags.contains(TcpFlags::RST));
    assert_eq!(host.w.mib.abort_on_close, 1);
    host.finish();
}

#[test]
fn linger_zero_resets() {
    let mut host = Host::new();
    host.conn.set_opts(&mut host.w.cx(), |o| o.linger_s = Some(0));
    assert_eq!(host.conn.close(&mut host.w.cx()), Closing::Gone);
    assert!(host.one().h.flags.contains(TcpFlags::RST));
    host.finish();
}

#[test]
fn data_after_close_aborts() {
    let mut host = Host::new();
    host.conn.close(&mut host.w.cx());
    host.sent();
    let refused = host.segment(TcpFlags::ACK, 1, 100, 1);
    assert_eq!(refused, Err(DropReason::TcpAbortOnData));
    assert!(host.conn.take_reset_reply());
    assert_eq!((host.conn.state(), host.w.mib.abort_on_data), (State::Closed, 1));
    assert_eq!(host.conn.poll_event(), Some(Event::Closed(CloseReason::Peer(DropReason::TcpAbortOnData))));
    host.finish();
}

#[test]
fn an_orphan_in_fin_wait_2_becomes_a_minisock_or_waits_longer() {
    let mut host = Host::new();
    host.conn.close(&mut host.w.cx());
    host.sent();
    host.segment(TcpFlags::ACK, 1, 0, 2).unwrap();
    assert_eq!(host.conn.state(), State::FinWait2);
    assert_eq!(host.conn.poll_event(), Some(Event::Closed(CloseReason::Done { time_wait: true })));
    assert_eq!(host.conn.time_wait_sock(&host.w.cx()).state(), State::FinWait2);
    host.finish();

    let opts = SockOpts { linger2_s: 100, ..SockOpts::default() };
    let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
    host.conn.close(&mut host.w.cx());
    host.sent();
    host.segment(TcpFlags::ACK, 1, 0, 2).unwrap();
    assert_eq!(host.conn.poll_event(), None);
    let start = host.w.now;
    assert_eq!(host.conn.next_timer().map(|t| t.since(start)), Some(Duration::from_secs(40)));
    host.advance(Duration::from_secs(41));
    assert_eq!(host.conn.poll_event(), Some(Event::Closed(CloseReason::Done { time_wait: true })));
    host.finish();
}

#[test]
fn linger2_negative_aborts_at_once() {
    let opts = SockOpts { linger2_s: -1, ..SockOpts::default() };
    let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
    host.conn.shutdown(&mut host.w.cx(), How::Wr).unwrap();
    host.sent();
    host.segment(TcpFlags::ACK, 1, 0, 2).unwrap();
    assert_eq!(host.conn.close(&mut host.w.cx()), Closing::Gone);
    assert!(host.one().h.flags.contains(TcpFlags::RST));
    assert_eq!(host.w.mib.abort_on_linger, 1);
    host.finish();
}

#[test]
fn a_reset_is_reported_once_then_end_of_stream() {
    let mut host = Host::new();
    host.data(1, 10).unwrap();
    let refused = host.segment(TcpFlags::RST | TcpFlags::ACK, 11, 0, 1);
    assert_eq!(refused, Err(DropReason::TcpReset));
    assert_eq!(host.read(&mut [0; 10]), Ok(10), "what came before can be read");
    assert_eq!(host.conn.state(), State::Closed);
    assert_eq!(host.conn.take_error(), Some(SocketError::Reset));
    assert_eq!(host.read(&mut [0; 4]), Ok(0));
    host.finish();

    let mut host = Host::new();
    let _reset = host.segment(TcpFlags::RST, 1, 0, 0);
    assert_eq!(host.read(&mut [0; 4]), Err(RecvError::Socket(SocketError::Reset)));
    assert_eq!(host.read(&mut [0; 4]), Ok(0));
    host.finish();
}

#[test]
fn keepalive_probes_and_gives_up() {
    let opts = SockOpts { keepalive: true, keepidle_s: 10, keepintvl_s: 2, keepcnt: 3, ..SockOpts::default() };
    let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
    for step in [10, 2, 2] {
        host.silent();
        let start = host.w.now;
        let at = host.conn.next_timer().expect("armed");
        assert_eq!(at.since(start), Duration::from_secs(step));
        host.w.now = at;
        host.conn.on_timer(&mut host.w.cx());
        let probe = host.one();
        assert_eq!((probe.h.seq - host.iss, probe.payload.len()), (0, 0), "one below the window");
    }
    host.w.now = host.conn.next_timer().expect("armed");
    host.conn.on_timer(&mut host.w.cx());
    assert!(host.one().h.flags.contains(TcpFlags::RST));
    assert_eq!(host.conn.take_error(), Some(SocketError::TimedOut));
    host.finish();
}

#[test]
fn an_answered_probe_starts_the_count_again() {
    let opts = SockOpts { keepalive: true, keepidle_s: 10, keepintvl_s: 2, keepcnt: 1, ..SockOpts::default() };
    let mut host = Host::established(TcpConfig::default(), opts, syn_opts(Some(1)));
    for _ in 0..5 {
        host.advance(Duration::from_secs(10));
        assert_eq!(host.sent().len(), 1);
        host.segment(TcpFlags::ACK, 1, 0, 1).unwrap();
        host.sent();
        host.w.now += Duration::from_millis(1);
    }
    assert_eq!(host.conn.state(), State::Established);
    host.finish();
}

#[test]
fn abort_resets() {
    let mut host = Host::new();
    host.data(1, 500).unwrap();
    host.conn.abort(&mut host.w.cx());
    assert!(host.one().h.flags.contains(TcpFlags::RST));
    assert_eq!(host.conn.take_error(), Some(SocketError::Aborted));
    host.finish();
}
