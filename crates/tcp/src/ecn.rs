//! Explicit congestion notification (RFC 3168), the TCP part.
//!
//! Negotiated by ECE+CWR on the SYN and ECE alone on the SYN-ACK. A receiver that sees CE says ECE on every ACK until
//! the peer answers CWR; a sender that hears ECE reduces once per window and says CWR on its next new data. Only new
//! data is sent as ECT(0): never a SYN, a pure ACK or a retransmission (section 6.1). A segment without ECT after ECT was
//! seen is most likely a retransmission and is acknowledged quickly, as in Linux. Accurate ECN (RFC 9768) is not spoken:
//! a SYN that asks for it is answered as RFC 3168 (its three bits include ECE and CWR).

use linerate_wire::TcpFlags;

use crate::conn::Conn;
use crate::input::Seg;
use crate::rx::ack;

/// Codepoint Not-ECT.
const NOT_ECT: u8 = 0;
/// Codepoint CE: congestion experienced.
const CE: u8 = 3;
/// Immediate ACKs after a mark: the peer's window may be very small.
const QUICK_AFTER_MARK: u32 = 2;

/// A SYN with both bits asks for RFC 3168, with `tcp_ecn` 1 or 2 it is granted.
pub(crate) fn syn_requests_ecn(flags: TcpFlags, ip_ecn: u8, cfg_ecn: u8) -> bool {
    let asks = flags.contains(TcpFlags::ECE | TcpFlags::CWR);
    cfg_ecn != 0 && asks && ip_ecn == NOT_ECT
}

/// A SYN-ACK grants it by ECE without CWR.
pub(crate) fn synack_grants_ecn(flags: TcpFlags) -> bool {
    flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR)
}

impl Conn {
    /// ECE and CWR for a segment that leaves now with ACK. `is_new_data`: it carries payload for the first time; such a
    /// segment alone may carry CWR, and is sent as ECT(0) when ECN is in use.
    pub(crate) fn ecn_flags(&mut self, is_new_data: bool) -> TcpFlags {
        let mut flags = TcpFlags::NONE;
        if !self.neg.ecn {
            return flags;
        }
        if is_new_data && core::mem::take(&mut self.rx.ecn.queue_cwr) {
            flags |= TcpFlags::CWR;
        }
        if self.rx.ecn.demand_cwr {
            flags |= TcpFlags::ECE;
        }
        flags
    }

    /// The sender half reduced its window: the next new data says so.
    pub(crate) fn ecn_queue_cwr(&mut self) {
        self.rx.ecn.queue_cwr = self.neg.ecn;
    }

    /// The marks of a data segment that was in the window.
    #[inline]
    pub(crate) fn ecn_on_data(&mut self, ip_ecn: u8) {
        if self.neg.ecn {
            self.ecn_on_mark(ip_ecn);
        }
    }

    fn ecn_on_mark(&mut self, ip_ecn: u8) {
        match ip_ecn {
            NOT_ECT => {
                if self.rx.ecn.seen {
                    self.enter_quickack_max(QUICK_AFTER_MARK);
                }
            }
            CE => {
                if !self.rx.ecn.demand_cwr {
                    self.enter_quickack_max(QUICK_AFTER_MARK);
                    self.rx.ecn.demand_cwr = true;
                }
                self.rx.ecn.seen = true;
            }
            _ => self.rx.ecn.seen = true,
        }
    }

    /// CWR on an acceptable segment ends the echo.
    pub(crate) fn ecn_accept_cwr(&mut self, seg: &Seg) {
        if self.neg.ecn && seg.flags.contains(TcpFlags::CWR) {
            self.rx.ecn.demand_cwr = false;
            if seg.len > 0 {
                self.rx.ack.pending |= ack::NOW;
            }
        }
    }
}
