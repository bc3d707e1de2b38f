//! `tidepool slurm pools` and `tidepool slurm end-pool`: pools that outlive their jobs. As with `resume`, root's part is done
//! by the hooks of a small job of the user's.

use super::flags::{EndPoolArgs, PoolsArgs};
use super::site::Site;
use super::{ask, hooks, keeper, print, resume};
use crate::exit::{Failure, Kind, Result};
use crate::output::table;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_stage_client::show::duration;
use tidepool_types::format_size;

pub fn pools(args: &PoolsArgs) -> Result<ExitCode> {
    let mut all = ask(&args.site, &["pools"])?;
    for pool in all.as_array_mut().into_iter().flatten() {
        pool["owner"] = json!(owner(pool));
    }
    print(&all, args.json, pools_table);
    Ok(ExitCode::SUCCESS)
}

/// A name that this machine knows, or the number.
pub fn owner(pool: &Value) -> String {
    let uid = pool["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok());
    let user = uid.and_then(|uid| nix::unistd::User::from_uid(uid.into()).ok().flatten());
    user.map_or_else(|| pool["uid"].to_string(), |user| user.name)
}

/// Words of a list, with commas between them.
pub fn words(value: &Value) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    value.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(",")
}

fn pools_table(all: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let head = ["POOL", "NAME", "OWNER", "LIFETIME", "STATE", "NODES", "USED", "JOBS", "LAST USE", "REASON"];
    let row = |pool: &Value| {
        let text = |key: &str| pool[key].as_str().unwrap_or_default().to_string();
        let ago = now.saturating_sub(pool["last_use"].as_u64().unwrap_or(now));
        let lifetime = match pool["workflow"].as_u64() {
            Some(workflow) => format!("workflow {workflow}"),
            None => text("lifetime"),
        };
        vec![
            pool["pool"].to_string(),
            text("name"),
            text("owner"),
            lifetime,
            text("state"),
            words(&pool["nodes"]),
            pool["used"].as_u64().map(format_size).unwrap_or_default(),
            words(&pool["jobs"]),
            format!("{} ago", duration(ago.saturating_mul(1000))),
            text("reason"),
        ]
    };
    let head = head.map(String::from).to_vec();
    let rows: Vec<Vec<String>> =
        std::iter::once(head).chain(all.as_array().into_iter().flatten().map(row)).collect();
    table(&rows)
}

pub fn end_pool(args: &EndPoolArgs) -> Result<ExitCode> {
    let all = ask(&args.site, &["pools"])?;
    let pool = chosen(&all, &args.pool)?;
    let number = pool["pool"].as_u64().unwrap_or_default() as u32;
    // Burst buffers are not for root's jobs; where the book is, he needs none.
    if keeper::keeps_book(&args.site.site)? {
        return end_here(args, number);
    }
    let words = [
        "--parsable".to_string(),
        "--nodes=1".into(),
        format!("--job-name=tidepool-end-pool-{number}"),
        "--output=/dev/null".into(),
    ];
    if args.dry_run {
        println!("would submit: sbatch {} with '#TIDEPOOL end-pool {number}'", words.join(" "));
        return Ok(ExitCode::SUCCESS);
    }
    let by = resume::submit(&words, &format!("end-pool {number}"), args.wait)?;
    if !args.wait {
        match args.json {
            true => println!("{}", json!({"pool": number, "by": by})),
            false => println!("job {by} ends pool {number}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let left = ask(&args.site, &["pools"])?;
    let done = !left.as_array().into_iter().flatten().any(|pool| pool["pool"] == number);
    if args.json {
        println!("{}", json!({"pool": number, "by": by, "done": done}));
    }
    if done {
        return Ok(ExitCode::SUCCESS);
    }
    let told = ask(&args.site, &["job", &by.to_string()])?;
    let why = told["job"]["reason"].as_str().unwrap_or_default().to_string();
    Err(Failure::new(Kind::Cleanup, format!("pool {number} is not ended: {why}")))
}

fn end_here(args: &EndPoolArgs, number: u32) -> Result<ExitCode> {
    if args.dry_run {
        println!("would end pool {number}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = keeper::as_keeper(&args.site.site)? {
        return Ok(code);
    }
    hooks::end_pool(Site::read(&args.site.site)?, number)?;
    if args.json {
        println!("{}", json!({"pool": number, "done": true}));
    }
    Ok(ExitCode::SUCCESS)
}

/// The pool of that number, or the caller's only one of that name.
fn chosen<'a>(all: &'a Value, word: &str) -> Result<&'a Value> {
    let all: Vec<&Value> = all.as_array().into_iter().flatten().collect();
    let refuse = |why: String| Failure::new(Kind::Refused, why);
    if let Ok(number) = word.parse::<u32>() {
        let found = all.iter().find(|pool| pool["pool"] == number);
        return found.copied().ok_or_else(|| refuse(format!("there is no pool {number}")));
    }
    let uid = rustix::process::geteuid().as_raw();
    let own: Vec<&Value> =
        all.into_iter().filter(|pool| pool["uid"] == uid && pool["name"] == word).collect();
    match own.as_slice() {
        [only] => Ok(only),
        [] => Err(refuse(format!("you have no pool '{word}'; 'tidepool slurm pools' lists all"))),
        several => {
            let numbers: Vec<String> = several.iter().map(|pool| pool["pool"].to_string()).collect();
            Err(refuse(format!(
                "you have several pools '{word}'; say which by its number: {}",
                numbers.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_chosen_by_number_or_by_the_callers_name() {
        let uid = rustix::process::geteuid().as_raw();
        let pool = |pool: u32, uid: u32, name: &str| json!({"pool": pool, "uid": uid, "name": name});
        let all = json!([pool(1, uid, "a"), pool(2, uid, "b"), pool(3, uid, "b"), pool(4, uid + 1, "c")]);
        let number =
            |word: &str| chosen(&all, word).map(|pool| pool["pool"].clone()).map_err(|f| f.to_string());
        assert_eq!((number("a"), number("4")), (Ok(json!(1)), Ok(json!(4))));
        assert!(number("b").unwrap_err().ends_with("by its number: 2, 3"));
        assert!(number("c").unwrap_err().contains("you have no pool 'c'"));
        assert_eq!(number("9"), Err("there is no pool 9".to_string()));
    }

    #[test]
    fn pools_are_told_in_a_table() {
        let all = json!([{"pool": 3, "name": "a", "owner": "alice", "lifetime": "campaign", "workflow": null, "state": "rest",
            "nodes": ["n1", "n2"], "used": 1024, "jobs": [7, 8], "last_use": 0, "reason": ""}]);
        let told = pools_table(&all);
        for part in ["alice", "campaign", "rest", "n1,n2", "1.0 KiB", "7,8", "ago"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
