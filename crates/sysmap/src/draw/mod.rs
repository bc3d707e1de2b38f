//! A picture of a network as SVG (INVENTORY A14): switches of the highest level on top, islands framed, leaf switches with
//! their nodes below, and what a pool has on them.
//!
//! The same network gives the same text. Names come from anywhere: they are escaped, and long ones cut.

mod plan;

use crate::extract::Link;
use crate::topology::Topology;
use plan::{CELL_HEIGHT, Leaf, NAME_MAX, Node, Plan, Rect, SWITCH_HEIGHT, label};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a node has of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    pub daemons: u64,
    /// Chunks of a file; none when no file is asked for.
    pub chunks: Option<u64>,
}

/// What is drawn beside the network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Marks {
    pub title: String,
    /// Nodes of a pool, by the names it has for them; no pool is drawn when there are none.
    pub nodes: BTreeMap<String, Mark>,
    /// Lines below the picture.
    pub notes: Vec<String>,
}

/// Of leaves in turn: neighbours differ, and white letters can be read on all.
const COLOURS: [&str; 8] =
    ["#0072b2", "#b36b00", "#007f5f", "#b0528c", "#5b6b7a", "#c04000", "#6f4fa0", "#6b6b00"];
const GREY: &str = "#888888";
/// Widest line, for this many links and more.
const LINKS_WIDE: u32 = 12;

/// Draws a network.
pub fn svg(topology: &Topology, marks: &Marks) -> String {
    let plan = Plan::new(topology, marks);
    let known = known_marks(topology, marks);
    let mut out = head(&plan, &marks.title);
    for island in &plan.islands {
        let Rect { x, y, .. } = island.frame;
        out += &rect(&island.frame, "fill=\"#f7f7f7\" stroke=\"#555555\" stroke-dasharray=\"6 4\"");
        out += &text((x + 8, y + 18), "", &island.title);
    }
    topology.links().iter().for_each(|link| out += &line(&plan, link));
    for (name, at) in &plan.switches {
        out += &switch(&plan, topology, name, at);
    }
    for leaf in &plan.leaves {
        if let (None, Some(first)) = (&leaf.switch, leaf.nodes.first()) {
            out += &text((first.at.x, first.at.y - 8), "", "at no known switch");
        }
        for node in &leaf.nodes {
            out += &cell(topology, leaf, node, known.get(node.name.as_str()), marks);
        }
    }
    for (at, note) in notes(marks).iter().enumerate() {
        out += &text((20, plan.notes + at * CELL_HEIGHT), "", note);
    }
    out + "</svg>\n"
}

fn head(plan: &Plan, title: &str) -> String {
    let Plan { width, height, .. } = plan;
    let escaped = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"monospace\" font-size=\"11\">\n\
         <title>{escaped}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"15\" font-weight=\"bold\">{escaped}</text>\n"
    )
}

fn notes(marks: &Marks) -> Vec<String> {
    let mut notes =
        vec!["Lines between switches are as wide as there are links. Colours are of leaf switches.".into()];
    notes.extend(marks.notes.iter().cloned());
    notes
}

/// Marks by the names that hosts have in the network, or by the pool's where it does not know them.
fn known_marks<'a>(topology: &'a Topology, marks: &'a Marks) -> BTreeMap<&'a str, Mark> {
    let mut known: BTreeMap<&str, Mark> = BTreeMap::new();
    for (host, mark) in &marks.nodes {
        let all = known.entry(topology.known_host(host).unwrap_or(host)).or_default();
        all.daemons += mark.daemons;
        all.chunks = all.chunks.map_or(mark.chunks, |chunks| Some(chunks + mark.chunks.unwrap_or(0)));
    }
    known
}

fn rect(at: &Rect, style: &str) -> String {
    let Rect { x, y, width, height } = at;
    format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"3\" {style}/>\n")
}

fn text((x, y): (usize, usize), style: &str, text: &str) -> String {
    format!("<text x=\"{x}\" y=\"{y}\"{style}>{}</text>\n", escape(text))
}

/// From the lower side of the higher one to the upper side of the other; over both where they stand side by side.
fn line(plan: &Plan, link: &Link) -> String {
    let (Some(a), Some(b)) = (plan.switches.get(&link.a), plan.switches.get(&link.b)) else {
        return String::new();
    };
    let (high, low) = if a.y <= b.y { (a, b) } else { (b, a) };
    let (from, to) = (high.middle(), low.middle());
    let way = match high.y == low.y {
        true => format!("M{from} {0} Q{1} {2} {to} {0}", high.y, (from + to) / 2, high.y.saturating_sub(50)),
        false => format!("M{from} {} L{to} {}", high.bottom(), low.y),
    };
    let tenths = 8 * link.count.min(LINKS_WIDE);
    format!(
        "<path d=\"{way}\" fill=\"none\" stroke=\"#777777\" stroke-width=\"{}.{}\"><title>{}</title></path>\n",
        tenths / 10,
        tenths % 10,
        escape(&said(link))
    )
}

