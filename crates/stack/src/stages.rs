//! Where a turn spends its cycles, if somebody asks.
//!
//! Off by default: then each boundary between two stages costs one branch. On, each costs one read of the cycle counter,
//! which is not serialising and differs between cores: figures are for comparing stages within one run, and are never
//! quoted beside throughput measured at the same time. A stage's cycles include what it calls (a device's engines run
//! inside `rx` and `xmit`; whoever wants them apart subtracts the device's own count).

use linerate_arch::cycles;

/// The stages of a turn, in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Stage {
    /// Memory, remote commands and completions.
    Reclaim,
    /// Polling the devices and merging.
    RxPoll,
    /// IP, ICMP, UDP and TCP input.
    Input,
    /// Timers.
    Timers,
    /// Connections' output, IP headers, qdiscs.
    Output,
    /// Handing to the devices, doorbells.
    Xmit,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 6] = [Self::Reclaim, Self::RxPoll, Self::Input, Self::Timers, Self::Output, Self::Xmit];
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reclaim => "reclaim",
            Self::RxPoll => "rx_poll",
            Self::Input => "input",
            Self::Timers => "timers",
            Self::Output => "output",
            Self::Xmit => "xmit",
        }
    }
}

/// Cycles by stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    on: bool,
    last: u64,
    cycles: [u64; Stage::ALL.len()],
    turns: u64,
}

impl Stages {
    /// Begins or ends accounting; what was counted stays.
    pub fn set_on(&mut self, on: bool) {
        self.on = on;
    }
    /// Cycles spent in `stage` while accounting was on.
    pub fn cycles(&self, stage: Stage) -> u64 {
        self.cycles.get(stage as usize).copied().unwrap_or(0)
    }
    /// Turns counted.
    pub fn turns(&self) -> u64 {
        self.turns
    }
    /// Forgets what was counted.
    pub fn clear(&mut self) {
        *self = Self { on: self.on, ..Self::default() };
    }

    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.on {
            self.charge_begin();
        }
    }
    #[cold]
    fn charge_begin(&mut self) {
        self.turns += 1;
        self.last = cycles();
    }
    /// The time since the last boundary belongs to `stage`.
    #[inline]
    pub(crate) fn end(&mut self, stage: Stage) {
        if self.on {
            self.charge(stage);
        }
    }
    #[cold]
    fn charge(&mut self, stage: Stage) {
        let now = cycles();
        if let Some(sum) = self.cycles.get_mut(stage as usize) {
            *sum += now.wrapping_sub(self.last);
        }
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_when_on() {
        let mut s = Stages::default();
        s.begin();
        s.end(Stage::Input);
        assert_eq!((s.turns(), s.cycles(Stage::Input)), (0, 0));
        s.set_on(true);
        s.begin();
        for stage in Stage::ALL {
            s.end(stage);
        }
        assert_eq!(s.turns(), 1);
        assert!(Stage::ALL.iter().all(|&a| Stage::ALL.iter().filter(|b| b.name() == a.name()).count() == 1));
        s.clear();
        assert_eq!(s.turns(), 0);
    }
}
