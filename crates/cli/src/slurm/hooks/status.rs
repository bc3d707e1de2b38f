//! What `scontrol show bbstat` passes on: the book for those who cannot read it.

use super::Desk;
use crate::exit::{Failure, Kind, Result};
use crate::slurm::show;

/// JSON for what [`show::answer`] knows.
pub fn status(desk: &Desk, words: &[String]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    show::answer(&desk.book, &words)
        .map(|value| value.to_string())
        .map_err(|failure| Failure::new(Kind::Other, format!("{failure}")))
}
