//! Shell lines of scripts, read as what they ask of a host.
//!
//! A script's back-quoted commands would run on the host whose kernel is under test. Here no host is under test, so the
//! lines that scripts use are *understood*: profile scripts, sysctls in their four spellings, `ip`, `tc`, `sleep`.
//! Invariants: nothing is ever executed; a line that is not understood becomes [`ShellOp::Other`], which a backend must
//! refuse unless it knows it, so no set-up is skipped silently. Limits: quoting is C-like single and double quotes; lines
//! are joined by a trailing backslash and split at newlines, `;` and `&&`; no variables, pipes or loops.

use super::backend::ShellOp;

/// What a command does, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Host(ShellOp),
    /// `sleep SECONDS`: the runner moves the clock, in microseconds.
    Sleep(i64),
}

/// Reads a back-quoted block.
pub(crate) fn read(text: &str) -> Vec<Step> {
    let joined = text.replace("\\\n", " ");
    joined.split('\n').flat_map(|line| line.split(';').flat_map(|l| l.split("&&"))).flat_map(line_steps).collect()
}

fn words(line: &str) -> Vec<String> {
    let (mut out, mut word, mut quote, mut open) = (Vec::new(), String::new(), None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quote, open) = (Some(c), true),
            (None, '#') if !open => break,
            (None, c) if c.is_whitespace() => {
                if open {
                    out.push(std::mem::take(&mut word));
                }
                open = false;
            }
            (None, c) => {
                word.push(c);
                open = true;
            }
        }
    }
    if open {
        out.push(word);
    }
    out
}

fn sysctl(name: &str, value: &str) -> Step {
    let name = name.trim_start_matches("/proc/sys/").replace('/', ".");
    Step::Host(ShellOp::Sysctl { name, value: value.trim().to_owned() })
}

fn line_steps(line: &str) -> Vec<Step> {
    let words = words(line);
    let Some((command, args)) = words.split_first() else { return Vec::new() };
    let base = command.rsplit('/').next().unwrap_or(command);
    let pairs = || args.iter().filter_map(|a| a.split_once('=')).map(|(n, v)| sysctl(n, v)).collect::<Vec<_>>();
    match base {
        "defaults.sh" => vec![Step::Host(ShellOp::Defaults)],
        "set_sysctls.py" => pairs(),
        // "-e" and "-n name" print; only assignments change something.
        "sysctl" => pairs(),
        "true" | ":" | "sync" | "ethtool" => Vec::new(),
        _ if base.starts_with("sysctl_restore") => vec![Step::Host(ShellOp::RestoreSysctls)],
        "echo" => match args {
            [value @ .., arrow, path] if arrow == ">" && path.starts_with("/proc/sys/") => {
                vec![sysctl(path, &value.join(" "))]
            }
            _ => Vec::new(),
        },
        "sleep" => match args.first().and_then(|a| a.parse::<f64>().ok()) {
            Some(s) => vec![Step::Sleep((s * 1e6) as i64)],
            None => vec![Step::Host(ShellOp::Other(words))],
        },
        "ip" => vec![Step::Host(ShellOp::Ip(args.to_vec()))],
        "tc" => vec![Step::Host(ShellOp::Tc(args.to_vec()))],
        _ => vec![Step::Host(ShellOp::Other(words))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Step {
        Step::Host(ShellOp::Sysctl { name: name.into(), value: value.into() })
    }

    #[test]
    fn spellings_of_sysctls() {
        let all = read(
            "../common/defaults.sh # profile\n../common/set_sysctls.py /proc/sys/net/ipv4/tcp_sack=0 \\\n \
             /proc/sys/net/ipv4/tcp_ecn=1\nsysctl -q net.ipv4.tcp_frto=0; sysctl -w 'net.ipv4.tcp_rmem=4096 8192 16384'\n\
             echo 3 > /proc/sys/net/ipv4/tcp_reordering && /tmp/sysctl_restore_${PACKETDRILL_PID}.sh",
        );
        assert_eq!(
            all,
            vec![
                Step::Host(ShellOp::Defaults),
                set("net.ipv4.tcp_sack", "0"),
                set("net.ipv4.tcp_ecn", "1"),
                set("net.ipv4.tcp_frto", "0"),
                set("net.ipv4.tcp_rmem", "4096 8192 16384"),
                set("net.ipv4.tcp_reordering", "3"),
                Step::Host(ShellOp::RestoreSysctls),
            ]
        );
    }

    #[test]
    fn other_commands() {
        assert_eq!(read("sleep 0.5"), vec![Step::Sleep(500_000)]);
        let w = |s: &str| s.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(read("ip route add a via b"), vec![Step::Host(ShellOp::Ip(w("route add a via b")))]);
        assert_eq!(read("tc qdisc add"), vec![Step::Host(ShellOp::Tc(w("qdisc add")))]);
        assert_eq!(read("nstat -n"), vec![Step::Host(ShellOp::Other(w("nstat -n")))]);
        assert_eq!(read("  # nothing\n\n"), vec![]);
    }
}
