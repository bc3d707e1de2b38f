//! How busy a node is.

use super::{Extractor, Found, Source, told};
use crate::record::{Class, Missing};
use crate::system::{System, clip};
use serde::Serialize;

const LOADAVG: &str = "/proc/loadavg";

#[derive(Serialize, Debug, PartialEq)]
struct Load {
    /// Means over 1, 5 and 15 minutes.
    load: [f64; 3],
    running: u64,
    threads: u64,
}

pub const LOAD: Extractor = Extractor {
    name: "load",
    about: "load and number of threads now",
    class: Class::Dynamic,
    version: 1,
    sources: &[Source { name: "proc", about: LOADAVG, read: |system, _| told(load(system)) }],
};

fn load(system: &System) -> Found<Load> {
    let text = system.word(LOADAVG)?;
    parse(&text).ok_or_else(|| Missing::new(LOADAVG, format!("'{}' is no load", clip(&text))))
}

fn parse(text: &str) -> Option<Load> {
    let mut words = text.split_whitespace();
    let mut mean = || words.next()?.parse::<f64>().ok().filter(|load| load.is_finite());
    let load = [mean()?, mean()?, mean()?];
    let (running, threads) = words.next()?.split_once('/')?;
    Some(Load { load, running: running.parse().ok()?, threads: threads.parse().ok()? })
}
