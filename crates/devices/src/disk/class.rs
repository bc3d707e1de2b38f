//! Kinds of requests that cost differently.

use crate::{Direction, Request};

/// Whether the buffer or the platter serves a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    ReadHit,
    ReadMiss,
    Write,
}

/// Where it lies, seen from the request before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Begins where that one ended.
    Sequential,
    Near,
    Far,
}

/// What the request before was: disks turn from reading to writing and back at a price.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum After {
    Read,
    Write,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Class {
    pub kind: Kind,
    pub place: Place,
    pub after: After,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::ReadHit, "read-hit"), (Kind::ReadMiss, "read-miss"), (Kind::Write, "write")];
const PLACES: [(Place, &str); 3] =
    [(Place::Sequential, "sequential"), (Place::Near, "near"), (Place::Far, "far")];
const AFTERS: [(After, &str); 2] = [(After::Read, "after-read"), (After::Write, "after-write")];

/// How many there are.
pub const CLASSES: usize = KINDS.len() * PLACES.len() * AFTERS.len();

impl Class {
    pub fn all() -> impl Iterator<Item = Class> {
        KINDS.into_iter().flat_map(|(kind, _)| {
            PLACES.into_iter().flat_map(move |(place, _)| {
                AFTERS.into_iter().map(move |(after, _)| Class { kind, place, after })
            })
        })
    }

    /// Its place in [`Class::all`].
    pub fn index(self) -> usize {
        let kind = KINDS.iter().position(|(kind, _)| *kind == self.kind).unwrap_or(0);
        let place = PLACES.iter().position(|(place, _)| *place == self.place).unwrap_or(0);
        let after = AFTERS.iter().position(|(after, _)| *after == self.after).unwrap_or(0);
        (kind * PLACES.len() + place) * AFTERS.len() + after
    }

    /// `read-miss-far-after-write`.
    pub fn name(self) -> String {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name);
        let place = PLACES.iter().find(|(place, _)| *place == self.place).map_or("", |(_, name)| name);
        let after = AFTERS.iter().find(|(after, _)| *after == self.after).map_or("", |(_, name)| name);
        format!("{kind}-{place}-{after}")
    }

    pub fn named(name: &str) -> Option<Class> {
        Class::all().find(|class| class.name() == name)
    }

    /// This class, then the others, the most similar first: another predecessor, another place, another kind.
    pub(crate) fn likest(self) -> impl Iterator<Item = Class> {
        let mut others: Vec<Class> = Class::all().collect();
        let step = |place: Place| PLACES.iter().position(|(known, _)| *known == place).unwrap_or(0);
        // A write without a cost of its own goes through to the platter, as reads that miss do.
        let of_kind = |kind: Kind| match (self.kind, kind) {
            (a, b) if a == b => 0,
            (_, Kind::ReadMiss) => 1,
            _ => 2,
        };
        others.sort_by_key(|other| {
            let places = step(other.place).abs_diff(step(self.place));
            (of_kind(other.kind), places, other.after != self.after)
        });
        others.into_iter()
    }
}

impl Place {
    /// Of a request behind the one before.
    pub(crate) fn of(request: &Request, before: Option<&Request>, near_sectors: u64) -> Place {
        let Some(before) = before else { return Place::Far };
        match request.sector.abs_diff(before.end()) {
            0 => Place::Sequential,
            distance if distance <= near_sectors => Place::Near,
            _ => Place::Far,
        }
    }
}

impl After {
    pub(crate) fn of(before: Option<&Request>) -> After {
        match before.map(|before| before.direction) {
            Some(Direction::Write) => After::Write,
            _ => After::Read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_own_index_and_name() {
        for (number, class) in Class::all().enumerate() {
            assert_eq!((class.index(), Class::named(&class.name())), (number, Some(class)));
            assert_eq!(class.likest().next(), Some(class));
            assert_eq!(class.likest().count(), CLASSES);
        }
        assert_eq!(Class::all().count(), CLASSES);
    }
}
