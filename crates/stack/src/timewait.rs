//! TIME-WAIT in the shard: who gets one, how many there may be, and how a place is reused.
//!
//! When a connection reports that this end keeps TIME-WAIT, a [`Tw`] of 72 bytes takes its place in the table and keeps
//! its local port; the socket itself goes, or stays closed for an application that has not let go. Over
//! `tcp_max_tw_buckets` there is no TIME-WAIT: the connection is simply over and counted (`TCPTimeWaitOverflow`), as in
//! Linux. What a segment means to it is decided in `linerate_tcp::minisocks` (RFC 6191, RFC 1337); reuse by our own
//! `connect` is in `connect`.

use linerate_base::{DropReason, Instant, RstReason};
use linerate_tcp::minisocks::TwVerdict;

use crate::core_state::Core;
use crate::demux::Entry;
use crate::tcp::{TcpLayer, Tw, flag, hash_of, owner_of, tcp_cx};
use crate::tcp_in::Segment;

/// Bits that a TIME-WAIT state inherits: those of the binding, and the family.
const INHERITED: u16 = flag::BOUND | flag::REUSE | flag::REUSEPORT | flag::EXPLICIT | flag::V6;

impl TcpLayer {
    /// Puts a TIME-WAIT state in the place of a connection that is over. The connection is out of the table afterwards.
    pub(crate) fn enter_time_wait(&mut self, core: &mut Core, index: u32) {
        let full = self.tws.len() >= core.cfg.tcp.max_tw_buckets as usize;
        let Some(sock) = self.socks.get_by_index_mut(index) else { return };
        if full || !sock.has(flag::IN_TABLE) {
            core.mibs.tcp.time_wait_overflow += u64::from(full);
            self.detach(index);
            return;
        }
        let flags = sock.flags & INHERITED;
        let Some(conn) = sock.conn_mut() else { return };
        let tos = conn.opts().ip_fields(conn.key().remote_addr()).0;
        let tw = conn.time_wait_sock(&tcp_cx(core, &mut self.challenge));
        let deadline = tw.deadline(core.now);
        // The binding changes hands: it is neither given back nor taken anew.
        sock.clear(flag::BOUND | flag::IN_TABLE);
        let (hash, bind) = (sock.hash, sock.bind);
        let tw = self.tws.insert(Tw { sock: tw, bind, flags, tos }).index;
        let took_over = self.table.replace(hash, Entry::Conn(index).pack(), Entry::Tw(tw).pack());
        debug_assert!(took_over, "a connection was not in the table");
        self.tw_timers.arm(tw, deadline);
    }

    /// Ends a TIME-WAIT state.
    pub(crate) fn remove_tw(&mut self, core: &Core, index: u32) {
        let Some(tw) = self.tws.key_of(index).and_then(|key| self.tws.remove(key)) else { return };
        self.tw_timers.cancel(index);
        let key = tw.sock.key();
        let out = self.table.remove(hash_of(&core.hash_key, key), Entry::Tw(index).pack());
        debug_assert!(out, "a TIME-WAIT state was not in the table");
        if tw.flags & flag::BOUND != 0 {
            self.binds.remove_at(tw.bind, owner_of(tw.flags, false));
        }
    }

    /// A segment for a finished connection.
    pub(crate) fn rcv_tw(&mut self, core: &mut Core, index: u32, seg: Segment<'_>) {
        let Some(tw) = self.tws.get_by_index_mut(index) else {
            debug_assert!(false, "the table names a TIME-WAIT state that is gone");
            core.drop_skb(seg.skb, DropReason::NoSocket);
            return;
        };
        let mut cx = tcp_cx(core, &mut self.challenge);
        let verdict = tw.sock.on_segment(&mut cx, seg.h, seg.payload_len);
        let (ack, tos) = (tw.sock.ack_repr(&cx), tw.tos);
        match verdict {
            TwVerdict::Drop(reason) => core.drop_skb(seg.skb, reason),
            TwVerdict::Ack(reason) => {
                core.drop_skb(seg.skb, reason);
                self.reply(core, seg.meta, &ack, tos);
            }
            TwVerdict::Reset { reason, remove } => {
                core.drop_skb(seg.skb, reason);
                self.reply_reset(core, seg.meta, seg.h, seg.payload_len, RstReason::TcpTimewaitSocket);
                if remove {
                    self.remove_tw(core, index);
                }
            }
            TwVerdict::Kill(reason) => {
                core.drop_skb(seg.skb, reason);
                self.remove_tw(core, index);
            }
            TwVerdict::NewSyn(iss) => match self.listeners.find(seg.meta.dst, seg.h.dst_port, seg.hash) {
                Some(listener) => {
                    self.remove_tw(core, index);
                    self.conn_request(core, listener, seg, Some(iss));
                }
                None => {
                    core.drop_skb(seg.skb, DropReason::TcpMinisock);
                    self.reply(core, seg.meta, &ack, tos);
                }
            },
        }
    }

    /// The deadline of a TIME-WAIT state passed; it may have been renewed since it was armed.
    pub(crate) fn on_tw_timer(&mut self, core: &mut Core, index: u32) {
        let Some(tw) = self.tws.get_by_index(index) else { return };
        let deadline: Instant = tw.sock.deadline(core.now);
        if deadline > core.now {
            self.tw_timers.arm(index, deadline);
        } else {
            core.mibs.tcp.tw += 1;
            self.remove_tw(core, index);
        }
    }
}
