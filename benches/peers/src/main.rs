//! Peers measured beside Linerate.
fn main() {}
