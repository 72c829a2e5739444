//! Network namespaces of the kernel, each with one TUN, used by threads of this process.
//!
//! The process is root of a user namespace ([`linerate_host::netns::in_fresh_namespace`]), so that it may make network
//! namespaces without touching the host. A [`Space`] is one of them. A thread enters it and stays: what it opens (sockets,
//! devices, `/proc/sys/net`, `/proc/net`) is the namespace's; a socket may then be used by any thread.
//!
//! Sysctls are written and read back, since a kernel may round or forbid, and a comparison whose two sides were configured
//! differently is worth nothing. Not here: more than one device or address per namespace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::thread;

use linerate_host::netns;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace. It lives as long as this and what was opened inside.
#[derive(Debug)]
pub(crate) struct Space {
    net: File,
}

impl Space {
    /// A new one, with its loopback up, and without IPv6: nobody greets routers and groups on the wire.
    pub(crate) fn fresh() -> io::Result<Self> {
        on_a_thread(|| {
            netns::enter_fresh_network()?;
            netns::set_loopback_up()?;
            for which in ["all", "default"] {
                // A kernel without IPv6 has no such file, and nothing to switch off.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
            }
            Ok(Self { net: File::open("/proc/thread-self/ns/net")? })
        })
    }

    /// Moves the calling thread here, for good.
    pub(crate) fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// Runs `f` inside, on a thread of its own.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            self.enter()?;
            f()
        })
    }

    /// Sets sysctls by their dotted names and checks that they hold.
    pub(crate) fn set_sysctls(&self, settings: &[(&str, String)]) -> io::Result<()> {
        self.run(|| settings.iter().try_for_each(|(name, value)| set_sysctl(name, value)))
    }

    /// The kernel's counters of the protocols (`/proc/net/snmp`, `/proc/net/netstat`), as `nstat` names them.
    pub(crate) fn counters(&self) -> io::Result<BTreeMap<String, u64>> {
        self.run(|| {
            let mut all = counters_of(&fs::read_to_string("/proc/thread-self/net/snmp")?);
            all.extend(counters_of(&fs::read_to_string("/proc/thread-self/net/netstat")?));
            Ok(all)
        })
    }

    /// Packets and drops of a device, as the kernel counts them (`/proc/net/dev`): received, rx drops, sent, tx drops.
    pub(crate) fn device(&self, name: &str) -> io::Result<[u64; 4]> {
        let text = self.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        device_of(&text, name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no device {name}")))
    }
}

fn on_a_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|s| s.spawn(f).join()).unwrap_or_else(|_| Err(io::Error::other("a thread of a namespace panicked")))
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{name}={value}: {e}"));
    fs::write(&path, value).map_err(named)?;
    let now = fs::read_to_string(&path).map_err(named)?;
    if words(&now) == words(value) {
        return Ok(());
    }
    Err(io::Error::other(format!("{name}: set to '{value}', but it is '{}'", now.trim())))
}

/// Pairs of lines: `Tcp: Name Name ..` and `Tcp: 1 2 ..`.
fn counters_of(text: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let Some((group, names)) = names.split_once(':') else { continue };
        let values = values.split_once(':').map_or("", |(_, v)| v);
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            // A few are signed (-1 for "no limit"): no counts.
            if let Ok(value) = value.parse() {
                all.insert(format!("{group}{name}"), value);
            }
        }
    }
    all
}

/// The line of a device in `/proc/net/dev`, as [`Space::device`] gives it.
pub(crate) fn device_of(text: &str, name: &str) -> Option<[u64; 4]> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    let n: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some([*n.get(1)?, *n.get(3)?, *n.get(9)?, *n.get(11)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_of_nstat() {
        let text = "Tcp: RtoMin MaxConn InSegs\nTcp: 200 -1 17\nTcpExt: SyncookiesSent\nTcpExt: 3\n";
        let all = counters_of(text);
        assert_eq!((all.get("TcpInSegs"), all.get("TcpExtSyncookiesSent")), (Some(&17), Some(&3)));
        assert_eq!(all.get("TcpMaxConn"), None);
    }

    #[test]
    fn a_device_line_is_found_by_its_whole_name() {
        let text =
            "Inter-|\n face |\n  lin10: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n  lin1: 100 2 0 3 0 0 0 0 400 5 0 6 0 0 0 0\n";
        assert_eq!(device_of(text, "lin1"), Some([2, 3, 5, 6]));
        assert_eq!(device_of(text, "lin2"), None);
    }
}
