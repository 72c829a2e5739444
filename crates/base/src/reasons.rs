//! One table, many products: an enum of reasons and a counter for each.
//!
//! [`DropReason`](crate::DropReason) says why a packet died, [`RstReason`](crate::RstReason) why a reset was sent. Both are
//! a list of `Name = "TEXT"` with a sentence of documentation each; the enum, its names, its descriptions and its counters
//! are made from that list and from nothing else, so none can be forgotten in one of them.
//!
//! Counters are plain numbers of one owner: a shard has its own, and readers add them up with `merge`. Not here: where and
//! when something happened, which is a trace's matter.

macro_rules! reasons {
    (
        $(#[$of_enum:meta])*
        enum $Reason:ident;
        $(#[$of_counters:meta])*
        counters $Counters:ident;
        $( $(#[doc = $doc:literal])+ $name:ident = $text:literal, )+
    ) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum $Reason { $( $(#[doc = $doc])+ $name, )+ }

        impl $Reason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )+ ];
            /// The stable name, as tools and counters print it.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$name => $text, )+ }
            }
            /// One sentence that says what happened.
            pub const fn describe(self) -> &'static str {
                match self { $( Self::$name => concat!($( $doc ),+), )+ }
            }
        }

        $(#[$of_counters])*
        #[derive(Clone, Debug)]
        pub struct $Counters([u64; $Reason::ALL.len()]);

        impl Default for $Counters {
            fn default() -> Self {
                Self([0; $Reason::ALL.len()])
            }
        }

        impl $Counters {
            /// Counts one.
            pub fn count(&mut self, reason: $Reason) {
                self.count_n(reason, 1);
            }
            /// Counts `n` at once.
            pub fn count_n(&mut self, reason: $Reason, n: u64) {
                self.0[reason as usize] += n;
            }
            /// How often `reason` was counted.
            pub fn get(&self, reason: $Reason) -> u64 {
                self.0[reason as usize]
            }
            /// Reasons that occurred, with their counts.
            pub fn iter(&self) -> impl Iterator<Item = ($Reason, u64)> + '_ {
                $Reason::ALL.iter().map(|&r| (r, self.get(r))).filter(|&(_, n)| n > 0)
            }
            /// All together.
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }
            /// Adds the counts of `other`.
            pub fn merge(&mut self, other: &Self) {
                for (a, b) in self.0.iter_mut().zip(other.0) {
                    *a += b;
                }
            }
        }
    };
}
pub(crate) use reasons;
