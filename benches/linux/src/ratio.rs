//! A ratio of two means from pairs, with its 95 % interval.
//!
//! Goodputs of one cell vary from flow to flow with where the losses fall. Both contenders lose the same frame numbers, so
//! flow `i` of one is paired with flow `i` of the other and most of that variation cancels. The ratio is that of the sums,
//! which no single fast flow can dominate and which is not biased upwards as a mean of ratios is. Its standard error is that
//! of the residuals `x - r y` (the delta method), its interval that of Student's t.
//!
//! Limits: pairs are taken as independent, so flows that shared a bottleneck would make the interval too narrow.

/// A ratio, and the bounds of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) mean: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Pairs that it is made of.
    pub(crate) pairs: usize,
}

/// The ratio of the sums of `(x, y)`; `None` of fewer than two pairs, or when the `y` are nothing.
pub(crate) fn of_pairs(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let n = pairs.len() as f64;
    let (x, y) = pairs.iter().fold((0.0, 0.0), |(x, y), pair| (x + pair.0, y + pair.1));
    if pairs.len() < 2 || y <= 0.0 {
        return None;
    }
    let mean = x / y;
    let squares: f64 = pairs.iter().map(|(x, y)| (x - mean * y).powi(2)).sum();
    let error = (squares / (n - 1.0)).sqrt() / n.sqrt() / (y / n);
    let reach = t_975(n - 1.0) * error;
    Some(Ratio { mean, low: mean - reach, high: mean + reach, pairs: pairs.len() })
}

/// The 97.5 % quantile of Student's t: exact for one and two degrees of freedom, else the normal one with the first three
/// terms of the Cornish-Fisher expansion (within 1 % from three on).
fn t_975(freedom: f64) -> f64 {
    if freedom < 1.5 {
        return 12.706;
    }
    if freedom < 2.5 {
        return 4.303;
    }
    let z: f64 = 1.959_964;
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, t) in [(1.0, 12.706), (2.0, 4.303), (3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (47.0, 2.012)] {
            assert!((t_975(freedom) / t - 1.0).abs() < 0.012, "{freedom}: {} for {t}", t_975(freedom));
        }
    }

    #[test]
    fn pairs_that_agree_leave_no_doubt() {
        let ratio = of_pairs(&[(9.0, 10.0), (18.0, 20.0), (2.7, 3.0)]).expect("three pairs");
        assert!((ratio.mean - 0.9).abs() < 1e-12 && ratio.high - ratio.low < 1e-9, "{ratio:?}");
    }

    #[test]
    fn the_interval_is_that_of_the_residuals() {
        // r = 1, residuals +1 and -1 twice: s = sqrt(4/3), error = s / 2 / 10, t(3) = 3.182.
        let ratio = of_pairs(&[(11.0, 10.0), (9.0, 10.0), (11.0, 10.0), (9.0, 10.0)]).expect("four pairs");
        let reach = 3.182 * (4.0_f64 / 3.0).sqrt() / 2.0 / 10.0;
        assert!((ratio.mean - 1.0).abs() < 1e-12 && (ratio.high - 1.0 - reach).abs() < 0.003, "{ratio:?}");
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        assert_eq!(of_pairs(&[]), None);
        assert_eq!(of_pairs(&[(1.0, 1.0)]), None);
        assert_eq!(of_pairs(&[(1.0, 0.0), (1.0, 0.0)]), None);
    }
}
