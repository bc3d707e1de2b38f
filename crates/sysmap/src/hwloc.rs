//! The library hwloc, where it is installed: asked for its XML export, which has been the same since its version 2.

use crate::extract::{Cache, Cpu, NumaNode, count, list};
use crate::record::Missing;
use libloading::{Library, Symbol};
use roxmltree::{Document, Node};
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

/// Version 2's name; version 3 will be another library.
const LIBRARY: &str = "libhwloc.so.15";
const NAME: &str = "hwloc";

/// `HWLOC_TYPE_FILTER_KEEP_ALL`: caches of instructions are left out by default.
const KEEP_ALL: c_int = 0;

type Topology = *mut c_void;

fn failed(what: &str) -> Missing {
    Missing::new(NAME, format!("{what} failed"))
}

/// This node as hwloc sees it, as XML.
pub(crate) fn export() -> Result<String, Missing> {
    // SAFETY: loading hwloc runs its constructors, which only fill tables of its own.
    let library = unsafe { Library::new(LIBRARY) }
        .map_err(|_| Missing::new(NAME, format!("{LIBRARY} is not installed (package libhwloc15)")))?;
    let topology = Loaded::load(&library)?;
    topology.xml()
}

/// A function of the library.
///
/// # Safety
/// `F` has to be the function's type.
unsafe fn function<'lib, F>(library: &'lib Library, name: &str) -> Result<Symbol<'lib, F>, Missing> {
    // SAFETY: promised by the caller.
    unsafe { library.get(name.as_bytes()) }.map_err(|error| Missing::new(NAME, error))
}

struct Loaded<'lib> {
    library: &'lib Library,
    topology: Topology,
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        type Destroy = unsafe extern "C" fn(Topology);
        // SAFETY: the type is that of hwloc.h.
        if let Ok(destroy) = unsafe { function::<Destroy>(self.library, "hwloc_topology_destroy") } {
            // SAFETY: it was initialised, and nobody has it any more.
            unsafe { destroy(self.topology) }
        }
    }
}

impl Loaded<'_> {
    fn load(library: &Library) -> Result<Loaded<'_>, Missing> {
        // SAFETY: the types are those of hwloc.h, version 2.
        let (init, keep, load) = unsafe {
            (
                function::<unsafe extern "C" fn(*mut Topology) -> c_int>(library, "hwloc_topology_init")?,
                function::<unsafe extern "C" fn(Topology, c_int) -> c_int>(
                    library,
                    "hwloc_topology_set_icache_types_filter",
                )?,
                function::<unsafe extern "C" fn(Topology) -> c_int>(library, "hwloc_topology_load")?,
            )
        };
        let mut topology: Topology = std::ptr::null_mut();
        // SAFETY: it fills in the pointer.
        if unsafe { init(&mut topology) } != 0 {
            return Err(failed("hwloc_topology_init"));
        }
        let loaded = Loaded { library, topology };
        // SAFETY: it is initialised, and not loaded yet.
        if unsafe { keep(topology, KEEP_ALL) } != 0 {
            return Err(failed("hwloc_topology_set_icache_types_filter"));
        }
        // SAFETY: it is initialised.
        match unsafe { load(topology) } {
            0 => Ok(loaded),
            _ => Err(failed("hwloc_topology_load")),
        }
    }

    fn xml(&self) -> Result<String, Missing> {
        type Export = unsafe extern "C" fn(Topology, *mut *mut c_char, *mut c_int, c_ulong) -> c_int;
        type Free = unsafe extern "C" fn(Topology, *mut c_char);
        // SAFETY: the types are those of hwloc.h, version 2.
        let (export, free) = unsafe {
            (
                function::<Export>(self.library, "hwloc_topology_export_xmlbuffer")?,
                function::<Free>(self.library, "hwloc_free_xmlbuffer")?,
            )
        };
        let (mut text, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: the topology is loaded; it fills in both.
        if unsafe { export(self.topology, &mut text, &mut len, 0) } != 0 || text.is_null() {
            return Err(failed("hwloc_topology_export_xmlbuffer"));
        }
        // SAFETY: it has made a text that ends with a zero byte.
        let xml = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: nothing points to it any more.
        unsafe { free(self.topology, text) };
        Ok(xml)
    }
}

