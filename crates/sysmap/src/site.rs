//! Extractors of a site: programs in a directory that print what they tell (`docs/formats/19-site-extractors.md`). They come
//! and go without a new release, and nothing of what they print is trusted.

use crate::extract::all;
use crate::probe::MEASURED;
use crate::record::{Class, Missing, Record};
use crate::system::{System, clip};
use rustix::fs::{Access, access};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where the programs lie.
pub const EXTRACTORS_DIR: &str = "/etc/tidepool/extractors.d";
/// Most programs.
pub const PROGRAMS_MAX: usize = 100;
/// Most bytes that one may print.
pub const PRINTED_MAX: u64 = 1 << 20;
/// The source of a program whose name has none.
const PLAIN_SOURCE: &str = "site";
/// Most bytes of an extractor's or a source's name.
const NAME_MAX: usize = 32;
/// With these, others than the owner may change a file.
const OTHERS_WRITE: u32 = 0o022;
/// The version of records without data: none that a program may say.
const NO_VERSION: u32 = 0;

/// What a directory has.
#[derive(Debug, Default)]
pub struct Site {
    pub extractors: Vec<SiteExtractor>,
    /// What stands there and is no extractor.
    pub refused: Vec<Missing>,
}

/// An extractor of the site.
#[derive(Debug, PartialEq)]
pub struct SiteExtractor {
    pub name: String,
    pub sources: Vec<SiteSource>,
}

#[derive(Debug, PartialEq)]
pub struct SiteSource {
    pub name: String,
    pub program: PathBuf,
    /// Why it is not run.
    pub refused: Option<String>,
}

/// What a program prints.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    version: u32,
    class: Class,
    data: Map<String, Value>,
}

/// The extractors in the site's directory; none where there is no such directory.
pub fn find(system: &System) -> Result<Site, Missing> {
    let dir = system.path(EXTRACTORS_DIR);
    if !system.has(EXTRACTORS_DIR) {
        return Ok(Site::default());
    }
    let wrong = |why: String| Missing::new(dir.display().to_string(), why);
    let meta = std::fs::metadata(&dir).map_err(|error| wrong(error.to_string()))?;
    if !meta.is_dir() {
        return Err(wrong("it is no directory".into()));
    }
    // Who may write to it could put another program in the place of one that was looked at.
    in_safe_hands(&meta).map_err(wrong)?;
    let names = system.names(EXTRACTORS_DIR)?;
    let mut site = Site::default();
    let mut found: BTreeMap<String, Vec<SiteSource>> = BTreeMap::new();
    // Hidden files are those of editors and package managers.
    for (at, file) in names.iter().filter(|name| !name.starts_with('.')).enumerate() {
        let program = dir.join(file);
        match name_of(file) {
            Ok((name, source)) if at < PROGRAMS_MAX => {
                let source = SiteSource { name: source.into(), refused: check(&program).err(), program };
                found.entry(name.into()).or_default().push(source);
            }
            Ok(_) => site.refused.push(Missing::new(
                program.display().to_string(),
                format!("there are more than {PROGRAMS_MAX}"),
            )),
            Err(why) => site.refused.push(Missing::new(program.display().to_string(), why)),
        }
    }
    site.extractors = found.into_iter().map(SiteExtractor::new).collect();
    Ok(site)
}

impl SiteExtractor {
    /// The program without a source in its name comes first, the others by their names.
    fn new((name, mut sources): (String, Vec<SiteSource>)) -> SiteExtractor {
        sources.sort_by_key(|source| (source.name != PLAIN_SOURCE, source.name.clone()));
        SiteExtractor { name, sources }
    }

    /// What the first source tells that can tell anything, or the one that is named.
    pub fn collect(&self, only: Option<&str>, system: &System, now_ms: u64) -> Record {
        let mut record = Record {
            extractor: self.name.clone(),
            version: NO_VERSION,
            class: Class::Dynamic,
            source: None,
            taken_ms: now_ms,
            data: Value::Null,
            missing: Vec::new(),
        };
        for source in self.sources.iter().filter(|source| only.is_none_or(|only| only == source.name)) {
            match source.run(system) {
                Ok(Told { version, class, data }) => {
                    let (source, data) = (Some(source.name.clone()), Value::Object(data));
                    return Record { version, class, source, data, ..record };
                }
                Err(why) => record.missing.push(Missing::new(source.program.display().to_string(), why)),
            }
        }
        record
    }
}

