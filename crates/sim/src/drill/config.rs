//! What a run is configured with: the variant, and the options of script and command line.
//!
//! Every script runs in three variants (CONFORMANCE section 1): IPv4; IPv4 on the wire under AF_INET6 sockets; IPv6 with
//! an MTU of 1520, so that the MSS is 1460 as in IPv4. Precedence: built-in defaults, the variant, the script's option
//! lines, the command line. Invariants: local and remote address are of one family. Limits: options about tun devices,
//! wire mode and shared objects are accepted and have no meaning here, since there is no device; an unknown option is an
//! error with its place. It does not run anything.

use std::collections::HashMap;
use std::net::IpAddr;

/// One variant of one script's run, as the backend needs it.
#[derive(Clone, Debug)]
pub struct VariantConfig {
    /// `ipv4`, `ipv4-mapped-ipv6` or `ipv6`.
    pub name: &'static str,
    /// Sockets are AF_INET6 (`...` as the domain of `socket`).
    pub sockets_are_v6: bool,
    /// The stack's own address.
    pub local_ip: IpAddr,
    /// The scripted peer's address.
    pub remote_ip: IpAddr,
    /// The stack's next hop.
    pub gateway_ip: IpAddr,
    /// Length of the on-link prefix of `local_ip`.
    pub prefix_len: u8,
    /// Device MTU in bytes.
    pub mtu: u32,
    /// `gso_size` of inbound super-packets (`--mss`).
    pub mss: Option<u16>,
    /// Local port where the script says `...`.
    pub bind_port: u16,
    /// Remote port where the script says `...` in connect.
    pub connect_port: u16,
    /// Least tolerance of times, microseconds.
    pub tolerance_us: i64,
    /// Tolerance as a percentage of the time since the event before.
    pub tolerance_percent: f64,
    /// Do not merge outbound segments.
    pub strict_segments: bool,
    /// Inbound echo timestamps are offsets from the first pair.
    pub ts_ecr_scaled: bool,
    /// Check outbound timestamps: microseconds a tick.
    pub ts_tick_us: Option<u32>,
    /// Differences of packets are warnings.
    pub non_fatal_packet: bool,
    /// Differences of system calls are warnings.
    pub non_fatal_syscall: bool,
    /// Parse only.
    pub dry_run: bool,
    /// Words that are replaced.
    pub defines: HashMap<String, String>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
}

fn base(name: &'static str, sockets_are_v6: bool) -> VariantConfig {
    VariantConfig {
        name,
        sockets_are_v6,
        local_ip: ip("192.168.0.1"),
        remote_ip: ip("192.0.2.1"),
        gateway_ip: ip("192.168.0.1"),
        prefix_len: 16,
        mtu: 1500,
        mss: None,
        bind_port: 8080,
        connect_port: 8080,
        tolerance_us: 4_000,
        tolerance_percent: 12.5,
        strict_segments: false,
        ts_ecr_scaled: false,
        ts_tick_us: None,
        non_fatal_packet: false,
        non_fatal_syscall: false,
        dry_run: false,
        defines: HashMap::new(),
    }
}

