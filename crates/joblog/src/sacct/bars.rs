//! Lines with more separators than columns: some text of people's has them, such as a job's name or the line that submitted it.

use super::values::{self, state_is_known};
use super::{Column, Columns};

/// Columns of people's texts and of expressions, in small letters.
const FREE: [&str; 10] = [
    "admincomment",
    "comment",
    "constraints",
    "container",
    "extra",
    "jobname",
    "licenses",
    "submitline",
    "systemcomment",
    "workdir",
];
/// Separators too many that are looked after; with more a line is read as if they were in the first text.
const SURPLUS_MAX: usize = 100;

pub(super) fn is_free(name: &str) -> bool {
    FREE.contains(&name)
}

/// Whether a field can be what its column says; none for columns that can be anything.
fn fits(column: Column, field: &str) -> Option<bool> {
    let field = field.trim();
    match column {
        Column::JobId | Column::JobIdRaw => Some(field.starts_with(|first: char| first.is_ascii_digit())),
        Column::Submit | Column::Start | Column::End => {
            Some(matches!(field, "Unknown" | "None") || values::time(field).is_some())
        }
        Column::Elapsed => Some(values::duration(field).is_some()),
        Column::State => Some(state_is_known(field)),
        _ => None,
    }
}

/// How many separators each free column has, in the order of the columns: so that as many other fields as possible are what their
/// columns say.
pub(super) fn shares(columns: &Columns, fields: &[&str]) -> Vec<usize> {
    let free = &columns.free;
    let surplus = fields.len().saturating_sub(columns.count);
    if surplus == 0 || free.is_empty() {
        return vec![0; free.len()];
    }
    if free.len() == 1 || surplus > SURPLUS_MAX {
        let mut shares = vec![0; free.len()];
        shares[0] = surplus;
        return shares;
    }
    // Those that fit between a free column and the next one, where so many separators are in texts up to there.
    let good = |number: usize, shift: usize| {
        let end = free.get(number + 1).copied().unwrap_or(usize::MAX);
        let here = columns.at.iter().filter(|(_, at)| (free[number] + 1..end).contains(at));
        here.filter(|(column, at)| fits(*column, fields[at + shift]) == Some(true)).count()
    };
    // The most that fit up to a free column with so many separators, and how many of them the ones before it have.
    let mut best: Vec<Vec<(usize, usize)>> = Vec::with_capacity(free.len());
    for number in 0..free.len() {
        let row = (0..=surplus).map(|shift| {
            let before = match best.last() {
                // Of equal ones that where earlier texts have more.
                Some(row) => (0..=shift).map(|before| (row[before].0, before)).max().unwrap_or((0, 0)),
                None => (0, 0),
            };
            (before.0 + good(number, shift), before.1)
        });
        let row = row.collect();
        best.push(row);
    }
    let (mut shares, mut shift) = (vec![0; free.len()], surplus);
    for number in (0..free.len()).rev() {
        let before = best[number][shift].1;
        (shares[number], shift) = (shift - before, before);
    }
    shares
}
