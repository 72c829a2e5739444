//! The words of the control socket: what a line holds, as types that both ends share.
//!
//! Names are those of the kernel's interfaces: `TCP_INFO`'s fields without their prefix, `ss`'s words for states and timers,
//! `qstats`' names. Times say their unit. A reader takes what it knows: fields that a later version adds have defaults here,
//! and fields that this version does not know are skipped (a *request* with an unknown field is refused, because it would not
//! be done as meant).
//!
//! Limits: [`MAX_LINE_BYTES`] for a request. Lines of an answer are as long as what they tell of, at most a few KiB.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use linerate_base::Errno;
use linerate_stack::diag::SockDiag;
use linerate_stack::{SockKind, TcpInfo};
use serde::{Deserialize, Serialize};

/// Version of the language: both ends must have the same.
pub const SCHEMA: u32 = 1;
/// Longest line of a request.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Why a request was not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Refusal {
    /// Name of the Linux error number.
    pub errno: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Refusal {
    pub(crate) fn new(errno: Errno, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { errno: errno.name().to_owned(), message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}); {}", self.message, self.errno, self.hint)
    }
}

impl std::error::Error for Refusal {}

/// The answer to `about`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct About {
    /// Process number, as the process sees it.
    pub pid: u32,
    /// Its command line.
    pub name: String,
    /// Version of Linerate.
    pub version: String,
    /// As [`SCHEMA`].
    pub schema: u32,
    /// Shards of the stack.
    pub shards: u32,
    /// Commands, and what they answer.
    pub commands: BTreeMap<String, String>,
}

/// The request `sockets`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct SocketsRequest {
    /// TCP sockets, half-open connections and TIME-WAIT states.
    pub tcp: bool,
    /// UDP sockets.
    pub udp: bool,
    /// Sockets of IPv4.
    pub v4: bool,
    /// Sockets of IPv6.
    pub v6: bool,
    /// Only these states, under the names that `ss` prints; none named: all.
    pub states: Vec<String>,
    /// With `TCP_INFO`.
    pub info: bool,
}

impl Default for SocketsRequest {
    fn default() -> Self {
        Self { tcp: true, udp: true, v4: true, v6: true, states: Vec::new(), info: false }
    }
}

/// The timer that a socket waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimerRecord {
    /// `on`, `keepalive`, `timewait` or `persist`.
    pub name: String,
    /// Until it fires, milliseconds.
    pub left_ms: u64,
    /// How often it fired without an answer.
    pub retries: u8,
}

/// Memory of a socket, bytes, under the names of `SO_MEMINFO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SkMemRecord {
    /// Truesize of what is received and not read.
    pub rmem_alloc: u32,
    /// SO_RCVBUF.
    pub rcvbuf: u32,
    /// Truesize of what is below the socket.
    pub wmem_alloc: u32,
    /// SO_SNDBUF.
    pub sndbuf: u32,
    /// Truesize of what is written and not acknowledged.
    pub wmem_queued: u32,
}

/// One socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SocketRecord {
    /// The shard that has it.
    pub shard: u32,
    /// Its name in that shard, as long as it lives; half-open connections and TIME-WAIT states have none.
    #[serde(default)]
    pub id: Option<u64>,
    /// `tcp` or `udp`.
    pub proto: String,
    /// Its family is IPv6, whatever its addresses.
    pub v6: bool,
    /// IPV6_V6ONLY.
    #[serde(default)]
    pub v6only: bool,
    /// The name that `ss` prints.
    pub state: String,
    /// Local end; port 0 while unbound.
    pub local: SocketAddr,
    /// Other end.
    #[serde(default)]
    pub peer: Option<SocketAddr>,
    /// Bytes to be read; of a listener the connections to be accepted.
    pub recv_q: u32,
    /// Bytes not acknowledged (TCP) or not sent (UDP); of a listener its backlog.
    pub send_q: u32,
    /// What it waits for.
    #[serde(default)]
    pub timer: Option<TimerRecord>,
    /// Memory, where there are buffers.
    #[serde(default)]
    pub skmem: Option<SkMemRecord>,
    /// Congestion control of a connection, when asked for `info`.
    #[serde(default)]
    pub congestion: Option<String>,
    /// `TCP_INFO` of a connection, when asked for `info`.
    #[serde(default, with = "tcp_info")]
    pub tcp_info: Option<TcpInfo>,
}

impl SocketRecord {
    pub(crate) fn new(shard: usize, d: &SockDiag) -> Self {
        let timer = d.timer.map(|t| TimerRecord {
            name: t.name.name().to_owned(),
            left_ms: u64::try_from(t.left.as_millis()).unwrap_or(u64::MAX),
            retries: t.retries,
        });
        let skmem = d.mem.map(|m| SkMemRecord {
            rmem_alloc: m.rmem_alloc,
            rcvbuf: m.rcvbuf,
            wmem_alloc: m.wmem_alloc,
            sndbuf: m.sndbuf,
            wmem_queued: m.wmem_queued,
        });
        let proto = match d.kind {
            SockKind::Tcp => "tcp",
            SockKind::Udp => "udp",
        };
        Self {
            shard: shard as u32,
            id: d.id.map(|id| id.as_u64()),
            proto: proto.to_owned(),
            v6: d.v6,
            v6only: d.v6only,
            state: d.state.name().to_owned(),
            local: d.local,
            peer: d.peer,
            recv_q: d.recv_q,
            send_q: d.send_q,
            timer,
            skmem,
            congestion: d.tcp.as_ref().map(|t| t.congestion.to_owned()),
            tcp_info: d.tcp.as_ref().map(|t| t.info),
        }
    }
}

