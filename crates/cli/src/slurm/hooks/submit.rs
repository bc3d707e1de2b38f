//! At submission, while slurmctld waits: directives and options are read and checked, from files and the book only.

use super::{Desk, now};
use crate::exit::{Context, Failure, Kind, Result};
use crate::slurm::refusals::{Asked, refusals};
use crate::slurm::site::Site;
use std::path::Path;
use tidepool_batch::{Book, NewJob, Refused};
use tidepool_directives::{At, Directives, Problem, lines_of_options, with_lines};

/// A line of Slurm's directive, so that Slurm sees jobs with `#TIDEPOOL` lines only as jobs with burst buffers.
const MARK: &str = "#NORNS tidepool";
/// How the line begins that says who has submitted the script.
const OWNER: &str = "# Submitted to Tidepool by user ";

/// Bytes of a script that are looked at; Slurm itself takes 4 MiB.
const SCRIPT_MAX: u64 = 8 << 20;

/// What the job_submit hook passes on, as lines `KEY VALUE`.
#[derive(Default)]
struct Request {
    uid: u32,
    dependency: String,
    array: bool,
    nodes: Option<usize>,
    options: Vec<(String, String)>,
}

impl Request {
    fn asked(&self) -> Asked {
        let array = self.array.then(|| At::Option { option: "array".into(), column: 1 });
        Asked { nodes: self.nodes, array }
    }

    fn read(path: &Path) -> Result<Request> {
        let text = read(path)?;
        let text = String::from_utf8_lossy(&text);
        let mut request = Request::default();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "uid" => request.uid = value.parse().context(Kind::Usage, || format!("uid '{value}'"))?,
                "dependency" => request.dependency = value.into(),
                "array" => request.array = true,
                "nodes" => request.nodes = value.parse().ok(),
                "option" => {
                    let (name, value) = value.split_once(' ').unwrap_or((value, ""));
                    request.options.push((name.into(), value.into()));
                }
                "kind" => {}
                other => {
                    return Err(Failure::new(
                        Kind::Usage,
                        format!(
                            "the job_submit hook says '{other}', which this program does not know: install both from one release"
                        ),
                    ));
                }
            }
        }
        Ok(request)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let meta = std::fs::metadata(path).context(Kind::Other, || path.display().to_string())?;
    if meta.len() > SCRIPT_MAX {
        let text = format!("the script has {} bytes; at most {SCRIPT_MAX} are looked at", meta.len());
        return Err(Failure::new(Kind::Usage, text));
    }
    std::fs::read(path).context(Kind::Other, || path.display().to_string())
}

/// Lines for the job_submit hook: what is to be set and said. The script's file then holds the script as it is to be.
pub fn submit(site: &Site, request: &Path, script: &Path) -> Result<String> {
    let request = Request::read(request)?;
    let path = script;
    let script = read(path)?;
    let options: Vec<(&str, &str)> = request.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut added = lines_of_options(&options).map_err(|problems| refused(&problems))?;
    let (asks, warnings) =
        Directives::parse(&with_lines(&script, &added)).map_err(|problems| refused(&problems))?;
    let mut said: String = warnings.iter().map(|warning| format!("say warning: {warning}\n")).collect();
    if owner_of(&script).is_some() {
        let text =
            format!("a line '{OWNER}...' is written by the submission itself; take it out of the script");
        return Err(Failure::new(Kind::Usage, text));
    }
    if asks == Directives::default() {
        return Ok(said);
    }
    let mut problems = site.check(&asks)?;
    problems.extend(refusals(&asks, &request.asked()));
    problems.extend(super::lasting::admit(site, &asks, request.uid)?);
    if !problems.is_empty() {
        return Err(refused(&problems));
    }
    if let Some(pool) = &asks.end_pool {
        let book =
            Book::open_read(&site.book()).map_err(|error| Failure::new(Kind::Usage, error.to_string()))?;
        super::lasting::admit_end(&book, pool.value, request.uid)?;
    }
    for (what, of) in [("resume", &asks.resume), ("discard", &asks.discard)] {
        let Some(of) = of else { continue };
        let book =
            Book::open_read(&site.book()).map_err(|error| Failure::new(Kind::Usage, error.to_string()))?;
        super::resume::admit(&book, what, of.value, request.uid)?;
    }
    let dependency = dependency(site, &asks, &request)?;
    added.push(MARK.into());
    added.push(format!("{OWNER}{}", request.uid));
    std::fs::write(path, with_lines(&script, &added)).context(Kind::Other, || path.display().to_string())?;
    if let Some(dependency) = dependency {
        said.push_str(&format!("dependency {dependency}\n"));
    }
    said.push_str("script rewritten\n");
    Ok(said)
}

