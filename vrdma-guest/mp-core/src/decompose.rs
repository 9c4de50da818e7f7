//! A message's shares by capacity (Virtuoso, equation 1).

/// Splits `bytes` so that `share[i] / capacity[i]` is the same for all paths, as far as multiples of `unit` allow, and returns the shares in `share`.
/// A path of capacity 0 gets nothing; if all have 0, all count the same. What is less than a unit goes to the last path that gets any.
///
/// # Panics
///
/// If the slices differ in length or are empty, or `unit` is 0.
pub fn decompose(bytes: u64, capacity: &[u64], unit: u64, share: &mut [u64]) {
    assert!(!capacity.is_empty() && capacity.len() == share.len() && unit > 0);
    let alike = capacity.iter().all(|c| *c == 0);
    let weight = |i: usize| if alike { 1 } else { u128::from(capacity[i]) };
    let total: u128 = (0..capacity.len()).map(weight).sum();
    let units = u128::from(bytes / unit);
    // Shares end where the sum of the capacities says, rounded: so they add up, and each is off by less than a unit.
    let (mut sum, mut given, mut last) = (0, 0, 0);
    for (i, share) in share.iter_mut().enumerate() {
        sum += weight(i);
        let end = ((units * sum + total / 2) / total) as u64 * unit; // at most `bytes`
        (*share, given) = (end - given, end);
        if weight(i) > 0 {
            last = i;
        }
    }
    share[last] += bytes - given;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;

    use super::*;

    proptest! {
        #[test]
        fn shares_add_up_and_follow_capacity(
            bytes in 0u64..1 << 40,
            capacity in prop::collection::vec(0u64..1 << 40, 1..12),
            unit in 1u64..1 << 16,
        ) {
            let mut share = vec![0; capacity.len()];
            decompose(bytes, &capacity, unit, &mut share);
            prop_assert_eq!(share.iter().sum::<u64>(), bytes);
            let total: u128 = capacity.iter().map(|c| u128::from(*c)).sum();
            for (share, capacity) in share.iter().zip(&capacity) {
                let product = u128::from(bytes) * u128::from(*capacity);
                // Without any capacity, all are alike.
                let Some(exact) = product.checked_div(total) else { continue };
                prop_assert!(*capacity > 0 || *share == 0);
                prop_assert!(u128::from(*share).abs_diff(exact) <= 2 * u128::from(unit));
            }
        }
    }

    #[test]
    fn unequal_paths_finish_together() {
        let mut share = [0; 3];
        decompose(175_000_000, &[100, 50, 25], 1, &mut share);
        assert_eq!(share, [100_000_000, 50_000_000, 25_000_000]);
    }

    #[test]
    fn paths_of_unknown_capacity_count_the_same() {
        let mut share = [0; 4];
        decompose(4 << 20, &[0; 4], 4096, &mut share);
        assert_eq!(share, [1 << 20; 4]);
    }
}
