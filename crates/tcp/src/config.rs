//! What configures a connection: the stack's defaults (Linux's sysctls), the route's facts, the socket's options.
//!
//! [`TcpConfig`] is an immutable snapshot that the shard swaps between turns. [`PathInfo`] is what a route and its device
//! say. [`SockOpts`] is what the application set. Precedence follows Linux: route over socket over sysctl for `rto_min`
//! (SYSTEMS B12), socket over sysctl for buffers and keepalive. Units stand in the names.

use crate::mem::MemGroup;

/// Linux's TCP sysctls, with the values of the `linux` profile (CONFORMANCE section 1).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpConfig {
    /// `tcp_rmem`: min, default, max receive buffer, bytes of truesize.
    pub rmem_bytes: [u32; 3],
    /// `tcp_wmem`: min, default, max send buffer, bytes of truesize.
    pub wmem_bytes: [u32; 3],
    /// `tcp_timestamps`: offer and accept RFC 7323 timestamps.
    pub timestamps: bool,
    /// `tcp_sack`: offer and accept RFC 2018.
    pub sack: bool,
    /// `tcp_dsack`: send RFC 2883 duplicate SACKs.
    pub dsack: bool,
    /// `tcp_window_scaling`.
    pub window_scaling: bool,
    /// `tcp_ecn`: 0 off, 1 request and accept, 2 accept only.
    pub ecn: u8,
    /// `tcp_syn_retries`: retransmissions of a SYN before giving up.
    pub syn_retries: u8,
    /// `tcp_synack_retries`.
    pub synack_retries: u8,
    /// `tcp_retries1`: retransmissions before the route is suspected.
    pub retries1: u8,
    /// `tcp_retries2`: retransmissions before an established connection dies.
    pub retries2: u8,
    /// `tcp_orphan_retries`; 0 means Linux's 8.
    pub orphan_retries: u8,
    /// `tcp_frto`: RFC 5682 on when not 0.
    pub frto: u8,
    /// `tcp_reordering`: initial reordering degree, wire segments.
    pub reordering_segs: u32,
    /// `tcp_max_reordering`.
    pub max_reordering_segs: u32,
    /// `tcp_recovery` bit 0: RACK loss detection (RFC 8985).
    pub rack: bool,
    /// `tcp_early_retrans` 3 or 4: tail loss probes (RFC 8985 section 7).
    pub tlp: bool,
    /// `tcp_slow_start_after_idle`.
    pub slow_start_after_idle: bool,
    /// `tcp_moderate_rcvbuf`: receive buffer autotuning.
    pub moderate_rcvbuf: bool,
    /// `tcp_tso_win_divisor`: at most 1/n of the window in one super-packet.
    pub tso_win_divisor: u32,
    /// `tcp_notsent_lowat`, bytes; `u32::MAX` = off.
    pub notsent_lowat_bytes: u32,
    /// `tcp_rto_min_us` (SYSTEMS B12), 200,000 by default.
    pub rto_min_us: u32,
    /// Longest RTO, 120 s as Linux.
    pub rto_max_us: u32,
    /// Initial RTO, 1 s (RFC 6298).
    pub rto_initial_us: u32,
    /// `tcp_keepalive_time`, seconds.
    pub keepalive_time_s: u32,
    /// `tcp_keepalive_intvl`, seconds.
    pub keepalive_intvl_s: u32,
    /// `tcp_keepalive_probes`.
    pub keepalive_probes: u8,
    /// `tcp_fin_timeout`, seconds.
    pub fin_timeout_s: u32,
    /// `tcp_challenge_ack_limit`, per second and stack; `u32::MAX` = unlimited.
    pub challenge_ack_limit: u32,
    /// `tcp_invalid_ratelimit`, ms between answers to out-of-window segments of one connection.
    pub invalid_ratelimit_ms: u32,
    /// `tcp_limit_output_bytes`: TCP small queues, bytes below the socket.
    pub limit_output_bytes: u32,
    /// `tcp_comp_sack_delay_ns`, 1 ms.
    pub comp_sack_delay_ns: u32,
    /// `tcp_comp_sack_nr`, 44.
    pub comp_sack_nr: u8,
    /// `tcp_abort_on_overflow`.
    pub abort_on_overflow: bool,
    /// `tcp_max_syn_backlog`.
    pub max_syn_backlog: u32,
    /// `tcp_syncookies`: 0 never, 1 when a listener's SYN queue is full, 2 always.
    pub syncookies: u8,
    /// `tcp_max_tw_buckets`.
    pub max_tw_buckets: u32,
    /// `tcp_tw_reuse`: reuse TIME-WAIT for new outgoing connections when timestamps make it safe.
    pub tw_reuse: bool,
    /// `tcp_rfc1337`.
    pub rfc1337: bool,
    /// `tcp_thin_linear_timeouts`, `tcp_no_metrics_save` and the like are not built.
    /// Name of the congestion control for new sockets.
    pub congestion_control: &'static str,
    /// Initial window of data segments (RFC 6928), 10.
    pub init_cwnd_segs: u32,
    /// `tcp_mtu_probing`: 0 never, 1 when a black hole is suspected, 2 always (RFC 4821).
    pub mtu_probing: u8,
    /// `tcp_base_mss`: where the search for the path's MTU begins, bytes.
    pub base_mss_bytes: u32,
    /// `tcp_mtu_probe_floor`: the least MSS that a black hole makes, bytes.
    pub mtu_probe_floor_bytes: u32,
    /// `tcp_probe_threshold`: the search ends below this interval, bytes.
    pub mtu_probe_threshold_bytes: u32,
    /// `tcp_probe_interval`: seconds until it begins anew.
    pub mtu_probe_interval_s: u32,
    /// `tcp_min_snd_mss`: lower bound of a usable MSS, bytes.
    pub min_snd_mss_bytes: u32,
    /// Microseconds in the TSval clock instead of milliseconds (SYSTEMS B33), per route in Linux.
    pub usec_timestamps: bool,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            rmem_bytes: [4096, 540_000, 15_728_640],
            wmem_bytes: [4096, 262_144, 4_194_304],
            timestamps: true,
            sack: true,
            dsack: true,
            window_scaling: true,
            ecn: 0,
            syn_retries: 5,
            synack_retries: 5,
            retries1: 3,
            retries2: 15,
            orphan_retries: 0,
            frto: 2,
            reordering_segs: 3,
            max_reordering_segs: 300,
            rack: true,
            tlp: true,
            slow_start_after_idle: false,
            moderate_rcvbuf: true,
            tso_win_divisor: 3,
            notsent_lowat_bytes: u32::MAX,
            rto_min_us: 200_000,
            rto_max_us: 120_000_000,
            rto_initial_us: 1_000_000,
            keepalive_time_s: 7200,
            keepalive_intvl_s: 75,
            keepalive_probes: 9,
            fin_timeout_s: 60,
            challenge_ack_limit: u32::MAX,
            invalid_ratelimit_ms: 500,
            limit_output_bytes: 4_194_304,
            comp_sack_delay_ns: 1_000_000,
            comp_sack_nr: 44,
            abort_on_overflow: false,
            max_syn_backlog: 4096,
            syncookies: 1,
            max_tw_buckets: 65_536,
            tw_reuse: true,
            rfc1337: false,
            congestion_control: "cubic",
            init_cwnd_segs: 10,
            mtu_probing: 0,
            base_mss_bytes: 1024,
            mtu_probe_floor_bytes: 48,
            mtu_probe_threshold_bytes: 8,
            mtu_probe_interval_s: 600,
            min_snd_mss_bytes: 48,
            usec_timestamps: false,
        }
    }
}

