//! Options of level SOL_TCP (Linux `do_tcp_setsockopt`, `do_tcp_getsockopt`).
//!
//! Ranges and roundings are Linux's: keepalive times up to 32767 s, counts up to 127, TCP_MAXSEG 88..32767 or 0,
//! TCP_LINGER2 up to 120 s, TCP_DEFER_ACCEPT as the time of whole SYN-ACK retransmissions. Names of congestion controls
//! are those that the stack has. Not here: Fast Open, TCP_REPAIR, TCP_MD5SIG, upper layer protocols, zero-copy receive:
//! they are ENOPROTOOPT, as in a kernel built without them (TCP_ULP is ENOENT, as without the module).

use linerate_base::{Errno, Key};
use linerate_stack::SockId;
use linerate_tcp::State;

use crate::abi::*;
use crate::posix::Posix;
use crate::sockopt::{MIN_RCVBUF, Plain, fixed, flag, int_of, plain_row};
use crate::tcp_info;

/// Names that TCP_CONGESTION knows.
const ALGORITHMS: &[&str] = &["cubic", "reno"];
/// TCP_CA_NAME_MAX.
const CA_NAME: usize = 16;
/// Jiffies of a millisecond: RTO bounds are whole ones.
const JIFFY_US: u32 = 1_000;

/// Options that are a number.
const PLAIN: &[Plain] = &[
    flag(SOL_TCP, TCP_INQ, 0),
    // Backoff is always exponential, and no SYN is kept.
    Plain { min: 0, max: 1, ..fixed(SOL_TCP, TCP_THIN_LINEAR_TIMEOUTS, 0) },
    Plain { min: 0, max: 2, ..fixed(SOL_TCP, TCP_SAVE_SYN, 0) },
];

/// The number of SYN-ACK transmissions that last `seconds`, as Linux rounds it.
fn secs_to_retrans(seconds: i32) -> u8 {
    let (mut retrans, mut period, mut timeout) = (0u8, 1i32, 1i32);
    if seconds > 0 {
        retrans = 1;
        while seconds > period && retrans < 255 {
            retrans += 1;
            timeout = (timeout << 1).min(120);
            period = period.saturating_add(timeout);
        }
    }
    retrans
}

/// The time of that many transmissions, seconds.
fn retrans_to_secs(retrans: u8) -> i32 {
    let (mut period, mut timeout) = (0, 1);
    for at in 0..retrans {
        if at > 0 {
            timeout = (timeout << 1).min(120);
        }
        period += timeout;
    }
    period
}

fn within(v: i32, min: i32, max: i32) -> Result<i32, Errno> {
    if (min..=max).contains(&v) { Ok(v) } else { Err(Errno::EINVAL) }
}

impl Posix {
    pub(crate) fn set_tcp(
        &mut self,
        file: Key,
        id: SockId,
        name: i32,
        value: Option<&[u8]>,
        len: i32,
    ) -> Result<(), Errno> {
        if matches!(name, TCP_CONGESTION | TCP_ULP) {
            return self.set_tcp_name(file, name, value, len);
        }
        let v = int_of(value, len)?;
        let u = v as u32;
        match name {
            TCP_NODELAY => self.push_opts(file, |o| o.nodelay = v != 0),
            TCP_CORK => self.push_opts(file, |o| o.cork = v != 0),
            TCP_MAXSEG => {
                let v = if v == 0 { 0 } else { within(v, 88, 32_767)? };
                self.push_opts(file, |o| o.user_mss_bytes = v as u16);
            }
            TCP_KEEPIDLE => {
                within(v, 1, 32_767)?;
                self.push_opts(file, |o| o.keepidle_s = u);
            }
            TCP_KEEPINTVL => {
                within(v, 1, 32_767)?;
                self.push_opts(file, |o| o.keepintvl_s = u);
            }
            TCP_KEEPCNT => {
                within(v, 1, 127)?;
                self.push_opts(file, |o| o.keepcnt = v as u8);
            }
            TCP_SYNCNT => {
                within(v, 1, 127)?;
                self.push_opts(file, |o| o.syncnt = v as u8);
            }
            TCP_LINGER2 => self.push_opts(file, |o| o.linger2_s = if v < 0 { -1 } else { v.min(120) }),
            TCP_DEFER_ACCEPT => {
                let retrans = secs_to_retrans(v);
                self.push_opts(file, |o| o.defer_accept_s = retrans_to_secs(retrans) as u32);
            }
            TCP_WINDOW_CLAMP => {
                if v == 0 && self.shard.conn(id).is_some_and(|c| c.state() != State::Closed) {
                    return Err(Errno::EINVAL);
                }
                let clamp = if v == 0 { 0 } else { u.max(MIN_RCVBUF / 2) };
                self.push_opts(file, |o| o.window_clamp_bytes = clamp);
            }
            TCP_QUICKACK => self.push_opts(file, |o| o.quickack = Some(v != 0)),
            TCP_USER_TIMEOUT => {
                within(v, 0, i32::MAX)?;
                self.push_opts(file, |o| o.user_timeout_ms = u);
            }
            TCP_NOTSENT_LOWAT => self.push_opts(file, |o| o.notsent_lowat_bytes = u),
            TCP_RTO_MIN_US => {
                // In whole jiffies, at least two, at most the default.
                let jiffies = u.div_ceil(JIFFY_US);
                if v < 0 || !(2..=200).contains(&jiffies) {
                    return Err(Errno::EINVAL);
                }
                self.push_opts(file, |o| o.rto_min_us = jiffies * JIFFY_US);
            }
            TCP_TIMESTAMP => return Err(Errno::EPERM),
            // Linux checks the value and forgets it, since RACK made duplicate ACKs of thin streams pointless to count.
            TCP_THIN_DUPACK => drop(within(v, 0, 1)?),
            _ => {
                let row = plain_row(PLAIN, SOL_TCP, name).ok_or(Errno::ENOPROTOOPT)?;
                let v = if name == TCP_INQ { within(v, 0, 1)? } else { row.checked(v)? };
                self.with_sock(file, |s| {
                    s.plain.insert((SOL_TCP, name), v);
                });
            }
        }
        Ok(())
    }

