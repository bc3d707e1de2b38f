//! Finds functions in libc's image by its own symbol table: no allocation, no `dlsym` (which other
//! preloaded libraries may wrap), and also for private symbols.

use std::ffi::CStr;

/// libc as it lies in memory.
pub struct Image {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const libc::c_char,
    /// DT_GNU_HASH: header, Bloom filter, buckets, chains.
    hash: *const u32,
    /// The executable segment: start and length.
    pub text: (usize, usize),
}

/// A function: where it is and how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function {
    pub address: usize,
    pub size: usize,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;

/// The loaded library whose file name starts with `prefix`.
pub fn find(prefix: &[u8]) -> Option<Image> {
    let mut search = Search { prefix, found: None };
    // SAFETY: the callback gets the pointer to `search` and no more.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// The loaded library or program that `address` is in.
pub fn of_address(address: usize) -> Option<Image> {
    let mut search = (address, None);
    // SAFETY: the callback gets the pointer to `search` and no more.
    unsafe { libc::dl_iterate_phdr(Some(visit_for_address), (&raw mut search).cast()) };
    search.1
}

unsafe extern "C" fn visit_for_address(
    info: *mut libc::dl_phdr_info,
    _: usize,
    data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: dl_iterate_phdr gives a valid entry; data is what `of_address` gave.
    unsafe {
        let search = &mut *data.cast::<(usize, Option<Image>)>();
        let found = image(&*info).filter(|image| search.0.wrapping_sub(image.text.0) < image.text.1);
        let is_it = found.is_some();
        search.1 = found;
        libc::c_int::from(is_it)
    }
}

struct Search<'a> {
    prefix: &'a [u8],
    found: Option<Image>,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut libc::c_void) -> libc::c_int {
    // SAFETY: dl_iterate_phdr gives a valid entry; data is our Search.
    unsafe {
        let search = &mut *data.cast::<Search>();
        let info = &*info;
        let name = crate::raw::bytes(info.dlpi_name);
        let file = name.rsplit(|&b| b == b'/').next().unwrap_or(name);
        if !file.starts_with(search.prefix) {
            return 0;
        }
        search.found = image(info);
        1
    }
}

/// # Safety
/// `info` describes a loaded library.
unsafe fn image(info: &libc::dl_phdr_info) -> Option<Image> {
    let base = info.dlpi_addr as usize;
    let mut image = Image {
        base,
        symbols: std::ptr::null(),
        strings: std::ptr::null(),
        hash: std::ptr::null(),
        text: (0, 0),
    };
    // SAFETY: program headers and dynamic section of a loaded library.
    unsafe {
        for i in 0..info.dlpi_phnum as usize {
            let header = &*info.dlpi_phdr.add(i);
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
                image.text = (base + header.p_vaddr as usize, header.p_memsz as usize);
            }
            if header.p_type == libc::PT_DYNAMIC {
                let mut at = (base + header.p_vaddr as usize) as *const Dynamic;
                while (*at).tag != DT_NULL {
                    // glibc's loader has relocated these to addresses.
                    match (*at).tag {
                        DT_STRTAB => image.strings = (*at).value as *const _,
                        DT_SYMTAB => image.symbols = (*at).value as *const _,
                        DT_GNU_HASH => image.hash = (*at).value as *const _,
                        _ => {}
                    }
                    at = at.add(1);
                }
            }
        }
    }
    let complete = !image.symbols.is_null() && !image.strings.is_null() && !image.hash.is_null();
    (complete && image.text.1 > 0).then_some(image)
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, b| hash.wrapping_mul(33).wrapping_add(u32::from(*b)))
}

impl Image {
    /// Calls `each` for every version of function `name`.
    pub fn each(&self, name: &CStr, each: &mut dyn FnMut(Function)) {
        let name = name.to_bytes();
        let wanted = gnu_hash(name);
        // SAFETY: the layout of DT_GNU_HASH; indices come from the table itself.
        unsafe {
            let [buckets, first, bloom, _] = [0, 1, 2, 3].map(|i| *self.hash.add(i));
            let bucket_at = self.hash.add(4 + bloom as usize * 2);
            let chain_at = bucket_at.add(buckets as usize);
            let mut index = *bucket_at.add((wanted % buckets) as usize);
            if index < first {
                return;
            }
            loop {
                let hash = *chain_at.add((index - first) as usize);
                if hash | 1 == wanted | 1 {
                    self.visit(index, name, each);
                }
                if hash & 1 != 0 {
                    return;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// `index` is in the symbol table.
    unsafe fn visit(&self, index: u32, name: &[u8], each: &mut dyn FnMut(Function)) {
        // SAFETY: the caller's promise.
        let symbol = unsafe { &*self.symbols.add(index as usize) };
        // SAFETY: names are offsets in the string table.
        let own = unsafe { crate::raw::bytes(self.strings.add(symbol.st_name as usize)) };
        if own == name && symbol.st_info & 0xf == STT_FUNC && symbol.st_value != 0 {
            each(Function { address: self.base + symbol.st_value as usize, size: symbol.st_size as usize });
        }
    }

    pub fn one(&self, name: &CStr) -> Option<Function> {
        let mut found = None;
        self.each(name, &mut |function| found = Some(function));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_as_dlsym_finds_them() {
        let image = find(b"libc.so").expect("every test runs with libc");
        for name in [c"read", c"openat", c"getcwd", c"posix_fallocate"] {
            // SAFETY: a C string.
            let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
            let mut all = Vec::new();
            image.each(name, &mut |function| all.push(function.address));
            assert!(all.contains(&known), "{name:?}");
        }
        assert_eq!(image.one(c"no_such_function"), None);
        assert!(image.one(c"__read_nocancel").is_some());
    }
}
