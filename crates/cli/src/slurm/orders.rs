//! What the stager of each node is to do for a job, from the job's directives. Pure: who asks for files, names in
//! directories and kept places is given.
//!
//! | from | to | without a mapping |
//! |---|---|---|
//! | shared, object | node-local | every node gets all (`replicate`) |
//! | node-local (kept by an earlier job) | node-local | what lies on a node of the job stays; the rest moves to nodes that have nothing |
//! | shared, object | pool | the first node copies |
//! | node-local | shared, object | all nodes' into one directory (`gather`) |
//! | pool | shared, object | the first node copies |

use crate::exit::{Failure, Kind as Fault, Result};
use std::collections::{BTreeMap, BTreeSet};
use tidepool_directives::{Mapping, MappingNode, Place, Stage};
use tidepool_types::show_bytes;
use tidepool_wire::stager::{OnBehalf, Op, Resource, TaskSpec};

/// What a dataspace is to a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// On each node another one.
    Local,
    /// The same from everywhere: a shared file system.
    Shared,
    /// An object store.
    Object,
    /// A pool of the job's own.
    Pool,
}

/// A place with what is known of its dataspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    pub dataspace: String,
    pub path: Vec<u8>,
    pub kind: Kind,
}

impl Known {
    fn here(&self) -> Resource {
        Resource::local(self.dataspace.clone(), &self.path)
    }

    fn at(&self, address: &str) -> Resource {
        Resource::remote(self.dataspace.clone(), address.to_string(), &self.path)
    }

    /// `nvme0://case`, as the book names it.
    pub fn shown(&self) -> String {
        shown_place(&self.dataspace, &self.path)
    }
}

/// A place as the book names it.
pub fn shown_place(dataspace: &str, path: &[u8]) -> String {
    format!("{dataspace}{}", show_bytes(path))
}

/// One copy of one node, and the place among the directives that it is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    pub stage: usize,
    pub node: String,
    pub task: TaskSpec,
}

/// What only others know.
pub trait World {
    /// Which dataspace a place is in.
    fn know(&self, place: &Place) -> Result<Known>;
    /// Names in a directory: of a node's own storage, or as the first node sees it.
    fn entries(&self, node: Option<&str>, place: &Known) -> Result<Vec<String>>;
    /// Nodes on which a place is kept.
    fn holders(&self, place: &Known) -> Result<Vec<String>>;
    /// A mapping file, read in the user's name.
    fn file(&self, path: &str) -> Result<String>;
    /// Where a node's stager listens.
    fn address(&self, node: &str) -> String;
}

/// A job that orders are for.
pub struct For<'a> {
    pub owner: OnBehalf,
    /// Its nodes, in the batch system's order.
    pub nodes: &'a [String],
    pub world: &'a dyn World,
}

fn wrong<T>(text: String) -> Result<T> {
    Err(Failure::new(Fault::StageIn, text))
}

