//! What a shared library names in its dynamic section: the libraries it needs and where they are to be looked
//! for; and how a copy of it is made to need others instead.
//!
//! The loader knows neither the pool nor where a copy came from, so it can search neither `$ORIGIN` nor a
//! path in the pool. A copy therefore names the copies of what it needs. New names have no room in the string
//! table; they are put behind the last loaded segment, which is moved to the end of the file for that:
//!
//! ```text
//!   before  | ... | last segment |            (its .bss only in memory)
//!   after   | ... | (unused)     | last segment, .bss as a hole, new names |
//! ```
//! Addresses stay what they were; only one program header changes, and the values of DT_NEEDED.

const HEADER: usize = 64;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_VERNEED: u64 = 0x6fff_fffe;
const DT_VERNEEDNUM: u64 = 0x6fff_ffff;
/// A library names so many others at most; more are not looked at.
const NEEDED_MAX: usize = 512;

/// One program header that is loaded.
#[derive(Clone, Copy)]
struct Segment {
    /// Where its header is in the file.
    header: u64,
    offset: u64,
    address: u64,
    in_file: u64,
    in_memory: u64,
    align: u64,
}

/// A library that is needed.
pub struct Needed {
    pub name: Vec<u8>,
    /// Address of what names it.
    address: u64,
}

pub struct Library {
    pub needed: Vec<Needed>,
    pub rpath: Vec<u8>,
    pub runpath: Vec<u8>,
    segments: Vec<Segment>,
    strings: u64,
    /// Whose versions of symbols are wanted: the loader finds them by the same name. Address of the field.
    versions: Vec<Needed>,
}

/// Bytes to be written at an offset of the file.
pub type Edit = (u64, Vec<u8>);

fn word(file: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    Some(u64::from_le_bytes(file.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn half(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?)))
}

fn kind(file: &[u8], at: u64) -> Option<u32> {
    word(file, at).map(|word| word as u32)
}

/// `None` when the file is no shared library of this machine: the loader says what it is.
pub fn read(file: &[u8]) -> Option<Library> {
    if file.len() < HEADER || !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (word(file, 32)?, half(file, 54)?, half(file, 56)?);
    let headers: Vec<u64> = (0..count).map(|i| table.wrapping_add(i * size)).collect();
    let segments: Option<Vec<Segment>> =
        headers.iter().filter(|at| kind(file, **at) == Some(PT_LOAD)).map(|at| segment(file, *at)).collect();
    let dynamic = headers.iter().find(|at| kind(file, **at) == Some(PT_DYNAMIC))?;
    let mut library = Library {
        needed: Vec::new(),
        rpath: Vec::new(),
        runpath: Vec::new(),
        segments: segments?,
        strings: 0,
        versions: Vec::new(),
    };
    library.take(file, word(file, dynamic.checked_add(16)?)?)?;
    Some(library)
}

fn segment(file: &[u8], at: u64) -> Option<Segment> {
    let field = |offset| word(file, at.checked_add(offset)?);
    Some(Segment {
        header: at,
        offset: field(8)?,
        address: field(16)?,
        in_file: field(32)?,
        in_memory: field(40)?,
        align: field(48)?.max(1),
    })
}

impl Segment {
    fn offset_of(&self, address: u64) -> Option<u64> {
        self.offset.checked_add(address.checked_sub(self.address)?)
    }
}

impl Library {
    /// Reads the dynamic section at `start`, an address.
    fn take(&mut self, file: &[u8], start: u64) -> Option<()> {
        let entries: Vec<(u64, u64, u64)> = self.entries(file, start)?;
        let value = |tag| entries.iter().find(|entry| entry.1 == tag).map(|entry| entry.2);
        self.strings = value(DT_STRTAB)?;
        let text = |offset: u64| self.text(file, offset).unwrap_or_default();
        let (rpath, runpath) = (value(DT_RPATH).map(text), value(DT_RUNPATH).map(text));
        let wanted = entries.iter().filter(|entry| entry.1 == DT_NEEDED).take(NEEDED_MAX);
        let needed = wanted
            .map(|(at, _, offset)| Needed { name: text(*offset), address: at.wrapping_add(8) })
            .collect();
        (self.rpath, self.runpath) = (rpath.unwrap_or_default(), runpath.unwrap_or_default());
        self.needed = needed;
        if let (Some(start), Some(count)) = (value(DT_VERNEED), value(DT_VERNEEDNUM)) {
            self.versions = self.versions(file, start, count)?;
        }
        Some(())
    }

    fn versions(&self, file: &[u8], start: u64, count: u64) -> Option<Vec<Needed>> {
        let mut all = Vec::new();
        let mut at = start;
        for _ in 0..count.min(NEEDED_MAX as u64) {
            let offset = self.offset(at)?;
            let name = u64::from(kind(file, offset.checked_add(4)?)?);
            all.push(Needed { name: self.text(file, name)?, address: at.wrapping_add(4) });
            at = at.checked_add(word(file, offset.checked_add(8)?)? >> 32)?;
        }
        Some(all)
    }

    /// Address, tag and value of each entry.
    fn entries(&self, file: &[u8], start: u64) -> Option<Vec<(u64, u64, u64)>> {
        let mut all = Vec::new();
        let mut at = start;
        loop {
            let offset = self.offset(at)?;
            let (tag, value) = (word(file, offset)?, word(file, offset.checked_add(8)?)?);
            if tag == DT_NULL {
                return Some(all);
            }
            all.push((at, tag, value));
            at = at.checked_add(16)?;
        }
    }

