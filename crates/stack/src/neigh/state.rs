//! The states of a neighbour and what moves it between them (RFC 4861 section 7.3.2, named as Linux's NUD states).
//!
//! ```text
//!             use          answer            30 s          use         5 s         3 unanswered
//!   (new) ─────────▶ Incomplete ──▶ Reachable ──▶ Stale ──────▶ Delay ─────▶ Probe ──────▶ Failed ──▶ (use: again)
//!                        │ 3 s unanswered: Failed    ▲ heard of     └─ progress above, or an answer: Reachable
//! ```
//! *Heard of* is a claim that proves nothing about the way there (a request from it, an unsolicited advertisement); it
//! makes the address known, not reachable. What was set by hand stays `Permanent`. The table says which arrows exist;
//! [`super::table`] decides when they are walked and what happens then.

linerate_base::state_table! {
    /// What is known of a neighbour's hardware address.
    pub enum Nud {
        /// It is being asked for; packets wait.
        Incomplete,
        /// It was proved lately that packets arrive.
        Reachable,
        /// Known, not proved lately.
        Stale,
        /// Used while stale: a layer above may prove it, else it will be asked.
        Delay,
        /// It is being asked whether it is still there; packets go on.
        Probe,
        /// It does not answer.
        Failed,
        /// Set by hand.
        Permanent,
    }
    /// A packet is to be sent to it.
    on_use(Stale => Delay, Failed => Incomplete);
    /// It answered, or a layer above had an answer from it.
    on_confirm(Incomplete | Reachable | Stale | Delay | Probe | Failed => Reachable);
    /// Its address was heard of.
    on_heard(Incomplete | Reachable | Stale | Delay | Probe | Failed => Stale);
    /// The proof is too old, and nothing is sent to it.
    on_expire(Reachable => Stale);
    /// The proof is too old while packets are sent to it.
    on_expire_in_use(Reachable => Delay);
    /// Nobody proved it in time, or somebody else claims its address.
    on_doubt(Delay => Probe, Reachable => Probe, Stale => Probe);
    /// No answer to the last solicitation.
    on_give_up(Incomplete | Probe => Failed);
    /// The administrator says so.
    on_admin(Incomplete | Reachable | Stale | Delay | Probe | Failed | Permanent => Permanent);
}

impl Nud {
    /// A hardware address is known, and packets are sent to it.
    pub const fn is_valid(self) -> bool {
        matches!(self, Self::Reachable | Self::Stale | Self::Delay | Self::Probe | Self::Permanent)
    }
    /// Packets are sent, and that changes nothing.
    pub const fn is_ready(self) -> bool {
        self.is_valid() && !matches!(self, Self::Stale)
    }
    /// Nobody doubts it.
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Reachable | Self::Permanent)
    }
    /// It waits for a proof: `confirm` has something to do.
    pub const fn wants_proof(self) -> bool {
        matches!(self, Self::Delay | Self::Probe)
    }
    /// A timer runs for it.
    pub const fn has_timer(self) -> bool {
        matches!(self, Self::Incomplete | Self::Reachable | Self::Delay | Self::Probe)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_state_but_permanent_can_be_proved_and_left() {
        let from = |event: &str| Nud::arrows().filter(|a| a.event == event).map(|a| a.from).collect::<Vec<_>>();
        assert_eq!(from("on_confirm").len(), Nud::ALL.len() - 1);
        assert!(!from("on_heard").contains(&"Permanent") && from("on_give_up") == ["Incomplete", "Probe"]);
        assert!(Nud::ALL.iter().filter(|s| s.wants_proof()).all(|s| s.is_valid() && s.has_timer()));
    }
}
