//! The text format of Prometheus, version 0.0.4. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What a value of a family is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    Counter,
    Gauge,
    Untyped,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Untyped => "untyped",
        }
    }
}

/// A name with its type and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub name: &'static str,
    pub of: Type,
    pub help: &'static str,
}

/// Labels in the order in which they are written.
pub type Labels = Vec<(&'static str, String)>;

/// Each name once, and each combination of labels once.
#[derive(Default)]
pub struct Families(BTreeMap<&'static str, (Name, BTreeMap<Labels, f64>)>);

impl Families {
    pub fn put(&mut self, name: Name, labels: &Labels, value: f64) {
        let (_, values) = self.0.entry(name.name).or_insert_with(|| (name, BTreeMap::new()));
        values.entry(labels.clone()).or_insert(value);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for (Name { name, of, help }, values) in self.0.values() {
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {}", help_of(help), of.name());
            for (labels, value) in values {
                let labels: Vec<String> =
                    labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
                let _ = writeln!(text, "{name}{{{}}} {value}", labels.join(","));
            }
        }
        text
    }
}

fn help_of(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_is_told_once_and_labels_are_escaped() {
        let name = Name { name: "a_ratio", of: Type::Gauge, help: "What\\it is" };
        let mut families = Families::default();
        families.put(name, &vec![("pool", "b\"\\\n".into())], 0.5);
        families.put(
            Name { name: "a_total", of: Type::Counter, help: "More" },
            &vec![("x", "y".into())],
            3.0,
        );
        families.put(name, &vec![("pool", "a".into())], 1e15);
        families.put(name, &vec![("pool", "a".into())], 7.0);
        assert_eq!(
            families.text(),
            "# HELP a_ratio What\\\\it is\n# TYPE a_ratio gauge\na_ratio{pool=\"a\"} 1000000000000000\n\
             a_ratio{pool=\"b\\\"\\\\\\n\"} 0.5\n# HELP a_total More\n# TYPE a_total counter\na_total{x=\"y\"} 3\n"
        );
    }
}