impl For<'_> {
    /// Copies before the program starts.
    pub fn stage_in<'s>(&self, stages: impl IntoIterator<Item = &'s Stage>) -> Result<Vec<Order>> {
        let mut orders = Vec::new();
        for (number, stage) in stages.into_iter().enumerate() {
            let (from, to) = (self.world.know(&stage.origin)?, self.world.know(&stage.destination)?);
            let tasks = match (from.kind, to.kind) {
                (Kind::Local, Kind::Local) => self.between_nodes(stage, &from, &to)?,
                (Kind::Shared | Kind::Object, Kind::Local) => {
                    self.mapped(stage, &from, &to, Mapping::Replicate)?
                }
                (Kind::Shared | Kind::Object, Kind::Pool | Kind::Shared | Kind::Object) => {
                    vec![self.by_the_first(stage, &from, &to)?]
                }
                (Kind::Local, _) => {
                    return wrong(refuse(
                        "stage_in",
                        &from,
                        &to,
                        "stage out what nodes keep, or keep it there",
                    ));
                }
                (Kind::Pool, _) => {
                    return wrong(refuse("stage_in", &from, &to, "a pool is empty before the job"));
                }
            };
            orders.extend(self.orders(number, tasks));
        }
        Ok(orders)
    }

    /// Copies when it has ended.
    pub fn stage_out<'s>(&self, stages: impl IntoIterator<Item = &'s Stage>) -> Result<Vec<Order>> {
        let mut orders = Vec::new();
        for (number, stage) in stages.into_iter().enumerate() {
            let (from, to) = (self.world.know(&stage.origin)?, self.world.know(&stage.destination)?);
            let tasks = match (from.kind, to.kind) {
                (Kind::Local, Kind::Shared | Kind::Object) => {
                    self.mapped(stage, &from, &to, Mapping::Gather)?
                }
                (Kind::Local, Kind::Local) => self.on_each(stage, &from, &to)?,
                (Kind::Pool | Kind::Shared | Kind::Object, Kind::Shared | Kind::Object) => {
                    vec![self.by_the_first(stage, &from, &to)?]
                }
                (_, Kind::Local) => {
                    return wrong(refuse("stage_out", &from, &to, "write it there in the job"));
                }
                (_, Kind::Pool) => {
                    return wrong(refuse("stage_out", &from, &to, "the pool ends with the job"));
                }
            };
            orders.extend(self.orders(number, tasks));
        }
        Ok(orders)
    }

    fn orders(
        &self,
        stage: usize,
        tasks: Vec<(String, Resource, Resource)>,
    ) -> impl Iterator<Item = Order> + '_ {
        tasks.into_iter().map(move |(node, src, dst)| {
            let task = TaskSpec { on_behalf: Some(self.owner), ..TaskSpec::new(Op::Copy, src, Some(dst)) };
            Order { stage, node, task }
        })
    }

    fn first(&self) -> Result<&String> {
        self.nodes.first().ok_or_else(|| Failure::new(Fault::StageIn, "the job has no nodes"))
    }

    fn by_the_first(&self, stage: &Stage, from: &Known, to: &Known) -> Result<(String, Resource, Resource)> {
        if let Some(mapping) = &stage.mapping {
            let text = format!(
                "{} to {}: the mapping {} is for node-local storage; leave it out",
                from.shown(),
                to.shown(),
                mapping.value
            );
            return wrong(text);
        }
        Ok((self.first()?.clone(), from.here(), to.here()))
    }

    fn on_each(&self, stage: &Stage, from: &Known, to: &Known) -> Result<Vec<(String, Resource, Resource)>> {
        if stage.mapping.is_some() {
            return wrong(refuse("stage_out", from, to, "each node keeps its own: leave the mapping out"));
        }
        Ok(self.nodes.iter().map(|node| (node.clone(), from.here(), to.here())).collect())
    }

    fn mapping(&self, stage: &Stage, usual: Mapping) -> Result<Mapping> {
        let Some(text) = &stage.mapping else { return Ok(usual) };
        let read = |path: &str| self.world.file(path).map_err(|failure| failure.to_string());
        Mapping::parse(&text.to_string(), read)
            .map_err(|error| Failure::new(Fault::StageIn, error.to_string()))
    }

    /// Between what all see and what each node has.
    fn mapped(
        &self,
        stage: &Stage,
        from: &Known,
        to: &Known,
        usual: Mapping,
    ) -> Result<Vec<(String, Resource, Resource)>> {
        let mapping = self.mapping(stage, usual)?;
        let entries = match mapping.needs_entries() {
            true => self.world.entries(None, from)?,
            false => Vec::new(),
        };
        let address =
            |node: &String| MappingNode { name: node.clone(), address: Some(self.world.address(node)) };
        let nodes: Vec<MappingNode> = self.nodes.iter().map(address).collect();
        let by_address: BTreeMap<String, &String> =
            self.nodes.iter().map(|node| (self.world.address(node), node)).collect();
        let tasks = mapping.tasks(&from.here(), &to.here(), &nodes, &entries).map_err(|error| {
            Failure::new(Fault::StageIn, format!("{} to {}: {error}", from.shown(), to.shown()))
        })?;
        // Each node does what concerns its own storage.
        let own = |task: TaskSpec| {
            let (src, dst) = (task.src, task.dst?);
            let host = host_of(&dst).or_else(|| host_of(&src))?.to_string();
            Some(((*by_address.get(&host)?).clone(), without_host(src), without_host(dst)))
        };
        Ok(tasks.into_iter().filter_map(own).collect())
    }

    /// From nodes that keep something to those of the job: what is on the right node already is not moved.
    fn between_nodes(
        &self,
        stage: &Stage,
        from: &Known,
        to: &Known,
    ) -> Result<Vec<(String, Resource, Resource)>> {
        let holders = self.world.holders(from)?;
        if holders.is_empty() {
            let text = format!(
                "no node keeps {}; an earlier job has to say '#NORNS persist store {0}'",
                from.shown()
            );
            return wrong(text);
        }
        let pairs = match &stage.mapping {
            None => self.stay(from, &holders)?,
            Some(_) => match self.mapping(stage, Mapping::Replicate)? {
                Mapping::Replicate => self
                    .nodes
                    .iter()
                    .flat_map(|node| holders.iter().map(move |h| (h.clone(), node.clone(), None)))
                    .collect(),
                Mapping::Gather => {
                    let first = self.first()?;
                    holders.iter().map(|holder| (holder.clone(), first.clone(), None)).collect()
                }
                other => self.scattered(&other, from, to, &holders)?,
            },
        };
        let (from_names, to_names) = (names(from), names(to));
        let task = |(holder, node, entry): (String, String, Option<String>)| {
            let inner = |place: &Known| match &entry {
                None => place.clone(),
                Some(name) => Known { path: join(&place.path, name), ..place.clone() },
            };
            if holder == node {
                // In its place already.
                return (from_names != to_names).then(|| (node, inner(from).here(), inner(to).here()));
            }
            let source = inner(from).at(&self.world.address(&holder));
            Some((node, source, inner(to).here()))
        };
        Ok(pairs.into_iter().filter_map(task).collect())
    }

    /// Holders among the job's nodes stay, the others' go to nodes that hold nothing.
    fn stay(&self, from: &Known, holders: &[String]) -> Result<Vec<(String, String, Option<String>)>> {
        let own: BTreeSet<&String> = self.nodes.iter().collect();
        let (stay, leave): (Vec<&String>, Vec<&String>) =
            holders.iter().partition(|holder| own.contains(holder));
        let free: Vec<&String> = self.nodes.iter().filter(|node| !stay.contains(node)).collect();
        if leave.len() > free.len() {
            let text = format!(
                "{} lies on {} nodes ({}), more than the job has: ask for as many, or give a mapping such as gather",
                from.shown(),
                holders.len(),
                holders.join(", ")
            );
            return wrong(text);
        }
        let moved = leave.into_iter().zip(free);
        let kept = stay.into_iter().map(|node| (node, node));
        Ok(kept.chain(moved).map(|(from, to)| (from.clone(), to.clone(), None)).collect())
    }

    /// Entry by entry: each to the node that the mapping gives it.
    fn scattered(
        &self,
        mapping: &Mapping,
        from: &Known,
        to: &Known,
        holders: &[String],
    ) -> Result<Vec<(String, String, Option<String>)>> {
        let mut holder_of = BTreeMap::new();
        for holder in holders {
            for name in self.world.entries(Some(holder), from)? {
                if let Some(other) = holder_of.insert(name.clone(), holder.clone()) {
                    let text = format!(
                        "{}{name} lies on {other} and on {holder}: which one is meant?",
                        from.shown()
                    );
                    return wrong(text);
                }
            }
        }
        let nodes: Vec<MappingNode> = self
            .nodes
            .iter()
            .map(|node| MappingNode { name: node.clone(), address: Some(self.world.address(node)) })
            .collect();
        let entries: Vec<String> = holder_of.keys().cloned().collect();
        let tasks = mapping.tasks(&from.here(), &to.here(), &nodes, &entries).map_err(|error| {
            Failure::new(Fault::StageIn, format!("{} to {}: {error}", from.shown(), to.shown()))
        })?;
        let mut pairs = Vec::with_capacity(tasks.len());
        for task in tasks {
            let (Resource::Path { path, .. }, Some(dst)) = (&task.src, &task.dst) else { continue };
            let host = host_of(dst).unwrap_or_default();
            let node = self.nodes.iter().find(|node| self.world.address(node) == host);
            let name = path.rsplit(|b| *b == b'/').find(|part| !part.is_empty()).unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            if let (Some(node), Some(holder)) = (node, holder_of.get(&name)) {
                pairs.push((holder.clone(), node.clone(), Some(name)));
            }
        }
        Ok(pairs)
    }
}