/// Who has submitted a script, as the submission has written into it.
fn owner_of(script: &[u8]) -> Option<u32> {
    let header =
        script.split(|byte| *byte == b'\n').take_while(|line| line.is_empty() || line.starts_with(b"#"));
    header
        .filter_map(|line| line.strip_prefix(OWNER.as_bytes()))
        .find_map(|rest| std::str::from_utf8(rest).ok()?.trim().parse().ok())
}

fn refused(problems: &[Problem]) -> Failure {
    let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Failure::new(Kind::Usage, all.join("\n"))
}

/// What Slurm is to wait for; none where the user has said all of it.
fn dependency(site: &Site, asks: &Directives, request: &Request) -> Result<Option<String>> {
    let prior: Vec<u32> = asks.workflow.prior.iter().map(|job| job.value).collect();
    let Some(first) = prior.first() else { return Ok(None) };
    let refuse = |why: Refused| Failure::new(Kind::Usage, format!("workflow-prior-dependency: {why}"));
    // Before the first job of all there is no book.
    if !site.book().exists() {
        return Err(refuse(Refused::Unknown(*first)));
    }
    let book = Book::open_read(&site.book()).map_err(|error| Failure::new(Kind::Other, error.to_string()))?;
    for job in &prior {
        let known = book.workflow_of(*job).ok().flatten().ok_or_else(|| refuse(Refused::Unknown(*job)))?;
        known.admit(request.uid, &prior).map_err(refuse)?;
    }
    let unended = |job: &&u32| book.job(**job).is_ok_and(|job| !job.phase.is_final());
    let waits: Vec<String> =
        prior.iter().filter(unended).map(|job| format!("afterok:{job},afterburstbuffer:{job}")).collect();
    let own = Some(request.dependency.clone()).filter(|text| !text.is_empty());
    if own.as_ref().is_some_and(|own| own.contains('?')) {
        let text = "a dependency with '?' (any of several) cannot be joined with workflow-prior-dependency";
        return Err(Failure::new(Kind::Usage, text));
    }
    let all: Vec<String> = own.into_iter().chain(waits).collect();
    Ok(Some(all.join(",")).filter(|text| !text.is_empty()))
}

impl Desk {
    /// The script now has its number, which is in its path: `.../job.42/script`.
    pub fn job_process(&self, script: &Path) -> Result<String> {
        let job = number_of(script).ok_or_else(|| {
            Failure::new(Kind::Other, format!("{} does not name a job as Slurm does", script.display()))
        })?;
        let bytes = read(script)?;
        let asks = super::directives(&bytes)?;
        let owner = owner_of(&bytes).ok_or_else(|| {
            let text = "the directives were not checked at submission: slurm.conf needs JobSubmitPlugins=lua; tell your administrator";
            Failure::new(Kind::Usage, text)
        })?;
        let name = asks.workflow.name.clone().unwrap_or_default();
        let new = NewJob {
            job,
            uid: owner,
            script: String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string(),
            starts: asks.workflow.start.then_some(name),
            after: asks.workflow.prior.iter().map(|job| job.value).collect(),
            is_end: asks.workflow.end,
            pools: super::lasting::said(&asks),
        };
        self.noted(self.book.add(&new, now()))?;
        Ok(String::new())
    }
}

fn number_of(script: &Path) -> Option<u32> {
    script.parent()?.file_name()?.to_str()?.strip_prefix("job.")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_numbered_by_their_directories() {
        assert_eq!(number_of(Path::new("/state/hash.2/job.42/script")), Some(42));
        for bad in ["/state/job.x/script", "/script", "/state/42/script"] {
            assert_eq!(number_of(Path::new(bad)), None, "{bad}");
        }
    }

    #[test]
    fn owners_are_read_in_the_header_only() {
        let line = format!("{OWNER}1001");
        assert_eq!(owner_of(format!("#!/bin/sh\n#x\n{line}\necho\n").as_bytes()), Some(1001));
        assert_eq!(owner_of(format!("#!/bin/sh\necho\n{line}\n").as_bytes()), None);
    }
}
