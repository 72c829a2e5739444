//! The end of a connection: shutdown, close, abort, and death by error (RFC 9293 sections 3.10.4 and 3.10.5, RFC 1122).
//!
//! What each verb does, as in Linux:
//! - `shutdown(Wr)` queues a FIN behind all data; `shutdown(Rd)` sends nothing, reads see the end of the stream once the
//!   queue is empty. In SYN-SENT either ends the attempt.
//! - `close` with unread data, or with SO_LINGER of 0, sends a RST (RFC 2525 section 2.17); otherwise a FIN, and the
//!   connection lives on as an orphan until the peer's FIN, an error or `tcp_fin_timeout`.
//! - `abort` sends a RST where the peer knows of the connection.
//!
//! Death goes through [`Conn::done`]: timers off, send queue freed, `Closed` reported. Received data stays readable
//! until the application lets go, except after its own close. Blocking (SO_LINGER > 0) is the caller's business.

use linerate_base::{DropReason, RstReason};

use crate::config::SockOpts;
use crate::conn::{CloseReason, Closing, Conn, How, SocketError, ev};
use crate::cx::TcpCx;
use crate::input::StateEvent;
use crate::state::State;

/// There is no connection to shut down (ENOTCONN).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotConnected;

/// Counted in `TcpCurrEstab`.
fn counts(state: State) -> bool {
    matches!(state, State::Established | State::CloseWait)
}

impl Conn {
    /// Follows an arrow of the state table and keeps the level of open connections.
    pub(crate) fn advance(&mut self, cx: &mut TcpCx<'_>, event: StateEvent) {
        let before = self.state;
        let fits = event(&mut self.state);
        debug_assert!(fits.is_ok() || before == State::Closed, "{fits:?}");
        match (counts(before), counts(self.state)) {
            (false, true) => cx.mib.curr_estab = cx.mib.curr_estab.wrapping_add(1),
            (true, false) => cx.mib.curr_estab = cx.mib.curr_estab.wrapping_sub(1),
            _ => {}
        }
    }

    /// The connection is over (Linux `tcp_done`): nothing more is sent but what was queued as a reset, nothing received.
    pub(crate) fn done(&mut self, cx: &mut TcpCx<'_>) {
        if self.state != State::Closed {
            if matches!(self.state, State::SynSent | State::SynRcvd) {
                cx.mib.attempt_fails += 1;
            }
            self.advance(cx, State::on_abort);
        }
        self.timers.clear_all();
        self.stop_receiver();
        self.rx.ack.pending = 0;
        self.purge_tx(cx);
        self.purge_ofo(cx, Some(DropReason::TcpReset));
        self.rx.shut.rcv = true;
        self.rx.shut.snd = true;
        if self.closed.is_none() {
            self.closed = Some(self.error.map_or(CloseReason::Done { time_wait: false }, CloseReason::Error));
        }
        self.notify(ev::READABLE | ev::WRITABLE | ev::CLOSED);
    }

    /// Death by `error`, which the application is told once.
    pub(crate) fn fail(&mut self, cx: &mut TcpCx<'_>, error: SocketError) {
        self.error = Some(error);
        self.done(cx);
    }

    /// Both FINs are acknowledged: the minisock takes over (Linux `tcp_time_wait`).
    pub(crate) fn enter_time_wait(&mut self, cx: &mut TcpCx<'_>) {
        let event: StateEvent = if self.state == State::Closing { State::on_ack_of_fin } else { State::on_fin };
        self.advance(cx, event);
        self.purge_tx(cx);
        self.rx.shut.snd = true;
        self.leave_to_minisock();
        self.notify(ev::READABLE | ev::CLOSED);
    }