fn said(link: &Link) -> String {
    let Link { a, b, count, gigabits_per_second } = link;
    let links = if *count == 1 { "link" } else { "links" };
    let speed = gigabits_per_second.map_or_else(String::new, |speed| format!(" of {speed} Gbit/s"));
    format!("{a} - {b}: {count} {links}{speed}")
}

fn switch(plan: &Plan, topology: &Topology, name: &str, at: &Rect) -> String {
    let leaf = plan.leaves.iter().find(|leaf| leaf.switch.as_deref() == Some(name));
    let colour = leaf.map_or(GREY, |leaf| colour(topology, leaf));
    let mut words = name.to_string();
    if let Some(leaf) = topology.leaves().iter().find(|leaf| leaf.name == name) {
        let _ = write!(words, ": {} hosts", leaf.hosts.len());
    }
    if let Some(up) = topology.uplink_gigabits(name) {
        let _ = write!(words, ", {up} Gbit/s to other switches");
    }
    let style = format!("fill=\"{colour}\" stroke=\"black\"");
    let middle = (at.middle(), at.y + SWITCH_HEIGHT / 2 + 4);
    let label = text(middle, " text-anchor=\"middle\" fill=\"white\" font-weight=\"bold\"", &cut(name));
    format!("<g><title>{}</title>\n{}{label}</g>\n", escape(&words), rect(at, &style))
}

fn colour(topology: &Topology, leaf: &Leaf) -> &'static str {
    let is_leaf = leaf.switch.is_some() && leaf.number < topology.leaves().len();
    if is_leaf { COLOURS[leaf.number % COLOURS.len()] } else { GREY }
}

fn cell(topology: &Topology, leaf: &Leaf, node: &Node, mark: Option<&Mark>, marks: &Marks) -> String {
    let colour = colour(topology, leaf);
    let style = match (marks.nodes.is_empty(), mark) {
        (true, _) => format!("fill=\"{colour}\" fill-opacity=\"0.15\" stroke=\"{colour}\""),
        (false, Some(_)) => format!("fill=\"{colour}\" fill-opacity=\"0.6\" stroke=\"black\""),
        (false, None) => "fill=\"white\" stroke=\"#cccccc\"".to_string(),
    };
    let Rect { x, y, width, height } = node.at;
    let base = y + height - 5;
    let mut inside = rect(&node.at, &style) + &text((x + 5, base), "", &cut(label(topology, &node.name)));
    if let Some(count) = mark.and_then(beside) {
        inside += &text((x + width - 5, base), " text-anchor=\"end\" font-weight=\"bold\"", &count);
    }
    format!("<g><title>{}</title>\n{inside}</g>\n", escape(&words(topology, node, mark)))
}

/// What stands beside a node's name: chunks, or daemons where there are several.
fn beside(mark: &Mark) -> Option<String> {
    match mark.chunks {
        Some(chunks) => Some(chunks.to_string()),
        None => (mark.daemons > 1).then(|| format!("x{}", mark.daemons)),
    }
}

fn words(topology: &Topology, node: &Node, mark: Option<&Mark>) -> String {
    let mut words = node.name.clone();
    if let Some(rack) = topology.rack_of(&node.name) {
        let _ = write!(words, ", rack {rack}");
    }
    for port in topology.ports_of(&node.name) {
        let _ = write!(words, ", {}", port.switch);
    }
    if let Some(mark) = mark {
        let _ = write!(words, ", daemons: {}", mark.daemons);
    }
    if let Some(chunks) = mark.and_then(|mark| mark.chunks) {
        let _ = write!(words, ", chunks: {chunks}");
    }
    words
}

/// The end of a long name: that is where numbers are.
fn cut(name: &str) -> String {
    let count = name.chars().count();
    match count > NAME_MAX {
        true => ['\u{2026}'].into_iter().chain(name.chars().skip(count + 1 - NAME_MAX)).collect(),
        false => name.into(),
    }
}

/// Text that XML takes for nothing but text; characters that it cannot have are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => {
                escaped.push(char::REPLACEMENT_CHARACTER)
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
