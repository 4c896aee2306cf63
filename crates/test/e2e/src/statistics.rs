//! Medians, percentiles and ratios.

/// The middle of the values, or the mean of the two in the middle. None without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len().is_multiple_of(2) {
        Some(f64::midpoint(sorted[middle - 1], upper))
    } else {
        Some(upper)
    }
}

/// The smallest of the values that `share` of them, 0 to 1, do not exceed: a value that was
/// measured, never one between two. None without values.
pub fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let within = |index: &usize| {
        let count = u32::try_from(index + 1).unwrap_or(u32::MAX);
        let all = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        // Rounding must not make 99 of 100 less than 99 %.
        f64::from(count) + 1e-9 * f64::from(all) >= share * f64::from(all)
    };
    let index = (0..sorted.len()).find(within);
    index.or(sorted.len().checked_sub(1)).map(|at| sorted[at])
}

/// `ours / theirs`; None when one is missing or theirs is nothing.
pub fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    let (ours, theirs) = (ours?, theirs?);
    (theirs > 0.0).then(|| ours / theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 8.0]), Some(3.0));
    }

    #[test]
    fn percentiles_are_measured_values() {
        assert_eq!(percentile(&[], 0.5), None);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        for (share, value) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            assert_eq!(percentile(&hundred, share), Some(value), "{share}");
        }
        // Of five, the 99th percentile is the worst.
        assert_eq!(percentile(&[5.0, 1.0, 4.0, 2.0, 3.0], 0.99), Some(5.0));
        assert_eq!(percentile(&[5.0, 1.0, 4.0, 2.0, 3.0], 0.5), Some(3.0));
    }

    #[test]
    fn ratios_need_both() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(ratio(None, Some(2.0)), None);
        assert_eq!(ratio(Some(3.0), None), None);
        assert_eq!(ratio(Some(3.0), Some(0.0)), None);
    }
}
