//! A job script as a job that waits: what its `#SBATCH` lines ask for.

use crate::exit::{Context, Failure, Kind, Result};
use crate::jobscript::{Takes, fewest, options};
use crate::slurm::lint;
use std::path::Path;
use tidepool_batch::nodes::expand;
use tidepool_queue::rows::{JOBS_MAX, PROCESSORS_MAX, SECONDS_MAX};
use tidepool_queue::words::{after, limit, moment, tasks};
use tidepool_queue::{Cluster, Entry, Id, State};

/// What can be asked for, as far as it counts here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asks {
    Nodes,
    Tasks,
    TasksPerNode,
    PerTask,
    Time,
    Partition,
    Exclusive,
    Begin,
    Hold,
    Dependency,
    Name,
    Array,
    With,
    Without,
    Features,
    /// It may make the job wait for longer, and is not simulated.
    Unknown(&'static str),
}

const OPTIONS: [(&str, &str, Takes<Asks>); 28] = [
    ("--nodes", "-N", Takes::Value(Asks::Nodes)),
    ("--ntasks", "-n", Takes::Value(Asks::Tasks)),
    ("--ntasks-per-node", "", Takes::Value(Asks::TasksPerNode)),
    ("--cpus-per-task", "-c", Takes::Value(Asks::PerTask)),
    ("--time", "-t", Takes::Value(Asks::Time)),
    ("--partition", "-p", Takes::Value(Asks::Partition)),
    ("--exclusive", "", Takes::Perhaps(Asks::Exclusive)),
    ("--begin", "-b", Takes::Value(Asks::Begin)),
    ("--hold", "-H", Takes::Perhaps(Asks::Hold)),
    ("--dependency", "-d", Takes::Value(Asks::Dependency)),
    ("--job-name", "-J", Takes::Value(Asks::Name)),
    ("--array", "-a", Takes::Value(Asks::Array)),
    ("--nodelist", "-w", Takes::Value(Asks::With)),
    ("--exclude", "-x", Takes::Value(Asks::Without)),
    ("--constraint", "-C", Takes::Value(Asks::Features)),
    ("--mem", "", Takes::Value(Asks::Unknown("memory"))),
    ("--mem-per-cpu", "", Takes::Value(Asks::Unknown("memory"))),
    ("--mem-per-gpu", "", Takes::Value(Asks::Unknown("memory"))),
    ("--gres", "", Takes::Value(Asks::Unknown("generic resources"))),
    ("--gpus", "-G", Takes::Value(Asks::Unknown("GPUs"))),
    ("--gpus-per-node", "", Takes::Value(Asks::Unknown("GPUs"))),
    ("--gpus-per-task", "", Takes::Value(Asks::Unknown("GPUs"))),
    ("--licenses", "-L", Takes::Value(Asks::Unknown("licenses"))),
    ("--qos", "-q", Takes::Value(Asks::Unknown("a quality of service"))),
    ("--reservation", "", Takes::Value(Asks::Unknown("a reservation"))),
    ("--switches", "", Takes::Value(Asks::Unknown("switches"))),
    ("--contiguous", "", Takes::Perhaps(Asks::Unknown("contiguous nodes"))),
    ("--burst_buffer", "", Takes::Perhaps(Asks::Unknown("a burst buffer"))),
];

/// What a script asks for.
#[derive(Clone, PartialEq, Debug, Default)]
struct Wishes {
    entry: Entry,
    nodes: Option<u32>,
    tasks: Option<u32>,
    tasks_per_node: Option<u32>,
    per_task: u32,
    array: Option<(Vec<u32>, Option<u32>)>,
    unknown: Vec<&'static str>,
}

/// Jobs of a script, one for each task of its array, and what they want that is not simulated.
pub struct Script {
    pub entries: Vec<Entry>,
    pub unknown: Vec<&'static str>,
}

/// Reads a script as if it were submitted at `now_s`.
pub fn load(path: &Path, cluster: &Cluster, now_s: u64) -> Result<Script> {
    let shown = path.display().to_string();
    let text = lint::read(path).context(Kind::Usage, || shown.clone())?;
    read(&text, cluster, now_s).map_err(|lines| {
        let lines: Vec<String> = lines.iter().map(|line| format!("{shown}: {line}")).collect();
        Failure::new(Kind::Usage, lines.join("\n"))
    })
}

fn read(text: &[u8], cluster: &Cluster, now_s: u64) -> std::result::Result<Script, Vec<String>> {
    let mut wishes = Wishes { per_task: 1, ..Wishes::default() };
    let problems = options(text, &OPTIONS, |asks, value| wishes.take(asks, value, now_s));
    if !problems.is_empty() {
        return Err(problems.iter().map(ToString::to_string).collect());
    }
    wishes.jobs(cluster, now_s).map_err(|why| vec![why])
}