fn define(c: &mut VariantConfig, pairs: &[(&str, &str)]) {
    c.defines.extend(pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
}

/// The three variants with their addresses and defines.
pub fn variants() -> [VariantConfig; 3] {
    let v4_cookies = [("TFO_COOKIE", "3021b9d889017eeb"), ("TFO_COOKIE_ZERO", "b7c12350a90dc8f5")];
    let v6_cookies = [("TFO_COOKIE", "c1d1e9742a47a9bc"), ("TFO_COOKIE_ZERO", "82af1a8f9a205c34")];
    let v4_cmsgs = [("CMSG_LEVEL_IP", "SOL_IP"), ("CMSG_TYPE_RECVERR", "IP_RECVERR")];
    let v6_cmsgs = [("CMSG_LEVEL_IP", "SOL_IPV6"), ("CMSG_TYPE_RECVERR", "IPV6_RECVERR")];
    let mut v4 = base("ipv4", false);
    define(&mut v4, &v4_cookies);
    define(&mut v4, &v4_cmsgs);
    let mut mapped = base("ipv4-mapped-ipv6", true);
    define(&mut mapped, &v4_cookies);
    define(&mut mapped, &v6_cmsgs);
    let mut v6 = VariantConfig {
        local_ip: ip("fd3d:0a0b:17d6::1"),
        remote_ip: ip("fd3d:fa7b:d17d::1"),
        gateway_ip: ip("fd3d:0a0b:17d6:8888::1"),
        prefix_len: 64,
        mtu: 1520,
        ..base("ipv6", true)
    };
    define(&mut v6, &v6_cookies);
    define(&mut v6, &v6_cmsgs);
    [v4, mapped, v6]
}

/// Options that concern a device, a kernel or another process: accepted, without meaning here.
const WITHOUT_MEANING: &[&str] = &[
    "speed",
    "init_scripts",
    "wire_client",
    "wire_server",
    "wire_client_dev",
    "wire_server_dev",
    "wire_server_ip",
    "wire_server_port",
    "so_filename",
    "so_flags",
    "is_anyip",
    "send_omit_free",
    "psp_udp_port",
    "code_command",
    "code_format",
    "code_sockopt",
    "debug",
    "verbose",
    "tun_dev",
    "persistent_tun_dev",
];

impl VariantConfig {
    /// Whether this variant is the one `--ip_version=value` asks for.
    pub fn is_version(&self, value: &str) -> bool {
        let alias = if value == "ipv4_mapped_ipv6" { "ipv4-mapped-ipv6" } else { value };
        self.name == alias
    }

    /// Applies `--name=value`.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        fn number<T: std::str::FromStr>(name: &str, value: Option<&str>) -> Result<T, String> {
            value.and_then(|v| v.parse().ok()).ok_or_else(|| format!("--{name} wants a value of its kind"))
        }
        match name {
            "ip_version" => {}
            "bind_port" => self.bind_port = number(name, value)?,
            "connect_port" => self.connect_port = number(name, value)?,
            "local_ip" => self.local_ip = number(name, value)?,
            "remote_ip" => self.remote_ip = number(name, value)?,
            "gateway_ip" => self.gateway_ip = number(name, value)?,
            "netmask_ip" => {
                let mask: std::net::Ipv4Addr = number(name, value)?;
                self.prefix_len = u32::from(mask).leading_ones() as u8;
            }
            "mtu" => self.mtu = number(name, value)?,
            "mss" => self.mss = Some(number(name, value)?),
            "tolerance_usecs" => self.tolerance_us = number(name, value)?,
            "tolerance_percent" => self.tolerance_percent = number(name, value)?,
            "tcp_ts_tick_usecs" => self.ts_tick_us = Some(number(name, value)?),
            "tcp_ts_ecr_scaled" => self.ts_ecr_scaled = true,
            "strict_segments" => self.strict_segments = true,
            "dry_run" => self.dry_run = true,
            "non_fatal" => {
                for kind in value.unwrap_or("").split(',') {
                    match kind {
                        "packet" | "packets" => self.non_fatal_packet = true,
                        "syscall" | "syscalls" => self.non_fatal_syscall = true,
                        _ => return Err(format!("--non_fatal knows packet and syscall, not '{kind}'")),
                    }
                }
            }
            "define" => {
                let (n, v) = value.and_then(|v| v.split_once('=')).ok_or("--define wants NAME=VALUE")?;
                self.defines.insert(n.to_owned(), v.to_owned());
            }
            _ if WITHOUT_MEANING.contains(&name) => {}
            _ => return Err(format!("unknown option --{name}")),
        }
        Ok(())
    }

    /// Checks what single options cannot.
    pub fn check(&self) -> Result<(), String> {
        if self.local_ip.is_ipv4() != self.remote_ip.is_ipv4() {
            return Err(format!("local_ip {} and remote_ip {} are of two families", self.local_ip, self.remote_ip));
        }
        Ok(())
    }
}
