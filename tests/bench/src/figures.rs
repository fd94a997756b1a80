//! Statistics of a few measurements.

/// Median and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The largest.
    pub maximum: f64,
}

impl Figures {
    /// Of these measurements.
    ///
    /// # Panics
    /// When there are none.
    pub fn of(measured: &[f64]) -> Self {
        let mut sorted = measured.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle).expect("something was measured");
        let median = if sorted.len() % 2 == 1 { upper } else { (sorted[middle - 1] + upper) / 2.0 };
        Self { median, maximum: sorted[sorted.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&[3.0, 1.0, 2.0], 2.0, 3.0)]
    #[case(&[4.0, 1.0, 2.0, 9.0], 3.0, 9.0)]
    #[case(&[5.0], 5.0, 5.0)]
    fn the_middle_and_the_largest(#[case] measured: &[f64], #[case] median: f64, #[case] maximum: f64) {
        assert_eq!(Figures::of(measured), Figures { median, maximum });
    }
}
