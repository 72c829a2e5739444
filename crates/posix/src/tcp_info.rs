//! `struct tcp_info` as bytes, in the layout of Linux 6.18 (`include/uapi/linux/tcp.h`).
//!
//! Offsets are fixed by the ABI; the struct only ever grows at its end, so a caller with an older header gets a prefix.
//! Bit fields lie from the lowest bit on, as on all little-endian machines. Fields of mechanisms that the stack does not
//! have (Fast Open, Accurate ECN, re-hashing) are zero. A socket that is no connection shows its state and Linux's
//! defaults; a listener its accept queue in `tcpi_unacked` and that queue's bound in `tcpi_sacked`.

use linerate_tcp::TcpInfo;

/// Length of `struct tcp_info`, bytes.
pub const TCP_INFO_BYTES: usize = 280;
/// TCP_LISTEN, TCP_CLOSE.
const LISTEN: u8 = 10;
const CLOSE: u8 = 7;

struct Writer {
    out: [u8; TCP_INFO_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(to) = self.out.get_mut(self.at..self.at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }
    fn u32s<const N: usize>(&mut self, values: [u32; N]) {
        values.iter().for_each(|v| self.put(&v.to_le_bytes()));
    }
    fn u64s<const N: usize>(&mut self, values: [u64; N]) {
        values.iter().for_each(|v| self.put(&v.to_le_bytes()));
    }
}

/// What a socket that is no connection shows.
fn unconnected(listener: Option<(u32, u32)>) -> TcpInfo {
    let mut i = TcpInfo::default();
    match listener {
        Some((queued, most)) => {
            (i.state, i.unacked, i.sacked) = (LISTEN, queued, most);
        }
        None => i.state = CLOSE,
    }
    (i.rto, i.snd_mss, i.snd_cwnd, i.reordering) = (1_000_000, 536, 10, 3);
    (i.snd_ssthresh, i.rttvar, i.min_rtt) = (0x7fff_ffff, 250_000, u32::MAX);
    (i.pacing_rate, i.max_pacing_rate) = (u64::MAX, u64::MAX);
    i
}

/// The struct of a connection, or of a socket that is none (`listener`: connections waiting, and their bound).
pub(crate) fn bytes(info: Option<&TcpInfo>, listener: Option<(u32, u32)>) -> [u8; TCP_INFO_BYTES] {
    let none = unconnected(listener);
    let i = info.unwrap_or(&none);
    let mut w = Writer { out: [0; TCP_INFO_BYTES], at: 0 };
    w.put(&[i.state, i.ca_state, i.retransmits, i.probes, i.backoff, i.options]);
    w.put(&[i.snd_wscale & 15 | i.rcv_wscale << 4, u8::from(i.delivery_rate_app_limited)]);
    w.u32s([i.rto, i.ato, i.snd_mss, i.rcv_mss]);
    w.u32s([i.unacked, i.sacked, i.lost, i.retrans, i.fackets]);
    w.u32s([i.last_data_sent, i.last_ack_sent, i.last_data_recv, i.last_ack_recv]);
    w.u32s([i.pmtu, i.rcv_ssthresh, i.rtt, i.rttvar, i.snd_ssthresh, i.snd_cwnd, i.advmss, i.reordering]);
    w.u32s([i.rcv_rtt, i.rcv_space, i.total_retrans]);
    w.u64s([i.pacing_rate, i.max_pacing_rate, i.bytes_acked, i.bytes_received]);
    w.u32s([i.segs_out, i.segs_in, i.notsent_bytes, i.min_rtt, i.data_segs_in, i.data_segs_out]);
    w.u64s([i.delivery_rate, i.busy_time, i.rwnd_limited, i.sndbuf_limited]);
    w.u32s([i.delivered, i.delivered_ce]);
    w.u64s([i.bytes_sent, i.bytes_retrans]);
    w.u32s([i.dsack_dups, i.reord_seen, i.rcv_ooopack, i.snd_wnd, i.rcv_wnd, i.rehash]);
    w.put(&i.total_rto.to_le_bytes());
    w.out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_the_header() {
        let mut i = unconnected(None);
        (i.rto, i.pmtu, i.snd_cwnd, i.total_retrans) = (1, 2, 3, 4);
        (i.pacing_rate, i.segs_out, i.delivery_rate, i.delivered) = (5, 6, 7, 8);
        (i.bytes_sent, i.dsack_dups, i.rcv_wnd, i.total_rto) = (9, 10, 11, 12);
        let b = bytes(Some(&i), None);
        let at = |n: usize| u32::from_le_bytes(b[n..n + 4].try_into().unwrap());
        let offsets = [8, 60, 80, 100, 104, 136, 160, 192, 200, 216, 232, 240];
        assert_eq!(offsets.map(at), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!((b[0], b.len()), (7, 280));
    }

    #[test]
    fn a_listener_shows_its_queue() {
        let b = bytes(None, Some((2, 5)));
        assert_eq!((b[0], b[24], b[28]), (10, 2, 5));
    }
}
