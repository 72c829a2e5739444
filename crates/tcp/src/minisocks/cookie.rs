//! SYN cookies: a half-open connection that costs nothing, since the SYN-ACK's numbers are what would be remembered
//! (RFC 4987 section 3.6).
//!
//! ```text
//!   ISS   =  H1(flow) + IRS + (minute << 24)  +  (H2(flow, IRS, minute) + index of the MSS) mod 2^24
//!   TSval =  clock with its low 6 bits = | ECN | SACK | window scale (15: none) |       when the peer sent timestamps
//! ```
//! The ACK that comes back carries both. Within [`VALID_MINUTES`] the minute is known from the upper bits, H2 from the
//! minute, and what is left is an index into a short table of MSS values: 24 bits less that index must be guessed to forge
//! one, each guess an ACK and each ACK only while SYNs overflow. The request is then made again from a SYN that is written
//! from these facts, by the same code as the first time, so both agree about windows and options. The hashes are keyed
//! SipHash of the stack's secret.
//!
//! What is lost against a remembered request: SYN-ACKs are not sent again, the MSS is rounded down to the table, SACK,
//! scaling and ECN exist only with timestamps, and the first RTT sample is missing. This is Linux's form. Not here: when
//! to send cookies (the stack's listener decides).

use linerate_base::siphash::HashKey;
use linerate_base::{Instant, Seq};
use linerate_wire::flow::FlowKey;
use linerate_wire::{TcpFlags, TcpOptions, TcpRepr};

use crate::config::{PathInfo, SockOpts};
use crate::conn::{Isn, ts_clock};
use crate::cx::{RxMeta, TcpCx};
use crate::minisocks::ReqSock;

/// Minutes in which a cookie comes back good: the one it was made in, and the next.
pub const VALID_MINUTES: u32 = 2;
/// Bits of the hashed index; the minute stands above.
const COOKIE_BITS: u32 = 24;
const COOKIE_MASK: u32 = (1 << COOKIE_BITS) - 1;
/// MSS values that a cookie can say: those of common paths.
const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS_V6: [u16; 4] = [1220, 1420, 1440, 8940];
/// Bits of the TSval that carry options.
const TS_BITS: u32 = 6;
const TS_MASK: u32 = (1 << TS_BITS) - 1;
/// The window scale of a peer without one.
const NO_WSCALE: u32 = 0xf;
const TS_SACK: u32 = 1 << 4;
const TS_ECN: u32 = 1 << 5;

/// The secret behind the cookies.
#[derive(Clone, Copy, Debug)]
pub struct CookieKey([HashKey; 2]);

impl CookieKey {
    /// From the stack's secret, of which the two keys tell nothing.
    pub fn derive(secret: &HashKey) -> Self {
        let key = |n: u64| HashKey([secret.sip24_words(&[n, 0]), secret.sip24_words(&[n, 1])]);
        Self([key(0x636f_6f6b_6965), key(0x6d69_6e75_7465)])
    }

    fn flow_hash(&self, key: &FlowKey) -> u32 {
        self.0[0].sip24_words(&key.as_words()) as u32
    }

    /// The peer's number is in it, so that a cookie is good for exactly the SYN that it answers.
    fn minute_hash(&self, key: &FlowKey, irs: Seq, minute: u32) -> u32 {
        let [a, b, c, d, e] = key.as_words();
        self.0[1].sip24_words(&[a, b, c, d, e, u64::from(irs.0) << 32 | u64::from(minute)]) as u32
    }

    /// The ISS that says `index`.
    fn bake(&self, key: &FlowKey, irs: Seq, index: u32, now: Instant) -> Seq {
        let minute = minute_of(now);
        let data = self.minute_hash(key, irs, minute).wrapping_add(index) & COOKIE_MASK;
        let base = self.flow_hash(key).wrapping_add(irs.0);
        Seq(base.wrapping_add(minute << COOKIE_BITS).wrapping_add(data))
    }

    /// The MSS that a cookie says, if it is one of ours and fresh.
    fn eat(&self, key: &FlowKey, irs: Seq, cookie: Seq, now: Instant) -> Option<u16> {
        let rest = cookie.0.wrapping_sub(self.flow_hash(key).wrapping_add(irs.0));
        let minute = minute_of(now);
        let age = minute.wrapping_sub(rest >> COOKIE_BITS) & (u32::MAX >> COOKIE_BITS);
        if age >= VALID_MINUTES {
            return None;
        }
        let index = rest.wrapping_sub(self.minute_hash(key, irs, minute.wrapping_sub(age))) & COOKIE_MASK;
        table(key).get(index as usize).copied()
    }

