//! What `/proc` and `/sys` say: the processor, its clock, memory, limits, and the kernel's settings.
//!
//! All paths are below a root that tests replace. A file that is missing or says something unknown gives an `info` that
//! says so: kernels and containers differ, and a doctor that guesses is none. What Linerate does not use (locked memory, huge
//! pages of hugetlbfs, KVM) is shown without a judgement.

use std::path::Path;

use linerate_arch::Cpu;
use linerate_host::{Clock, allowed_cpus, detect_cpu};
use rustix::process::{Resource, getrlimit};

use super::{Check, Part};

/// The files of a host.
struct Host<'a>(&'a Path);

impl Host<'_> {
    /// The text of a file below the root, trimmed.
    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(path)).ok().map(|text| text.trim().to_owned())
    }
    /// What stands behind `key:` in a file of such lines.
    fn field(&self, path: &str, key: &str) -> Option<String> {
        let text = self.read(path)?;
        let mut values = text.lines().filter_map(|line| line.split_once(':')).filter(|(k, _)| k.trim() == key);
        values.next().map(|(_, value)| value.trim().to_owned())
    }
    /// The word in brackets: `always [madvise] never`.
    fn chosen(&self, path: &str) -> Option<String> {
        let text = self.read(path)?;
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']').map(|(word, _)| word.to_owned())
    }
}

pub(super) fn checks(root: &Path) -> Vec<Check> {
    let host = Host(root);
    vec![
        kernel(&host),
        cubic(&host),
        kvm(&host),
        perf(&host),
        instructions(detect_cpu()),
        cores(&host),
        quota(&host),
        clocksource(&host, Clock::fast().is_counter()),
        virtualised(&host),
        governor(&host),
        huge_pages(&host),
        hugetlb(&host),
        memlock(),
    ]
}

/// Has this process the capability of this number?
pub(super) fn capability(number: u32) -> bool {
    has_capability(&Host(Path::new("/")), number)
}