fn refuse(what: &str, from: &Known, to: &Known, advice: &str) -> String {
    format!("{what} {} {}: {advice}", from.shown(), to.shown())
}

fn names(place: &Known) -> (String, Vec<Vec<u8>>) {
    let parts = place.path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".");
    (place.dataspace.clone(), parts.map(<[u8]>::to_vec).collect())
}

fn join(path: &[u8], name: &str) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() && !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name.as_bytes());
    joined
}

fn host_of(resource: &Resource) -> Option<&str> {
    match resource {
        Resource::Path { host, .. } => host.as_deref(),
        Resource::Memory { .. } => None,
    }
}

fn without_host(resource: Resource) -> Resource {
    match resource {
        Resource::Path { dataspace, path, .. } => Resource::local(dataspace, &path),
        memory => memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_directives::Directives;

    /// Nodes `n1`, `n2`, ...; `lustre://` is shared, `nvme0://` on each node, `pool://` the job's own.
    #[derive(Default)]
    struct Paper {
        /// Names in directories, by node (empty: as all see it) and place.
        entries: BTreeMap<(&'static str, &'static str), Vec<&'static str>>,
        holders: Vec<&'static str>,
    }

    impl World for Paper {
        fn know(&self, place: &Place) -> Result<Known> {
            let Place::Dataspace { name, path } = place else { return wrong(format!("{place}")) };
            let kind = match name.as_str() {
                "nvme0://" => Kind::Local,
                "lustre://" => Kind::Shared,
                _ => Kind::Pool,
            };
            Ok(Known { dataspace: name.clone(), path: path.clone(), kind })
        }

        fn entries(&self, node: Option<&str>, place: &Known) -> Result<Vec<String>> {
            let found =
                self.entries.iter().find(|((of, at), _)| *of == node.unwrap_or("") && *at == place.shown());
            Ok(found.map(|(_, names)| names.iter().map(ToString::to_string).collect()).unwrap_or_default())
        }

        fn holders(&self, _place: &Known) -> Result<Vec<String>> {
            Ok(self.holders.iter().map(ToString::to_string).collect())
        }

        fn file(&self, path: &str) -> Result<String> {
            Ok(format!("# {path}\na n2\nb n1\n"))
        }

        fn address(&self, node: &str) -> String {
            format!("{node}:1")
        }
    }

    /// `NODE: SOURCE > DESTINATION` for each order, sorted; or the refusal.
    fn told(world: &Paper, nodes: &[&str], line: &str) -> Vec<String> {
        let pool = if line.contains("pool://") { "#TIDEPOOL pool\n" } else { "" };
        let script = format!("#!/bin/sh\n{pool}{line}\n");
        let (asks, _) = Directives::parse(script.as_bytes()).unwrap();
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let target = For { owner: OnBehalf { uid: 1, gid: 2, job: 3 }, nodes: &nodes, world };
        let orders = match asks.stage_in.is_empty() {
            false => target.stage_in(asks.stage_in.iter().map(|stage| &stage.value)),
            true => target.stage_out(asks.stage_out.iter().map(|stage| &stage.value)),
        };
        let show = |order: Order| {
            assert_eq!(order.task.on_behalf, Some(target.owner));
            let place = tidepool_stage_client::show_place;
            format!("{}: {} > {}", order.node, place(&order.task.src), place(&order.task.dst.unwrap()))
        };
        let mut told: Vec<String> = match orders {
            Ok(orders) => orders.into_iter().map(show).collect(),
            Err(failure) => vec![format!("! {failure}")],
        };
        told.sort();
        told
    }

    #[test]
    fn h6_each_node_brings_what_it_needs() {
        let world = Paper {
            entries: [(("", "lustre://case"), vec!["p0", "p1", "p2"]), (("", "lustre://ab"), vec!["a", "b"])]
                .into(),
            ..Paper::default()
        };
        let of = |line: &str| told(&world, &["n1", "n2"], line);
        assert_eq!(
            of("#NORNS stage_in lustre://in nvme0://in"),
            ["n1: lustre://in > nvme0://in", "n2: lustre://in > nvme0://in"]
        );
        assert_eq!(
            of("#NORNS stage_in lustre://case nvme0://case scatter:p{rank}"),
            [
                "n1: lustre://case/p0 > nvme0://case/p0",
                "n1: lustre://case/p1 > nvme0://case/p1",
                "n2: lustre://case/p2 > nvme0://case/p2"
            ]
        );
        assert_eq!(
            of("#NORNS stage_in lustre://ab nvme0://ab file:/map"),
            ["n1: lustre://ab/b > nvme0://ab/b", "n2: lustre://ab/a > nvme0://ab/a"]
        );
        assert_eq!(of("#NORNS stage_in lustre://in pool://in"), ["n1: lustre://in > pool://in"]);
        assert!(of("#NORNS stage_in lustre://in pool://in replicate")[0].starts_with("! "));
        assert!(of("#NORNS stage_in pool://a nvme0://a")[0].contains("a pool is empty before the job"));
    }

    #[test]
    fn h7_each_node_brings_out_what_it_has() {
        let of = |line: &str| told(&Paper::default(), &["n1", "n2"], line);
        assert_eq!(
            of("#NORNS stage_out nvme0://out lustre://out"),
            ["n1: nvme0://out > lustre://out", "n2: nvme0://out > lustre://out"]
        );
        assert_eq!(
            of("#NORNS stage_out nvme0://out lustre://out gather:of-{node}"),
            ["n1: nvme0://out > lustre://out/of-n1", "n2: nvme0://out > lustre://out/of-n2"]
        );
        assert_eq!(of("#NORNS stage_out pool://out lustre://out"), ["n1: pool://out > lustre://out"]);
        assert!(of("#NORNS stage_out lustre://out pool://out")[0].contains("ends with the job"));
    }

    #[test]
    fn h16_what_is_in_its_place_is_not_moved() {
        let line = "#NORNS stage_in nvme0://case nvme0://case";
        let world = Paper { holders: vec!["n1", "n2"], ..Paper::default() };
        assert_eq!(told(&world, &["n1", "n2"], line), Vec::<String>::new());
        assert_eq!(told(&world, &["n1", "n3"], line), ["n3: n2:1/nvme0://case > nvme0://case"]);
        assert_eq!(
            told(&world, &["n3", "n4", "n5"], line),
            ["n3: n1:1/nvme0://case > nvme0://case", "n4: n2:1/nvme0://case > nvme0://case"]
        );
        let few = told(&world, &["n3"], line);
        assert!(few[0].contains("lies on 2 nodes (n1, n2), more than the job has"), "{few:?}");
        let none = told(&Paper::default(), &["n3"], line);
        assert!(none[0].contains("no node keeps nvme0://case"), "{none:?}");
    }

    #[test]
    fn h16_pieces_go_where_their_ranks_run() {
        let world = Paper {
            holders: vec!["n1", "n2"],
            entries: [
                (("n1", "nvme0://parts"), vec!["p0", "p3"]),
                (("n2", "nvme0://parts"), vec!["p1", "p2"]),
            ]
            .into(),
        };
        assert_eq!(
            told(&world, &["n1", "n2"], "#NORNS stage_in nvme0://parts nvme0://parts scatter:p{rank}"),
            ["n1: n2:1/nvme0://parts/p1 > nvme0://parts/p1", "n2: n1:1/nvme0://parts/p3 > nvme0://parts/p3"]
        );
        assert_eq!(
            told(&world, &["n2"], "#NORNS stage_in nvme0://parts nvme0://all gather"),
            ["n2: n1:1/nvme0://parts > nvme0://all", "n2: nvme0://parts > nvme0://all"]
        );
        let twice = Paper {
            entries: [(("n1", "nvme0://parts"), vec!["p0"]), (("n2", "nvme0://parts"), vec!["p0"])].into(),
            ..world
        };
        let told = told(&twice, &["n1"], "#NORNS stage_in nvme0://parts nvme0://parts scatter:p{rank}");
        assert!(told[0].contains("which one is meant?"), "{told:?}");
    }
}
