//! What must hold in every run, whatever the seed.
//!
//! [`flow`] watches the wire: it knows both directions of each TCP flow from the frames alone and says when a frame breaks
//! what the two ends agreed, or what only an omniscient observer can know (an acknowledgement of bytes that never
//! arrived). [`intervals`] is its memory. Checks of a whole host (memory home, no silent drops, invariants of shards) live
//! with the network, which can see inside. [`Violations`] collects what was found; one is enough to fail a run.
//!
//! A check that fires is a bug of ours: none of them asserts on what a peer may choose.

pub mod flow;
pub mod intervals;

pub use flow::FlowChecker;

/// Most violations that are kept as text.
const KEPT: usize = 16;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    texts: Vec<String>,
    count: u64,
}

impl Violations {
    /// Notes one.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.texts.len() < KEPT {
            self.texts.push(text());
        }
    }
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }
    /// The first of them.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }
    /// Moves all into `into`.
    pub fn drain_into(&mut self, into: &mut Self) {
        into.count += self.count;
        self.count = 0;
        for text in self.texts.drain(..) {
            if into.texts.len() < KEPT {
                into.texts.push(text);
            }
        }
    }
}
