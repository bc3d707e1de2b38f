//! What a job with directives cannot be in Slurm. The submission hook asks it of a job, and `lint` of what its script's
//! `#SBATCH` lines say.

use tidepool_directives::{At, Directives, PoolRequest, Problem, Said};
use tidepool_plan::Deploy;

/// What Slurm is asked for, as far as directives depend on it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// At most so many nodes; none where nobody says.
    pub nodes: Option<usize>,
    /// Where it is said that it is an array.
    pub array: Option<At>,
}

/// What speaks against a job, that Slurm itself would take.
pub fn refusals(asks: &Directives, asked: &Asked) -> Vec<Problem> {
    if *asks == Directives::default() {
        return Vec::new();
    }
    let array = asked.array.as_ref().map(|at| Problem::new(at, ARRAY));
    let of_pool = |pool: &Said<PoolRequest>| {
        let why = super::hooks::check_pool(pool).err().or_else(|| too_few(pool, asked.nodes?));
        why.map(|why| Problem::new(&pool.at, why))
    };
    array.into_iter().chain(asks.pools.iter().filter_map(of_pool)).collect()
}

const ARRAY: &str = "job arrays cannot have directives: their tasks get numbers of their own later, which no hook is told; submit single jobs instead, as in: for task in $(seq 10); do sbatch --export=ALL,TASK=$task job.sh; done";

/// A pool cannot have more nodes than its job.
fn too_few(pool: &PoolRequest, nodes: usize) -> Option<String> {
    let wants = |count: usize, what: &str| {
        (count > nodes).then(|| format!("{what} wants {count} nodes, and the job has {nodes}"))
    };
    let deployed = match pool.deploy {
        Some(Deploy::Dedicated(count)) if count >= nodes && count <= pool.nodes.unwrap_or(nodes) => {
            Some(format!("deploy=dedicated:{count} leaves none of the job's {nodes} nodes to its program"))
        }
        Some(Deploy::Subset(count) | Deploy::Dedicated(count)) => wants(count, "deploy"),
        Some(Deploy::Shared) | None => None,
    };
    wants(pool.nodes.unwrap_or(0), "nodes").or(deployed)
}

/// What the `#SBATCH` lines of a script's header say.
pub fn asked_by(script: &[u8]) -> Asked {
    let mut asked = Asked::default();
    let text = String::from_utf8_lossy(script);
    for (number, line) in text.lines().enumerate() {
        if !line.starts_with('#') && !line.trim().is_empty() {
            break;
        }
        let Some(said) = line.strip_prefix("#SBATCH") else { continue };
        let mut words = said.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if word.starts_with('#') {
                break;
            }
            let at = At::Line { line: number + 1, column: column_of(line, word) };
            if let Some(value) = value_of(word, ("-N", "--nodes"), words.peek().copied()) {
                asked.nodes = most_nodes(value);
            } else if value_of(word, ("-a", "--array"), words.peek().copied()).is_some() {
                asked.array = Some(at);
            }
        }
    }
    asked
}

/// The value of an option: behind it, behind `=`, or in the next word.
fn value_of<'a>(word: &'a str, (short, long): (&str, &str), next: Option<&'a str>) -> Option<&'a str> {
    if word == short || word == long {
        return next;
    }
    let behind = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('='));
    behind.or_else(|| word.strip_prefix(short).filter(|rest| !rest.is_empty() && !word.starts_with("--")))
}

/// `2`, `2-4`; other forms say nothing here.
fn most_nodes(value: &str) -> Option<usize> {
    value.rsplit('-').next()?.parse().ok()
}

fn column_of(line: &str, word: &str) -> usize {
    // `word` is a part of `line`.
    let at = word.as_ptr() as usize - line.as_ptr() as usize;
    line[..at].chars().count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(script: &str) -> Vec<String> {
        let (asks, _) = Directives::parse(script.as_bytes()).unwrap();
        refusals(&asks, &asked_by(script.as_bytes())).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_sbatch_lines_say_is_read() {
        let of = |text: &str| asked_by(format!("#!/bin/sh\n{text}\necho\n#SBATCH -N9\n").as_bytes());
        for text in ["#SBATCH -N 4", "#SBATCH -N4", "#SBATCH --nodes=4", "#SBATCH --time=5 --nodes 2-4 # -N8"]
        {
            assert_eq!(of(text).nodes, Some(4), "{text}");
        }
        assert_eq!(of("#SBATCH --time=5\n##SBATCH -N4"), Asked::default());
        assert_eq!(of("#SBATCH -n4 --array=1-3").array, Some(At::Line { line: 2, column: 13 }));
        assert_eq!(of("#SBATCH -a 1").array, Some(At::Line { line: 2, column: 9 }));
        assert_eq!(of("#SBATCH --array-not=3 --account=a").array, None);
    }

    #[test]
    fn what_slurm_would_take_is_refused() {
        let one =
            |sbatch: &str, pool: &str| told(&format!("#!/bin/sh\n#SBATCH {sbatch}\n#TIDEPOOL pool {pool}\n"));
        assert!(one("-N4", "size=1GiB nodes=4").is_empty());
        assert!(one("-n4", "size=1GiB nodes=4").is_empty(), "nobody knows how many nodes that will be");
        let said = one("-N2", "size=1GiB nodes=4");
        assert!(said[0].contains("nodes wants 4 nodes, and the job has 2"), "{said:?}");
        let said = one("-N2", "size=1GiB deploy=dedicated:2");
        assert!(said[0].contains("leaves none of the job's 2 nodes"), "{said:?}");
        let said = one("-N2", "size=1GiB deploy=subset:3");
        assert!(said[0].contains("deploy wants 3 nodes"), "{said:?}");
        let said = one("--array=1-3", "fs=local");
        assert!(
            said.len() == 2 && said[0].starts_with("line 2") && said[1].contains("fs=tidepool"),
            "{said:?}"
        );
        assert!(told("#!/bin/sh\n#SBATCH --array=1-3\n").is_empty(), "it has no directives");
    }
}
