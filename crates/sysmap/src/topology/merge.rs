//! One network of what several records tell of it.

use super::{Told, TopologyError};
use crate::extract::{Fabric, Link, Port, Rack, Switch, levels};
use crate::system::clip;
use std::collections::{BTreeMap, BTreeSet};

/// How wide a connection is.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Width {
    count: u32,
    gigabits_per_second: Option<f64>,
}

impl Width {
    fn of_port(port: &Port) -> Width {
        Width { count: port.count, gigabits_per_second: port.gigabits_per_second }
    }

    fn of_link(link: &Link) -> Width {
        Width { count: link.count, gigabits_per_second: link.gigabits_per_second }
    }

    fn is_sound(self) -> bool {
        self.count > 0 && self.gigabits_per_second.is_none_or(|speed| speed.is_finite() && speed > 0.0)
    }

    /// One link of no speed is what those tell that know of neither, such as Slurm's file.
    fn tells_nothing(self) -> bool {
        self.count == 1 && self.gigabits_per_second.is_none()
    }

    /// What both say together; none when they cannot both be right.
    fn join(self, other: Width) -> Option<Width> {
        match (self.gigabits_per_second, other.gigabits_per_second) {
            _ if self.tells_nothing() => Some(other),
            _ if other.tells_nothing() => Some(self),
            _ if self.count != other.count => None,
            (Some(one), Some(two)) if one != two => None,
            (one, two) => Some(Width { gigabits_per_second: one.or(two), ..self }),
        }
    }
}

impl std::fmt::Display for Width {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.gigabits_per_second {
            Some(speed) => write!(f, "{} link(s) of {speed} Gbit/s", self.count),
            None => write!(f, "{} link(s)", self.count),
        }
    }
}

/// Something with the first record that told it.
type By<T> = (usize, T);

/// A network while records of it come.
#[derive(Default)]
pub(super) struct Merge {
    /// Records so far.
    at: usize,
    switches: BTreeSet<String>,
    /// Of each host.
    ports: BTreeMap<String, By<BTreeMap<String, Width>>>,
    links: BTreeMap<(String, String), By<Width>>,
    /// The rack of each host.
    racks: BTreeMap<String, By<String>>,
}

impl Merge {
    /// Adds one record. It may tell a part of the network; of a host that it names it tells all switches.
    pub fn add(&mut self, fabric: &Fabric) -> Result<(), TopologyError> {
        let known = names(&fabric.switches)?;
        self.switches.extend(known.iter().map(|name| name.to_string()));
        for (host, ports) in ports_of(fabric, &known)? {
            self.add_host(host, ports)?;
        }
        for (ends, width) in links_of(fabric, &known)? {
            self.add_link(ends, width)?;
        }
        for (host, rack) in racks_of(fabric)? {
            self.add_rack(host, rack)?;
        }
        self.at += 1;
        Ok(())
    }

    fn contradiction<T>(
        &self,
        what: String,
        (at, says): By<String>,
        other: String,
    ) -> Result<T, TopologyError> {
        Err(TopologyError::Contradiction {
            what,
            one: Told { record: at, says },
            other: Told { record: self.at, says: other },
        })
    }

    fn add_host(&mut self, host: &str, ports: BTreeMap<&str, Width>) -> Result<(), TopologyError> {
        let Some((at, known)) = self.ports.get_mut(host) else {
            let ports = ports.into_iter().map(|(switch, width)| (switch.to_string(), width)).collect();
            self.ports.insert(host.into(), (self.at, ports));
            return Ok(());
        };
        let what = format!("host '{}'", clip(host));
        if !known.keys().eq(ports.keys()) {
            let one = (*at, listed(known.keys().map(String::as_str)));
            return self.contradiction(what, one, listed(ports.into_keys()));
        }
        for (width, (switch, told)) in known.values_mut().zip(ports) {
            match width.join(told) {
                Some(joined) => *width = joined,
                None => {
                    let what = format!("{what} at switch '{}'", clip(switch));
                    let one = (*at, width.to_string());
                    return self.contradiction(what, one, told.to_string());
                }
            }
        }
        Ok(())
    }

    fn add_link(&mut self, (a, b): (&str, &str), told: Width) -> Result<(), TopologyError> {
        let (at, width) = self.links.entry((a.into(), b.into())).or_insert((self.at, told));
        match width.join(told) {
            Some(joined) => *width = joined,
            None => {
                let one = (*at, width.to_string());
                let what = format!("switches '{}' and '{}'", clip(a), clip(b));
                return self.contradiction(what, one, told.to_string());
            }
        }
        Ok(())
    }