fn has_capability(host: &Host<'_>, number: u32) -> bool {
    let set = host.field("proc/self/status", "CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    set.is_some_and(|set| set >> number & 1 == 1)
}

fn kernel(host: &Host<'_>) -> Check {
    let release = host.read("proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    Check::info(Part::Works, "kernel", release)
}

fn cubic(host: &Host<'_>) -> Check {
    let name = "the kernel's CUBIC";
    match host.read("proc/sys/net/ipv4/tcp_allowed_congestion_control") {
        None => Check::info(Part::Works, name, "not to be seen here"),
        Some(allowed) => {
            let advice = "comparisons with the kernel then run in a user namespace; or `modprobe tcp_cubic` and add it to \
                          net.ipv4.tcp_allowed_congestion_control";
            let is_there = allowed.split_whitespace().any(|word| word == "cubic");
            let found =
                format!("{} (allowed: {allowed})", if is_there { "allowed" } else { "not allowed to this user" });
            Check::of(is_there, Part::Works, name, found, advice)
        }
    }
}

fn kvm(host: &Host<'_>) -> Check {
    let found = match std::fs::OpenOptions::new().read(true).write(true).open(host.0.join("dev/kvm")) {
        Ok(_) => "/dev/kvm opens".to_owned(),
        Err(e) => format!("/dev/kvm: {e}"),
    };
    Check::info(Part::Works, "KVM", format!("{found}; only for virtual machines as peers"))
}

fn perf(host: &Host<'_>) -> Check {
    let level = host.read("proc/sys/kernel/perf_event_paranoid").and_then(|text| text.parse::<i32>().ok());
    let Some(level) = level else { return Check::info(Part::Works, "perf", "no perf_event_paranoid here") };
    let advice = "to profile: sysctl kernel.perf_event_paranoid=1, or run perf as root";
    Check::of(level <= 2, Part::Works, "perf", format!("perf_event_paranoid is {level}"), advice)
}

fn instructions(cpu: Cpu) -> Check {
    let all = [("avx2", cpu.avx2), ("avx512", cpu.avx512), ("erms", cpu.erms), ("fsrm", cpu.fsrm)];
    let names: Vec<_> = all.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    let found = if names.is_empty() { "none of avx2 avx512 erms fsrm".to_owned() } else { names.join(" ") };
    let advice = "copies and checksums use the portable code; a virtual machine may hide what the processor has (CPU model `host`)";
    Check::of(cpu.avx2 || cpu.avx512, Part::Speed, "instructions", found, advice)
}

fn cores(host: &Host<'_>) -> Check {
    let usable = allowed_cpus().map_or(1, |cpus| cpus.len());
    let smt = match host.read("sys/devices/system/cpu/smt/active").as_deref() {
        Some("1") => ", two threads a core (SMT)",
        Some("0") => ", one thread a core",
        _ => "",
    };
    let advice = "stack and application share one: pin nothing, and wait adaptively or by blocking, not by spinning";
    Check::of(usable > 1, Part::Speed, "CPUs", format!("{usable} usable{smt}"), advice)
}

/// CPU time that a control group grants, in CPUs; the least of all groups above.
fn quota_cpus(host: &Host<'_>) -> Option<f64> {
    let groups = host.read("proc/self/cgroup")?;
    let v2 = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let mut path = v2.unwrap_or("/").trim_matches('/').to_owned();
    let mut least: Option<f64> = None;
    loop {
        let max = host.read(&format!("sys/fs/cgroup/{path}/cpu.max"));
        let pair = max.as_deref().and_then(|text| text.split_once(' '));
        let cpus = pair.and_then(|(quota, period)| Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?));
        least = match (least, cpus) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if path.is_empty() {
            break;
        }
        path = path.rsplit_once('/').map_or_else(String::new, |(above, _)| above.to_owned());
    }
    // The first version of control groups.
    let number = |file: &str| host.read(&format!("sys/fs/cgroup/cpu/{file}"))?.parse::<f64>().ok();
    least.or_else(|| {
        let quota = number("cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
        Some(quota / number("cpu.cfs_period_us").filter(|period| *period > 0.0)?)
    })
}

fn quota(host: &Host<'_>) -> Check {
    match quota_cpus(host) {
        None => Check::ok(Part::Speed, "CPU quota", "none"),
        Some(cpus) => {
            let advice = "a thread that spins spends it, and then everything stands still for the rest of the period: block instead";
            Check::warn(Part::Speed, "CPU quota", format!("{cpus:.2} CPUs"), advice)
        }
    }
}

fn clocksource(host: &Host<'_>, is_counter: bool) -> Check {
    let source = host.read("sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_else(|| "unknown".into());
    let found =
        format!("{source}; a stack reads {}", if is_counter { "the counter itself" } else { "the kernel's clock" });
    Check::of(
        is_counter,
        Part::Speed,
        "clock source",
        found,
        "each turn asks the kernel; with clocksource=tsc it need not",
    )
}

fn virtualised(host: &Host<'_>) -> Check {
    let flags = host.field("proc/cpuinfo", "flags").unwrap_or_default();
    if !flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return Check::ok(Part::Speed, "virtual machine", "no");
    }
    let vendor = host.read("sys/devices/virtual/dmi/id/sys_vendor").filter(|v| !v.is_empty());
    let found = vendor.map_or_else(|| "yes".into(), |vendor| format!("yes ({vendor})"));
    Check::info(Part::Speed, "virtual machine", found)
        .advise("wake-ups and interrupts cost more, and neighbours take CPU time: figures vary more than on bare metal")
}

fn governor(host: &Host<'_>) -> Check {
    let name = "frequency governor";
    match host.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        None => Check::info(Part::Speed, name, "not to be seen here"),
        Some(now) => Check::of(
            now == "performance",
            Part::Speed,
            name,
            now.as_str(),
            "for steady figures: cpupower frequency-set -g performance",
        ),
    }
}

fn huge_pages(host: &Host<'_>) -> Check {
    let name = "huge pages (THP)";
    match host.chosen("sys/kernel/mm/transparent_hugepage/enabled").as_deref() {
        None => Check::info(Part::Speed, name, "not to be seen here"),
        Some("always") => Check::ok(Part::Speed, name, "always"),
        Some(mode) => Check::info(Part::Speed, name, mode)
            .advise("page pools are plain memory, which gets huge pages only in the mode `always`"),
    }
}

fn hugetlb(host: &Host<'_>) -> Check {
    let number = |key: &str| host.field("proc/meminfo", key).unwrap_or_else(|| "0".into());
    let found = format!(
        "{} of {} free, {} each; this version does not use them",
        number("HugePages_Free"),
        number("HugePages_Total"),
        number("Hugepagesize")
    );
    Check::info(Part::Speed, "huge pages (hugetlb)", found)
}

fn memlock() -> Check {
    let found = match getrlimit(Resource::Memlock).current {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes >> 10),
    };
    Check::info(Part::Works, "locked memory", format!("{found}; nothing is locked by this version"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::super::{State, as_json, as_text};
    use super::*;

    /// A host made of files.
    struct Fake(PathBuf);
    impl Fake {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("lin-doctor-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("a directory")).expect("made");
                fs::write(path, text).expect("written");
            }
            Self(root)
        }
    }
    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn verdict(check: &Check) -> (State, &str) {
        (check.state, check.found.as_str())
    }

    #[test]
    fn a_slow_host_is_told_why() {
        let fake = Fake::new(
            "slow",
            &[
                ("proc/self/status", "Name:\tx\nCapEff:\t0000000000001000\n"),
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
                ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
                ("proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno bbr\n"),
                ("proc/sys/kernel/perf_event_paranoid", "4\n"),
                ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor avx2\n"),
                ("sys/devices/virtual/dmi/id/sys_vendor", "QEMU\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
                (
                    "proc/meminfo",
                    "MemTotal: 5 kB\nHugePages_Total:       8\nHugePages_Free:        3\nHugepagesize:       2048 kB\n",
                ),
            ],
        );
        let host = Host(&fake.0);
        assert!(has_capability(&host, 12) && !has_capability(&host, 13));
        assert_eq!(verdict(&quota(&host)), (State::Warn, "1.50 CPUs"));
        assert_eq!(cubic(&host).state, State::Warn);
        assert_eq!(perf(&host).state, State::Warn);
        assert_eq!(verdict(&virtualised(&host)), (State::Info, "yes (QEMU)"));
        assert_eq!(verdict(&huge_pages(&host)), (State::Info, "madvise"));
        assert_eq!(clocksource(&host, false).state, State::Warn);
        assert_eq!(verdict(&governor(&host)), (State::Warn, "powersave"));
        assert!(hugetlb(&host).found.starts_with("3 of 8 free, 2048 kB each"));
        assert_eq!(instructions(Cpu::PORTABLE).state, State::Warn);
        let checks = checks(&fake.0);
        let text = as_text(&checks);
        assert!(
            text.contains("  WARN  CPU quota             1.50 CPUs\n") && text.contains("-> a thread that spins"),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&as_json(&checks)).expect("JSON");
        assert_eq!(json["checks"].as_array().map(Vec::len), Some(checks.len()));
        let quota = json["checks"].as_array().and_then(|c| c.iter().find(|c| c["name"] == "CPU quota")).expect("there");
        assert_eq!((&quota["state"], &quota["part"]), (&"warn".into(), &"speed".into()));
    }

    #[test]
    fn a_fast_host_is_left_alone_and_an_empty_one_is_not_guessed_at() {
        let fake = Fake::new(
            "fast",
            &[
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", "max 100000\n"),
                ("proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno cubic\n"),
                ("proc/sys/kernel/perf_event_paranoid", "-1\n"),
                ("proc/cpuinfo", "flags: fpu\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ],
        );
        let host = Host(&fake.0);
        let checks = [quota(&host), cubic(&host), perf(&host), virtualised(&host), huge_pages(&host), governor(&host)];
        assert!(checks.iter().all(|c| c.state == State::Ok), "{checks:?}");
        assert_eq!(clocksource(&host, true).state, State::Ok);
        let nothing = PathBuf::from("/nonexistent");
        let host = Host(&nothing);
        for check in [cubic(&host), perf(&host), huge_pages(&host), governor(&host)] {
            assert_eq!(check.state, State::Info, "{check:?}");
        }
        assert!(!has_capability(&host, 12));
        let first = Fake::new(
            "v1",
            &[
                ("proc/self/cgroup", "4:cpu:/x\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ],
        );
        assert_eq!(quota_cpus(&Host(&first.0)), Some(0.5));
    }
}