fn count(value: &str) -> std::result::Result<u32, String> {
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let count = value.parse().ok().filter(|count| digits && (1..=PROCESSORS_MAX).contains(count));
    count.ok_or_else(|| format!("'{value}' is no number of them"))
}

impl Wishes {
    fn take(&mut self, asks: Asks, value: &str, now_s: u64) -> std::result::Result<(), String> {
        let entry = &mut self.entry;
        match asks {
            Asks::Nodes => {
                let fewest = fewest(value).and_then(|fewest| u32::try_from(fewest).ok());
                self.nodes = Some(
                    fewest
                        .filter(|count| *count <= PROCESSORS_MAX)
                        .ok_or(format!("'{value}' is no number of nodes"))?,
                );
            }
            Asks::Tasks => self.tasks = Some(count(value)?),
            Asks::TasksPerNode => self.tasks_per_node = Some(count(value)?),
            Asks::PerTask => self.per_task = count(value)?,
            // So Slurm takes a limit of 0.
            Asks::Time => entry.limit_s = limit(&value.to_ascii_uppercase())?.filter(|seconds| *seconds > 0),
            Asks::Partition => entry.partitions = value.split(',').map(str::to_string).collect(),
            Asks::Exclusive => entry.exclusive = true,
            Asks::Begin => entry.start_s = Some(begin(value, now_s)?),
            Asks::Hold => entry.state = State::Held,
            Asks::Dependency => entry.after = after(value),
            Asks::Name => entry.name = value.to_string(),
            Asks::Array => self.array = Some(tasks(value)?),
            Asks::With => entry.required = expand(value)?,
            Asks::Without => entry.excluded = expand(value)?,
            Asks::Features => entry.features = Some(value.to_string()),
            Asks::Unknown(what) if !self.unknown.contains(&what) => self.unknown.push(what),
            Asks::Unknown(_) => {}
        }
        Ok(())
    }

    fn jobs(mut self, cluster: &Cluster, now_s: u64) -> std::result::Result<Script, String> {
        if self.entry.partitions.is_empty() {
            self.entry.partitions.extend(cluster.default.clone());
        }
        let parts = &self.entry.partitions;
        self.entry.exclusive |= parts.iter().any(|name| cluster.exclusive.contains(name));
        let (nodes, processors) = self.size(cluster)?;
        let (tasks, throttle) = self
            .array
            .take()
            .map_or((vec![None], None), |(tasks, most)| (tasks.into_iter().map(Some).collect(), most));
        if tasks.len() > JOBS_MAX {
            return Err(format!("more than {JOBS_MAX} tasks of an array"));
        }
        let entry = Entry { nodes, processors, throttle, submit_s: Some(now_s), ..self.entry };
        let one = |task| Entry { id: Id { job: 0, task }, ..entry.clone() };
        Ok(Script { entries: tasks.into_iter().map(one).collect(), unknown: self.unknown })
    }

    /// Nodes and processors. Where only tasks are said, they are on as few nodes as can have them.
    fn size(&self, cluster: &Cluster) -> std::result::Result<(u32, u32), String> {
        let too_many = || "it asks for too many processors".to_string();
        let most = cluster.processors.iter().copied().max().unwrap_or(1).max(1);
        let on_each = |nodes: u32| match self.tasks_per_node {
            Some(tasks) => nodes.checked_mul(tasks),
            None => Some(nodes),
        };
        let tasks = match (self.tasks, self.nodes) {
            (Some(tasks), nodes) => tasks.max(nodes.unwrap_or(1)),
            (None, nodes) => on_each(nodes.unwrap_or(1)).ok_or_else(too_many)?,
        };
        let processors =
            tasks.checked_mul(self.per_task).filter(|all| *all <= PROCESSORS_MAX).ok_or_else(too_many)?;
        let by_tasks = self.tasks_per_node.map_or(1, |per_node| tasks.div_ceil(per_node));
        let nodes = self.nodes.unwrap_or_else(|| processors.div_ceil(most).max(by_tasks));
        Ok((nodes, processors.max(nodes)))
    }
}

