//! The host of a script, as far as this stack is one: sysctls, routes, queueing disciplines.
//!
//! A sysctl that this stack has is set; one that only tunes what it does not do is accepted when the value asks for the
//! behaviour that it has anyway; all others are errors that name the sysctl, so that no script passes on a set-up that never
//! happened. `ip route` understands destination, gateway, source and the metrics that a [`Route`] has; `tc` knows the
//! fifo that every device has. `Defaults` and `RestoreSysctls` go back to the profile of CONFORMANCE section 1.

use std::net::IpAddr;

use linerate_posix::Limits;
use linerate_stack::Route;
use linerate_tcp::TcpConfig;
use linerate_wire::Cidr;

use super::backend::ShellOp;
use super::posix_backend::PosixBackend;

/// Sysctls whose value changes nothing here, with the values that are true of this stack (empty: any).
const WITHOUT_EFFECT: &[(&str, &[&str])] = &[
    ("net.ipv4.tcp_fack", &[]),
    ("net.ipv4.tcp_no_metrics_save", &[]),
    ("net.ipv4.tcp_pacing_ss_ratio", &[]),
    ("net.ipv4.tcp_pacing_ca_ratio", &[]),
    ("net.ipv4.tcp_min_tso_segs", &[]),
    ("net.ipv4.tcp_fastopen", &[]),
    ("net.ipv4.tcp_fastopen_key", &[]),
    ("net.ipv4.tcp_ecn_option", &[]),
    ("net.ipv4.tcp_early_demux", &[]),
    ("net.ipv4.tcp_reflect_tos", &["0"]),
    ("net.ipv4.tcp_tso_rtt_log", &[]),
    ("net.ipv4.tcp_l3mdev_accept", &["0"]),
    ("net.core.default_qdisc", &[]),
    ("net.core.optmem_max", &[]),
];

/// Does what a shell line asks.
pub(super) fn shell(b: &mut PosixBackend, op: &ShellOp) -> Result<(), String> {
    match op {
        ShellOp::Defaults | ShellOp::RestoreSysctls => {
            b.posix.shard_mut().set_tcp_config(TcpConfig::default());
            *b.posix.limits_mut() = Limits::default();
            Ok(())
        }
        ShellOp::Sysctl { name, value } => sysctl(b, name, value),
        ShellOp::Ip(args) => ip(b, &args.iter().map(String::as_str).collect::<Vec<_>>()),
        ShellOp::Tc(args) => match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["qdisc", "add" | "replace" | "change", "dev", "tun0", "root", "pfifo" | "fifo" | "pfifo_fast", ..]
            | ["qdisc", "del", ..] => Ok(()),
            _ => Err(format!("tc {}: not a queueing discipline of this stack", args.join(" "))),
        },
        ShellOp::Other(words) => Err(format!("unknown command: {}", words.join(" "))),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|_| format!("{name}: '{value}' is no number in range"))
}

fn triple(name: &str, value: &str) -> Result<[u32; 3], String> {
    let parts = value.split_whitespace().map(|v| number(name, v)).collect::<Result<Vec<u32>, _>>()?;
    parts.try_into().map_err(|_| format!("{name}: expected three numbers"))
}

fn sysctl(b: &mut PosixBackend, name: &str, value: &str) -> Result<(), String> {
    let shard = b.posix.shard_mut();
    let mut cfg = shard.config().tcp.clone();
    if set_tcp(&mut cfg, name, value)? {
        shard.set_tcp_config(cfg);
        return Ok(());
    }
    match name {
        "net.core.rmem_max" => b.posix.limits_mut().rmem_max_bytes = number(name, value)?,
        "net.core.wmem_max" => b.posix.limits_mut().wmem_max_bytes = number(name, value)?,
        "net.core.somaxconn" => b.posix.limits_mut().somaxconn = number(name, value)?,
        _ => match WITHOUT_EFFECT.iter().find(|(n, _)| *n == name) {
            Some((_, fits)) if fits.is_empty() || fits.contains(&value.trim()) => {}
            Some(_) => return Err(format!("sysctl {name}={value}: this stack does not do that")),
            None => return Err(format!("sysctl {name}: not one of this stack")),
        },
    }
    Ok(())
}

