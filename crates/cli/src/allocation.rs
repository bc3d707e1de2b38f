//! The nodes that a batch system has given to the job that this runs in (INVENTORY A5).
//!
//! | system | known by | nodes from |
//! |---|---|---|
//! | Slurm | `SLURM_JOB_NUM_NODES` | agents are started by `srun` |
//! | PBS, Torque | `PBS_NODEFILE` | that file |
//! | LSF | `LSB_DJOB_HOSTFILE`, `LSB_MCPU_HOSTS`, `LSB_HOSTS` | the first of them that is set |
//! | Flux | `FLUX_URI`, `FLUX_JOB_ID` | `flux hostlist local` |
//!
//! All but Slurm's are reached by ssh.

use crate::exit::{Failure, Kind, Result};
use std::process::{Command, Stdio};
use tidepool_batch::nodes;

/// Bytes of a file of host names.
const FILE_MAX: u64 = 16 << 20;

/// What there is of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Number of nodes.
    Slurm(usize),
    /// Names of nodes, and which system has given them.
    Hosts(Vec<String>, &'static str),
}

/// The outside world, for tests.
pub trait Outside {
    fn variable(&self, name: &str) -> Option<String>;
    fn file(&self, path: &str) -> std::result::Result<String, String>;
    /// What `flux hostlist local` prints.
    fn flux(&self) -> std::result::Result<String, String>;
}

/// The real one.
pub struct Here;

impl Outside for Here {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn file(&self, path: &str) -> std::result::Result<String, String> {
        let meta = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if meta.len() > FILE_MAX {
            return Err(format!("it has more than {FILE_MAX} bytes"));
        }
        std::fs::read_to_string(path).map_err(|error| error.to_string())
    }

    fn flux(&self) -> std::result::Result<String, String> {
        let said = Command::new("flux")
            .args(["hostlist", "local"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        match said.status.success() {
            true => Ok(String::from_utf8_lossy(&said.stdout).trim().to_string()),
            false => Err(String::from_utf8_lossy(&said.stderr).trim().to_string()),
        }
    }
}

/// The allocation that this runs in, if any.
pub fn find(outside: &impl Outside) -> Result<Option<Allocation>> {
    if let Some(count) = outside.variable("SLURM_JOB_NUM_NODES").and_then(|n| n.parse().ok()) {
        return Ok(Some(Allocation::Slurm(count)));
    }
    let fail = |what: &str, why: String| {
        Failure::new(Kind::Usage, format!("{what}: {why}; name nodes with --hosts"))
    };
    let of_file = |variable: &str, path: &str| {
        let text = outside.file(path).map_err(|why| fail(&format!("${variable} ({path})"), why))?;
        Ok::<_, Failure>(nodes::of_file(&text))
    };
    let (hosts, system) = if let Some(path) = outside.variable("PBS_NODEFILE") {
        (of_file("PBS_NODEFILE", &path)?, "PBS")
    } else if let Some(path) = outside.variable("LSB_DJOB_HOSTFILE") {
        (of_file("LSB_DJOB_HOSTFILE", &path)?, "LSF")
    } else if let Some(text) = outside.variable("LSB_MCPU_HOSTS") {
        (nodes::of_lsf_counts(&text).map_err(|why| fail("LSF", why))?, "LSF")
    } else if let Some(text) = outside.variable("LSB_HOSTS") {
        (nodes::of_words(&text), "LSF")
    } else if outside.variable("FLUX_URI").is_some() && outside.variable("FLUX_JOB_ID").is_some() {
        let list = outside.flux().map_err(|why| fail("flux hostlist local", why))?;
        (nodes::expand(&list).map_err(|why| fail("flux hostlist local", why))?, "Flux")
    } else {
        return Ok(None);
    };
    if hosts.is_empty() {
        return Err(fail(system, "the job's list of nodes is empty".into()));
    }
    Ok(Some(Allocation::Hosts(hosts, system)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Told {
        variables: BTreeMap<&'static str, &'static str>,
        files: BTreeMap<&'static str, &'static str>,
        flux: std::result::Result<String, String>,
    }

    impl Outside for Told {
        fn variable(&self, name: &str) -> Option<String> {
            self.variables.get(name).map(|value| value.to_string())
        }

        fn file(&self, path: &str) -> std::result::Result<String, String> {
            self.files.get(path).map(|text| text.to_string()).ok_or_else(|| "no such file".into())
        }

        fn flux(&self) -> std::result::Result<String, String> {
            self.flux.clone()
        }
    }

    fn told(variables: &[(&'static str, &'static str)]) -> Told {
        let files = [("/nodes", "n1\nn1\nn2\n"), ("/empty", "\n")];
        Told {
            variables: variables.iter().copied().collect(),
            files: files.into(),
            flux: Ok("c[1-2]".into()),
        }
    }

    fn hosts(variables: &[(&'static str, &'static str)]) -> (String, &'static str) {
        match find(&told(variables)).unwrap() {
            Some(Allocation::Hosts(hosts, system)) => (hosts.join(" "), system),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a5_slurm_counts_nodes() {
        let found = find(&told(&[("SLURM_JOB_NUM_NODES", "3"), ("PBS_NODEFILE", "/nodes")])).unwrap();
        assert_eq!(found, Some(Allocation::Slurm(3)));
        assert_eq!(find(&told(&[])).unwrap(), None);
    }

    #[test]
    fn a5_pbs_has_a_file_with_a_line_for_each_slot() {
        assert_eq!(hosts(&[("PBS_NODEFILE", "/nodes")]), ("n1 n2".into(), "PBS"));
        for bad in ["/missing", "/empty"] {
            assert!(find(&told(&[("PBS_NODEFILE", bad)])).is_err(), "{bad}");
        }
    }

    #[test]
    fn a5_lsf_has_three_ways() {
        let (counts, words) = (("LSB_MCPU_HOSTS", "a 16 b 16"), ("LSB_HOSTS", "x x y"));
        assert_eq!(hosts(&[("LSB_DJOB_HOSTFILE", "/nodes"), counts, words]), ("n1 n2".into(), "LSF"));
        assert_eq!(hosts(&[counts, words]), ("a b".into(), "LSF"));
        assert_eq!(hosts(&[words]), ("x y".into(), "LSF"));
        assert!(find(&told(&[("LSB_MCPU_HOSTS", "a b c")])).is_err());
    }

    #[test]
    fn a5_flux_is_asked() {
        let variables = [("FLUX_URI", "local:///x"), ("FLUX_JOB_ID", "f1")];
        assert_eq!(hosts(&variables), ("c1 c2".into(), "Flux"));
        // Flux without a job is somebody at a terminal.
        assert_eq!(find(&told(&variables[..1])).unwrap(), None);
        let mut broken = told(&variables);
        broken.flux = Err("no broker".into());
        assert!(find(&broken).unwrap_err().to_string().contains("no broker"));
    }
}
