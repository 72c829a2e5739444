//! What the host gives: CPU detection, clocks, threads and pinning.
