//! Hints of a pool: which layout files of which names shall have (F32).

use glob::Pattern;
use tidepool_types::{Layout, LayoutError, Placement};

/// Most hints of a pool. Each name that is made is held against all of them.
pub const HINTS_MAX: usize = 256;
/// Longest pattern, in bytes.
const PATTERN_MAX: usize = 255;

/// What is asked for; what is `None` stays as the directory has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    pub placement: Option<Placement>,
    /// Bytes.
    pub chunk_size: Option<u64>,
    pub stripe: Option<u16>,
    /// Number of a group of daemons.
    pub group: Option<u16>,
}

impl Wanted {
    /// The layout that `base` becomes. A stripe alone asks for "wide", a group alone for "group"; the chunks of a local
    /// file are not told. Placement "group" without a group is that of the file's maker.
    pub fn on(&self, base: Layout) -> Result<Layout, LayoutError> {
        let implied = match (self.group, self.stripe, self.chunk_size, base.placement()) {
            (Some(_), ..) => Placement::Group,
            (_, Some(_), ..) => Placement::Wide,
            (_, _, Some(_), Placement::Local) => Placement::Wide,
            (.., placement) => placement,
        };
        let placement = self.placement.unwrap_or(implied);
        if placement != Placement::Group && self.group.is_some() {
            return Err(LayoutError::GroupNeedsGroup(placement));
        }
        if placement != Placement::Wide && self.stripe.is_some_and(|stripe| stripe > 0) {
            return Err(LayoutError::StripeNeedsWide(placement));
        }
        let usual = if base == Layout::LOCAL { Layout::default() } else { base };
        let chunk_size = self.chunk_size.unwrap_or(usual.chunk_size());
        match placement {
            Placement::Local if self.chunk_size.is_some() => Err(LayoutError::LocalIsNotCut),
            Placement::Local => Ok(Layout::LOCAL),
            Placement::Weighted => Layout::weighted(chunk_size),
            Placement::Wide => Layout::wide(chunk_size, self.stripe.unwrap_or(usual.stripe())),
            Placement::Group => {
                let as_before = if self.placement.is_none() { usual.named_group() } else { None };
                Layout::group(chunk_size, self.group.or(as_before))
            }
        }
    }
}

impl From<Layout> for Wanted {
    fn from(layout: Layout) -> Wanted {
        let placement = layout.placement();
        Wanted {
            placement: Some(placement),
            chunk_size: (placement != Placement::Local).then(|| layout.chunk_size()),
            stripe: (placement == Placement::Wide).then(|| layout.stripe()),
            group: layout.named_group(),
        }
    }
}

/// One hint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hint {
    pattern: Pattern,
    /// The pattern ended with a slash.
    dirs_only: bool,
    pub wanted: Wanted,
}

impl Hint {
    /// A hint for names that match `pattern`; the error says what is wrong.
    pub fn new(pattern: &str, wanted: Wanted) -> Result<Hint, String> {
        let (name, dirs_only) = match pattern.strip_suffix('/') {
            Some(name) => (name, true),
            None => (pattern, false),
        };
        if name.is_empty() || name.len() > PATTERN_MAX {
            return Err(format!("a pattern has 1 to {PATTERN_MAX} bytes"));
        }
        if name.contains('/') {
            return Err(format!(
                "pattern '{pattern}': patterns are for names, not paths; give the directory its layout, by a hint \
                 that ends with '/' or with 'tidepool layout set'"
            ));
        }
        let pattern = Pattern::new(name).map_err(|e| format!("pattern '{pattern}': {e}"))?;
        // Whatever the directory has, it must come to a layout.
        for base in [Layout::default(), Layout::LOCAL] {
            wanted.on(base).map_err(|e| e.to_string())?;
        }
        Ok(Hint { pattern, dirs_only, wanted })
    }

    /// The pattern as it was written.
    pub fn pattern(&self) -> String {
        let slash = if self.dirs_only { "/" } else { "" };
        format!("{}{slash}", self.pattern)
    }

    pub(crate) fn matches(&self, name: &[u8], is_dir: bool) -> bool {
        (is_dir || !self.dirs_only) && self.pattern.matches(&String::from_utf8_lossy(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(placement: Option<Placement>, chunk_size: Option<u64>, stripe: Option<u16>) -> Wanted {
        Wanted { placement, chunk_size, stripe, group: None }
    }

    #[test]
    fn what_is_not_said_stays() {
        let base = Layout::wide(1 << 20, 3).unwrap();
        assert_eq!(Wanted::default().on(base), Ok(base));
        assert_eq!(wanted(None, Some(1 << 16), None).on(base), Layout::wide(1 << 16, 3));
        assert_eq!(wanted(None, None, Some(0)).on(base), Layout::wide(1 << 20, 0));
        assert_eq!(wanted(Some(Placement::Weighted), None, None).on(base), Layout::weighted(1 << 20));
        assert_eq!(wanted(Some(Placement::Local), None, None).on(base), Ok(Layout::LOCAL));
        assert_eq!(wanted(Some(Placement::Wide), None, None).on(Layout::LOCAL), Ok(Layout::default()));
        assert_eq!(wanted(None, None, Some(2)).on(Layout::LOCAL), Layout::wide(512 << 10, 2));
        assert_eq!(wanted(None, Some(1 << 20), None).on(Layout::LOCAL), Layout::wide(1 << 20, 0));
    }

    #[test]
    fn contradictions_are_refused() {
        let base = Layout::default();
        let local = Some(Placement::Local);
        assert_eq!(
            wanted(local, None, Some(2)).on(base),
            Err(LayoutError::StripeNeedsWide(Placement::Local))
        );
        assert_eq!(wanted(local, Some(1 << 20), None).on(base), Err(LayoutError::LocalIsNotCut));
        assert_eq!(wanted(None, Some(5000), None).on(base), Err(LayoutError::ChunkSize(5000)));
    }

    #[test]
    fn patterns_are_for_names() {
        let hint = |pattern| Hint::new(pattern, Wanted::default());
        let h5 = hint("*.h[5d]").unwrap();
        assert!(h5.matches(b"a.h5", false) && h5.matches(b"a.hd", true) && !h5.matches(b"a.h", false));
        let dirs = hint("processor*/").unwrap();
        assert!(dirs.matches(b"processor12", true) && !dirs.matches(b"processor12", false));
        assert_eq!(dirs.pattern(), "processor*/");
        assert!(
            hint("\u{fffd}*").unwrap().matches(b"\xffx", false),
            "bytes that are no text stand for themselves"
        );
        for (bad, words) in
            [("a/b", "names, not paths"), ("", "1 to 255"), ("/", "1 to 255"), ("[a", "pattern '[a'")]
        {
            let said = hint(bad).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
