//! Pools on this node: those that are well, and those that somebody has to finish.

use super::Line;
use crate::agent::NodeRecord;
use crate::exit::Result;
use crate::instance::{self, Instance, RunPhase, RunRecord};
use tidepool_client::Client;
use tidepool_wire::message::Request;

/// What can be seen of a pool from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    /// Daemons that answer, of how many; `None` without a pool file.
    daemons: Option<(usize, usize)>,
    /// None without a run's record.
    run: Option<Run>,
    /// The process of this node that watches the daemons lives.
    agent: bool,
}

/// What has become of the run that a pool is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Run {
    /// Its process lives.
    GoesOn,
    /// It was killed before its program began.
    NeverBegan,
    Killed,
}

impl Run {
    fn of(record: &RunRecord) -> Run {
        match record.phase {
            _ if record.is_going_on() => Run::GoesOn,
            RunPhase::StageIn => Run::NeverBegan,
            _ => Run::Killed,
        }
    }
}

pub fn examine() -> Vec<Line> {
    let pools = instance::list();
    if pools.is_empty() {
        return vec![Line::ok("pools", "none on this node")];
    }
    let line = |pool: &Instance| match look(pool) {
        Ok(seen) => judge(&pool.name, seen),
        Err(failure) => Line::problem("pools", failure.to_string(), "look who has written it"),
    };
    pools.iter().map(line).collect()
}

fn look(pool: &Instance) -> Result<Seen> {
    let client = pool.hurried_client().ok();
    let agent = NodeRecord::read(pool)?.agent;
    Ok(Seen {
        daemons: client.map(|client| (answering(&client), client.members())),
        run: pool.run_record()?.as_ref().map(Run::of),
        agent: agent.lives(),
    })
}

fn answering(client: &Client) -> usize {
    (0..client.members()).filter(|d| client.request(*d as u16, &Request::Ping {}).is_ok()).count()
}

fn judge(name: &str, seen: Seen) -> Line {
    let stop = format!("tidepool pool stop --pool {name}");
    let warning = |text: String, advice: String| Line::warning("pools", format!("'{name}': {text}"), advice);
    match seen {
        Seen { run: Some(Run::GoesOn), .. } => Line::ok("pools", format!("'{name}': a run is going on")),
        Seen { run: Some(Run::NeverBegan), .. } => {
            warning("its run was killed before its program began: it has no results".into(), stop)
        }
        Seen { daemons: None, agent: true, .. } => Line::ok("pools", format!("'{name}': is starting")),
        Seen { daemons: None, .. } => warning("never came up".into(), stop),
        Seen { daemons: Some((0, _)), run: Some(Run::Killed), .. } => warning(
            "its run was killed and no daemon answers: output may be missing".into(),
            format!(
                "tidepool drain --pool {name} when its daemons can be reached; '{stop}' gives the data up"
            ),
        ),
        Seen { daemons: Some((0, _)), .. } => warning(
            "no daemon answers; its data may be there".into(),
            format!("tidepool pool start --keep --name {name} to go on with it; '{stop}' removes it"),
        ),
        Seen { daemons: Some(_), run: Some(Run::Killed), .. } => warning(
            "its run was killed before its output was staged out".into(),
            format!("tidepool drain --pool {name}"),
        ),
        Seen { daemons: Some((up, all)), .. } if up < all => {
            let text = format!("only {up} of {all} daemons answer");
            warning(text, format!("save what is needed by 'tidepool cp --pool {name}', then '{stop}'"))
        }
        Seen { daemons: Some((_, all)), .. } => {
            Line::ok("pools", format!("'{name}': running, {all} daemon(s)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn every_orphan_has_a_command_that_ends_it() {
        let seen = |daemons, run, agent| judge("p", Seen { daemons, run, agent });
        for (line, command) in [
            (seen(None, None, false), "pool stop --pool p"),
            (seen(Some((0, 2)), None, false), "pool start --keep --name p"),
            (seen(Some((0, 2)), Some(Run::Killed), false), "drain --pool p"),
            (seen(Some((2, 2)), Some(Run::Killed), true), "drain --pool p"),
            (seen(Some((1, 2)), None, true), "pool stop --pool p"),
            (seen(Some((2, 2)), Some(Run::NeverBegan), true), "pool stop --pool p"),
            (seen(Some((0, 2)), Some(Run::NeverBegan), false), "pool stop --pool p"),
        ] {
            assert_eq!(line.level, Level::Warning, "{line:?}");
            assert!(line.advice.contains(command), "{line:?}");
        }
        for line in [
            seen(Some((2, 2)), None, true),
            seen(Some((2, 2)), Some(Run::GoesOn), true),
            seen(None, Some(Run::GoesOn), false),
            seen(None, None, true),
        ] {
            assert_eq!(line.level, Level::Ok, "{line:?}");
        }
    }
}
