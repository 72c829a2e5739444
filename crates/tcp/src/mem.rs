//! The memory that TCP sockets may hold: one account for the stack, one for each named group of sockets (SYSTEMS A39, A40).
//!
//! What a socket queues is charged at its *truesize* to the stack and, if it is in a group, to the group. Each account has
//! three limits, as `tcp_mem`:
//!
//! ```text
//!      low            pressure              max
//!   ----|----------------|-------------------|     charge beyond max: refused
//!       ^ pressure ends  ^ pressure begins
//! ```
//! *Under pressure* buffers stop growing, windows fall back to a few segments, and a socket that holds more than its share
//! (`max` over the number of sockets) gets nothing more until it gives something back. The last part below `max` is for
//! those who hold next to nothing (four floors), because they read: whoever hoards can not fill it. Below a floor (the
//! least of `tcp_rmem` and `tcp_wmem`) everybody is served. Pressure has hysteresis, so that an account that hovers at a limit does
//! not flap. So a thousand hoarders cost the others speed and never their connection, and when the hoarders go, windows
//! and buffers grow back by themselves.
//!
//! Invariants: what is charged is given back, exactly once; a group's account is part of the stack's. Segments that keep a
//! connection alive (a SYN, a FIN, the first segment of an empty queue) are charged without asking: they are bounded by the
//! number of sockets. Not here: who prunes what (`rcvq`, `write`, the shard), and memory of pools and descriptors.

use alloc::vec::Vec;

/// Floors that a socket may hold and still draw on the reserve.
const SMALL: u32 = 4;
/// Groups of one stack at most.
pub const MAX_GROUPS: usize = 1024;

/// A group of sockets with an account of its own; [`MemGroup::NONE`] is in no group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemGroup(pub u16);

impl MemGroup {
    /// Only the stack's account.
    pub const NONE: Self = Self(0);
}

/// Low, pressure and hard limit in bytes of truesize.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemLimits {
    /// Pressure ends below.
    pub low_bytes: u64,
    /// Pressure begins above.
    pub pressure_bytes: u64,
    /// Nothing is charged beyond.
    pub max_bytes: u64,
}

impl MemLimits {
    /// From three numbers, as `tcp_mem` writes them.
    pub const fn new([low_bytes, pressure_bytes, max_bytes]: [u64; 3]) -> Self {
        Self { low_bytes, pressure_bytes, max_bytes }
    }
}

/// One group's account.
#[derive(Clone, Debug)]
struct Group {
    limits: MemLimits,
    allocated_bytes: u64,
    pressure: bool,
}

/// Memory held by the TCP sockets of a shard, in bytes of truesize.
#[derive(Clone, Debug)]
pub struct MemAcct {
    /// Charged now.
    pub allocated_bytes: u64,
    /// Pressure ends below.
    pub low_bytes: u64,
    /// Above this, buffers stop growing.
    pub pressure_bytes: u64,
    /// Above this, nothing more is accepted.
    pub max_bytes: u64,
    /// Sockets that share it; the stack keeps it current.
    pub sockets: u32,
    pressure: bool,
    /// Accounts under pressure now: the stack's and those of groups.
    pressed: u32,
    /// Times that pressure began, in the stack or a group.
    begun: u64,
    groups: Vec<Group>,
}

impl Default for MemAcct {
    fn default() -> Self {
        Self::new(MemLimits::new([512 << 20, 768 << 20, 1 << 30]))
    }
}

impl MemAcct {
    /// An empty account.
    pub const fn new(l: MemLimits) -> Self {
        Self {
            allocated_bytes: 0,
            low_bytes: l.low_bytes,
            pressure_bytes: l.pressure_bytes,
            max_bytes: l.max_bytes,
            sockets: 0,
            pressure: false,
            pressed: 0,
            begun: 0,
            groups: Vec::new(),
        }
    }

    /// Charges `bytes` to the stack and to `group`, or refuses where either is at its hard limit.
    #[inline]
    pub fn charge(&mut self, group: MemGroup, bytes: u32) -> bool {
        let next = self.allocated_bytes.saturating_add(u64::from(bytes));
        if next > self.max_bytes {
            self.enter();
            return false;
        }
        if group != MemGroup::NONE && !self.charge_group(group, bytes) {
            return false;
        }
        self.allocated_bytes = next;
        if next > self.pressure_bytes {
            self.enter();
        }
        true
    }

