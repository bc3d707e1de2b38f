//! Waiting awake for a moment before sleeping, where that has paid off lately.

/// Most pauses before a sleep; with about 10-40 ns each this stays below what a sleep and
/// a wake-up cost, so that a wrong guess costs no more than about twice the right one.
const PAUSES_MAX: u32 = 192;
/// Fewer are not worth the loop.
const PAUSES_MIN: u32 = 8;
/// Every so many sleeps in a row a long look is taken again.
const TRY_AGAIN: u32 = 64;

/// How long one waiter stays awake. Halves when it was in vain, doubles when it was not: with
/// more runnable threads than cores the answer never comes while we hold a core, and the
/// spinning ends by itself.
#[derive(Debug)]
pub struct Spin {
    pauses: u32,
    in_vain: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { pauses: PAUSES_MAX / 2, in_vain: 0 }
    }
}

impl Spin {
    /// Asks `done` again and again for a while; its answer, or `None` when it is time to sleep.
    pub fn until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        for _ in 0..self.pauses {
            if let Some(value) = done() {
                self.pauses = (self.pauses * 2).clamp(PAUSES_MIN, PAUSES_MAX);
                self.in_vain = 0;
                return Some(value);
            }
            std::hint::spin_loop();
        }
        self.in_vain += 1;
        self.pauses = match self.pauses / 2 {
            short if short >= PAUSES_MIN => short,
            _ if self.in_vain.is_multiple_of(TRY_AGAIN) => PAUSES_MAX,
            _ => 0,
        };
        done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_in_vain_ends_and_is_tried_again() {
        let mut spin = Spin::default();
        let mut asked = Vec::new();
        for _ in 0..200 {
            let mut count = 0;
            let none: Option<()> = spin.until(|| {
                count += 1;
                None
            });
            assert_eq!(none, None);
            asked.push(count);
        }
        assert!(asked.iter().sum::<u32>() < 200 * 16, "{asked:?}");
        assert_eq!(asked[20], 1, "one last look before a sleep");
        assert!(asked[30..].contains(&(PAUSES_MAX + 1)));
        assert_eq!(spin.until(|| Some(1)), Some(1));
    }
}
