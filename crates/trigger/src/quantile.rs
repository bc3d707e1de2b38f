//! The conformal quantile.

/// Which of `count` values in ascending order, counted from 0, bounds the next one with a probability of `1 - share`:
/// the `ceil((count + 1) (1 - share))`-th. None when so few say nothing.
pub fn rank(count: usize, share: f64) -> Option<usize> {
    // The small number keeps a product that is whole but for rounding from being rounded up.
    let wanted = ((count as f64 + 1.0) * (1.0 - share) - 1e-9).ceil().max(1.0);
    (wanted <= count as f64).then(|| wanted as usize - 1)
}
