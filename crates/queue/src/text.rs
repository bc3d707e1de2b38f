//! `squeue -o "%i|%T|..."`: a line of column names, then a line for each job (docs/formats/33-queues.md).

use crate::rows::{Entry, JOBS_MAX, PROCESSORS_MAX, Queue, State, Wrong, cut, is_ending, state};
use crate::words::{self, after, id, is_none, limit, moment, wall_time};
use std::collections::BTreeMap;

/// What is asked of squeue. Names of jobs may have bars in them: they are last.
pub const FORMAT: &str = "%i|%u|%g|%q|%P|%T|%r|%V|%S|%M|%l|%D|%C|%N|%Q|%E|%h|%n|%x|%f|%j";

/// Without these nothing can be told.
const NEEDED: [&str; 4] = ["JOBID", "STATE", "TIME_LIMIT", "NODES"];

pub fn read(text: &str) -> Result<Queue, Wrong> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((at, head)) = lines.next() else {
        return Err(Wrong::all("it is empty: not even the line with the names of the columns is there"));
    };
    let names: Vec<&str> = head.split('|').map(str::trim).collect();
    let mut columns: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, name) in names.iter().enumerate() {
        // The short word for a state says the same.
        columns.entry(if *name == "ST" { "STATE" } else { name }).or_insert(place);
    }
    if let Some(missing) = NEEDED.iter().find(|name| !columns.contains_key(**name)) {
        let what = format!(
            "no column '{missing}' in '{}'; it is printed by: squeue --all -o \"{FORMAT}\"",
            cut(head.trim())
        );
        return Err(Wrong::at(at, what));
    }
    let mut reader = Reader { columns, width: names.len(), queue: Queue::default() };
    for (number, line) in lines {
        reader.row(line).map_err(|what| Wrong::at(number, what))?;
    }
    Ok(reader.queue)
}

struct Reader<'a> {
    columns: BTreeMap<&'a str, usize>,
    width: usize,
    queue: Queue,
}

/// A line of the text.
struct Row<'a> {
    columns: &'a BTreeMap<&'a str, usize>,
    fields: Vec<&'a str>,
}

impl Row<'_> {
    fn get(&self, name: &str) -> &str {
        self.columns.get(name).map_or("", |place| self.fields[*place])
    }

    fn number(&self, name: &str) -> Result<u32, String> {
        let text = self.get(name);
        // Of a range, the fewest.
        let digits = text.split_once('-').map_or(text, |(fewest, _)| fewest);
        let count = digits.parse().ok().filter(|count| *count <= PROCESSORS_MAX);
        count.ok_or_else(|| format!("{name}: '{}' is no number", cut(text)))
    }

    fn nodes(&self, name: &str) -> Result<Vec<String>, String> {
        match self.get(name) {
            none if is_none(none) => Ok(Vec::new()),
            list => tidepool_batch::nodes::expand(list).map_err(|why| format!("{name}: {why}")),
        }
    }
}

impl Reader<'_> {
    fn row(&mut self, line: &str) -> Result<(), String> {
        let fields: Vec<&str> = line.splitn(self.width, '|').map(str::trim).collect();
        if fields.len() < self.width {
            return Err(format!("{} fields, where the first line names {}", fields.len(), self.width));
        }
        let row = Row { columns: &self.columns, fields };
        let Some(state) = state(row.get("STATE"))? else { return Ok(()) };
        let mut zone = self.queue.zone_s;
        let mut time = |name: &str| -> Result<Option<u64>, String> {
            let told = moment(row.get(name)).map_err(|why| format!("{name}: {why}"))?;
            zone = zone.or(told.and_then(|(_, zone)| zone));
            Ok(told.map(|(seconds, _)| seconds))
        };
        let (submit_s, start_s) = (time("SUBMIT_TIME")?, time("START_TIME")?);
        let ran_s = wall_time(row.get("TIME")).map(|time| time.as_secs());
        let reason = row.get("REASON").to_string();
        // While a job waits, a start is only what Slurm thinks, unless it may not begin before.
        let start_s = start_s.filter(|_| state == State::Running || reason == "BeginTime");
        let text = |name: &str| Some(row.get(name)).filter(|word| !is_none(word)).map(str::to_string);
        let nodes = row.number("NODES")?.max(1);
        let entry = Entry {
            name: row.get("NAME").to_string(),
            user: row.get("USER").to_string(),
            group: text("GROUP"),
            qos: text("QOS"),
            partitions: row
                .get("PARTITION")
                .split(',')
                .filter(|name| !is_none(name))
                .map(str::to_string)
                .collect(),
            state,
            reason,
            submit_s,
            start_s,
            limit_s: limit(row.get("TIME_LIMIT"))?,
            nodes,
            processors: if row.columns.contains_key("CPUS") { row.number("CPUS")?.max(1) } else { nodes },
            is_ending: is_ending(row.get("STATE")),
            list: row.nodes("NODELIST")?,
            priority: match row.get("PRIORITY") {
                none if is_none(none) => 0.0,
                number => number
                    .parse()
                    .ok()
                    .filter(|value: &f64| value.is_finite())
                    .ok_or_else(|| format!("PRIORITY: '{}' is no number", cut(number)))?,
            },
            after: after(row.get("DEPENDENCY")),
            exclusive: ["NO", "EXCLUSIVE", "USER"].contains(&row.get("OVER_SUBSCRIBE")),
            required: row.nodes("REQ_NODES")?,
            excluded: row.nodes("EXC_NODES")?,
            features: text("FEATURES"),
            ..Entry::default()
        };
        let ids = ids(row.get("JOBID"))?;
        self.queue.zone_s = zone;
        self.see(&entry, ran_s);
        push(&mut self.queue.entries, entry, ids)
    }

    /// When a job has run for so long since a start, that is now.
    fn see(&mut self, entry: &Entry, ran_s: Option<u64>) {
        let now = (entry.state == State::Running).then_some(entry.start_s.zip(ran_s)).flatten();
        if let Some((start, ran)) = now {
            let now_s = start.saturating_add(ran);
            let known = self.queue.now_s.filter(|_| self.queue.is_now_sure).unwrap_or(0);
            (self.queue.now_s, self.queue.is_now_sure) = (Some(known.max(now_s)), true);
        } else if !self.queue.is_now_sure {
            let seen = entry.start_s.filter(|_| entry.state == State::Running);
            self.queue.now_s = [self.queue.now_s, entry.submit_s, seen].into_iter().flatten().max();
        }
    }
}

