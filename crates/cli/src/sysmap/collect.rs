//! `tidepool sysmap collect` and `tidepool sysmap extractors`: tidepool's own extractors and those of the site.

use super::flags::{CollectArgs, ExtractorsArgs, GoalFlags};
use super::{alike, failed, now_ms, open, print, usage};
use crate::exit::Result;
use crate::output::table;
use crate::signals::Signals;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use tidepool_sysmap::db::{Database, HostRecord};
use tidepool_sysmap::probe::{MEASURED, SOURCE};
use tidepool_sysmap::site::{self, EXTRACTORS_DIR, Site, SiteExtractor};
use tidepool_sysmap::{Class, Extractor, Missing, Record, System, all, collect, collect_with};

/// Where measured extractors are from.
const ONLY_BY_PROBE: &str = "only by `tidepool sysmap probe`";

/// What can be collected.
#[derive(Clone, Copy)]
enum Known<'a> {
    Own(&'static Extractor),
    OfSite(&'a SiteExtractor),
}

impl<'a> Known<'a> {
    fn all(site: &'a Site) -> impl Iterator<Item = Known<'a>> {
        all().iter().map(Known::Own).chain(site.extractors.iter().map(Known::OfSite))
    }

    /// The one of this name; the error proposes one that is written alike.
    fn named(name: &str, site: &'a Site) -> Result<Known<'a>> {
        if MEASURED.iter().any(|measured| measured.name == name) {
            return Err(usage(format!("'{name}' is measured: see `tidepool sysmap probe --help`")));
        }
        let known = Known::all(site).find(|known| known.name() == name);
        let names = Known::all(site).map(Known::name);
        known.ok_or_else(|| usage(format!("there is no extractor '{name}'{}", alike(name, names))))
    }

    fn name(self) -> &'a str {
        match self {
            Known::Own(extractor) => extractor.name,
            Known::OfSite(extractor) => &extractor.name,
        }
    }

    fn sources(self) -> Vec<&'a str> {
        match self {
            Known::Own(extractor) => extractor.sources.iter().map(|source| source.name).collect(),
            Known::OfSite(extractor) => extractor.sources.iter().map(|source| source.name.as_str()).collect(),
        }
    }

    fn collect(self, source: Option<&str>, system: &System) -> Record {
        match self {
            Known::OfSite(extractor) => extractor.collect(source, system, now_ms()),
            Known::Own(extractor) => {
                let by_source = source.and_then(|source| collect_with(extractor, source, system, now_ms()));
                by_source.unwrap_or_else(|| collect(extractor, system, now_ms()))
            }
        }
    }
}

/// What the site adds. A directory that was named has to be there and in order; without the usual one all else goes on.
fn site_of(system: &System, named: Option<&Path>) -> Result<Site> {
    let said = |missing: &Missing| format!("{}: {}", missing.what, missing.why);
    let site = match (site::find(system), named) {
        (Ok(_), Some(dir)) if !dir.exists() => {
            return Err(usage(format!("{}: there is no such directory", dir.display())));
        }
        (Err(missing), Some(_)) => return Err(usage(said(&missing))),
        (Err(missing), None) => Site { refused: vec![missing], ..Site::default() },
        (Ok(site), _) => site,
    };
    site.refused.iter().for_each(|missing| eprintln!("tidepool: not taken: {}", said(missing)));
    Ok(site)
}

fn with_site(system: System, dir: Option<&Path>) -> System {
    match dir {
        Some(dir) => system.with_file(EXTRACTORS_DIR, dir.to_path_buf()),
        None => system,
    }
}

/// What each chosen extractor is to be read from, all checked; `None` for the first that tells anything.
fn chosen<'a>(args: &'a CollectArgs, site: &'a Site) -> Result<Vec<(Known<'a>, Option<&'a str>)>> {
    let mut sources = BTreeMap::new();
    for (name, source) in &args.source {
        let known = Known::named(name, site)?;
        if !known.sources().contains(&source.as_str()) {
            let alike = alike(source, known.sources().into_iter());
            return Err(usage(format!("extractor '{name}' has no source '{source}'{alike}")));
        }
        sources.insert(known.name(), source.as_str());
    }
    let wanted = match args.only.is_empty() {
        true => Known::all(site).collect(),
        false => args.only.iter().map(|name| Known::named(name, site)).collect::<Result<Vec<_>>>()?,
    };
    Ok(wanted.into_iter().map(|known| (known, sources.get(known.name()).copied())).collect())
}