    fn add_rack(&mut self, host: &str, rack: &str) -> Result<(), TopologyError> {
        let said = |rack: &str| format!("rack '{}'", clip(rack));
        let (at, known) = self.racks.entry(host.into()).or_insert_with(|| (self.at, rack.into()));
        if known == rack {
            return Ok(());
        }
        let one = (*at, said(known));
        self.contradiction(format!("host '{}'", clip(host)), one, said(rack))
    }

    /// The whole network. Levels are found anew: a part alone may give others.
    pub fn end(self) -> Fabric {
        let leaves = self.ports.values().flat_map(|(_, ports)| ports.keys().map(String::as_str));
        let levels = levels(leaves, self.links.keys().map(|(a, b)| (a.as_str(), b.as_str())));
        let switch = |name: &String| Switch {
            name: name.clone(),
            level: levels.get(name.as_str()).copied().unwrap_or(1),
        };
        let mut racks: BTreeMap<&String, Vec<String>> = BTreeMap::new();
        for (host, (_, rack)) in &self.racks {
            racks.entry(rack).or_default().push(host.clone());
        }
        let port = |host: &String, (switch, width): (&String, &Width)| Port {
            host: host.clone(),
            switch: switch.clone(),
            count: width.count,
            gigabits_per_second: width.gigabits_per_second,
        };
        let link = |((a, b), (_, width)): (&(String, String), &By<Width>)| Link {
            a: a.clone(),
            b: b.clone(),
            count: width.count,
            gigabits_per_second: width.gigabits_per_second,
        };
        Fabric {
            switches: self.switches.iter().map(switch).collect(),
            hosts: self
                .ports
                .iter()
                .flat_map(|(host, (_, ports))| ports.iter().map(move |at| port(host, at)))
                .collect(),
            links: self.links.iter().map(link).collect(),
            racks: racks.into_iter().map(|(name, hosts)| Rack { name: name.clone(), hosts }).collect(),
        }
    }
}

fn listed<'a>(switches: impl Iterator<Item = &'a str>) -> String {
    let named: Vec<String> = switches.map(|switch| format!("'{}'", clip(switch))).collect();
    format!("switch {}", named.join(" and "))
}

fn bad<T>(what: String) -> Result<T, TopologyError> {
    Err(TopologyError::Bad(what))
}

fn names(switches: &[Switch]) -> Result<BTreeSet<&str>, TopologyError> {
    let mut names = BTreeSet::new();
    for Switch { name, .. } in switches {
        if name.is_empty() || !names.insert(name.as_str()) {
            return bad(format!("switch '{}' has no name, or is there twice", clip(name)));
        }
    }
    Ok(names)
}

fn ports_of<'a>(
    fabric: &'a Fabric,
    known: &BTreeSet<&str>,
) -> Result<BTreeMap<&'a str, BTreeMap<&'a str, Width>>, TopologyError> {
    let mut hosts: BTreeMap<&str, BTreeMap<&str, Width>> = BTreeMap::new();
    for port in &fabric.hosts {
        let width = Width::of_port(port);
        if port.host.is_empty() || !width.is_sound() || !known.contains(port.switch.as_str()) {
            let (host, switch) = (clip(&port.host), clip(&port.switch));
            return bad(format!(
                "host '{host}' at switch '{switch}': it has no name or links, or there is no such switch"
            ));
        }
        if hosts.entry(&port.host).or_default().insert(&port.switch, width).is_some() {
            return bad(format!("host '{}' is at a switch twice", clip(&port.host)));
        }
    }
    Ok(hosts)
}

type Links<'a> = BTreeMap<(&'a str, &'a str), Width>;

fn links_of<'a>(fabric: &'a Fabric, known: &BTreeSet<&str>) -> Result<Links<'a>, TopologyError> {
    let mut links = BTreeMap::new();
    for link in &fabric.links {
        let (a, b) = (link.a.as_str().min(&link.b), link.a.as_str().max(&link.b));
        let width = Width::of_link(link);
        let named = || format!("the link between switches '{}' and '{}'", clip(a), clip(b));
        if a == b || !width.is_sound() || !known.contains(a) || !known.contains(b) {
            return bad(format!("{} joins no two switches that are described, or has no width", named()));
        }
        if links.insert((a, b), width).is_some() {
            return bad(format!("{} is there twice", named()));
        }
    }
    Ok(links)
}

fn racks_of(fabric: &Fabric) -> Result<BTreeMap<&str, &str>, TopologyError> {
    let mut racks = BTreeMap::new();
    for rack in &fabric.racks {
        for host in &rack.hosts {
            if rack.name.is_empty() || racks.insert(host.as_str(), rack.name.as_str()).is_some() {
                return bad(format!("host '{}' stands in a rack without a name, or in two", clip(host)));
            }
        }
    }
    Ok(racks)
}
