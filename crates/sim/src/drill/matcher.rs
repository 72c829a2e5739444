//! One flow between script and wire: mapping of numbers, building what arrives, judging what leaves.
//!
//! ```text
//!   SYN:      live = script - script ISN + live ISN        (a SYN carries the ISN itself)
//!   all else: live = script + live ISN                     (1 is the first byte)
//! ```
//! The same holds for acknowledgements (with the other side's ISN) and SACK blocks. The stack's ISN, ports and timestamps
//! are learnt from the first packet that shows them. Outbound segments are merged up to the length the script expects,
//! if they could have been one super-packet (CONFORMANCE 3.4, "Aggregation"). Invariants: a [`Flow`] changes only when a
//! packet matched or was built. Not checked: IP id, DF, TTL and flow label unless given, TS ecr.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::ast::{
    ACK, AE, Body, CWR, ECE, EcnSpec, FIN, IcmpSpec, IpInfo, PSH, PacketSpec, Quote, RST, SYN, TcpOption, TcpSpec, URG,
};
use super::config::VariantConfig;
use super::icmp;
use super::packet::{
    IpFields, Live, PROTO_TCP, PROTO_UDP, TcpFields, Transport, build_icmp, build_ip, build_tcp, build_udp, options_len,
};

/// The initial sequence number of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Isn {
    pub(crate) script: u32,
    pub(crate) live: u32,
}

impl Isn {
    fn offset(self, syn: bool) -> u32 {
        if syn { self.live.wrapping_sub(self.script) } else { self.live }
    }
}

/// A flow as the script sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    /// Addresses on the wire; `None` = not yet known.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    /// Ports the script gave explicitly: local, remote.
    pub(crate) script_ports: Option<(u16, u16)>,
    pub(crate) local_isn: Option<Isn>,
    pub(crate) remote_isn: Option<Isn>,
    /// Outbound timestamps, script -> live, and the first such pair.
    pub(crate) ts: HashMap<u32, u32>,
    pub(crate) ts_first: Option<(u32, u32)>,
    /// Flow labels, script -> live.
    pub(crate) labels: HashMap<u32, u32>,
}

/// What a match needs to know of time: microseconds since the script's start, and the tolerance there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchTime {
    pub(crate) since_first_ts_us: i64,
    pub(crate) tolerance_us: i64,
}

fn differs(field: &str, expected: impl Into<i64>, actual: impl Into<i64>) -> Result<(), String> {
    let (e, a) = (expected.into(), actual.into());
    if e == a {
        return Ok(());
    }
    Err(format!("live packet field {field}: expected: {e} (0x{e:x}) vs actual: {a} (0x{a:x})"))
}

impl Flow {
    fn ip_fields(&self, info: &IpInfo) -> Result<IpFields, String> {
        let (Some(local), Some(remote)) = (self.local, self.remote) else {
            return Err("the addresses of the connection are not known yet".into());
        };
        let ecn = match info.ecn {
            None | Some(EcnSpec::NotEct) => 0,
            Some(EcnSpec::Ect1) => 1,
            Some(EcnSpec::Ect0) => 2,
            Some(EcnSpec::Ce) => 3,
            Some(EcnSpec::EitherEct) => return Err("ect01 is for outbound packets only".into()),
        };
        Ok(IpFields {
            src: remote.ip(),
            dst: local.ip(),
            tos: info.tos.unwrap_or(0) | ecn,
            ttl: info.ttl.unwrap_or(255),
            flow_label: info.flowlabel.unwrap_or(0),
        })
    }

    /// The packet that arrives, as bytes.
    pub(crate) fn build(&mut self, spec: &PacketSpec, cfg: &VariantConfig) -> Result<Vec<u8>, String> {
        let ip = self.ip_fields(&spec.ip)?;
        let ports = |own: Option<(u16, u16)>| {
            own.unwrap_or((self.remote.map_or(0, |a| a.port()), self.local.map_or(0, |a| a.port())))
        };
        match &spec.body {
            Body::Udp { ports: own, len } => {
                let (src, dst) = ports(*own);
                Ok(build_udp(&ip, src, dst, *len as usize))
            }
            Body::Icmp(spec) => self.build_icmp(&ip, spec),
            Body::Tcp(tcp) => {
                let (src_port, dst_port) = ports(tcp.ports);
                let fields = self.inbound_fields(tcp, src_port, dst_port, cfg)?;
                Ok(build_tcp(&ip, &fields, tcp.len as usize))
            }
        }
    }