/// One job, or the tasks of an array.
pub(crate) struct Ids {
    pub job: u64,
    pub tasks: Option<(Vec<u32>, Option<u32>)>,
    pub one: Option<u32>,
}

fn ids(text: &str) -> Result<Ids, String> {
    let wrong = || format!("JOBID: '{}' is no job", cut(text));
    match text.split_once("_[") {
        Some((job, list)) => {
            let job = id(job).filter(|id| id.task.is_none()).ok_or_else(wrong)?.job;
            let tasks = words::tasks(list.strip_suffix(']').unwrap_or(list))?;
            Ok(Ids { job, tasks: Some(tasks), one: None })
        }
        None => id(text).map(|id| Ids { job: id.job, tasks: None, one: id.task }).ok_or_else(wrong),
    }
}

/// Adds a job, or one for each task.
pub(crate) fn push(entries: &mut Vec<Entry>, entry: Entry, ids: Ids) -> Result<(), String> {
    let (all, throttle) = match ids.tasks {
        Some((tasks, throttle)) => (tasks.into_iter().map(Some).collect(), throttle),
        None => (vec![ids.one], None),
    };
    if entries.len() + all.len() > JOBS_MAX {
        return Err(format!("more than {JOBS_MAX} jobs"));
    }
    let of = |task| Entry { id: crate::rows::Id { job: ids.job, task }, throttle, ..entry.clone() };
    entries.extend(all.into_iter().map(of));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Ends;
    use proptest::prelude::*;

    /// What Slurm 22.05 printed, with less priority.
    const PRINTED: &str = "\
JOBID|USER|GROUP|QOS|PARTITION|STATE|REASON|SUBMIT_TIME|START_TIME|TIME|TIME_LIMIT|NODES|CPUS|NODELIST|PRIORITY|DEPENDENCY|OVER_SUBSCRIBE|REQ_NODES|EXC_NODES|FEATURES|NAME
2|root|root|normal|test|PENDING|Resources|2026-11-23T22:30:29|2026-11-23T22:40:29|0:00|5:00|3|3||58|(null)|NO|||(null)|wrap
4|root|root|normal|test|PENDING|Dependency|2026-11-23T22:30:29|N/A|0:00|5:00|1|1||57|afterok:2(unfulfilled)|OK|||(null)|wrap
5_[7,9%2]|root|root|normal|test|PENDING|JobArrayTaskLimit|2026-11-23T22:30:29|N/A|0:00|5:00|1|3||56|(null)|OK|||(null)|wrap
6|root|root|normal|test|PENDING|BeginTime|2026-11-23T22:30:29|2026-11-23T23:30:29|0:00|UNLIMITED|2|1||55|(null)|OK|||(null)|wrap
7|root|root|normal|a,b|PENDING|Priority|2026-11-23T22:30:29|2026-11-23T22:45:00|0:00|1:00:00|1|1||54|(null)|OK|node2|node1|ib|wrap
3|root|root|normal|test|PENDING|JobHeldUser|2026-11-23T22:30:29|N/A|0:00|5:00|1|1||0|(null)|OK|||(null)|wrap
1|root|root|normal|test|RUNNING|None|2026-11-23T22:30:29|2026-11-23T22:30:29|0:02|10:00|2|2|node[1-2]|59|(null)|OK|||(null)|long|one
5_3|root|root|normal|test|RUNNING|None|2026-11-23T22:30:29|2026-11-23T22:30:29|0:02|5:00|1|3|node1|56|(null)|OK|||(null)|wrap
8|root|root|normal|test|COMPLETED|None|2026-11-23T22:30:29|2026-11-23T22:30:29|0:02|5:00|1|3|node1|56|(null)|OK|||(null)|wrap
";
    const NOW: u64 = 1_795_473_031;

    #[test]
    fn what_squeue_prints_is_read() {
        let queue = read(PRINTED).unwrap();
        assert_eq!((queue.now_s, queue.is_now_sure, queue.zone_s), (Some(NOW), true, None));
        let shown: Vec<String> = queue.entries.iter().map(|entry| entry.id.to_string()).collect();
        assert_eq!(shown, ["2", "4", "5_7", "5_9", "6", "7", "3", "1", "5_3"]);
        let entry = |id: &str| queue.entries.iter().find(|entry| entry.id.to_string() == id).unwrap();
        assert_eq!((entry("1").name.as_str(), entry("1").list.len()), ("long|one", 2));
        assert_eq!((entry("1").state, entry("1").start_s), (State::Running, Some(NOW - 2)));
        assert!(entry("2").exclusive && !entry("4").exclusive && entry("2").start_s.is_none());
        assert_eq!(entry("4").after.ends, [Ends::Of(crate::Id { job: 2, task: None })]);
        assert_eq!((entry("5_9").throttle, entry("5_9").processors), (Some(2), 3));
        assert_eq!((entry("6").start_s, entry("6").limit_s), (Some(NOW - 2 + 3600), None));
        assert_eq!(
            (&entry("7").required[..], &entry("7").partitions[..]),
            (&["node2".to_string()][..], &["a".to_string(), "b".into()][..])
        );
        assert_eq!(entry("7").features.as_deref(), Some("ib"));
        assert_eq!(FORMAT.matches('|').count(), PRINTED.lines().next().unwrap().matches('|').count());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let first = |text: &str| read(text).unwrap_err().to_string();
        assert!(first("").contains("empty"));
        let said = first("  JOBID PARTITION  NAME\n 1 test wrap\n");
        assert!(said.starts_with("line 1: no column 'JOBID'") && said.contains("squeue --all -o"), "{said}");
        let head = "JOBID|STATE|TIME_LIMIT|NODES|START_TIME\n";
        for (row, wanted) in [
            ("1|PENDING|5:00", "line 2: 3 fields, where the first line names 5"),
            ("x|PENDING|5:00|1|N/A", "line 2: JOBID: 'x' is no job"),
            ("1|WAITING|5:00|1|N/A", "line 2: 'WAITING' is no state of a job"),
            ("1|PD|soon|1|N/A", "line 2: 'soon' is no time limit"),
            ("1|PD|5:00|-1|N/A", "line 2: NODES: '-1' is no number"),
            ("1|R|5:00|1|today", "line 2: START_TIME: 'today' is no time"),
            ("1_[9-7]|PD|5:00|1|N/A", "line 2: '9-7' are no tasks of an array, or more than 100000"),
        ] {
            assert_eq!(first(&format!("{head}{row}\n")), wanted, "{row}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_queue_or_an_error(text in "(.|\n){0,300}") {
            let _ = crate::read(&text);
        }

        /// Lines with fields that are right, odd or empty, in all places.
        #[test]
        fn odd_fields_are_jobs_within_limits_or_an_error(
            rows in prop::collection::vec(prop::collection::vec(0usize..14, 21), 1..6),
        ) {
            const WORDS: [&str; 14] = ["5", "5_3", "5_[1-4%2]", "PENDING", "RUNNING", "N/A", "", "1-00:00:00", "UNLIMITED",
                "2026-11-23T22:30:29", "node[1-3]", "(null)", "-7", "1e99"];
            let rows: Vec<String> = rows.iter().map(|row| row.iter().map(|at| WORDS[*at]).collect::<Vec<_>>().join("|")).collect();
            let text = format!("{}\n{}\n", PRINTED.lines().next().unwrap(), rows.join("\n"));
            if let Ok(queue) = read(&text) {
                for entry in &queue.entries {
                    prop_assert!(entry.nodes >= 1 && entry.processors >= 1 && entry.processors <= PROCESSORS_MAX);
                    prop_assert!(entry.priority.is_finite());
                }
            }
        }
    }
}