/// Processors, caches and NUMA nodes of an export.
pub(crate) fn cpu(xml: &str) -> Result<Cpu, Missing> {
    // Its document type names a file, which nobody reads.
    let options = roxmltree::ParsingOptions { allow_dtd: true, nodes_limit: 1 << 20, ..Default::default() };
    let document = Document::parse_with_options(xml, options).map_err(|error| Missing::new(NAME, error))?;
    let objects: Vec<Node<'_, '_>> =
        document.descendants().filter(|node| node.has_tag_name("object")).collect();
    let of = |kind: &str| objects.iter().filter(|node| node.attribute("type") == Some(kind)).count() as u32;
    let (sockets, cores, threads) = (of("Package"), of("Core"), of("PU"));
    if threads == 0 {
        return Err(Missing::new(NAME, "the export has no processors"));
    }
    let caches = count(objects.iter().filter_map(cache));
    let mut numa: Vec<NumaNode> = objects.iter().filter_map(numa_node).collect();
    numa.sort_by_key(|node| node.node);
    Ok(Cpu { sockets, cores, threads, numa, caches, ..Cpu::default() })
}

fn number<T: std::str::FromStr>(node: &Node<'_, '_>, name: &str) -> Option<T> {
    node.attribute(name)?.parse().ok()
}

fn cache(node: &Node<'_, '_>) -> Option<Cache> {
    let kind = node.attribute("type").filter(|kind| kind.ends_with("Cache"))?;
    let kind = match (number::<u32>(node, "cache_type"), kind.ends_with("iCache")) {
        (Some(0), _) => "unified",
        (Some(2), _) | (None, true) => "instruction",
        _ => "data",
    };
    Some(Cache {
        level: number(node, "depth")?,
        kind: kind.into(),
        bytes: number(node, "cache_size")?,
        line_bytes: number(node, "cache_linesize")?,
        count: 1,
    })
}

fn numa_node(node: &Node<'_, '_>) -> Option<NumaNode> {
    (node.attribute("type") == Some("NUMANode")).then_some(())?;
    Some(NumaNode {
        node: number(node, "os_index")?,
        cpus: list(&set(node.attribute("cpuset").unwrap_or_default())),
        memory_bytes: number(node, "local_memory").unwrap_or(0),
    })
}

/// The numbers in a set as hwloc writes it: words of 32 bits, the highest first: `0x0000000f,0xffffffff`. Empty words
/// between commas are zero.
fn set(text: &str) -> Vec<u32> {
    const WORDS_MAX: usize = 4096;
    let words = text.rsplit(',').take(WORDS_MAX).enumerate();
    let bits = |(at, word): (usize, &str)| {
        let word = u32::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0);
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 32 + bit)
    };
    words.flat_map(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read() {
        assert_eq!(set("0x00000003"), [0, 1]);
        assert_eq!(set("0x00000001,,0x80000000"), [31, 64]);
        assert_eq!(set("junk"), [0u32; 0]);
    }

    /// Two sockets with two cores of two threads each, written down as hwloc 2 exports them.
    #[test]
    fn an_export_is_counted() {
        let pu = |n: u32| format!(r#"<object type="PU" os_index="{n}" cpuset="0x{:08x}"/>"#, 1 << n);
        let core = |n: u32| {
            format!(
                r#"<object type="L1Cache" cache_size="32768" depth="1" cache_linesize="64" cache_type="1">
                   <object type="L1iCache" cache_size="65536" depth="1" cache_linesize="64" cache_type="2">
                   <object type="Core">{}{}</object></object></object>"#,
                pu(2 * n),
                pu(2 * n + 1)
            )
        };
        let socket = |n: u32| {
            format!(
                r#"<object type="Package"><object type="NUMANode" os_index="{n}" cpuset="0x{:08x}" local_memory="4096"/>
                   <object type="L3Cache" cache_size="1048576" depth="3" cache_linesize="64" cache_type="0">{}{}</object></object>"#,
                0xf << (4 * n),
                core(2 * n),
                core(2 * n + 1)
            )
        };
        let xml = format!(
            r#"<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE topology SYSTEM "hwloc2.dtd">
               <topology version="2.0"><object type="Machine">{}{}</object></topology>"#,
            socket(1),
            socket(0)
        );
        let cpu = cpu(&xml).unwrap();
        assert_eq!((cpu.sockets, cpu.cores, cpu.threads), (2, 4, 8));
        let nodes: Vec<(u32, &str, u64)> =
            cpu.numa.iter().map(|n| (n.node, n.cpus.as_str(), n.memory_bytes)).collect();
        assert_eq!(nodes, [(0, "0-3", 4096), (1, "4-7", 4096)]);
        let caches: Vec<(u32, &str, u32)> =
            cpu.caches.iter().map(|c| (c.level, c.kind.as_str(), c.count)).collect();
        assert_eq!(caches, [(1, "data", 4), (1, "instruction", 4), (3, "unified", 2)]);
    }

    #[test]
    fn what_is_no_export_is_an_error() {
        for text in ["", "<topology/>", "<object type='PU'", &"<a>".repeat(10_000)] {
            assert!(cpu(text).is_err(), "{text:.20}");
        }
    }
}