    fn inbound_fields(&mut self, t: &TcpSpec, src: u16, dst: u16, cfg: &VariantConfig) -> Result<TcpFields, String> {
        let syn = t.flags.has(SYN);
        if syn && self.remote_isn.is_none() {
            self.remote_isn = Some(Isn { script: t.seq, live: t.seq });
        }
        let remote = self.remote_isn.unwrap_or_default().offset(syn);
        let local = self.local_isn.unwrap_or_default();
        let mut options = t.options.clone().unwrap_or_default();
        for o in &mut options {
            match o {
                TcpOption::Sack(blocks) => blocks.iter_mut().for_each(|(left, right)| {
                    *left = left.wrapping_add(local.offset(false));
                    *right = right.wrapping_add(local.offset(false));
                }),
                TcpOption::Timestamp { ecr, .. } => *ecr = self.live_ecr(*ecr, cfg)?,
                _ => {}
            }
        }
        Ok(TcpFields {
            src_port: src,
            dst_port: dst,
            seq: t.seq.wrapping_add(remote),
            ack: t.ack.map_or(0, |a| a.wrapping_add(local.offset(syn))),
            flags: t.flags.bits,
            win: t.win.unwrap_or(0),
            urg: t.urg.unwrap_or(0),
            options,
        })
    }

    /// The live value behind an inbound `ecr`. Zero needs no partner: nothing was sent yet.
    fn live_ecr(&self, ecr: u32, cfg: &VariantConfig) -> Result<u32, String> {
        if let Some(&live) = self.ts.get(&ecr) {
            return Ok(live);
        }
        match self.ts_first {
            Some((script, live)) if cfg.ts_ecr_scaled => Ok(live.wrapping_add(ecr.wrapping_sub(script))),
            _ if ecr == 0 => Ok(0),
            _ => Err(format!("no outbound packet had TS val {ecr}, so it cannot be echoed")),
        }
    }

    fn build_icmp(&self, ip: &IpFields, spec: &IcmpSpec) -> Result<Vec<u8>, String> {
        let v6 = ip.src.is_ipv6();
        let (kind, code) = icmp::numbers(v6, &spec.kind, spec.code.as_deref())?;
        let word = spec.mtu.unwrap_or(0) | u32::from(spec.id.unwrap_or(0)) << 16;
        let (local_port, remote_port) = (self.local.map_or(0, |a| a.port()), self.remote.map_or(0, |a| a.port()));
        // The quoted packet is one that we are said to have sent.
        let sent = IpFields { src: ip.dst, dst: ip.src, tos: 0, ttl: 64, flow_label: 0 };
        let mut l4 = Vec::new();
        l4.extend(local_port.to_be_bytes());
        l4.extend(remote_port.to_be_bytes());
        let rest = match &spec.quote {
            None => Vec::new(),
            Some(Quote::Raw { len }) => vec![0; *len as usize],
            Some(Quote::Tcp { seq, len }) => {
                let live = seq.wrapping_add(self.local_isn.unwrap_or_default().offset(false));
                l4.extend(live.to_be_bytes());
                quoted(&sent, PROTO_TCP, &l4, 20 + *len as usize)
            }
            Some(Quote::Udp { len }) => {
                l4.extend(((8 + *len) as u16).to_be_bytes());
                l4.extend([0, 0]);
                quoted(&sent, PROTO_UDP, &l4, 8 + *len as usize)
            }
        };
        Ok(build_icmp(ip, kind, code, word, &rest))
    }

