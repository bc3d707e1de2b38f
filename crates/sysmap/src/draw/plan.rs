//! Where everything of a picture stands. Lengths are pixels.

use super::Marks;
use crate::extract::Switch;
use crate::topology::{Topology, by_name, short};
use std::collections::BTreeMap;

/// Nodes below each other; a leaf with more has several columns.
const ROWS_MAX: usize = 24;
pub const CELL_HEIGHT: usize = 18;
const CELL_GAP: usize = 3;
pub const SWITCH_HEIGHT: usize = 24;
/// Between the tops of switches of two levels.
const LEVEL_HEIGHT: usize = 120;
/// Within the frame of an island, and of a leaf.
const PAD: usize = 12;
/// Between islands, and around all.
const GAP: usize = 24;
const MARGIN: usize = 20;
/// The picture's title, and an island's.
const HEAD: usize = 30;
/// Of a character of the picture's font.
const CHAR_WIDTH: usize = 7;
/// Most characters of a name that is drawn; the whole one is in what a pointer shows.
pub const NAME_MAX: usize = 16;
/// Digits of a number beside a node's name.
const COUNT_CHARS: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rect {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

impl Rect {
    pub fn middle(&self) -> usize {
        self.x + self.width / 2
    }

    pub fn bottom(&self) -> usize {
        self.y + self.height
    }
}

pub struct Node {
    pub name: String,
    pub at: Rect,
}

/// A leaf switch with its nodes, or, without a switch, nodes that hang on none that is known.
pub struct Leaf {
    pub switch: Option<String>,
    /// Its place among the leaves, which its colour is of.
    pub number: usize,
    pub nodes: Vec<Node>,
}

pub struct Island {
    pub title: String,
    pub frame: Rect,
}

/// A picture.
pub struct Plan {
    pub width: usize,
    pub height: usize,
    pub islands: Vec<Island>,
    pub switches: BTreeMap<String, Rect>,
    pub leaves: Vec<Leaf>,
    /// Where the lines below the picture begin.
    pub notes: usize,
}

/// What stands side by side below the highest level: an island, or what belongs to none.
#[derive(Default)]
struct Group<'a> {
    title: Option<String>,
    leaves: Vec<(Option<&'a str>, usize, Vec<String>)>,
    /// Switches above leaves, by level.
    above: BTreeMap<u32, Vec<&'a str>>,
}

/// What is drawn of a host's name: up to its first dot, where that is clear.
pub fn label<'a>(topology: &Topology, host: &'a str) -> &'a str {
    let short = short(host);
    if topology.known_host(short) == Some(host) { short } else { host }
}

/// Widths that depend on the longest names.
struct Sizes {
    cell: usize,
    switch: usize,
}

impl Sizes {
    fn of(topology: &Topology, groups: &[Group<'_>]) -> Sizes {
        let chars = |name: &str| name.chars().count().min(NAME_MAX);
        let nodes = groups.iter().flat_map(|group| &group.leaves).flat_map(|(_, _, nodes)| nodes);
        let node = nodes.map(|node| chars(label(topology, node))).max().unwrap_or(1);
        let switch = topology.switches().iter().map(|switch| chars(&switch.name)).max().unwrap_or(1);
        Sizes { cell: (node + COUNT_CHARS) * CHAR_WIDTH, switch: (switch + 2) * CHAR_WIDTH }
    }

    fn columns(nodes: usize) -> usize {
        nodes.div_ceil(ROWS_MAX).max(1)
    }

    fn leaf(&self, nodes: usize) -> usize {
        let columns = Sizes::columns(nodes);
        (columns * (self.cell + CELL_GAP) - CELL_GAP).max(self.switch)
    }

    fn group(&self, group: &Group<'_>) -> usize {
        let leaves: usize = group.leaves.iter().map(|(_, _, nodes)| self.leaf(nodes.len()) + PAD).sum();
        let above = group.above.values().map(|row| row.len() * (self.switch + PAD)).max().unwrap_or(0);
        leaves.max(above) + PAD
    }
}

/// Islands first, then switches that belong to none, then nodes of no known switch.
fn groups<'a>(topology: &'a Topology, marks: &Marks) -> Vec<Group<'a>> {
    let top = topology.levels();
    let mut groups: Vec<Group<'_>> = (1..=topology.islands().len())
        .map(|number| Group { title: Some(format!("island {number}")), ..Group::default() })
        .collect();
    for (number, leaf) in topology.leaves().iter().enumerate() {
        groups[leaf.island].leaves.push((Some(&leaf.name), number, leaf.hosts.clone()));
    }
    let mut lonely = Group::default();
    for Switch { name, level } in topology.switches() {
        let is_leaf = topology.leaves().iter().any(|leaf| leaf.name == *name);
        if is_leaf || (*level == top && top > 1) {
            continue;
        }
        match topology.island_of(name) {
            Some(island) => groups[island].above.entry(*level).or_default().push(name),
            None if *level == 1 => lonely.leaves.push((Some(name), topology.leaves().len(), Vec::new())),
            None => lonely.above.entry(*level).or_default().push(name),
        }
    }
    let mut strangers: Vec<String> =
        marks.nodes.keys().filter(|host| topology.known_host(host).is_none()).cloned().collect();
    strangers.sort_by(|one, other| by_name(one, other));
    if !strangers.is_empty() {
        lonely.leaves.push((None, topology.leaves().len(), strangers));
    }
    if !lonely.leaves.is_empty() || !lonely.above.is_empty() {
        groups.push(lonely);
    }
    groups
}