/// What the route and its device say about the path (24 bytes, copied into each connection).
#[derive(Clone, Copy, Debug)]
pub struct PathInfo {
    /// Path MTU: IP header and payload, bytes.
    pub mtu_bytes: u32,
    /// The route's `advmss`, 0 = derive from the MTU.
    pub advmss_bytes: u16,
    /// The route's `initcwnd`, 0 = the config's.
    pub init_cwnd_segs: u16,
    /// The route's `initrwnd`, 0 = derive.
    pub init_rwnd_segs: u16,
    /// Bytes of IP header (20 or 40) that the stack will push.
    pub ip_header_bytes: u8,
    /// `mtu lock`: do not let ICMP lower it.
    pub mtu_locked: bool,
    /// Route `rto_min`, 0 = none, µs.
    pub rto_min_us: u32,
    /// Device limit of a super-packet, bytes of IP packet; with TSO absent the stack still cuts in software.
    pub gso_max_size_bytes: u32,
    /// Device limit of wire frames in one super-packet.
    pub gso_max_segs: u16,
    /// The device can take fragments by reference and cut and sum.
    pub tso: bool,
    /// The device sums; else that is done while bytes are copied in.
    pub tx_csum: bool,
}

/// Socket options of one TCP socket: what `setsockopt` reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SockOpts {
    /// The group of sockets whose memory account is charged; counts from the connection's beginning on.
    pub mem_group: MemGroup,
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// TCP_CORK.
    pub cork: bool,
    /// TCP_QUICKACK state that the application asked for; `None` = automatic.
    pub quickack: Option<bool>,
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// TCP_KEEPIDLE seconds, 0 = config.
    pub keepidle_s: u32,
    /// TCP_KEEPINTVL seconds, 0 = config.
    pub keepintvl_s: u32,
    /// TCP_KEEPCNT, 0 = config.
    pub keepcnt: u8,
    /// TCP_SYNCNT, 0 = config.
    pub syncnt: u8,
    /// TCP_USER_TIMEOUT ms, 0 = off.
    pub user_timeout_ms: u32,
    /// TCP_LINGER2 seconds: FIN-WAIT-2 lifetime; 0 = config, negative = none.
    pub linger2_s: i32,
    /// SO_LINGER: `Some(seconds)` when on.
    pub linger_s: Option<u32>,
    /// TCP_MAXSEG set by the user, 0 = none.
    pub user_mss_bytes: u16,
    /// SO_RCVBUF as stored (already doubled), 0 = automatic.
    pub rcvbuf_bytes: u32,
    /// SO_SNDBUF as stored (already doubled), 0 = automatic.
    pub sndbuf_bytes: u32,
    /// TCP_WINDOW_CLAMP, 0 = none.
    pub window_clamp_bytes: u32,
    /// TCP_NOTSENT_LOWAT, 0 = config.
    pub notsent_lowat_bytes: u32,
    /// TCP_RTO_MIN_US, 0 = config.
    pub rto_min_us: u32,
    /// TCP_CONGESTION, `None` = config.
    pub congestion_control: Option<&'static str>,
    /// TCP_DEFER_ACCEPT seconds, 0 = off.
    pub defer_accept_s: u32,
    /// IP_TOS of an IPv4 connection; its two ECN bits are TCP's own and clear here.
    pub tos: u8,
    /// IPV6_TCLASS of an IPv6 connection, likewise.
    pub tclass: u8,
    /// IP_TTL of an IPv4 connection, 0 = the stack's default.
    pub ttl: u8,
    /// IPV6_UNICAST_HOPS of an IPv6 connection, 0 = the stack's default.
    pub hop_limit: u8,
    /// IP_MINTTL: segments of an IPv4 peer with a smaller TTL are dropped (RFC 5082), 0 = off.
    pub min_ttl: u8,
    /// IPV6_MINHOPCOUNT, likewise.
    pub min_hopcount: u8,
}