    /// Charges without asking: for what a connection can not do without.
    #[inline]
    pub fn force(&mut self, group: MemGroup, bytes: u32) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(u64::from(bytes));
        if self.allocated_bytes > self.pressure_bytes {
            self.enter();
        }
        if group != MemGroup::NONE
            && let Some(g) = self.group_mut(group)
        {
            g.allocated_bytes = g.allocated_bytes.saturating_add(u64::from(bytes));
        }
    }

    /// Gives `bytes` back.
    #[inline]
    pub fn uncharge(&mut self, group: MemGroup, bytes: u32) {
        debug_assert!(self.allocated_bytes >= u64::from(bytes), "more memory given back than was charged");
        self.allocated_bytes = self.allocated_bytes.saturating_sub(u64::from(bytes));
        if self.pressure && self.allocated_bytes < self.low_bytes {
            self.pressure = false;
            self.pressed -= 1;
        }
        if group != MemGroup::NONE {
            self.uncharge_group(group, bytes);
        }
    }

    #[cold]
    fn enter(&mut self) {
        if !self.pressure {
            self.pressure = true;
            self.pressed += 1;
            self.begun += 1;
        }
    }

    #[cold]
    fn charge_group(&mut self, group: MemGroup, bytes: u32) -> bool {
        let Some(g) = self.group_mut(group) else { return true };
        let next = g.allocated_bytes.saturating_add(u64::from(bytes));
        let fits = next <= g.limits.max_bytes;
        let begins = !g.pressure && (!fits || next > g.limits.pressure_bytes);
        g.pressure |= begins;
        if fits {
            g.allocated_bytes = next;
        }
        self.begun += u64::from(begins);
        self.pressed += u32::from(begins);
        fits
    }

    #[cold]
    fn uncharge_group(&mut self, group: MemGroup, bytes: u32) {
        let Some(g) = self.group_mut(group) else { return };
        debug_assert!(g.allocated_bytes >= u64::from(bytes), "more memory given back than the group was charged");
        g.allocated_bytes = g.allocated_bytes.saturating_sub(u64::from(bytes));
        let ends = g.pressure && g.allocated_bytes < g.limits.low_bytes;
        g.pressure &= !ends;
        self.pressed -= u32::from(ends);
    }

    fn group(&self, group: MemGroup) -> Option<&Group> {
        self.groups.get(usize::from(group.0).checked_sub(1)?)
    }
    fn group_mut(&mut self, group: MemGroup) -> Option<&mut Group> {
        self.groups.get_mut(usize::from(group.0).checked_sub(1)?)
    }

    /// A new group; `None` at [`MAX_GROUPS`].
    pub fn add_group(&mut self, limits: MemLimits) -> Option<MemGroup> {
        if self.groups.len() >= MAX_GROUPS {
            return None;
        }
        self.groups.push(Group { limits, allocated_bytes: 0, pressure: false });
        Some(MemGroup(self.groups.len() as u16))
    }
    /// Changes a group's limits; false when there is no such group.
    pub fn set_group_limits(&mut self, group: MemGroup, limits: MemLimits) -> bool {
        let Some(g) = self.group_mut(group) else { return false };
        g.limits = limits;
        true
    }
    /// Bytes charged to a group.
    pub fn group_bytes(&self, group: MemGroup) -> u64 {
        self.group(group).map_or(0, |g| g.allocated_bytes)
    }

    /// Buffers should not grow now: the stack, or the socket's group, is under pressure.
    #[inline]
    pub fn under_pressure(&self, group: MemGroup) -> bool {
        self.pressure || (group != MemGroup::NONE && self.group(group).is_some_and(|g| g.pressure))
    }
    /// The stack or one of its groups is under pressure.
    #[inline]
    pub fn any_pressure(&self) -> bool {
        self.pressed != 0
    }
    /// Times that pressure began.
    pub fn pressures(&self) -> u64 {
        self.begun
    }

    /// Bytes that could still be charged.
    pub(crate) fn left_bytes(&self, group: MemGroup) -> u64 {
        let left = self.max_bytes.saturating_sub(self.allocated_bytes);
        match self.group(group) {
            Some(g) => left.min(g.limits.max_bytes.saturating_sub(g.allocated_bytes)),
            None => left,
        }
    }

    /// May a socket that holds `own_bytes` hold more? Always, but under pressure only to its share; what is below
    /// `floor_bytes` is always granted.
    #[inline]
    pub(crate) fn grants(&self, group: MemGroup, own_bytes: u32, floor_bytes: u32) -> bool {
        !self.under_pressure(group) || self.within_share(group, own_bytes, floor_bytes)
    }

    #[cold]
    fn within_share(&self, group: MemGroup, own_bytes: u32, floor_bytes: u32) -> bool {
        let stack = (self.allocated_bytes, self.pressure_bytes, self.max_bytes);
        let group = self.group(group).map(|g| (g.allocated_bytes, g.limits.pressure_bytes, g.limits.max_bytes));
        let in_reserve = |(held, pressure, max): (u64, u64, u64)| held >= pressure / 2 + max / 2;
        let share = u64::from(own_bytes).saturating_mul(u64::from(self.sockets.max(1))) < self.max_bytes;
        match own_bytes {
            own if own < floor_bytes => true,
            own if own < floor_bytes.saturating_mul(SMALL) => share,
            _ => share && !in_reserve(stack) && !group.is_some_and(in_reserve),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MemLimits = MemLimits::new([100, 200, 300]);
    const NONE: MemGroup = MemGroup::NONE;

    #[test]
    fn pressure_has_two_edges_and_the_limit_holds() {
        let mut m = MemAcct::new(LIMITS);
        assert!(m.charge(NONE, 200) && !m.under_pressure(NONE));
        assert!(m.charge(NONE, 1) && m.under_pressure(NONE));
        m.uncharge(NONE, 100);
        assert!(m.under_pressure(NONE), "not below low yet");
        m.uncharge(NONE, 2);
        assert!(!m.under_pressure(NONE));
        assert!(!m.charge(NONE, 202) && m.under_pressure(NONE), "refused, and noted");
        assert_eq!((m.allocated_bytes, m.pressures(), m.left_bytes(NONE)), (99, 2, 201));
        m.force(NONE, 1000);
        assert_eq!(m.allocated_bytes, 1099, "what must be is");
        m.uncharge(NONE, 1099);
        assert!(!m.any_pressure());
    }

    #[test]
    fn a_group_is_limited_alone() {
        let mut m = MemAcct::new(MemLimits::new([1000, 2000, 3000]));
        let g = m.add_group(LIMITS).unwrap();
        assert!(m.charge(g, 250) && m.under_pressure(g) && !m.under_pressure(NONE) && m.any_pressure());
        assert!(!m.charge(g, 51), "the group's limit");
        assert!(m.charge(NONE, 500), "is nobody else's");
        assert_eq!((m.allocated_bytes, m.group_bytes(g), m.left_bytes(g)), (750, 250, 50));
        m.uncharge(g, 151);
        assert!(!m.under_pressure(g));
        m.uncharge(g, 99);
        m.uncharge(NONE, 500);
        assert_eq!((m.allocated_bytes, m.group_bytes(g)), (0, 0));
        assert!(m.set_group_limits(g, MemLimits::new([0, 0, 0])) && !m.charge(g, 1));
        assert!(!m.set_group_limits(MemGroup(7), LIMITS));
    }

    #[test]
    fn under_pressure_a_share_is_granted_and_no_more() {
        let mut m = MemAcct::new(LIMITS);
        m.sockets = 10;
        assert!(m.grants(NONE, 1 << 20, 8), "without pressure");
        assert!(m.charge(NONE, 240));
        assert!(m.grants(NONE, 29, 5) && !m.grants(NONE, 30, 5), "a tenth of 300");
        assert!(m.charge(NONE, 10));
        assert!(m.grants(NONE, 19, 5) && !m.grants(NONE, 20, 5), "the reserve is for the small");
        m.sockets = 1000;
        assert!(m.grants(NONE, 7, 8) && !m.grants(NONE, 8, 8), "the floor");
    }
}
