//! A plan for people and for programs.

use crate::{Basis, Choice, Plan};
use serde_json::{Value, json};
use tidepool_types::{Placement, format_size};

/// One choice, as people read it.
pub struct Row {
    pub what: &'static str,
    pub value: String,
    /// How to ask for something else.
    pub flag: &'static str,
    pub why: String,
    pub basis: Basis,
}

impl Plan {
    /// All choices, in the order in which they depend on each other.
    pub fn rows(&self) -> Vec<Row> {
        let cut = self.placement.value != Placement::Local;
        let chunk = if cut { format_size(self.chunk_size.value) } else { "whole files".into() };
        let stripe = match (self.placement.value, self.stripe.value) {
            (Placement::Wide, 0) => "all daemons".to_string(),
            (Placement::Wide, n) => format!("{n} daemons"),
            _ => "none".to_string(),
        };
        vec![
            row("nodes", "--deploy", &self.deploy, self.deploy.value.to_string()),
            row("store", "--store", &self.store, self.store.value.clone()),
            row("placement", "--placement", &self.placement, self.placement.value.word().into()),
            row("chunk size", "--chunk-size", &self.chunk_size, chunk),
            row("stripe", "--stripe", &self.stripe, stripe),
            row("weights", "--weights", &self.weights, numbers(&self.weights.value, "equal")),
            row("groups", "--groups", &self.groups, groups(&self.groups.value)),
            row("cores", "--daemon-cores", &self.cores, cores(&self.cores.value)),
            row("interface", "--nic", &self.nic, self.nic.value.clone().unwrap_or("by name".into())),
            row("transport", "--fabric", &self.transport, self.transport.value.to_string()),
        ]
    }

    /// For schedulers and other programs.
    pub fn json(&self) -> Value {
        let choice =
            |value: Value, why: &str, basis: Basis| json!({"value": value, "why": why, "basis": basis});
        macro_rules! choice {
            ($field:ident, $value:expr) => {
                choice(json!($value), &self.$field.why, self.$field.basis)
            };
        }
        json!({
            "deploy": choice!(deploy, self.deploy.value.to_string()),
            "store": choice!(store, self.store.value),
            "placement": choice!(placement, self.placement.value.word()),
            "chunk_size": choice!(chunk_size, self.chunk_size.value),
            "stripe": choice!(stripe, self.stripe.value),
            "weights": choice!(weights, self.weights.value),
            "groups": choice!(groups, self.groups.value),
            "cores": choice!(cores, self.cores.value),
            "nic": choice!(nic, self.nic.value),
            "transport": choice!(transport, self.transport.value.to_string()),
            "room": {
                "needed_bytes": self.room.needed, "available_bytes": self.room.available,
                "tightest": self.room.tightest, "fits": self.room.fits(),
            },
            "costs": self.costs,
            "seconds": self.costs.seconds(),
            "warnings": self.warnings,
        })
    }
}

fn row<T>(what: &'static str, flag: &'static str, choice: &Choice<T>, value: String) -> Row {
    Row { what, value, flag, why: choice.why.clone(), basis: choice.basis }
}

fn numbers(weights: &[u32], none: &str) -> String {
    if weights.is_empty() {
        return none.into();
    }
    weights.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Groups with the number of their daemons.
fn groups(names: &[String]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    match counts[..] {
        [] => "none".into(),
        _ => counts.iter().map(|(name, n)| format!("{name}: {n}")).collect::<Vec<_>>().join(", "),
    }
}

fn cores(of_nodes: &[Vec<u16>]) -> String {
    let Some(first) = of_nodes.first() else { return "all".into() };
    match of_nodes.iter().all(|cores| cores == first) {
        true if first.is_empty() => "all".into(),
        true => first.iter().map(u16::to_string).collect::<Vec<_>>().join(","),
        false => "by node".into(),
    }
}