    /// Where the file has what is loaded at `address`.
    fn offset(&self, address: u64) -> Option<u64> {
        let holds = |s: &&Segment| s.address <= address && address - s.address < s.in_file;
        self.segments.iter().find(holds)?.offset_of(address)
    }

    fn text(&self, file: &[u8], offset: u64) -> Option<Vec<u8>> {
        let at = usize::try_from(self.offset(self.strings.checked_add(offset)?)?).ok()?;
        let rest = file.get(at..)?;
        Some(rest[..rest.iter().position(|&b| b == 0)?].to_vec())
    }

    /// What makes a copy of `file` need other libraries: `(index of needed, name)`. `None` when it has nothing
    /// that is loaded.
    pub fn renamed(&self, file: &[u8], names: &[(usize, Vec<u8>)]) -> Option<Vec<Edit>> {
        if names.is_empty() {
            return Some(Vec::new());
        }
        let last = *self.segments.iter().max_by_key(|segment| segment.address)?;
        let moved_to = (file.len() as u64)
            .checked_next_multiple_of(last.align)?
            .checked_add(last.address % last.align)?;
        let content = file.get(last.offset as usize..last.offset.checked_add(last.in_file)? as usize)?;
        let mut edits = vec![(moved_to, content.to_vec())];
        let mut end = last.in_memory.max(last.in_file);
        moved_to.checked_add(end)?;
        // What is changed may lie in the very segment that is moved.
        let place = |what: &Needed| match what.address.checked_sub(last.address) {
            Some(inside) if inside < last.in_file => moved_to.checked_add(inside),
            _ => self.offset(what.address),
        };
        for (index, name) in names {
            let needed = self.needed.get(*index)?;
            let value = last.address.wrapping_add(end).wrapping_sub(self.strings);
            edits.push((place(needed)?, value.to_le_bytes().to_vec()));
            for version in self.versions.iter().filter(|version| version.name == needed.name) {
                edits.push((place(version)?, u32::try_from(value).ok()?.to_le_bytes().to_vec()));
            }
            edits.push((moved_to.checked_add(end)?, [name, &b"\0"[..]].concat()));
            end = end.checked_add(name.len() as u64 + 1)?;
        }
        let header = last.header;
        edits.push((header + 8, moved_to.to_le_bytes().to_vec()));
        edits.push((header + 32, end.to_le_bytes().to_vec()));
        edits.push((header + 40, end.to_le_bytes().to_vec()));
        Some(edits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRINGS: &[u8] = b"\0liba.so\0libb.so\0$ORIGIN/../lib\0";

    /// A library of one segment at 0x1000: header, strings, dynamic section; 64 bytes of .bss.
    fn library() -> Vec<u8> {
        let mut file = vec![0u8; 176];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        file[54] = 56;
        file[56] = 2;
        let dynamic = 176 + STRINGS.len().next_multiple_of(8);
        let len = dynamic + 5 * 16;
        let put = |file: &mut Vec<u8>, at: usize, words: &[u64]| {
            for (i, word) in words.iter().enumerate() {
                file[at + i * 8..at + i * 8 + 8].copy_from_slice(&word.to_le_bytes());
            }
        };
        file.resize(len, 0);
        file[176..176 + STRINGS.len()].copy_from_slice(STRINGS);
        let all = len as u64;
        put(&mut file, 64, &[1, 0, 0x1000, 0x1000, all, all + 64, 0x1000]);
        put(&mut file, 120, &[2, dynamic as u64, 0x1000 + dynamic as u64, 0, 80, 80, 8]);
        let entries = [DT_NEEDED, 1, DT_NEEDED, 9, DT_RUNPATH, 17, DT_STRTAB, 0x1000 + 176, 0, 0];
        put(&mut file, dynamic, &entries);
        file
    }

    fn names(library: &Library) -> Vec<String> {
        library.needed.iter().map(|needed| String::from_utf8(needed.name.clone()).unwrap()).collect()
    }

    #[test]
    fn what_is_needed_is_read() {
        let library = read(&library()).unwrap();
        assert_eq!(names(&library), ["liba.so", "libb.so"]);
        assert_eq!(library.runpath, b"$ORIGIN/../lib");
        assert!(library.rpath.is_empty());
    }

    #[test]
    fn a_copy_needs_what_it_is_told_to_and_keeps_the_rest() {
        let mut file = library();
        let edits = read(&file).unwrap().renamed(&file, &[(1, b"/proc/self/fd//900".to_vec())]).unwrap();
        for (at, bytes) in edits {
            file.resize(file.len().max(at as usize + bytes.len()), 0);
            file[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        let copy = read(&file).unwrap();
        assert_eq!(names(&copy), ["liba.so", "/proc/self/fd//900"]);
        assert_eq!(copy.runpath, b"$ORIGIN/../lib");
        assert_eq!(copy.segments[0].offset % 0x1000, copy.segments[0].address % 0x1000);
        assert_eq!(copy.segments[0].in_file, copy.segments[0].in_memory);
    }

    #[test]
    fn what_is_no_library_or_a_broken_one_is_left_to_the_loader() {
        assert!(read(b"").is_none() && read(b"INPUT(libm.so.6)").is_none() && read(&[0; 200]).is_none());
        for cut in 0..library().len() {
            let _ = read(&library()[..cut]);
        }
        let mut file = library();
        for at in 0..file.len() {
            file[at] ^= 0xff;
            if let Some(broken) = read(&file) {
                let _ = broken.renamed(&file, &[(0, b"x".to_vec())]);
            }
            file[at] ^= 0xff;
        }
    }
}