    /// Queues our FIN where the state has one to send (Linux `tcp_close_state`).
    pub(crate) fn close_send(&mut self, cx: &mut TcpCx<'_>) {
        if matches!(self.state, State::SynRcvd | State::Established | State::CloseWait) {
            self.advance(cx, State::on_close);
            self.queue_fin(cx);
        }
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    /// When there is no connection (ENOTCONN).
    pub fn shutdown(&mut self, cx: &mut TcpCx<'_>, how: How) -> Result<(), NotConnected> {
        match self.state {
            State::Closed | State::TimeWait => return Err(NotConnected),
            State::SynSent => {
                self.error = Some(SocketError::Reset);
                self.done(cx);
                return Ok(());
            }
            _ => {}
        }
        if how != How::Wr {
            self.rx.shut.rcv = true;
            self.notify(ev::READABLE);
        }
        if how != How::Rd && !self.rx.shut.snd {
            self.rx.shut.snd = true;
            // In SYN-RECEIVED the FIN waits for the handshake.
            if matches!(self.state, State::Established | State::CloseWait) {
                self.close_send(cx);
            }
        }
        Ok(())
    }

    /// The application lets go of the socket.
    pub fn close(&mut self, cx: &mut TcpCx<'_>) -> Closing {
        let unread = !self.rx.queue.is_empty();
        self.rx.shut.rcv = true;
        self.rx.shut.snd = true;
        // Closing consumes what was read and counts what was not.
        self.discard_queue(cx);
        if self.state == State::Closed || self.closed.is_some() {
            self.rx.shut.dead = true;
            return if self.state == State::Closed { self.gone() } else { Closing::Orphan };
        }
        if unread {
            cx.mib.abort_on_close += 1;
            self.send_rst(cx, RstReason::TcpAbortOnClose);
            self.done(cx);
        } else if self.opts.linger_s == Some(0) {
            cx.mib.abort_on_data += 1;
            self.reset_peer(cx);
            self.done(cx);
        } else if self.state == State::SynSent {
            self.done(cx);
        } else {
            self.close_send(cx);
        }
        self.rx.shut.dead = true;
        self.events &= ev::CLOSED;
        if self.state == State::FinWait2 {
            self.close_in_fin_wait2(cx);
        }
        if self.state == State::Closed {
            return self.gone();
        }
        Closing::Orphan
    }

    fn gone(&mut self) -> Closing {
        self.events = 0;
        Closing::Gone
    }

    fn close_in_fin_wait2(&mut self, cx: &mut TcpCx<'_>) {
        if self.opts.linger2_s < 0 {
            cx.mib.abort_on_linger += 1;
            self.send_rst(cx, RstReason::TcpAbortOnLinger);
            self.done(cx);
        } else {
            self.fin_wait2_timeout(cx, false);
        }
    }

    fn discard_queue(&mut self, cx: &mut TcpCx<'_>) {
        while let Some(seg) = self.rx.queue.pop_front() {
            self.rx.copied_seq = seg.end();
            self.uncharge_rx(cx, seg.skb.truesize);
            cx.skbs.free(seg.skb, cx.pool);
        }
    }

    /// A RST where the peer believes in a connection (Linux `tcp_need_reset`).
    fn reset_peer(&mut self, cx: &mut TcpCx<'_>) {
        let open = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2 | State::SynRcvd
        );
        let unsent = self.snd_nxt() != self.tx.write_seq && matches!(self.state, State::Closing | State::LastAck);
        if open || unsent {
            self.send_rst(cx, if open { RstReason::TcpState } else { RstReason::TcpDisconnectWithData });
        }
    }

    /// Ends the connection at once with a RST.
    pub fn abort(&mut self, cx: &mut TcpCx<'_>) {
        if self.state == State::Closed {
            return;
        }
        self.reset_peer(cx);
        self.discard_queue(cx);
        self.fail(cx, SocketError::Aborted);
    }

    /// Gives back all memory, before the connection is dropped. Counts what was received and never read.
    pub fn purge(&mut self, cx: &mut TcpCx<'_>) {
        self.timers.clear_all();
        self.purge_tx(cx);
        self.tx.fl.forget(cx.parts);
        self.purge_rx(cx, DropReason::Shutdown);
    }

    /// Changes options through `set` and puts into effect what changed.
    pub fn set_opts(&mut self, cx: &mut TcpCx<'_>, set: impl FnOnce(&mut SockOpts)) {
        let before = (*self.opts).clone();
        set(self.opts.make_mut());
        let after = (*self.opts).clone();
        if before.quickack != after.quickack
            && let Some(on) = after.quickack
        {
            self.set_quickack(cx, on);
            // The request acts now; it is not a mode.
            self.opts.make_mut().quickack = None;
        }
        if before.rcvbuf_bytes != after.rcvbuf_bytes {
            self.set_rcvbuf(cx, after.rcvbuf_bytes);
        }
        if before.window_clamp_bytes != after.window_clamp_bytes && after.window_clamp_bytes != 0 {
            self.set_window_clamp(after.window_clamp_bytes);
        }
        if (!before.nodelay && after.nodelay) || (before.cork && !after.cork) {
            self.push_now();
        }
        if after.sndbuf_bytes != 0 {
            self.tx.set_sndbuf(after.sndbuf_bytes);
        }
        self.tx.notsent_lowat = after.notsent_lowat(cx.cfg);
        // A higher mark makes room without any ACK.
        self.check_space(cx);
        let keep = |o: &SockOpts| (o.keepalive, o.keepidle_s);
        if keep(&before) != keep(&after) {
            self.arm_keepalive_if_on(cx);
        }
    }

    /// SO_RCVLOWAT, bytes; 0 counts as 1.
    pub fn set_rcvlowat(&mut self, bytes: u32) {
        self.rx.rcvlowat = bytes.max(1);
    }
}
