//! Modules of the kernel.

use super::{Extractor, Found, Gaps, Source, told};
use crate::record::Class;
use crate::system::System;
use serde::Serialize;

const MODULES_FILE: &str = "/proc/modules";
const RELEASE: &str = "/proc/sys/kernel/osrelease";

#[derive(Serialize, Debug, PartialEq)]
struct Kernel {
    release: Option<String>,
    /// Names of loaded modules, sorted; what is built in is not among them.
    modules: Vec<String>,
}

pub const MODULES: Extractor = Extractor {
    name: "kernel",
    about: "the kernel's release and its loaded modules",
    class: Class::Static,
    version: 1,
    sources: &[
        Source { name: "proc", about: MODULES_FILE, read: |system, gaps| told(by_proc(system, gaps)) },
        Source {
            name: "lsmod",
            about: "the program lsmod",
            read: |system, gaps| told(by_lsmod(system, gaps)),
        },
    ],
};

fn kernel(system: &System, gaps: &mut Gaps, mut modules: Vec<String>) -> Kernel {
    modules.sort_unstable();
    Kernel { release: super::or_note(system.word(RELEASE), gaps), modules }
}

fn first_words(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter_map(|line| line.split_whitespace().next().map(String::from))
}

fn by_proc(system: &System, gaps: &mut Gaps) -> Found<Kernel> {
    let modules = match system.text(MODULES_FILE) {
        Ok(text) => first_words(&text).collect(),
        // A kernel that was built without modules has no list of them.
        Err(missing) if !system.has(MODULES_FILE) && system.has(RELEASE) => {
            gaps.push(missing);
            Vec::new()
        }
        Err(missing) => return Err(missing),
    };
    Ok(kernel(system, gaps, modules))
}

fn by_lsmod(system: &System, gaps: &mut Gaps) -> Found<Kernel> {
    let text = system.output("lsmod", &[])?;
    Ok(kernel(system, gaps, first_words(&text).skip(1).collect()))
}