    /// Whether an outbound live packet belongs to this flow, for this expectation.
    pub(crate) fn concerns(&self, spec: &PacketSpec, live: &Live) -> bool {
        let (src, dst) = match (&live.transport, &spec.body) {
            (Transport::Icmp { .. }, Body::Icmp(_)) => return true,
            (Transport::Tcp(t), Body::Tcp(_)) => (t.src_port, t.dst_port),
            (Transport::Udp { src_port, dst_port }, Body::Udp { .. }) => (*src_port, *dst_port),
            _ => return false,
        };
        let explicit = match &spec.body {
            Body::Tcp(t) => t.ports,
            Body::Udp { ports, .. } => *ports,
            Body::Icmp(_) => None,
        };
        if let Some(ports) = explicit.or(self.script_ports) {
            return ports == (src, dst);
        }
        let is = |known: Option<SocketAddr>, ip, port| known.is_none_or(|a| (a.ip(), a.port()) == (ip, port));
        // Before its first packet an active socket's port is unknown: only its SYN may introduce it.
        let introduces = match &live.transport {
            Transport::Tcp(t) => t.flags & (SYN | ACK | RST) == SYN,
            _ => true,
        };
        is(self.remote, live.dst, dst) && is(self.local, live.src, src) && (self.local.is_some() || introduces)
    }

    /// Judges an outbound packet and learns from it.
    pub(crate) fn check(
        &mut self,
        spec: &PacketSpec,
        live: &Live,
        cfg: &VariantConfig,
        time: MatchTime,
    ) -> Result<(), String> {
        match (&spec.body, &live.transport) {
            (Body::Tcp(want), Transport::Tcp(got)) => {
                self.learn(want, got, live);
                self.check_tcp(want, got, cfg, time)?;
                differs("payload length", want.len, live.payload.len() as u32)?;
            }
            (Body::Udp { len, .. }, Transport::Udp { src_port, dst_port }) => {
                self.local.get_or_insert(SocketAddr::new(live.src, *src_port));
                self.remote.get_or_insert(SocketAddr::new(live.dst, *dst_port));
                differs("udp payload length", *len, live.payload.len() as u32)?;
            }
            (Body::Icmp(want), Transport::Icmp { kind, code }) => {
                let (k, c) = icmp::numbers(live.src.is_ipv6(), &want.kind, want.code.as_deref())?;
                differs("icmp_type", k, *kind)?;
                differs("icmp_code", c, *code)?;
                return self.check_ip(&spec.ip, live);
            }
            _ => return Err("live packet is of another protocol".into()),
        }
        if let Some(at) = live.payload.iter().position(|&b| b != 0) {
            return Err(format!("live packet payload: byte {at} is {} and not zero", live.payload[at]));
        }
        self.check_ip(&spec.ip, live)
    }

    fn learn(&mut self, want: &TcpSpec, got: &TcpFields, live: &Live) {
        self.local.get_or_insert(SocketAddr::new(live.src, got.src_port));
        self.remote.get_or_insert(SocketAddr::new(live.dst, got.dst_port));
        if want.flags.has(SYN) && got.flags & SYN != 0 && self.local_isn.is_none() {
            self.local_isn = Some(Isn { script: want.seq, live: got.seq });
        }
    }

    fn check_ip(&mut self, info: &IpInfo, live: &Live) -> Result<(), String> {
        if let Some(tos) = info.tos {
            differs("ip_tos", tos, live.tos)?;
        }
        if let Some(ttl) = info.ttl {
            differs("ip_ttl", ttl, live.ttl)?;
        }
        let ecn = live.tos & 3;
        match info.ecn {
            None => {}
            Some(EcnSpec::NotEct) => differs("ip_ecn", 0, ecn)?,
            Some(EcnSpec::Ect1) => differs("ip_ecn", 1, ecn)?,
            Some(EcnSpec::Ect0) => differs("ip_ecn", 2, ecn)?,
            Some(EcnSpec::Ce) => differs("ip_ecn", 3, ecn)?,
            Some(EcnSpec::EitherEct) if matches!(ecn, 1 | 2) => {}
            Some(EcnSpec::EitherEct) => differs("ip_ecn (either ECT)", 2, ecn)?,
        }
        if let Some(label) = info.flowlabel {
            if let Some(&known) = self.labels.get(&label) {
                return differs("ipv6_flow_label", known, live.flow_label);
            }
            if self.labels.values().any(|&l| l == live.flow_label) {
                return Err(format!("ipv6_flow_label 0x{:x} was to change and did not", live.flow_label));
            }
            self.labels.insert(label, live.flow_label);
        }
        Ok(())
    }