impl SiteSource {
    fn run(&self, system: &System) -> Result<Told, String> {
        if let Some(why) = &self.refused {
            return Err(why.clone());
        }
        parse(&system.output_up_to(&self.program, &[], PRINTED_MAX)?)
    }
}

fn parse(text: &str) -> Result<Told, String> {
    if text.trim().is_empty() {
        return Err("it printed nothing".into());
    }
    let text = text.trim_start();
    let bad = |why: &str| format!("it printed '{}', which is no record: {}", clip(text), clip(why));
    // Lists would be taken for objects without names.
    if !text.starts_with('{') {
        return Err(bad("expected a JSON object"));
    }
    let told: Told = serde_json::from_str(text).map_err(|error| bad(&error.to_string()))?;
    match told.version {
        NO_VERSION => Err("its version is 0; versions begin with 1".into()),
        _ => Ok(told),
    }
}

/// Extractor and source of a file's name.
fn name_of(file: &str) -> Result<(&str, &str), String> {
    let (name, source) = file.split_once('.').unwrap_or((file, PLAIN_SOURCE));
    if ![name, source].into_iter().all(is_name) {
        return Err(format!(
            "'{}' is no NAME or NAME.SOURCE: each up to {NAME_MAX} small letters, digits and '-', a letter first",
            clip(file)
        ));
    }
    if all().iter().any(|own| own.name == name) || MEASURED.iter().any(|own| own.name == name) {
        return Err(format!(
            "'{name}' is an extractor of tidepool, whose form is its own; choose another name"
        ));
    }
    if file.ends_with(&format!(".{PLAIN_SOURCE}")) {
        return Err(format!("'{PLAIN_SOURCE}' is the source of a program without one; call it '{name}'"));
    }
    Ok((name, source))
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= NAME_MAX && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(fits)
}

/// Why a program is not to be run.
fn check(program: &Path) -> Result<(), String> {
    // Not what a link leads to: its directory may be anybody's.
    let meta = std::fs::symlink_metadata(program).map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("it is no file; links are not followed".into());
    }
    in_safe_hands(&meta)?;
    access(program, Access::EXEC_OK).map_err(|_| "it cannot be executed; chmod 755".to_string())
}

