//! "Did you mean".

/// The least likeness of a word that is worth a question, between 0 and 1.
const LIKENESS_MIN: f64 = 0.5;
/// Bytes of a word that can be like another; all that we know are shorter.
const WORD_BYTES_MAX: usize = 80;

/// What a word that does not exist was probably meant to be.
pub fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase();
    let likeness = known
        .into_iter()
        .map(|known| (strsim::normalized_damerau_levenshtein(&word, &known.to_ascii_lowercase()), known));
    let best = likeness.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(likeness, _)| *likeness > LIKENESS_MIN).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_told_if_it_is_near() {
        let known = ["stage_in", "stage_out", "pool"];
        assert_eq!(near("stage-inn", known), Some("stage_in"));
        assert_eq!(near("POOL", known), Some("pool"));
        assert_eq!(near("banana", known), None);
        assert_eq!(near("x", []), None);
    }
}
