//! What directives say of each other. What one line says of another that could not be read is not told.

use crate::model::{Lifetime, POOL, Stage};
use crate::parse::{DEPENDENCIES_MAX, Reader};
use crate::place::Place;
use crate::told::{At, Problem, Said};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn check(reader: &mut Reader) {
    destinations(reader);
    pools(reader);
    dependencies(reader);
    begins(reader);
    idle(reader);
    // Last: what they miss may be in what could not be read.
    if !reader.incomplete {
        own_pools(reader);
        workflow(reader);
    }
}

/// Each destination once. What goes out goes elsewhere; what comes in may be on the job's nodes already, kept there by an
/// earlier job.
fn destinations(reader: &mut Reader) {
    let mut found = Vec::new();
    for (out, stages) in [(false, &reader.found.stage_in), (true, &reader.found.stage_out)] {
        let mut taken: BTreeMap<(Option<&str>, Vec<&[u8]>), &At> = BTreeMap::new();
        for Stage { origin, destination, .. } in stages.iter().map(|stage| &stage.value) {
            if out && origin.is_same(destination) {
                found.push(Problem::new(&destination.at, format!("'{destination}' is also the origin")));
            }
            let key = (destination.dataspace(), destination.names().collect());
            if let Some(first) = taken.insert(key, &destination.at) {
                let text =
                    format!("'{destination}' is the destination of two copies; the other is in {first}");
                found.push(Problem::new(&destination.at, text));
            }
        }
    }
    found.into_iter().for_each(|problem| reader.problems.add(problem));
}

/// Of several pools, each has a name of its own.
fn pools(reader: &mut Reader) {
    let pools = &reader.found.pools;
    let mut found = Vec::new();
    let mut names: BTreeMap<String, &At> = BTreeMap::new();
    for pool in pools.iter().filter(|pool| pool.outlives_job() && pool.name.is_none()) {
        let text = "a pool that outlives its job needs a name, by which other jobs find it: name=NAME";
        found.push(Problem::new(&pool.at, text));
    }
    for pool in pools.iter().filter(|_| pools.len() > 1) {
        match &pool.name {
            // It has been told.
            None if pool.outlives_job() => {}
            None => found.push(Problem::new(&pool.at, "each of several pools needs a name: name=NAME")),
            Some(name) => {
                if let Some(first) = names.insert(pool.dataspace(), &name.at) {
                    let text = format!("two pools are called '{name}'; the other is in {first}");
                    found.push(Problem::new(&name.at, text));
                }
            }
        }
    }
    found.into_iter().for_each(|problem| reader.problems.add(problem));
}

fn dependencies(reader: &mut Reader) {
    let prior = &reader.found.workflow.prior;
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for job in prior {
        if !seen.insert(job.value) {
            found.push(Problem::new(&job.at, format!("job {job} is there twice")));
        }
    }
    if let Some(job) = prior.get(DEPENDENCIES_MAX) {
        found.push(Problem::new(&job.at, format!("a job depends on at most {DEPENDENCIES_MAX} others")));
    }
    found.into_iter().for_each(|problem| reader.problems.add(problem));
}

/// The first job of a workflow comes after no other.
fn begins(reader: &mut Reader) {
    let first = |name: &str| reader.first.get(name);
    if let (Some(at), Some(prior)) = (first("workflow-start"), first("workflow-prior-dependency")) {
        let text = format!("the job that starts a workflow comes after no other; this one does in {prior}");
        reader.problems.add(Problem::new(at, text));
    }
}

/// What has nothing to do.
fn idle(reader: &mut Reader) {
    let (found, warnings) = (&reader.found, &mut reader.warnings);
    if let Some(at) = reader.first.get("reserve").filter(|_| found.stage_in.is_empty()) {
        warnings.add(Problem::new(at, "nodes are reserved for stage_in, and nothing is staged in"));
    }
    let Some(at) = reader.first.get("timeout") else { return };
    for (key, time, stages) in [
        ("stage_in", found.timeouts.stage_in, &found.stage_in),
        ("stage_out", found.timeouts.stage_out, &found.stage_out),
    ] {
        // What a resumed job stages out stands in that job's script.
        if time.is_some() && stages.is_empty() && found.resume.is_none() {
            warnings.add(Problem::new(at, format!("there is a time for {key}, and no {key}")));
        }
    }
}

/// `pool://` is the job's own, so there has to be one.
fn own_pools(reader: &mut Reader) {
    let pools = &reader.found.pools;
    let own = format!("{POOL}://");
    if pools.iter().any(|pool| pool.dataspace() == own) {
        return;
    }
    let found = &reader.found;
    let staged = found.stage_in.iter().chain(&found.stage_out).flat_map(|s| [&s.origin, &s.destination]);
    let places: Vec<&Said<Place>> = staged.chain(found.persist.iter().map(|p| &p.location)).collect();
    let mut problems = Vec::new();
    for place in places.into_iter().filter(|place| place.dataspace() == Some(&own)) {
        let problem = match pools.as_slice() {
            [] => {
                Problem::new(&place.at, format!("the job has no pool for '{place}': there is no 'pool' line"))
            }
            [only] => {
                let name = only.dataspace();
                let meant = place.to_string().replacen(&own, &name, 1);
                Problem::new(&place.at, format!("the job's pool is '{name}'")).meant(Some(meant))
            }
            _ => Problem::new(&place.at, "the job has several pools: use the name of one of them"),
        };
        problems.push(problem);
    }
    problems.into_iter().for_each(|problem| reader.problems.add(problem));
}

/// What is of a workflow has one.
fn workflow(reader: &mut Reader) {
    let first = |name: &str| reader.first.get(name);
    let workflow = &reader.found.workflow;
    let prior = first("workflow-prior-dependency");
    let mut found = Vec::new();
    if let (Some(at), None) = (first("workflow-same-nodes"), prior) {
        let text = "the nodes of which job? 'workflow-prior-dependency' names it";
        found.push(Problem::new(at, text));
    }
    if let Some(at) = first("workflow-end").filter(|_| !workflow.start && prior.is_none()) {
        let text = "the end of which workflow? 'workflow-prior-dependency' names a job of it";
        found.push(Problem::new(at, text));
    }
    for pool in reader.found.pools.iter().filter(|_| !workflow.is_any()) {
        if pool.lifetime == Some(Lifetime::Workflow) {
            let text = "lifetime=workflow is for jobs of a workflow: use 'workflow-start', or 'workflow-prior-dependency'";
            found.push(Problem::new(&pool.at, text));
        }
    }
    found.into_iter().for_each(|problem| reader.problems.add(problem));
}