/// TCP's sysctls; false for a name that is none of them.
fn set_tcp(c: &mut TcpConfig, name: &str, value: &str) -> Result<bool, String> {
    let Some(short) = name.strip_prefix("net.ipv4.") else { return Ok(false) };
    let flag = || number::<u32>(name, value).map(|v| v != 0);
    match short {
        "tcp_rmem" => c.rmem_bytes = triple(name, value)?,
        "tcp_wmem" => c.wmem_bytes = triple(name, value)?,
        "tcp_timestamps" => c.timestamps = flag()?,
        "tcp_sack" => c.sack = flag()?,
        "tcp_dsack" => c.dsack = flag()?,
        "tcp_window_scaling" => c.window_scaling = flag()?,
        "tcp_ecn" => match number(name, value)? {
            v @ 0..=2 => c.ecn = v,
            _ => return Err(format!("sysctl {name}={value}: Accurate ECN is not built")),
        },
        "tcp_moderate_rcvbuf" => c.moderate_rcvbuf = flag()?,
        "tcp_autocorking" if !flag()? => {}
        "tcp_autocorking" => return Err(format!("sysctl {name}={value}: automatic corking is not built")),
        "tcp_slow_start_after_idle" => c.slow_start_after_idle = flag()?,
        "tcp_abort_on_overflow" => c.abort_on_overflow = flag()?,
        "tcp_tw_reuse" => c.tw_reuse = flag()?,
        "tcp_rfc1337" => c.rfc1337 = flag()?,
        // Bit 0 is RACK, bit 1 (static window) and bit 2 (no duplicate threshold) are not built.
        "tcp_recovery" => c.rack = number::<u32>(name, value)? & 1 != 0,
        "tcp_early_retrans" => c.tlp = matches!(number(name, value)?, 3u32 | 4),
        "tcp_frto" => c.frto = number(name, value)?,
        "tcp_congestion_control" => {
            let known = ["cubic", "reno"].into_iter().find(|a| *a == value.trim());
            c.congestion_control = known.ok_or(format!("sysctl {name}: no algorithm '{value}'"))?;
        }
        _ => return set_tcp_number(c, short, name, value),
    }
    Ok(true)
}

