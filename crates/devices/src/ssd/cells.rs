//! All of a device's state as numbers in one array, of which each change can be kept and taken back.

/// Where a kind of number begins, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    from: usize,
    len: usize,
}

/// What was changed since [`Cells::begin`], to be taken back in reverse order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Undo(Vec<(usize, u64)>);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cells {
    numbers: Vec<u64>,
    undo: Option<Undo>,
}

impl Cells {
    pub fn new() -> Cells {
        Cells { numbers: Vec::new(), undo: None }
    }

    pub fn region(&mut self, len: u64, value: u64) -> Region {
        let region = Region { from: self.numbers.len(), len: len as usize };
        self.numbers.resize(region.from + region.len, value);
        region
    }

    #[inline]
    pub fn get(&self, region: Region, at: u64) -> u64 {
        debug_assert!((at as usize) < region.len);
        self.numbers[region.from + at as usize]
    }

    #[inline]
    pub fn set(&mut self, region: Region, at: u64, value: u64) {
        debug_assert!((at as usize) < region.len);
        let cell = &mut self.numbers[region.from + at as usize];
        if let Some(undo) = &mut self.undo {
            undo.0.push((region.from + at as usize, *cell));
        }
        *cell = value;
    }

    #[inline]
    pub fn add(&mut self, region: Region, at: u64, more: u64) {
        self.set(region, at, self.get(region, at) + more);
    }

    pub fn all(&self, region: Region, from: u64, len: u64) -> &[u64] {
        &self.numbers[region.from + from as usize..][..len as usize]
    }

    /// Every one, in the order of regions.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// As many as there are; otherwise nothing changes.
    pub fn replace(&mut self, numbers: Vec<u64>) -> bool {
        let fits = numbers.len() == self.numbers.len();
        if fits {
            self.numbers = numbers;
        }
        fits
    }

    /// Changes are kept from now on.
    pub fn begin(&mut self) {
        self.undo = Some(Undo::default());
    }

    /// And no longer.
    pub fn end(&mut self) -> Undo {
        self.undo.take().unwrap_or_default()
    }

    pub fn take_back(&mut self, undo: Undo) {
        undo.0.into_iter().rev().for_each(|(at, value)| self.numbers[at] = value);
    }
}
