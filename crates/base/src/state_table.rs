//! A state graph as one table.
//!
//! Theory: a protocol's states and arrows are written once, as rows `on_event(From | From => To)`. From the table come the
//! enum, one method per event, a list of all arrows for a snapshot test, and a DOT graph for the documentation; they can
//! not disagree. What the table does not list is refused with [`InvalidTransition`], and the state stays what it was.
//!
//! ```
//! linerate_base::state_table! {
//!     /// A door.
//!     pub enum Door {
//!         /// One can walk through.
//!         Open,
//!         /// One can not.
//!         Shut,
//!     }
//!     /// Somebody pushes it.
//!     on_push(Shut => Open);
//!     /// Wind does.
//!     on_wind(Open => Shut, Shut => Shut);
//! }
//! let mut door = Door::Shut;
//! assert!(door.on_push().is_ok());
//! assert_eq!(door.on_push().unwrap_err().to_string(), "on_push is not allowed in state Open");
//! assert_eq!(Door::ARROWS.len(), 3);
//! ```
//!
//! Limits: states carry no data (a connection's data lives beside its state); side effects belong to the caller, after the
//! method has returned `Ok`. Discriminants may be given (`Established = 1`), since `tcp_info` exports numbers.

use core::fmt;

/// One arrow of a state graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrow {
    /// The method that walks it.
    pub event: &'static str,
    /// Where it starts.
    pub from: &'static str,
    /// Where it ends.
    pub to: &'static str,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.event, self.from, self.to)
    }
}

/// The event has no arrow from the present state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidTransition {
    /// The method that was called.
    pub event: &'static str,
    /// The state it was called in.
    pub from: &'static str,
}

impl fmt::Display for InvalidTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not allowed in state {}", self.event, self.from)
    }
}

impl core::error::Error for InvalidTransition {}

/// Prints a state graph in the DOT language, one line per state and arrow.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    /// Name of the graph.
    pub name: &'static str,
    /// Names of all states.
    pub states: &'static [&'static str],
    /// All arrows.
    pub arrows: &'static [Arrow],
}

impl fmt::Display for Dot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "digraph {} {{", self.name)?;
        for state in self.states {
            writeln!(f, "  {state};")?;
        }
        for a in self.arrows {
            writeln!(f, "  {} -> {} [label = \"{}\"];", a.from, a.to, a.event.trim_start_matches("on_"))?;
        }
        f.write_str("}\n")
    }
}

/// Declares a state graph. See the [module](mod@crate::state_table).
#[macro_export]
macro_rules! state_table {
    (
        $(#[$enum_meta:meta])*
        $vis:vis enum $name:ident { $( $(#[$state_meta:meta])* $state:ident $(= $number:expr)? ),+ $(,)? }
        $(
            $(#[$event_meta:meta])*
            $event:ident ( $( $($from:ident)|+ => $to:ident ),+ $(,)? ) ;
        )+
    ) => {
        $(#[$enum_meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        $vis enum $name { $( $(#[$state_meta])* $state $(= $number)?, )+ }

        #[allow(dead_code)]
        impl $name {
            /// All states, in the order of their declaration.
            $vis const ALL: &'static [Self] = &[ $( Self::$state, )+ ];
            /// Names of all states.
            $vis const NAMES: &'static [&'static str] = &[ $( stringify!($state), )+ ];
            /// All arrows, in the order of their declaration.
            $vis const ARROWS: &'static [$crate::state_table::Arrow] = &[
                $( $( $( $crate::state_table::Arrow {
                    event: stringify!($event), from: stringify!($from), to: stringify!($to),
                }, )+ )+ )+
            ];
            /// The state's name.
            $vis const fn name(self) -> &'static str {
                match self { $( Self::$state => stringify!($state), )+ }
            }
            /// All arrows, for a snapshot test.
            $vis fn arrows() -> impl Iterator<Item = &'static $crate::state_table::Arrow> {
                Self::ARROWS.iter()
            }
            /// The graph in the DOT language.
            $vis const fn dot() -> $crate::state_table::Dot {
                $crate::state_table::Dot { name: stringify!($name), states: Self::NAMES, arrows: Self::ARROWS }
            }
            $(
                $(#[$event_meta])*
                $vis const fn $event(&mut self) -> Result<(), $crate::state_table::InvalidTransition> {
                    #[allow(unreachable_patterns)]
                    let to = match *self {
                        $( $( Self::$from )|+ => Self::$to, )+
                        from => return Err($crate::state_table::InvalidTransition {
                            event: stringify!($event), from: from.name(),
                        }),
                    };
                    *self = to;
                    Ok(())
                }
            )+
        }
    };
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    state_table! {
        /// A half of a connection.
        #[derive(Default)]
        #[repr(u8)]
        enum Half {
            /// Carries data.
            #[default]
            Open = 1,
            /// A FIN is out.
            Closing = 4,
            /// Done.
            Closed = 7,
        }
        /// The application closes.
        on_close(Open => Closing);
        /// The FIN is acknowledged.
        on_ack(Closing => Closed, Open => Open);
        /// Torn down.
        on_reset(Open | Closing | Closed => Closed);
    }

    #[test]
    fn arrows_lead_where_the_table_says() {
        for a in Half::arrows() {
            let mut s = *Half::ALL.iter().find(|s| s.name() == a.from).unwrap();
            match a.event {
                "on_close" => s.on_close(),
                "on_ack" => s.on_ack(),
                "on_reset" => s.on_reset(),
                other => panic!("{other}"),
            }
            .unwrap();
            assert_eq!(s.name(), a.to, "{a}");
        }
        assert_eq!((Half::default() as u8, Half::Closed as u8), (1, 7));
    }

    #[test]
    fn what_is_not_listed_is_refused_and_changes_nothing() {
        let mut s = Half::Closed;
        assert_eq!(s.on_close(), Err(InvalidTransition { event: "on_close", from: "Closed" }));
        assert_eq!(s, Half::Closed);
        assert_eq!(s.on_ack().unwrap_err().to_string(), "on_ack is not allowed in state Closed");
    }

    #[test]
    fn listing_and_graph_are_complete() {
        let list: Vec<_> = Half::arrows().map(ToString::to_string).collect();
        assert_eq!(
            list,
            [
                "on_close: Open -> Closing",
                "on_ack: Closing -> Closed",
                "on_ack: Open -> Open",
                "on_reset: Open -> Closed",
                "on_reset: Closing -> Closed",
                "on_reset: Closed -> Closed",
            ]
        );
        let dot = Half::dot().to_string();
        assert!(dot.starts_with("digraph Half {\n  Open;\n") && dot.ends_with("}\n"));
        assert!(dot.contains("  Closing -> Closed [label = \"ack\"];\n"));
        assert_eq!(dot.lines().count(), 2 + 3 + 6);
    }
}
