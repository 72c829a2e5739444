//! Faults on wire frames: loss, duplication, reordering, corruption, delay.
//!
//! A [`FaultInjector`] decides, frame by frame, from a seed: the same plan and seed give the same faults. It only
//! decides; whoever carries the frame (the software wire, a simulated wire, a wrapper around a TUN) acts. Decisions are
//! for *wire frames*: a carrier of super-packets cuts them before it asks, otherwise one loss would take 45 frames.
//!
//! Loss is independent (Bernoulli) or in bursts (Gilbert-Elliott: a good and a bad state with their own loss and
//! probabilities of changing over). Reordering holds a frame back for a time, so that frames after it overtake it.

use linerate_base::rng::Rng;
use linerate_base::time::Duration;

/// Probabilities are per frame, 0.0..=1.0.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    /// Independent loss, and the loss of the good state when bursts are on.
    pub loss: f64,
    /// Bursts: (good to bad, bad to good, loss in bad).
    pub burst: Option<(f64, f64, f64)>,
    /// A second copy is delivered.
    pub duplicate: f64,
    /// One bit is flipped.
    pub corrupt: f64,
    /// The frame is held back by `reorder_delay`.
    pub reorder: f64,
    /// How long a reordered frame is held back.
    pub reorder_delay: Duration,
    /// Random extra delay of every frame, uniform from zero to this; order is kept by the carrier unless it says otherwise.
    pub jitter: Duration,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            loss: 0.0,
            burst: None,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::ZERO,
            jitter: Duration::ZERO,
        }
    }
}

impl FaultPlan {
    /// Nothing can go wrong: the carrier may skip the injector.
    pub fn is_perfect(&self) -> bool {
        *self == Self { reorder_delay: self.reorder_delay, ..Self::default() }
    }
}

/// What happens to one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fault {
    /// The frame vanishes.
    pub lost: bool,
    /// Deliver it twice.
    pub duplicated: bool,
    /// Flip this bit of the frame (an index below `8 * len`).
    pub flip_bit: Option<u32>,
    /// Hold it back; later frames may overtake it when `overtaken`.
    pub delay: Duration,
    /// The delay is a reordering: the carrier must not keep the order.
    pub overtaken: bool,
}

/// A plan, its seed and the state of its bursts.
#[derive(Clone, Debug)]
pub struct FaultInjector {
    plan: FaultPlan,
    rng: Rng,
    in_burst: bool,
    frames: u64,
}

impl FaultInjector {
    /// A fresh injector.
    pub fn new(plan: FaultPlan, seed: u64) -> Self {
        Self { plan, rng: Rng::new(seed), in_burst: false, frames: 0 }
    }
    /// The plan in force.
    pub fn plan(&self) -> &FaultPlan {
        &self.plan
    }
    /// Changes the plan; the random sequence goes on.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
    }
    /// Frames decided so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }
    /// Decides the fate of the next frame of `len` bytes.
    pub fn decide(&mut self, len: u32) -> Fault {
        self.frames += 1;
        if self.roll_loss() {
            return Fault { lost: true, ..Fault::default() };
        }
        let duplicated = self.rng.chance(self.plan.duplicate);
        let flip_bit =
            (len > 0 && self.rng.chance(self.plan.corrupt)).then(|| self.rng.below(u64::from(len) * 8) as u32);
        let overtaken = self.rng.chance(self.plan.reorder);
        let mut delay = if overtaken { self.plan.reorder_delay } else { Duration::ZERO };
        let jitter_ns = self.plan.jitter.as_nanos() as u64;
        if jitter_ns > 0 {
            delay += Duration::from_nanos(self.rng.below(jitter_ns + 1));
        }
        Fault { lost: false, duplicated, flip_bit, delay, overtaken }
    }
    fn roll_loss(&mut self) -> bool {
        let Some((enter, leave, loss_in_burst)) = self.plan.burst else {
            return self.rng.chance(self.plan.loss);
        };
        let change = if self.in_burst { leave } else { enter };
        if self.rng.chance(change) {
            self.in_burst = !self.in_burst;
        }
        self.rng.chance(if self.in_burst { loss_in_burst } else { self.plan.loss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let plan = FaultPlan { loss: 0.1, duplicate: 0.1, corrupt: 0.1, reorder: 0.1, ..FaultPlan::default() };
        let mut a = FaultInjector::new(plan.clone(), 7);
        let mut b = FaultInjector::new(plan, 7);
        for _ in 0..1000 {
            assert_eq!(a.decide(1500), b.decide(1500));
        }
    }

    #[test]
    fn loss_has_the_asked_rate() {
        let mut injector = FaultInjector::new(FaultPlan { loss: 0.03, ..FaultPlan::default() }, 1);
        let lost = (0..100_000).filter(|_| injector.decide(100).lost).count();
        assert!((2_700..3_300).contains(&lost), "{lost} of 100000 lost");
    }

    #[test]
    fn bursts_cluster() {
        let plan = FaultPlan { burst: Some((0.001, 0.1, 1.0)), ..FaultPlan::default() };
        let mut injector = FaultInjector::new(plan, 2);
        let fates: std::vec::Vec<bool> = (0..200_000).map(|_| injector.decide(100).lost).collect();
        let lost = fates.iter().filter(|&&l| l).count();
        let runs = fates.windows(2).filter(|w| !w[0] && w[1]).count();
        assert!(lost > 5 * runs, "{lost} losses in {runs} runs: bursts should be about ten long");
    }

    #[test]
    fn a_flipped_bit_is_inside_the_frame() {
        let mut injector = FaultInjector::new(FaultPlan { corrupt: 1.0, ..FaultPlan::default() }, 3);
        for len in 1..200 {
            assert!(injector.decide(len).flip_bit.is_some_and(|bit| bit < len * 8));
        }
    }
}