impl SockOpts {
    /// TOS or traffic class (ECN bits clear), and TTL or hop limit (0 = default), of packets to `remote`.
    pub fn ip_fields(&self, remote: core::net::IpAddr) -> (u8, u8) {
        if remote.is_ipv4() { (self.tos, self.ttl) } else { (self.tclass, self.hop_limit) }
    }

    /// Least TTL or hop limit of segments from `remote`; 0 = any.
    pub fn least_ttl(&self, remote: core::net::IpAddr) -> u8 {
        if remote.is_ipv4() { self.min_ttl } else { self.min_hopcount }
    }
    /// Bytes written and never sent from which on a writer waits: the option's, or the configuration's.
    pub(crate) fn notsent_lowat(&self, cfg: &TcpConfig) -> u32 {
        if self.notsent_lowat_bytes != 0 { self.notsent_lowat_bytes } else { cfg.notsent_lowat_bytes }
    }

    /// Nothing set: Linux's defaults.
    pub const DEFAULT: Self = Self {
        mem_group: MemGroup::NONE,
        nodelay: false,
        cork: false,
        quickack: None,
        keepalive: false,
        keepidle_s: 0,
        keepintvl_s: 0,
        keepcnt: 0,
        syncnt: 0,
        user_timeout_ms: 0,
        linger2_s: 0,
        linger_s: None,
        user_mss_bytes: 0,
        rcvbuf_bytes: 0,
        sndbuf_bytes: 0,
        window_clamp_bytes: 0,
        notsent_lowat_bytes: 0,
        rto_min_us: 0,
        congestion_control: None,
        defer_accept_s: 0,
        tos: 0,
        tclass: 0,
        ttl: 0,
        hop_limit: 0,
        min_ttl: 0,
        min_hopcount: 0,
    };
}