/// `2026-11-23T22:30:00`, seconds since 1970, `now`, or `now+2hours`.
fn begin(value: &str, now_s: u64) -> std::result::Result<u64, String> {
    let wrong =
        || format!("'{value}' is no time to begin that is understood: say 'now+60' or '2026-11-23T22:30:00'");
    let Some(more) = value.strip_prefix("now") else {
        return moment(value).ok().flatten().map(|(seconds, _)| seconds).ok_or_else(wrong);
    };
    let Some(more) = more.strip_prefix('+') else {
        return if more.is_empty() { Ok(now_s) } else { Err(wrong()) };
    };
    let (digits, unit) = more.split_at(more.find(|c: char| !c.is_ascii_digit()).unwrap_or(more.len()));
    let unit = match unit.trim_end_matches('s') {
        "" | "second" => 1,
        "minute" => 60,
        "hour" => 3600,
        "day" => 86_400,
        "week" => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let more = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
    more.filter(|more| *more <= SECONDS_MAX).map(|more| now_s + more).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cluster() -> Cluster {
        let printed = "NODELIST|PARTITION|STATE|CPUS|OVERSUBSCRIBE\nn[1-4]|work*|idle|8|NO\nn[5-6]|big|idle|16|EXCLUSIVE\n";
        tidepool_queue::cluster::read(printed).unwrap()
    }

    fn one(lines: &str) -> Entry {
        let script =
            read(format!("#!/bin/bash\n{lines}srun x\n#SBATCH -N 99\n").as_bytes(), &cluster(), 1000)
                .unwrap();
        assert_eq!(script.entries.len(), 1);
        script.entries.into_iter().next().unwrap()
    }

    #[test]
    fn sizes_are_those_that_slurm_gives() {
        for (lines, nodes, processors) in [
            ("", 1, 1),
            ("#SBATCH -N 3\n", 3, 3),
            ("#SBATCH -n 20\n", 2, 20),
            ("#SBATCH -n 20 -c 2\n", 3, 40),
            ("#SBATCH -N2 --ntasks-per-node=8\n", 2, 16),
            ("#SBATCH --ntasks 16 --ntasks-per-node=4\n", 4, 16),
            ("#SBATCH -N 4 -n 2\n", 4, 4),
            ("#SBATCH --nodes=2-4 --cpus-per-task=8\n", 2, 16),
        ] {
            let entry = one(lines);
            assert_eq!((entry.nodes, entry.processors), (nodes, processors), "{lines}");
        }
    }

    #[test]
    fn all_that_counts_is_read() {
        let entry = one(
            "#SBATCH -t 1:00:00 -p big,work -J name -b now+2hours\n#SBATCH --dependency=afterok:5 -x n1,n2 -w n5 -C ib\n",
        );
        assert_eq!(
            (entry.limit_s, entry.start_s, entry.name.as_str()),
            (Some(3600), Some(1000 + 7200), "name")
        );
        assert_eq!((entry.partitions.len(), entry.excluded.len(), entry.required.len()), (2, 2, 1));
        assert!(entry.exclusive && entry.after.ends.len() == 1 && entry.features.as_deref() == Some("ib"));
        let entry = one("#SBATCH --time=unlimited\n#SBATCH --hold --exclusive=user\n");
        assert_eq!(
            (entry.limit_s, entry.state, entry.exclusive, entry.partitions),
            (None, State::Held, true, vec!["work".to_string()])
        );
        let script = read(b"#SBATCH --array=1-5:2%2 --gpus=2 --gres=gpu:1 -q high\n", &cluster(), 0).unwrap();
        let tasks: Vec<Option<u32>> = script.entries.iter().map(|entry| entry.id.task).collect();
        assert_eq!((tasks, script.entries[0].throttle), (vec![Some(1), Some(3), Some(5)], Some(2)));
        assert_eq!(script.unknown, ["GPUs", "generic resources", "a quality of service"]);
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_place() {
        let script = b"#SBATCH -n 0 --time=soon\n#SBATCH --begin=tomorrow\n#SBATCH --array=5-1 -w n[1\n";
        let told = read(script, &cluster(), 0).err().unwrap();
        assert_eq!(told.len(), 5, "{told:?}");
        assert_eq!(told[0], "line 1, column 9: '0' is no number of them");
        assert!(told[2].starts_with("line 2, column 9: 'tomorrow' is no time to begin"), "{told:?}");
        let told = read(b"#SBATCH -n 90000000 -c 90000000\n", &cluster(), 0).err().unwrap();
        assert_eq!(told, ["it asks for too many processors"]);
    }

    proptest! {
        #[test]
        fn any_script_is_jobs_or_problems(words in prop::collection::vec((0usize..28, "[-a-z0-9:,%+\\[\\]\"'#=]{0,12}"), 0..8), rest in ".{0,60}") {
            let options: String = words.iter().map(|(at, value)| format!("#SBATCH {}={value} {value}\n", OPTIONS[*at].0)).collect();
            if let Ok(script) = read(format!("#!/bin/sh\n{options}#SBATCH {rest}\n").as_bytes(), &cluster(), 1000) {
                for entry in script.entries {
                    prop_assert!(entry.nodes >= 1 && entry.processors >= entry.nodes && entry.processors <= PROCESSORS_MAX);
                }
            }
        }
    }
}