    fn check_tcp(&mut self, w: &TcpSpec, g: &TcpFields, cfg: &VariantConfig, time: MatchTime) -> Result<(), String> {
        let syn = g.flags & SYN != 0;
        let bit = |mask: u16| u16::from(g.flags & mask != 0);
        let named = [
            ("tcp_syn", SYN),
            ("tcp_rst", RST),
            ("tcp_ack", ACK),
            ("tcp_urg", URG),
            ("tcp_fin", FIN),
            ("tcp_psh", PSH),
        ];
        for (name, mask) in named {
            differs(name, u16::from(w.flags.has(mask)), bit(mask))?;
        }
        if w.flags.ace {
            differs("tcp_ace", (w.flags.bits >> 6) & 7, (g.flags >> 6) & 7)?;
        } else {
            for (name, mask) in [("tcp_ece", ECE), ("tcp_cwr", CWR), ("tcp_ae", AE)] {
                differs(name, u16::from(w.flags.has(mask)), bit(mask))?;
            }
        }
        differs("tcp_reserved_bits", 0, g.flags >> 9)?;
        let local = self.local_isn.unwrap_or_default().offset(syn);
        let remote = self.remote_isn.unwrap_or_default().offset(syn);
        differs("tcp_seq", w.seq, g.seq.wrapping_sub(local))?;
        if w.flags.has(ACK) {
            differs("tcp_ack_seq", w.ack.unwrap_or(0), g.ack.wrapping_sub(remote))?;
        }
        if let Some(win) = w.win {
            differs("tcp_window", win, g.win)?;
        }
        differs("tcp_urg_ptr", w.urg.unwrap_or(0), g.urg)?;
        let Some(wanted) = &w.options else { return Ok(()) };
        differs("tcp_doff", (20 + options_len(wanted)) as u32 / 4, (20 + options_len(&g.options)).div_ceil(4) as u32)?;
        for (i, pair) in wanted.iter().zip(&g.options).enumerate() {
            self.check_option(pair.0, pair.1, cfg, time).map_err(|e| format!("bad TCP option {}: {e}", i + 1))?;
        }
        differs("number of TCP options", wanted.len() as u32, g.options.len() as u32)
    }

    fn check_option(
        &mut self,
        want: &TcpOption,
        got: &TcpOption,
        cfg: &VariantConfig,
        time: MatchTime,
    ) -> Result<(), String> {
        match (want, got) {
            (&TcpOption::Timestamp { val: script, .. }, &TcpOption::Timestamp { val: live, .. }) => {
                self.ts.insert(script, live);
                let (script0, live0) = *self.ts_first.get_or_insert((script, live));
                let Some(tick) = cfg.ts_tick_us else { return Ok(()) };
                let us = |now: u32, then: u32| i64::from(now.wrapping_sub(then) as i32) * i64::from(tick);
                let (expected, actual) = (us(script, script0), us(live, live0));
                let tolerance =
                    time.tolerance_us.max((time.since_first_ts_us as f64 * cfg.tolerance_percent / 100.0) as i64);
                if (expected - actual).abs() > tolerance + i64::from(tick) {
                    return Err(format!("TS val: expected {expected} us after the first, got {actual} us"));
                }
                Ok(())
            }
            (TcpOption::Sack(want), TcpOption::Sack(got)) => {
                let off = self.remote_isn.unwrap_or_default().offset(false);
                let got: Vec<_> = got.iter().map(|(l, r)| (l.wrapping_sub(off), r.wrapping_sub(off))).collect();
                if *want == got { Ok(()) } else { Err(format!("expected: sack {want:?} vs actual: sack {got:?}")) }
            }
            _ if want == got => Ok(()),
            _ => Err(format!("expected: {want:?} vs actual: {got:?}")),
        }
    }

