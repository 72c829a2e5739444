//! The swarm: many networks drawn from numbers, each under all checkers.
//!
//! `SIM_SEEDS=FROM..TO cargo test -p linerate-sim --release --test seeds -- --nocapture` runs another range.

use std::ops::Range;
use std::path::Path;

use linerate_sim::seed::{Outcome, run_seed, run_seeds};

fn asked() -> Range<u64> {
    let text = std::env::var("SIM_SEEDS").unwrap_or_else(|_| "0..1000".to_string());
    let (from, to) = text.split_once("..").expect("SIM_SEEDS=FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn captures() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn assert_all_ok(outcomes: &[Outcome]) {
    let failed: Vec<&Outcome> = outcomes.iter().filter(|o| !o.is_ok()).collect();
    let shown: Vec<String> = failed.iter().take(10).map(|o| o.report()).collect();
    assert!(failed.is_empty(), "{} of {} seeds failed\n{}", failed.len(), outcomes.len(), shown.join("\n"));
}

#[test]
fn a_thousand_seeds() {
    let outcomes = run_seeds(asked(), 2, Some(captures()), &|_| {});
    assert_all_ok(&outcomes);
    // The swarm must also be one: a plan that moves nothing checks nothing.
    let bytes: u64 = outcomes.iter().map(|o| o.bytes).sum();
    let errors = outcomes.iter().filter(|o| o.endpoints.1 > 0).count();
    println!("{} seeds, {bytes} bytes, {errors} with connections that met an error", outcomes.len());
    assert!(bytes > outcomes.len() as u64 * 1_000, "{bytes} bytes in all");
}

/// Seeds that once failed: one number a line, then why.
#[test]
fn seeds_that_once_failed() {
    let corpus = include_str!("../seeds/regressions.txt");
    let seeds = corpus.lines().map(|l| l.split('#').next().unwrap_or_default().trim()).filter(|l| !l.is_empty());
    let outcomes: Vec<Outcome> =
        seeds.map(|s| run_seed(s.parse().expect("a seed in front of each comment"), Some(captures()))).collect();
    assert_all_ok(&outcomes);
}

#[test]
fn a_seed_replays_exactly() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in [1, 2, 3, 50, 77, 1 << 40] {
        let (a, b) = (run_seed(seed, None), run_seed(seed, None));
        assert_eq!((a.hash, a.steps, a.time, a.bytes), (b.hash, b.steps, b.time, b.bytes), "seed {seed}");
        hashes.insert(a.hash);
    }
    assert_eq!(hashes.len(), 6, "different seeds are different runs");
}