    /// The request that sends one SYN-ACK and is forgotten. `isn` is the flow's own.
    pub fn request_of_syn(
        &self,
        cx: &mut TcpCx<'_>,
        opts: &SockOpts,
        flow: (FlowKey, PathInfo),
        h: &TcpRepr,
        meta: RxMeta,
        isn: Isn,
    ) -> ReqSock {
        let (key, path) = flow;
        let mut syn = *h;
        // Without timestamps there is nowhere to remember them.
        if syn.opts.ts.is_none() || !cx.cfg.timestamps {
            (syn.opts.wscale, syn.opts.sack_permitted) = (None, false);
            syn.flags = TcpFlags::SYN;
        }
        let table = table(&key);
        let mss = syn.opts.mss.unwrap_or(536);
        let index = table.iter().rposition(|&m| m <= mss).unwrap_or(0);
        let iss = self.bake(&key, h.seq, index as u32, cx.now);
        let mut req = ReqSock::new(cx, opts, key, path, &syn, meta, Isn { iss, ..isn });
        let neg = req.negotiated();
        let clock = ts_clock(cx.now, neg.usec_ts);
        let scale = if neg.wscale { u32::from(neg.snd_wscale) } else { NO_WSCALE };
        let bits = scale | if neg.sack { TS_SACK } else { 0 } | if neg.ecn { TS_ECN } else { 0 };
        let stamp = clock & !TS_MASK | bits;
        // Never ahead of the clock: the connection's own stamps must not be older.
        let stamp = if stamp > clock { stamp.wrapping_sub(TS_MASK + 1) } else { stamp };
        req.offset_stamps(isn.ts_offset.wrapping_add(stamp.wrapping_sub(clock)));
        req
    }

    /// The request that the ACK `h` of a cookie stands for, to be completed by that ACK; `None` when the cookie is not one.
    /// `ts_offset` is the flow's own.
    pub fn request_of_ack(
        &self,
        cx: &mut TcpCx<'_>,
        opts: &SockOpts,
        flow: (FlowKey, PathInfo),
        h: &TcpRepr,
        meta: RxMeta,
        ts_offset: u32,
    ) -> Option<ReqSock> {
        let (key, path) = flow;
        let (irs, iss) = (h.seq - 1, h.ack - 1);
        let mss = self.eat(&key, irs, iss, cx.now)?;
        let bits = h.opts.ts.filter(|_| cx.cfg.timestamps).map(|ts| ts.ecr.wrapping_sub(ts_offset) & TS_MASK);
        let scale = bits.map(|b| b & NO_WSCALE).filter(|&s| s != NO_WSCALE);
        let has = |bit| bits.is_some_and(|b| b & bit != 0);
        let ecn = if has(TS_ECN) { TcpFlags::ECE | TcpFlags::CWR } else { TcpFlags::NONE };
        let syn = TcpRepr {
            seq: irs,
            ack: Seq(0),
            flags: TcpFlags::SYN | ecn,
            opts: TcpOptions {
                mss: Some(mss),
                wscale: scale.map(|s| s as u8),
                sack_permitted: has(TS_SACK),
                ts: h.opts.ts.filter(|_| bits.is_some()),
                ..TcpOptions::NONE
            },
            ..*h
        };
        // The mark of this packet's IP header is not that of the SYN's, which asked for ECN as Not-ECT.
        let mut req = ReqSock::new(cx, opts, key, path, &syn, RxMeta { ecn: 0, ..meta }, Isn { iss, ts_offset });
        req.forget_times();
        Some(req)
    }
}

fn minute_of(now: Instant) -> u32 {
    (now.as_nanos() / 60_000_000_000) as u32
}

fn table(key: &FlowKey) -> &'static [u16; 4] {
    if key.remote_addr().is_ipv4() { &MSS_V4 } else { &MSS_V6 }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, SocketAddr};

    use linerate_base::Duration;
    use linerate_base::rng::Rng;

    use super::*;

    fn flow(port: u16) -> FlowKey {
        let a = |o| IpAddr::V4(Ipv4Addr::new(10, 0, 0, o));
        FlowKey::new(SocketAddr::new(a(1), 80), SocketAddr::new(a(2), port), 6)
    }

    #[test]
    fn a_cookie_lives_for_two_minutes_and_says_its_mss() {
        let k = CookieKey::derive(&HashKey([1, 2]));
        let t = Instant::from_secs(60 * 300 + 59);
        for (index, mss) in MSS_V4.into_iter().enumerate() {
            let c = k.bake(&flow(9), Seq(77), index as u32, t);
            for later in [0, 1, 60] {
                assert_eq!(k.eat(&flow(9), Seq(77), c, t + Duration::from_secs(later)), Some(mss), "{later} s later");
            }
            assert_eq!(k.eat(&flow(9), Seq(77), c, t + Duration::from_secs(61)), None, "too old");
            assert_eq!(k.eat(&flow(9), Seq(77), c, Instant::from_secs(60 * 300 - 1)), None, "from the future");
            assert_eq!(k.eat(&flow(9), Seq(78), c, t), None, "another IRS");
            assert_eq!(k.eat(&flow(8), Seq(77), c, t), None, "another flow");
            let other = CookieKey::derive(&HashKey([1, 3]));
            assert_eq!(other.eat(&flow(9), Seq(77), c, t), None, "another secret");
        }
    }

    #[test]
    fn guesses_fail() {
        let k = CookieKey::derive(&HashKey([1, 2]));
        let mut rng = Rng::new(3);
        let t = Instant::from_secs(1 << 20);
        let hits = (0..1_000_000).filter(|_| k.eat(&flow(9), Seq(1), Seq(rng.next_u32()), t).is_some()).count();
        // 2 minutes of 256 and 4 values of 2^24: one in 537 million.
        assert_eq!(hits, 0);
    }
}