/// Only root and the caller could have made it what it is.
fn in_safe_hands(meta: &Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != own {
        return Err(format!("it belongs to user {}, neither root nor the caller", meta.uid()));
    }
    match meta.permissions().mode() & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err("others may write to it; chmod go-w".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::fs::{Permissions, set_permissions};
    use std::time::Duration;
    use tidepool_testkit::put_program;

    /// A node whose site has these programs.
    fn site(programs: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(&EXTRACTORS_DIR[1..]);
        std::fs::create_dir_all(&dir).unwrap();
        set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        for (name, script) in programs {
            put_program(&dir.join(name), &format!("#!/bin/sh\n{script}\n"));
        }
        let system = System::at(root.path(), vec![]).with_patience(Duration::from_secs(20));
        (root, system)
    }

    fn names(site: &Site) -> Vec<(&str, Vec<&str>)> {
        site.extractors
            .iter()
            .map(|e| (e.name.as_str(), e.sources.iter().map(|s| s.name.as_str()).collect()))
            .collect()
    }

    fn refusals(site: &Site) -> Vec<String> {
        site.refused
            .iter()
            .map(|missing| {
                let file = missing.what.rsplit('/').next().unwrap_or_default();
                format!("{file}: {}", missing.why)
            })
            .collect()
    }

    const GOOD: &str = r#"echo '{"version": 2, "class": "static", "data": {"litres": 7}}'"#;

    #[test]
    fn the_first_source_that_tells_anything_is_taken() {
        let (_root, system) = site(&[
            ("coolant.b", "exit 1"),
            ("coolant.c", GOOD),
            ("coolant", "echo broken >&2; exit 3"),
            ("door", r#"echo '{"version":1,"class":"dynamic","data":{}}'"#),
        ]);
        let found = find(&system).unwrap();
        assert_eq!(names(&found), [("coolant", vec!["site", "b", "c"]), ("door", vec!["site"])]);
        let record = found.extractors[0].collect(None, &system, 9);
        assert_eq!((record.extractor.as_str(), record.version, record.taken_ms), ("coolant", 2, 9));
        assert_eq!((record.class, record.source.as_deref()), (Class::Static, Some("c")));
        assert_eq!(record.data, json!({"litres": 7}));
        let whys: Vec<&str> = record.missing.iter().map(|missing| missing.why.as_str()).collect();
        assert_eq!(whys, ["it ended with exit status: 3: broken", "it ended with exit status: 1: "]);
        let only = found.extractors[0].collect(Some("b"), &system, 9);
        assert_eq!((only.version, only.source, only.data, only.missing.len()), (0, None, Value::Null, 1));
    }

    #[test]
    fn hostile_programs_make_records_that_say_so() {
        for (script, why) in [
            ("exit 0", "it printed nothing"),
            ("echo '  '", "it printed nothing"),
            ("echo hello", "which is no record: expected a JSON object"),
            (r#"echo '[1,"static",{}]'"#, "expected a JSON object"),
            (r#"echo '{"version":1,"class":"static"}'"#, "missing field `data`"),
            (r#"echo '{"version":1,"class":"static","data":{},"host":"x"}'"#, "unknown field `host`"),
            (r#"echo '{"version":1,"class":"static","data":{},"data":{}}'"#, "duplicate field"),
            (r#"echo '{"version":0,"class":"static","data":{}}'"#, "versions begin with 1"),
            (r#"echo '{"version":-1,"class":"static","data":{}}'"#, "invalid value"),
            (r#"echo '{"version":1,"class":"sometimes","data":{}}'"#, "unknown variant"),
            (r#"echo '{"version":1,"class":"static","data":[]}'"#, "invalid type"),
            (r#"echo '{"version":1,"class":"static","data":{}} {}'"#, "trailing characters"),
            (
                r#"printf '{"version":1,"class":"static","data":{"a":'; yes '[' | tr -d '\n' | head -c 100000"#,
                "recursion limit",
            ),
            ("yes | head -c 2000000", "it printed more than 1048576 bytes"),
            ("printf '\\033[2J\\377'", "it printed '?[2J"),
            ("echo \"$HOME$SHELL$USER\" | grep . || exit 5", "exit status: 5"),
            ("cat | grep . || exit 6", "exit status: 6"),
            ("kill -9 $$", "signal: 9"),
        ] {
            let (_root, system) = site(&[("hostile", script)]);
            let record = find(&system).unwrap().extractors[0].collect(None, &system, 1);
            assert_eq!(
                (record.version, &record.data, record.missing.len()),
                (0, &Value::Null, 1),
                "{script}"
            );
            let missing = &record.missing[0];
            assert!(missing.what.ends_with("extractors.d/hostile"), "{missing:?}");
            assert!(missing.why.contains(why), "{script}: {missing:?}");
            assert!(!missing.why.contains(char::is_control), "{missing:?}");
        }
        for script in ["yes", "sleep 1000", "sleep 1000 & sleep 1000"] {
            let (_root, system) = site(&[("endless", script)]);
            let system = system.with_patience(Duration::from_millis(200));
            let record = find(&system).unwrap().extractors[0].collect(None, &system, 1);
            assert!(record.missing[0].why.contains("it had not ended after"), "{script}: {record:?}");
        }
    }

    #[test]
    fn what_others_could_have_written_is_not_run() {
        let (root, system) = site(&[("group", GOOD), ("plain", GOOD), ("good", GOOD), ("theirs", GOOD)]);
        let dir = root.path().join(&EXTRACTORS_DIR[1..]);
        set_permissions(dir.join("group"), Permissions::from_mode(0o775)).unwrap();
        set_permissions(dir.join("plain"), Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(dir.join("good"), dir.join("linked")).unwrap();
        std::fs::create_dir(dir.join("below")).unwrap();
        let root_runs = rustix::process::geteuid().is_root();
        if root_runs {
            std::os::unix::fs::chown(dir.join("theirs"), Some(65534), None).unwrap();
        } else {
            println!("SKIPPED: needs root, to give a file to somebody else");
            std::fs::remove_file(dir.join("theirs")).unwrap();
        }
        for extractor in find(&system).unwrap().extractors {
            let record = extractor.collect(None, &system, 1);
            let why = record.missing.first().map_or("", |missing| missing.why.as_str());
            let expected = match extractor.name.as_str() {
                "good" => "",
                "group" => "others may write to it; chmod go-w",
                "plain" => "it cannot be executed; chmod 755",
                "theirs" => "it belongs to user 65534, neither root nor the caller",
                _ => "it is no file; links are not followed",
            };
            assert_eq!(why, expected, "{}", extractor.name);
            assert_eq!(record.data.is_null(), !expected.is_empty(), "{}", extractor.name);
        }
        set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let refused = find(&system).unwrap_err();
        assert!(refused.what.ends_with("extractors.d") && refused.why.contains("chmod go-w"), "{refused:?}");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let (_root, system) = site(&[
            (".hidden", GOOD),
            ("README", GOOD),
            ("cpu", GOOD),
            ("cpu.site2", GOOD),
            ("storage-rates", GOOD),
            ("x.", GOOD),
            ("x.site", GOOD),
            ("x.y.z", GOOD),
            ("x~", GOOD),
            ("1x", GOOD),
            ("good-1.a2", GOOD),
        ]);
        let found = find(&system).unwrap();
        assert_eq!(names(&found), [("good-1", vec!["a2"])]);
        let said = refusals(&found).join("\n");
        assert_eq!(found.refused.len(), 9, "{said}");
        for part in
            ["cpu: 'cpu' is an extractor of tidepool", "x.site: 'site' is", "README: 'README' is no NAME"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(is_name(&"a".repeat(NAME_MAX)) && !is_name(&"a".repeat(NAME_MAX + 1)) && !is_name(""));
    }

    #[test]
    fn there_may_be_none_and_not_too_many() {
        let root = tempfile::tempdir().unwrap();
        assert!(find(&System::at(root.path(), vec![])).unwrap().extractors.is_empty());
        let programs: Vec<String> = (0..PROGRAMS_MAX + 2).map(|n| format!("x{n}")).collect();
        let programs: Vec<(&str, &str)> = programs.iter().map(|name| (name.as_str(), GOOD)).collect();
        let (_root, system) = site(&programs);
        let found = find(&system).unwrap();
        assert_eq!((found.extractors.len(), found.refused.len()), (PROGRAMS_MAX, 2));
        std::fs::write(root.path().join("file"), "").unwrap();
        let system = System::at(root.path(), vec![]).with_file(EXTRACTORS_DIR, root.path().join("file"));
        assert_eq!(find(&system).unwrap_err().why, "it is no directory");
    }

    proptest! {
        /// Whatever is printed: it is a record of a form that can be stored, or it is said why not.
        #[test]
        fn garbage_never_panics(text in prop_oneof![
            any::<String>(),
            r#"\{"version":[0-9]{1,12},"class":"(static|dynamic|x)","data":[\[{][\]}]\}"#,
        ]) {
            if let Ok(told) = parse(&text) {
                prop_assert!(told.version > 0);
                let printed: Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(printed["data"].as_object(), Some(&told.data));
            }
        }

        #[test]
        fn names_are_safe(file in any::<String>()) {
            if let Ok((name, source)) = name_of(&file) {
                prop_assert!(is_name(name) && is_name(source));
            }
        }
    }
}
