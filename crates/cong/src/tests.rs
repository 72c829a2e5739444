//! Properties of the integer helpers.
use crate::cubic::cbrt;
use proptest::prelude::*;

proptest! {
    #[test]
    fn cbrt_is_the_exact_floor(n in any::<u64>()) {
        let (n, r) = (u128::from(n), u128::from(cbrt(n)));
        prop_assert!(r * r * r <= n && n < (r + 1) * (r + 1) * (r + 1));
    }
}