    fn set_tcp_name(&mut self, file: Key, name: i32, value: Option<&[u8]>, len: i32) -> Result<(), Errno> {
        if len < 1 {
            return Err(Errno::EINVAL);
        }
        let bytes = value.ok_or(Errno::EFAULT)?;
        let bytes = bytes.get(..(len as usize).min(CA_NAME - 1)).unwrap_or(bytes);
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let known = ALGORITHMS.iter().find(|a| a.as_bytes() == text).filter(|_| name == TCP_CONGESTION);
        let algorithm = *known.ok_or(Errno::ENOENT)?;
        self.push_opts(file, |o| o.congestion_control = Some(algorithm));
        Ok(())
    }

    pub(crate) fn get_tcp(&mut self, file: Key, id: SockId, name: i32) -> Result<Vec<u8>, Errno> {
        let s = self.files.sock_at(file).ok_or(Errno::ENOTSOCK)?;
        let cfg = &self.shard.config().tcp;
        let conn = self.shard.conn(id);
        let or = |set: u32, default: u32| if set == 0 { default as i32 } else { set as i32 };
        let o = &s.opts;
        let v = match name {
            TCP_INFO => {
                let queue = self.shard.accept_queue(id).map(|(n, most)| (n as u32, most));
                return Ok(tcp_info::bytes(self.shard.info(id).as_ref(), queue).to_vec());
            }
            // Neither cubic nor reno says more.
            TCP_CC_INFO | TCP_ULP => return Ok(Vec::new()),
            TCP_THIN_DUPACK => 0,
            TCP_CONGESTION => {
                let mut out = o.congestion_control.unwrap_or(cfg.congestion_control).as_bytes().to_vec();
                out.resize(CA_NAME, 0);
                return Ok(out);
            }
            TCP_MAXSEG => match conn {
                Some(c) if c.state() != State::Closed => c.mss_bytes() as i32,
                _ if o.user_mss_bytes != 0 => i32::from(o.user_mss_bytes),
                _ => 536,
            },
            TCP_NODELAY => i32::from(o.nodelay),
            TCP_CORK => i32::from(o.cork),
            TCP_KEEPIDLE => or(o.keepidle_s, cfg.keepalive_time_s),
            TCP_KEEPINTVL => or(o.keepintvl_s, cfg.keepalive_intvl_s),
            TCP_KEEPCNT => or(u32::from(o.keepcnt), u32::from(cfg.keepalive_probes)),
            TCP_SYNCNT => or(u32::from(o.syncnt), u32::from(cfg.syn_retries)),
            TCP_LINGER2 if o.linger2_s < 0 => -1,
            TCP_LINGER2 => or(o.linger2_s as u32, cfg.fin_timeout_s),
            TCP_DEFER_ACCEPT => o.defer_accept_s as i32,
            TCP_WINDOW_CLAMP => conn.map_or(o.window_clamp_bytes, |c| c.window_clamp_bytes()) as i32,
            TCP_QUICKACK => conn.map_or(1, |c| i32::from(c.quickack())),
            TCP_USER_TIMEOUT => o.user_timeout_ms as i32,
            TCP_NOTSENT_LOWAT => o.notsent_lowat_bytes as i32,
            TCP_RTO_MIN_US => or(o.rto_min_us, cfg.rto_min_us),
            TCP_TIMESTAMP => conn.map_or(self.shard.now().as_millis() as u32, |c| c.timestamp(self.shard.now())) as i32,
            _ => {
                let row = plain_row(PLAIN, SOL_TCP, name).ok_or(Errno::ENOPROTOOPT)?;
                s.plain.get(&(SOL_TCP, name)).copied().unwrap_or(row.default)
            }
        };
        Ok(v.to_le_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_accept_is_whole_retransmissions() {
        let shown = |s| retrans_to_secs(secs_to_retrans(s));
        assert_eq!([0, 1, 2, 3, 4, 7, 8, 127].map(shown), [0, 1, 3, 3, 7, 7, 15, 127]);
        assert_eq!(secs_to_retrans(-5), 0);
    }
}