fn set_tcp_number(c: &mut TcpConfig, short: &str, name: &str, value: &str) -> Result<bool, String> {
    match short {
        "tcp_syn_retries" => c.syn_retries = number(name, value)?,
        "tcp_synack_retries" => c.synack_retries = number(name, value)?,
        "tcp_retries1" => c.retries1 = number(name, value)?,
        "tcp_retries2" => c.retries2 = number(name, value)?,
        "tcp_orphan_retries" => c.orphan_retries = number(name, value)?,
        "tcp_reordering" => c.reordering_segs = number(name, value)?,
        "tcp_max_reordering" => c.max_reordering_segs = number(name, value)?,
        "tcp_tso_win_divisor" => c.tso_win_divisor = number(name, value)?,
        "tcp_notsent_lowat" => c.notsent_lowat_bytes = number(name, value)?,
        "tcp_rto_min_us" => c.rto_min_us = number(name, value)?,
        "tcp_rto_max_ms" => c.rto_max_us = number::<u32>(name, value)?.saturating_mul(1_000),
        "tcp_keepalive_time" => c.keepalive_time_s = number(name, value)?,
        "tcp_keepalive_intvl" => c.keepalive_intvl_s = number(name, value)?,
        "tcp_keepalive_probes" => c.keepalive_probes = number(name, value)?,
        "tcp_fin_timeout" => c.fin_timeout_s = number(name, value)?,
        "tcp_challenge_ack_limit" => c.challenge_ack_limit = number::<i64>(name, value)?.clamp(0, 1 << 32) as u32,
        "tcp_invalid_ratelimit" => c.invalid_ratelimit_ms = number(name, value)?,
        "tcp_limit_output_bytes" => c.limit_output_bytes = number(name, value)?,
        "tcp_comp_sack_delay_ns" => c.comp_sack_delay_ns = number(name, value)?,
        "tcp_comp_sack_nr" => c.comp_sack_nr = number(name, value)?,
        "tcp_syncookies" => c.syncookies = number(name, value)?,
        "tcp_max_syn_backlog" => c.max_syn_backlog = number(name, value)?,
        "tcp_max_tw_buckets" => c.max_tw_buckets = number(name, value)?,
        "tcp_mtu_probing" => c.mtu_probing = number(name, value)?,
        "tcp_base_mss" => c.base_mss_bytes = number(name, value)?,
        "tcp_mtu_probe_floor" => c.mtu_probe_floor_bytes = number(name, value)?,
        "tcp_probe_threshold" => c.mtu_probe_threshold_bytes = number(name, value)?,
        "tcp_probe_interval" => c.mtu_probe_interval_s = number(name, value)?,
        "tcp_min_snd_mss" => c.min_snd_mss_bytes = number(name, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn ip(b: &mut PosixBackend, args: &[&str]) -> Result<(), String> {
    let args = match args {
        ["-4" | "-6", rest @ ..] => rest,
        all => all,
    };
    let named = || format!("ip {}", args.join(" "));
    match args {
        ["tcp_metrics" | "tcp_metric", "flush", ..] | ["route" | "r", "flush", "cache"] => Ok(()),
        ["route" | "r" | "ro", "add" | "change" | "replace" | "append", rest @ ..] => {
            let route = route(b, rest).map_err(|e| format!("{}: {e}", named()))?;
            let _ = b.posix.shard_mut().del_route(route.dst, route.ifindex);
            b.posix.shard_mut().add_route(route).map_err(|e| format!("{}: {e}", named()))
        }
        ["route" | "r" | "ro", "del" | "delete", rest @ ..] => {
            let route = route(b, rest).map_err(|e| format!("{}: {e}", named()))?;
            let gone = b.posix.shard_mut().del_route(route.dst, route.ifindex);
            gone.map(|_| ()).map_err(|e| format!("{}: {e}", named()))
        }
        _ => Err(format!("{}: not understood by this stack", named())),
    }
}

/// Milliseconds or seconds as `ip` writes them, in microseconds.
fn time_us(text: &str) -> Result<u32, String> {
    let (digits, scale) = match text {
        t if t.ends_with("ms") => (t.trim_end_matches("ms"), 1_000.0),
        t if t.ends_with("us") => (t.trim_end_matches("us"), 1.0),
        t if t.ends_with('s') => (t.trim_end_matches('s'), 1_000_000.0),
        t => (t, 1_000.0),
    };
    digits.parse::<f64>().map(|n| (n * scale) as u32).map_err(|_| format!("'{text}' is no time"))
}

fn route(b: &PosixBackend, args: &[&str]) -> Result<Route, String> {
    let (dst, mut rest) = args.split_first().ok_or("no destination")?;
    let v4 = b.gateway.is_ipv4();
    let dst = match *dst {
        "default" => if v4 { "0.0.0.0/0" } else { "::/0" }.parse::<Cidr>(),
        text => text.parse::<Cidr>(),
    };
    let mut route = Route::new(dst.map_err(|e| e.to_string())?, b.ifindex);
    while let Some((&key, tail)) = rest.split_first() {
        let (&value, tail) = tail.split_first().ok_or_else(|| format!("{key} without a value"))?;
        let (value, after) = match (value, tail.split_first()) {
            ("lock", Some((v, after))) => {
                route.mtu_lock |= key == "mtu";
                (*v, after)
            }
            _ => (value, tail),
        };
        rest = after;
        let address = || value.parse::<IpAddr>().map_err(|_| format!("'{value}' is no address"));
        match key {
            "dev" if value == "tun0" => {}
            "via" => route.via = Some(address()?),
            "src" => route.src = Some(address()?),
            "mtu" => route.mtu_bytes = number(key, value)?,
            "advmss" => route.advmss_bytes = number(key, value)?,
            "initcwnd" => route.init_cwnd_segs = number(key, value)?,
            "initrwnd" => route.init_rwnd_segs = number(key, value)?,
            "rto_min" => route.rto_min_us = time_us(value)?,
            "metric" => route.metric = number(key, value)?,
            "proto" | "scope" => {}
            _ => return Err(format!("'{key} {value}' is nothing that a route of this stack has")),
        }
    }
    Ok(route)
}
