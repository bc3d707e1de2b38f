//! `tidepool run --dry-run`: what would be done, with sizes.

use super::job::{Copy, Job, Program, Route};
use crate::exit::{Failure, Kind, Result};
use crate::jobscript::tiers_of;
use crate::plan::{Setup, Staged};
use crate::slurm::lint::tier_words;
use crate::staging::{self, Summary};
use serde_json::{Value, json};
use std::process::ExitCode;
use tidepool_types::format_size;

pub fn tell(job: &Job, as_json: bool) -> Result<ExitCode> {
    let pools = job.pools.iter().map(|wish| Ok((wish, Setup::choose(&wish.shape, Staged::default(), None)?)));
    let pools = pools.collect::<Result<Vec<_>>>()?;
    let staged = job.stage_in.iter().map(|copy| Ok((copy, measure(copy)?))).collect::<Result<Vec<_>>>()?;
    if as_json {
        let pools: Vec<Value> = pools
            .iter()
            .map(|(wish, setup)| {
                let (place, store) = (setup.layout.describe(), &setup.store);
                json!({"dataspace": wish.dataspace, "what": wish.fs.to_string(), "where": place, "store": store})
            })
            .collect();
        println!("{}", json(job, &pools, &staged));
        return Ok(ExitCode::SUCCESS);
    }
    for (wish, setup) in &pools {
        let name = wish.dataspace.as_ref().map(|name| format!(" as {name}")).unwrap_or_default();
        let place = setup.layout.describe();
        let tiers = tier_words(&tiers_of(&wish.shape)).map(|words| format!(", {words}")).unwrap_or_default();
        println!("would start {}{name}: {place}, data in {}{tiers}", wish.fs, setup.store.display());
    }
    for (copy, found) in &staged {
        let size = match found {
            Some(found) => format!("{} files, {}", found.files, format_size(found.bytes)),
            None => "not there yet".into(),
        };
        println!("would copy {} ({size}) to {}", copy.from, copy.to);
    }
    println!("would run: {}", words(&job.program).join(" "));
    job.stage_out.iter().for_each(|copy| println!("would copy {} to {}", copy.from, copy.to));
    if !job.pools.is_empty() {
        println!("would stop the pool and remove its data");
    }
    let passing = job.passing();
    let gone = passing.iter().filter(|place| !job.keep.iter().any(|kept| place.starts_with(kept)));
    gone.for_each(|place| println!("would remove {}, unless it is there already", place.display()));
    job.keep.iter().for_each(|place| println!("would leave {} there", place.display()));
    job.delete.iter().for_each(|place| println!("would remove {}", place.display()));
    Ok(ExitCode::SUCCESS)
}

/// None for what an earlier copy is to bring.
fn measure(copy: &Copy) -> Result<Option<Summary>> {
    let pairs = match &copy.route {
        Route::Into { from, .. } => vec![from.clone()],
        Route::OutOf { .. } => return Ok(None),
        Route::Here(here) => match here.spread.pairs(&here.from, &here.to) {
            Ok(pairs) => pairs.into_iter().map(|(from, _)| from).collect(),
            Err(_) if !here.from.exists() => return Ok(None),
            Err(why) => return Err(Failure::new(Kind::StageIn, why)),
        },
    };
    let mut all = Summary::default();
    for from in pairs {
        if std::fs::symlink_metadata(&from).is_err() {
            return Ok(None);
        }
        all.add(&staging::measure_local(&from)?);
    }
    Ok(Some(all))
}

fn words(program: &Program) -> Vec<String> {
    let text = |word: &std::ffi::OsString| word.to_string_lossy().into_owned();
    match program {
        Program::Words(words) => words.iter().map(text).collect(),
        Program::Script(script) => {
            std::iter::once(script.shown.clone()).chain(script.args.iter().map(text)).collect()
        }
    }
}

fn json(job: &Job, pools: &[Value], staged: &[(&Copy, Option<Summary>)]) -> Value {
    let copies: Vec<Value> = staged
        .iter()
        .map(|(copy, found)| {
            let found = found.as_ref();
            json!({
                "from": copy.from, "to": copy.to,
                "files": found.map(|found| found.files), "bytes": found.map(|found| found.bytes),
            })
        })
        .collect();
    let outs: Vec<Value> =
        job.stage_out.iter().map(|copy| json!({"from": copy.from, "to": copy.to})).collect();
    let warnings = match &job.program {
        Program::Script(script) => script.warnings.as_slice(),
        Program::Words(_) => &[],
    };
    json!({
        "dry_run": true, "pools": pools, "stage_in": copies, "program": words(&job.program), "stage_out": outs,
        "filled": job.passing(), "kept": job.keep, "deleted": job.delete, "warnings": warnings,
    })
}
