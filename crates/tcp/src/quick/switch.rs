//! Tests take prediction away, and count how often it was right.
//!
//! A connection driven with prediction and one driven without it must send the same segments and keep the same numbers.
//! The switch belongs to the thread, since tests run side by side, and starts on. It exists in tests alone: what ships
//! has no way to turn prediction off, and pays nothing for the question.

use std::cell::Cell;

std::thread_local! {
    static OFF: Cell<bool> = const { Cell::new(false) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}
pub(crate) fn set(on: bool) {
    OFF.set(!on);
}
pub(crate) fn is_on() -> bool {
    !OFF.get()
}
pub(crate) fn taken() -> u64 {
    TAKEN.get()
}
pub(crate) fn count() {
    TAKEN.set(TAKEN.get() + 1);
}