pub fn collect_here(args: &CollectArgs) -> Result<ExitCode> {
    let signals = Signals::watch()?;
    let mut system = System::default().with_patience(args.patience).with_cancel(signals.cancelled.clone());
    for (place, file) in
        [("/etc/tidepool/topology.toml", &args.topology), ("/etc/slurm/topology.conf", &args.slurm_topology)]
    {
        if let Some(file) = file {
            system = system.with_file(place, file.clone());
        }
    }
    let system = with_site(system, args.extractors.as_deref());
    let site = site_of(&system, args.extractors.as_deref())?;
    let chosen = chosen(args, &site)?;
    let host = args.goal.host();
    let (mut own, mut of_site) = (Vec::new(), Vec::new());
    for (known, source) in chosen {
        let records = if matches!(known, Known::OfSite(_)) { &mut of_site } else { &mut own };
        records.push(known.collect(source, &system));
        signals.check()?;
    }
    if let Some(path) = &args.goal.db {
        return store(&mut open(path)?, &args.goal, &own, &of_site);
    }
    let records: Vec<HostRecord> =
        own.into_iter().chain(of_site).map(|record| HostRecord { host: host.clone(), record }).collect();
    print(&records, args.form.format())
}

/// What a site's program tells may break a rule: that is no reason to lose what else was found.
fn store(database: &mut Database, goal: &GoalFlags, own: &[Record], of_site: &[Record]) -> Result<ExitCode> {
    let (host, keep) = (goal.host(), goal.keep());
    database.store(&host, own, keep).map_err(failed)?;
    let mut code = ExitCode::SUCCESS;
    for record in of_site {
        if let Err(error) = database.store(&host, std::slice::from_ref(record), keep) {
            let failure = failed(error);
            eprintln!("tidepool: {failure}");
            code = ExitCode::from(failure.code());
        }
    }
    Ok(code)
}

pub fn extractors(args: &ExtractorsArgs) -> Result<ExitCode> {
    let system = with_site(System::default(), args.extractors.as_deref());
    let site = site_of(&system, args.extractors.as_deref())?;
    match args.json {
        true => println!("{:#}", as_json(&site)),
        false => print!("{}", table(&as_rows(&site))),
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(site: &Site) -> Value {
    let own = all().iter().map(|e| {
        let sources = e.sources.iter().map(|s| json!({"name": s.name, "reads": s.about})).collect::<Vec<_>>();
        json!({"name": e.name, "about": e.about, "class": e.class, "version": e.version, "sources": sources})
    });
    let measured = MEASURED.iter().map(|m| {
        let sources = [json!({"name": SOURCE, "reads": ONLY_BY_PROBE})];
        json!({"name": m.name, "about": m.about, "class": Class::Dynamic, "version": m.version, "sources": sources,
               "measured": true})
    });
    let of_site = site.extractors.iter().map(|e| {
        let source = |s: &site::SiteSource| json!({"name": s.name, "reads": s.program.display().to_string(), "refused": s.refused});
        let sources = e.sources.iter().map(source).collect::<Vec<_>>();
        // Known when it is run.
        json!({"name": e.name, "about": null, "class": null, "version": null, "sources": sources, "site": true})
    });
    own.chain(measured).chain(of_site).collect()
}

fn as_rows(site: &Site) -> Vec<Vec<String>> {
    let mut rows = vec![["EXTRACTOR", "CLASS", "SOURCE", "TELLS"].map(String::from).to_vec()];
    // Name, class and what it tells stand in the first line only.
    let mut add = |name: &str, class: &str, sources: Vec<String>, about: &str| {
        for (at, source) in sources.into_iter().enumerate() {
            let first = |text: &str| if at == 0 { text.to_string() } else { String::new() };
            rows.push(vec![first(name), first(class), source, first(about)]);
        }
    };
    for e in all() {
        let class = format!("{:?}", e.class).to_lowercase();
        let sources = e.sources.iter().map(|source| format!("{}: {}", source.name, source.about));
        add(e.name, &class, sources.collect(), e.about);
    }
    for m in MEASURED {
        add(m.name, "dynamic", vec![format!("{SOURCE}: {ONLY_BY_PROBE}")], m.about);
    }
    for e in &site.extractors {
        let source = |s: &site::SiteSource| match &s.refused {
            None => format!("{}: {}", s.name, s.program.display()),
            Some(why) => format!("{}: {} (not run: {why})", s.name, s.program.display()),
        };
        add(&e.name, "", e.sources.iter().map(source).collect(), "an extractor of this site");
    }
    rows
}