impl Plan {
    pub fn new(topology: &Topology, marks: &Marks) -> Plan {
        let groups = groups(topology, marks);
        let sizes = Sizes::of(topology, &groups);
        let top = topology.levels();
        let highest: Vec<&str> = topology
            .switches()
            .iter()
            .filter(|switch| switch.level == top && top > 1)
            .map(|switch| switch.name.as_str())
            .collect();
        let below: usize = groups.iter().map(|group| sizes.group(group) + GAP).sum();
        let width = below.max(highest.len() * (sizes.switch + PAD)).max(60 * CHAR_WIDTH) + 2 * MARGIN;
        let mut plan = Plan {
            width,
            height: 0,
            islands: Vec::new(),
            switches: BTreeMap::new(),
            leaves: Vec::new(),
            notes: 0,
        };
        let first = MARGIN + HEAD;
        plan.add_row(&highest, &sizes, 0, width, first);
        let levels_below = if top > 1 { top - 1 } else { 1 };
        let groups_at = if top > 1 { first + LEVEL_HEIGHT } else { first + HEAD };
        let mut x = (width - below) / 2 + GAP / 2;
        let mut bottom = groups_at;
        for group in groups {
            let frame_width = sizes.group(&group);
            bottom = bottom.max(plan.add_group(group, &sizes, (x, frame_width), (groups_at, levels_below)));
            x += frame_width + GAP;
        }
        plan.islands.iter_mut().for_each(|island| island.frame.height = bottom + PAD - island.frame.y);
        plan.notes = bottom + PAD + GAP;
        plan.height = plan.notes + (marks.notes.len() + 1) * CELL_HEIGHT + MARGIN;
        plan
    }

    /// Puts switches into the middle of a row.
    fn add_row(&mut self, names: &[&str], sizes: &Sizes, x: usize, width: usize, y: usize) {
        let step = (width / names.len().max(1)).min(3 * sizes.switch);
        let from = x + (width - step * names.len()) / 2 + (step - sizes.switch.min(step)) / 2;
        for (at, name) in names.iter().enumerate() {
            let rect = Rect { x: from + at * step, y, width: sizes.switch, height: SWITCH_HEIGHT };
            self.switches.insert(name.to_string(), rect);
        }
    }

    /// Where the lowest of its nodes ends.
    fn add_group(
        &mut self,
        group: Group<'_>,
        sizes: &Sizes,
        (x, width): (usize, usize),
        (y, levels): (usize, u32),
    ) -> usize {
        if let Some(title) = group.title {
            let frame = Rect { x, y: y - HEAD, width, height: 0 };
            self.islands.push(Island { title, frame });
        }
        let row = |level: u32| y + levels.saturating_sub(level) as usize * LEVEL_HEIGHT;
        for (level, names) in &group.above {
            self.add_row(names, sizes, x, width, row(*level));
        }
        let all: usize = group.leaves.iter().map(|(_, _, nodes)| sizes.leaf(nodes.len()) + PAD).sum();
        let mut at = x + PAD + (width - PAD - all) / 2;
        let mut bottom = row(1) + SWITCH_HEIGHT;
        for (switch, number, nodes) in group.leaves {
            let width = sizes.leaf(nodes.len());
            if let Some(name) = switch {
                let rect = Rect { x: at, y: row(1), width, height: SWITCH_HEIGHT };
                self.switches.insert(name.into(), rect);
            }
            let nodes = cells(nodes, sizes, at, row(1) + SWITCH_HEIGHT + CELL_GAP);
            bottom = nodes.iter().map(|node| node.at.bottom()).chain([bottom]).max().unwrap_or(bottom);
            self.leaves.push(Leaf { switch: switch.map(String::from), number, nodes });
            at += width + PAD;
        }
        bottom
    }
}

/// Nodes below each other, in as few columns as there have to be.
fn cells(names: Vec<String>, sizes: &Sizes, x: usize, y: usize) -> Vec<Node> {
    let rows = names.len().div_ceil(Sizes::columns(names.len())).max(1);
    let rect = |n: usize| Rect {
        x: x + n / rows * (sizes.cell + CELL_GAP),
        y: y + n % rows * (CELL_HEIGHT + CELL_GAP),
        width: sizes.cell,
        height: CELL_HEIGHT,
    };
    names.into_iter().enumerate().map(|(n, name)| Node { name, at: rect(n) }).collect()
}
