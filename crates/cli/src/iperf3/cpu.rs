//! CPU time of the process, in total and split into user and system time, for `cpu_utilization_percent`.
//!
//! The total is the kernel's process clock. The split comes from `/proc/self/stat`, in ticks of 10 ms, and is scaled so
//! that both parts add up to the total. Where `/proc` is missing everything counts as user time. Reading costs some
//! microseconds; it is done at the two ends of a test.

use linerate_base::Duration;

/// CPU time since the process began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) total: Duration,
    /// Ticks in user and in system mode.
    ticks: [u64; 2],
}

impl Usage {
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self { total: linerate_host::process_cpu_time(), ticks: parse(&stat).unwrap_or_default() }
    }

    /// Percent of one core over `wall`: total, user, system.
    pub(crate) fn percent_since(&self, earlier: &Self, wall: Duration) -> [f64; 3] {
        let total = self.total.saturating_sub(earlier.total).as_secs_f64();
        let percent = 100.0 * total / wall.as_secs_f64().max(1e-9);
        let [user, system] = [0, 1].map(|i| self.ticks[i].saturating_sub(earlier.ticks[i]) as f64);
        let share = if user + system > 0.0 { user / (user + system) } else { 1.0 };
        [percent, percent * share, percent * (1.0 - share)]
    }
}

/// Fields 14 and 15 of `/proc/self/stat`; the second may hold spaces, so counting begins behind its parenthesis.
fn parse(stat: &str) -> Option<[u64; 2]> {
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_adds_up() {
        assert_eq!(parse("7 (a b) c) R 1 1 1 0 -1 0 9 9 9 9 31 42 0 0 20"), Some([31, 42]));
        assert_eq!(parse("nonsense"), None);
        let early = Usage { total: Duration::from_secs(1), ticks: [10, 10] };
        let late = Usage { total: Duration::from_secs(2), ticks: [40, 20] };
        let [total, user, system] = late.percent_since(&early, Duration::from_secs(2));
        assert_eq!((total, user, system), (50.0, 37.5, 12.5));
        assert!(Usage::now().total > Duration::ZERO);
    }
}