/// One network device as one shard has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceRecord {
    /// The shard.
    pub shard: u32,
    /// Its number there.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// `loopback`, `ip` (a link between two ends) or `ether`.
    pub link: String,
    /// Hardware address of an Ethernet device.
    #[serde(default)]
    pub mac: Option<String>,
    /// It has queues.
    pub up: bool,
    /// Largest IP packet of one wire frame, bytes.
    pub mtu: u32,
    /// Queue pairs.
    pub queues: u32,
    /// Packets for all addresses are accepted.
    pub any_ip: bool,
    /// Addresses with their prefixes.
    pub addrs: Vec<String>,
    /// IPv6 addresses on trial.
    #[serde(default)]
    pub tentative: Vec<String>,
    /// What it does itself, and software GRO, under ethtool's names.
    pub features: BTreeMap<String, bool>,
    /// Its limits: `gso_max_size` (bytes), `gso_max_segs`, `max_frags`.
    pub limits: BTreeMap<String, u64>,
    /// Skbs that wait in its qdisc.
    pub backlog_skbs: u64,
    /// Skbs that its qdisc dropped.
    pub qdisc_drops: u64,
    /// Counters of its queues, summed.
    pub qstats: BTreeMap<String, u64>,
    /// Counters of each queue, of a device with queues.
    #[serde(default)]
    pub queue_qstats: Vec<QueueRecord>,
}

/// One queue pair of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueRecord {
    /// The shard that has it.
    pub shard: u32,
    /// Its number there.
    pub queue: u32,
    /// Its counters.
    pub qstats: BTreeMap<String, u64>,
}

/// `TCP_INFO` as an object under Linux's names without their prefix.
mod tcp_info {
    use linerate_stack::TcpInfo;
    use serde::ser::SerializeMap as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use serde_json::{Map, Value};

    macro_rules! fields {
        ($($name:ident)+) => {
            /// How many there are.
            #[cfg(test)]
            pub(super) const COUNT: usize = [$(stringify!($name)),+].len();

            pub(super) fn serialize<S: Serializer>(info: &Option<TcpInfo>, s: S) -> Result<S::Ok, S::Error> {
                let Some(info) = info else { return s.serialize_none() };
                let mut map = s.serialize_map(None)?;
                $( map.serialize_entry(stringify!($name), &info.$name)?; )+
                map.end()
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<TcpInfo>, D::Error> {
                let Some(mut map) = Option::<Map<String, Value>>::deserialize(d)? else { return Ok(None) };
                let mut info = TcpInfo::default();
                $(
                    if let Some(value) = map.remove(stringify!($name)) {
                        info.$name = serde_json::from_value(value).map_err(serde::de::Error::custom)?;
                    }
                )+
                Ok(Some(info))
            }
        };
    }

    fields! {
        state ca_state retransmits probes backoff options snd_wscale rcv_wscale delivery_rate_app_limited
        rto ato snd_mss rcv_mss unacked sacked lost retrans fackets
        last_data_sent last_ack_sent last_data_recv last_ack_recv
        pmtu rcv_ssthresh rtt rttvar snd_ssthresh snd_cwnd advmss reordering rcv_rtt rcv_space total_retrans
        pacing_rate max_pacing_rate bytes_acked bytes_received segs_out segs_in notsent_bytes min_rtt
        data_segs_in data_segs_out delivery_rate busy_time rwnd_limited sndbuf_limited delivered delivered_ce
        bytes_sent bytes_retrans dsack_dups reord_seen rcv_ooopack snd_wnd rcv_wnd rehash total_rto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_tcp_info_crosses() {
        let mut info = TcpInfo::default();
        (info.rtt, info.pacing_rate, info.delivery_rate_app_limited, info.total_rto) = (47, u64::MAX, true, 3);
        let text = format!("{info:?}");
        assert_eq!(text.matches(": ").count(), tcp_info::COUNT, "a field is missing in the list: {text}");
        let record = SocketRecord {
            shard: 1,
            id: Some(u64::MAX),
            proto: "tcp".into(),
            v6: true,
            v6only: false,
            state: "ESTAB".into(),
            local: "[fd00::1]:80".parse().unwrap(),
            peer: Some("10.0.0.1:1".parse().unwrap()),
            recv_q: 1,
            send_q: 2,
            timer: Some(TimerRecord { name: "on".into(), left_ms: 200, retries: 1 }),
            skmem: Some(SkMemRecord { rcvbuf: 131_072, ..SkMemRecord::default() }),
            congestion: Some("cubic".into()),
            tcp_info: Some(info),
        };
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<SocketRecord>(&line).unwrap(), record, "{line}");
        // From a later version.
        let later = line.replacen("{", r#"{"colour":"red","#, 1).replacen("\"rtt\":", "\"rtt2\":1,\"rtt\":", 1);
        assert_eq!(serde_json::from_str::<SocketRecord>(&later).unwrap(), record);
        // Without what was not asked for.
        let bare = SocketRecord { tcp_info: None, congestion: None, ..record };
        let line = serde_json::to_string(&bare).unwrap();
        assert_eq!(serde_json::from_str::<SocketRecord>(&line).unwrap(), bare, "{line}");
    }
}