    /// A live packet in the script's notation and numbers.
    pub(crate) fn describe(&self, live: &Live) -> String {
        let Transport::Tcp(t) = &live.transport else {
            return match live.transport {
                Transport::Udp { .. } => format!("udp ({})", live.payload.len()),
                Transport::Icmp { kind, code } => format!("icmp type_{kind} code_{code}"),
                _ => format!("{:?} ({} bytes)", live.transport, live.payload.len()),
            };
        };
        let syn = t.flags & SYN != 0;
        let local = self.local_isn.unwrap_or_default().offset(syn);
        let remote = self.remote_isn.unwrap_or_default();
        let letters =
            [(FIN, 'F'), (SYN, 'S'), (RST, 'R'), (PSH, 'P'), (URG, 'U'), (ECE, 'E'), (CWR, 'W'), (AE, 'A'), (ACK, '.')];
        let mut flags: String = letters.iter().filter(|(m, _)| t.flags & m != 0).map(|(_, c)| *c).collect();
        if flags.is_empty() {
            flags.push('-');
        }
        let seq = t.seq.wrapping_sub(local);
        let len = live.payload.len();
        let mut out = format!("{flags} {seq}:{}({len})", seq.wrapping_add(len as u32));
        if t.flags & ACK != 0 {
            out += &format!(" ack {}", t.ack.wrapping_sub(remote.offset(syn)));
        }
        out += &format!(" win {}", t.win);
        if t.urg != 0 {
            out += &format!(" urg {}", t.urg);
        }
        if !t.options.is_empty() {
            let list: Vec<_> = t.options.iter().map(|o| describe_option(o, remote.offset(false))).collect();
            out += &format!(" <{}>", list.join(","));
        }
        out
    }
}

fn describe_option(o: &TcpOption, remote: u32) -> String {
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    match o {
        TcpOption::Eol => "eol".into(),
        TcpOption::Nop => "nop".into(),
        TcpOption::Mss(n) => format!("mss {n}"),
        TcpOption::Wscale(n) => format!("wscale {n}"),
        TcpOption::SackOk => "sackOK".into(),
        TcpOption::Sack(blocks) => {
            let one = |(l, r): &(u32, u32)| format!(" {}:{}", l.wrapping_sub(remote), r.wrapping_sub(remote));
            format!("sack{}", blocks.iter().map(one).collect::<String>())
        }
        TcpOption::Timestamp { val, ecr } => format!("TS val {val} ecr {ecr}"),
        TcpOption::FastOpen(c) => format!("FO {}", hex(c)),
        TcpOption::FastOpenExp(c) => format!("FOEXP {}", hex(c)),
        TcpOption::Md5(d) => format!("md5 {}", hex(d)),
        TcpOption::AccEcn { kind, counters } => format!("ECN({kind}) {counters:?}"),
        TcpOption::Unknown { kind, data } => format!("option {kind} {}", hex(data)),
    }
}

/// The first bytes of a packet that was sent: its IP header, claiming `l4_len` bytes, and eight bytes of transport.
fn quoted(ip: &IpFields, protocol: u8, l4: &[u8], l4_len: usize) -> Vec<u8> {
    let mut full = l4.to_vec();
    full.resize(l4_len.max(8), 0);
    let mut packet = build_ip(ip, protocol, &full);
    packet.truncate(if ip.src.is_ipv6() { 48 } else { 28 });
    packet
}

/// Merges `next` behind `first` if both could be parts of one super-packet. `unit` is the size of the parts so far.
pub(crate) fn merge(first: &mut Live, next: &Live, unit: usize) -> bool {
    let (Transport::Tcp(a), Transport::Tcp(b)) = (&mut first.transport, &next.transport) else { return false };
    let varying = FIN | PSH | CWR;
    let alike = (first.src, first.dst, first.tos, first.ttl) == (next.src, next.dst, next.tos, next.ttl)
        && (a.src_port, a.dst_port, a.ack, a.win, a.urg) == (b.src_port, b.dst_port, b.ack, b.win, b.urg)
        && a.flags & !varying == b.flags & !varying
        && options_len(&a.options) == options_len(&b.options);
    let contiguous = a.seq.wrapping_add(first.payload.len() as u32) == b.seq;
    let whole =
        first.payload.len().is_multiple_of(unit.max(1)) && next.payload.len() <= unit && !next.payload.is_empty();
    if !alike || !contiguous || !whole || a.flags & (FIN | SYN | RST) != 0 {
        return false;
    }
    a.flags = (b.flags & !CWR) | (a.flags & CWR);
    a.options.clone_from(&b.options);
    first.payload.extend(&next.payload);
    true
}

#[cfg(test)]
mod tests;
