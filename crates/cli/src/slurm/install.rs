//! `tidepool slurm install`: puts Tidepool's parts beside Slurm's configuration, or checks what is there.
//!
//! Files that are not ours are never changed: what has to be written into them is printed.

use super::flags::InstallArgs;
pub use super::flags::InstalledAt;
use super::ready::{self, Finding, Level};
use super::scontrol::STATE_PROGRAM;
use super::site::Site;
use crate::exit::{Context, Failure, Kind, Result};
use crate::output::table;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const BURST_BUFFER: &str = include_str!("../../../../integrations/slurm/lua/burst_buffer.lua");
const JOB_SUBMIT: &str = include_str!("../../../../integrations/slurm/lua/job_submit.lua");
const PROLOG: &str = include_str!("../../../../integrations/slurm/prolog");
const EPILOG: &str = include_str!("../../../../integrations/slurm/epilog");
/// By which our files are known.
const OURS: &str = "Written by `tidepool slurm install`";

/// Slurm's own limits for hooks: ours are shorter and say why.
const BURST_BUFFER_CONF: &str = "\
# Written by `tidepool slurm install`
Directive=NORNS
Flags=TeardownFailure
StageInTimeout=604800
StageOutTimeout=604800
OtherTimeout=604800
";

/// A file of ours.
struct Part {
    path: PathBuf,
    text: String,
    executable: bool,
}

/// A line that slurm.conf needs: the value as it is, or as one of several separated by commas.
pub struct Setting {
    pub key: &'static str,
    value: String,
    one_of_several: bool,
    why: &'static str,
}

impl Setting {
    /// Whether slurm.conf, which has this value for the key, does so.
    pub fn is_in(&self, there: &str) -> bool {
        let among = |one: &str| one.trim().eq_ignore_ascii_case(&self.value);
        // A site's own hook may call ours.
        let is_hook = matches!(self.key, "Prolog" | "Epilog");
        there == self.value
            || self.one_of_several && there.split(',').any(among)
            || is_hook && calls(there, &self.value)
    }
}

pub fn settings(places: &InstalledAt) -> Vec<Setting> {
    let one = |key, value: String, why| Setting { key, value, one_of_several: false, why };
    let several = |key, value: &str, why| Setting { key, value: value.into(), one_of_several: true, why };
    let hook = |name: &str| places.libexec.join(name).display().to_string();
    vec![
        one("BurstBufferType", "burst_buffer/lua".into(), "staging before and after jobs"),
        several("JobSubmitPlugins", "lua", "directives are checked at submission"),
        several("DependencyParameters", "kill_invalid_depend", "jobs end that come after one that failed"),
        several("PrologFlags", "Alloc", "nodes are tested before the first step"),
        several("SchedulerParameters", "nohold_on_prolog_fail", "a job whose node is unfit runs on another"),
        one("Prolog", hook("prolog"), "nodes are tested for jobs that ask for Tidepool"),
        one("Epilog", hook("epilog"), "nodes stay with the job until its results are out"),
    ]
}

fn parts(args: &InstallArgs) -> Result<Vec<Part>> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context(Kind::Other, || "finding this program".into())?,
    };
    for path in [&program, &args.places.site, &args.places.libexec] {
        // They are written into quoted text of other languages.
        let plain = path.to_str().is_some_and(|text| !text.contains(['"', '\\', '\'', '\n', ' ']));
        if !plain {
            let text =
                format!("{}: a path with blanks, quotes or backslashes cannot be used here", path.display());
            return Err(Failure::new(Kind::Usage, text));
        }
    }
    let words = [
        ("@TIDEPOOL@", program.display().to_string()),
        ("@SITE@", args.places.site.display().to_string()),
        ("@PIPES@", pipes(args).display().to_string()),
    ];
    let filled = |text: &str| words.iter().fold(text.to_string(), |text, (word, is)| text.replace(word, is));
    let texts = [BURST_BUFFER, JOB_SUBMIT, BURST_BUFFER_CONF, PROLOG, EPILOG].map(filled);
    let part = |(path, text): (PathBuf, String)| Part {
        executable: path.starts_with(&args.places.libexec),
        path,
        text,
    };
    Ok(files(&args.places).into_iter().zip(texts).map(part).collect())
}

/// All that is written, as they are named.
pub fn files(places: &InstalledAt) -> [PathBuf; 5] {
    let conf = |name| places.conf_dir.join(name);
    let hook = |name| places.libexec.join(name);
    [
        conf("burst_buffer.lua"),
        conf("job_submit.lua"),
        conf("burst_buffer.conf"),
        hook("prolog"),
        hook("epilog"),
    ]
}

/// What 'make -C integrations/slurm/plugins' builds.
pub const BUILT: [&str; 3] = ["spank_tidepool.so", "tidepool_pipes.so", STATE_PROGRAM];

/// What burst_buffer.lua needs of C.
fn pipes(args: &InstallArgs) -> PathBuf {
    args.places.libexec.join("tidepool_pipes.so")
}

/// What hooks need of C, and what is not so without it.
fn built(args: &InstallArgs) -> [(PathBuf, &'static str); 2] {
    [
        (pipes(args), "no job waits for another one's hooks"),
        (args.places.libexec.join(STATE_PROGRAM), "a cancelled job is told from one that made no results"),
    ]
}

fn how_to_build(args: &InstallArgs) -> String {
    format!("make -C integrations/slurm/plugins OUT={}", args.places.libexec.display())
}

fn plugstack_line(args: &InstallArgs, program: &str) -> Option<String> {
    let plugin = args.spank.as_ref()?;
    Some(format!("optional {} tidepool={program} jobs={}", plugin.display(), args.jobs_dir.display()))
}

pub fn install(args: &InstallArgs) -> Result<ExitCode> {
    if args.print {
        settings(&args.places).iter().for_each(|setting| println!("{}={}", setting.key, setting.value));
        return Ok(ExitCode::SUCCESS);
    }
    if args.check { check(args) } else { put(args) }
}

fn put(args: &InstallArgs) -> Result<ExitCode> {
    let parts = parts(args)?;
    if let Some(foreign) = parts.iter().find(|part| is_foreign(&part.path)) {
        let text = format!(
            "{} is not Tidepool's, and is left alone; move it away, or call what it does from a file of your own",
            foreign.path.display()
        );
        return Err(Failure::new(Kind::Refused, text));
    }
    for part in &parts {
        if args.dry_run {
            println!("would write {}", part.path.display());
            continue;
        }
        write(part)?;
        println!("wrote {}", part.path.display());
    }
    if let Some(line) = plugstack_line(args, &program(args)?) {
        let path = args.places.conf_dir.join("plugstack.conf");
        let text = fs::read_to_string(&path).unwrap_or_default();
        if text.lines().any(|there| there.trim() == line) {
        } else if path.exists() {
            println!("add to {}:\n  {line}", path.display());
        } else if args.dry_run {
            println!("would write {}", path.display());
        } else {
            write(&Part { path: path.clone(), text: format!("{line}\n"), executable: false })?;
            println!("wrote {}", path.display());
        }
    }
    if let Some((missing, _)) = built(args).iter().find(|(path, _)| !path.exists()) {
        println!("{} is missing:\n  {}", missing.display(), how_to_build(args));
    }
    println!("slurm.conf needs, where it does not have them:");
    settings(&args.places).iter().for_each(|setting| println!("  {}={}", setting.key, setting.value));
    println!(
        "then: scontrol reconfigure, or a restart of slurmctld when BurstBufferType is new;\nand: tidepool slurm install --check"
    );
    Ok(ExitCode::SUCCESS)
}

fn program(args: &InstallArgs) -> Result<String> {
    let own = || std::env::current_exe().context(Kind::Other, || "finding this program".into());
    Ok(args.program.clone().map_or_else(own, Ok)?.display().to_string())
}

pub fn is_foreign(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| !text.contains(OURS))
}

fn write(part: &Part) -> Result<()> {
    let shown = || part.path.display().to_string();
    if let Some(dir) = part.path.parent() {
        fs::create_dir_all(dir).context(Kind::Other, shown)?;
    }
    let mode = if part.executable { 0o755 } else { 0o644 };
    // Slurm reads these files whenever it likes.
    let temporary = part.path.with_extension("tidepool-new");
    fs::write(&temporary, &part.text)
        .and_then(|()| fs::set_permissions(&temporary, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&temporary, &part.path))
        .context(Kind::Other, shown)
}

fn check(args: &InstallArgs) -> Result<ExitCode> {
    let mut findings = Vec::new();
    for part in parts(args)? {
        findings.push(part_finding(&part));
    }
    findings.extend(built(args).iter().map(|(path, why)| built_finding(args, path, why)));
    findings.extend(libexec_finding(args));
    findings.extend(conf_findings(args));
    findings.push(plugin_finding(args));
    findings.extend(hooks_findings(args)?);
    let bad = findings.iter().filter(|finding| finding.level == Level::Bad).count();
    if args.json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| json!({"what": f.what, "well": f.level != Level::Bad, "warning": f.level == Level::Warning, "trouble": f.trouble, "advice": f.advice}))
            .collect();
        println!("{}", json!({"well": bad == 0, "findings": list}));
    } else {
        let head = ["", "WHAT", "TROUBLE", "TO DO"].map(String::from).to_vec();
        let row = |f: &Finding| {
            let mark = match f.level {
                Level::Well => "ok",
                Level::Warning => "!",
                Level::Bad => "!!",
            };
            vec![mark.into(), f.what.clone(), f.trouble.clone(), f.advice.clone()]
        };
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(findings.iter().map(row)).collect();
        print!("{}", table(&rows));
    }
    match bad {
        0 => Ok(ExitCode::SUCCESS),
        1 => Err(Failure::new(Kind::Unfit, "one thing is not as it has to be")),
        n => Err(Failure::new(Kind::Unfit, format!("{n} things are not as they have to be"))),
    }
}

fn part_finding(part: &Part) -> Finding {
    let what = part.path.display().to_string();
    match fs::read_to_string(&part.path) {
        Err(error) => Finding::bad(what, error.to_string(), "tidepool slurm install"),
        Ok(text) if text == part.text => Finding::well(what),
        Ok(text) if text.contains(OURS) => {
            Finding::bad(what, "is of another release, or changed", "tidepool slurm install")
        }
        Ok(_) => Finding::bad(what, "is not Tidepool's", "move it away; tidepool slurm install"),
    }
}

fn built_finding(args: &InstallArgs, path: &Path, why: &str) -> Finding {
    let what = format!("{} ({why})", path.display());
    match path.is_file() {
        true => Finding::well(what),
        false => Finding::bad(what, "is missing", how_to_build(args)),
    }
}

/// Hooks look for the parts in C where the site's file says. What else is wrong with that file is found with the stagers.
fn libexec_finding(args: &InstallArgs) -> Option<Finding> {
    let site = Site::load(Some(&args.places.site)).ok()??;
    let what = "libexec (where hooks look for the parts in C)";
    Some(match site.libexec == args.places.libexec {
        true => Finding::well(what),
        false => Finding::bad(
            what,
            format!("is {} in {}", site.libexec.display(), args.places.site.display()),
            format!("libexec = \"{}\"", args.places.libexec.display()),
        ),
    })
}

/// Settings of slurm.conf, keys in lower case. Lines that include other files are followed one step.
pub fn read_conf(dir: &Path) -> std::result::Result<Vec<(String, String)>, String> {
    let path = dir.join("slurm.conf");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut all = String::new();
    for line in text.lines() {
        match line.trim().split_once(char::is_whitespace) {
            Some((word, file)) if word.eq_ignore_ascii_case("include") => {
                let file = dir.join(file.trim());
                all.push_str(
                    &fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?,
                );
            }
            _ => all.push_str(line),
        }
        all.push('\n');
    }
    let setting = |line: &str| {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (key, value) = line.split_once('=')?;
        Some((key.trim().to_lowercase(), value.trim().to_string()))
    };
    Ok(all.lines().filter_map(setting).collect())
}

/// What counts is said last.
pub fn setting_of<'a>(conf: &'a [(String, String)], key: &str) -> Option<&'a str> {
    conf.iter().rev().find(|(known, _)| *known == key).map(|(_, value)| value.as_str())
}

fn conf_findings(args: &InstallArgs) -> Vec<Finding> {
    let conf = match read_conf(&args.places.conf_dir) {
        Ok(conf) => conf,
        Err(why) => return vec![Finding::bad("slurm.conf", why, "name its directory with --conf-dir")],
    };
    let finding = |setting: Setting| {
        let what = format!("slurm.conf: {} ({})", setting.key, setting.why);
        let found = setting_of(&conf, &setting.key.to_lowercase());
        if found.is_some_and(|there| setting.is_in(there)) {
            return Finding::well(what);
        }
        let Setting { key, value, one_of_several, .. } = setting;
        match found {
            Some(there) if one_of_several => {
                Finding::bad(what, format!("is {there}"), format!("{key}={there},{value}"))
            }
            Some(there) => {
                Finding::bad(what, format!("is {there}"), format!("{key}={value}, or have it call that"))
            }
            None => Finding::bad(what, "is not set", format!("{key}={value}")),
        }
    };
    settings(&args.places).into_iter().map(finding).collect()
}

fn calls(script: &str, hook: &str) -> bool {
    fs::read_to_string(script).is_ok_and(|text| text.contains(hook))
}

fn plugin_finding(args: &InstallArgs) -> Finding {
    let what = "plugstack.conf: options of sbatch, tasks that stage themselves";
    let path = args.places.conf_dir.join("plugstack.conf");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let Some(line) =
        text.lines().find(|line| !line.trim_start().starts_with('#') && line.contains("spank_tidepool.so"))
    else {
        return Finding::bad(
            what,
            "has no line for it",
            format!("{}; tidepool slurm install --spank FILE", how_to_build(args)),
        );
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["optional", plugin, ..] if Path::new(plugin).is_file() => Finding::well(what),
        ["optional", plugin, ..] => Finding::bad(what, format!("{plugin} is missing"), "install it there"),
        _ => Finding::bad(
            what,
            "is not 'optional': a missing file would keep every job from starting",
            "write optional",
        ),
    }
}

/// What the user finds that the hooks run as.
fn hooks_findings(args: &InstallArgs) -> Result<Vec<Finding>> {
    let program = PathBuf::from(program(args)?);
    let conf = read_conf(&args.places.conf_dir).unwrap_or_default();
    // Slurm's own default.
    let user = setting_of(&conf, "slurmuser").unwrap_or("root");
    Ok(ready::ask(user, &program, &args.places.site))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_slurm_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("more.conf"), "prologflags = Alloc,X11 # x\n").unwrap();
        fs::write(dir.path().join("slurm.conf"), "Include more.conf\n#Epilog=/no\nEpilog=/a\n").unwrap();
        let conf = read_conf(dir.path()).unwrap();
        let expected =
            [("prologflags", "Alloc,X11"), ("epilog", "/a")].map(|(k, v)| (k.to_string(), v.to_string()));
        assert_eq!(conf, expected);
    }

    #[test]
    fn our_files_say_so_and_are_filled() {
        for text in [BURST_BUFFER, JOB_SUBMIT, BURST_BUFFER_CONF, PROLOG, EPILOG] {
            assert!(text.contains(OURS), "{text}");
        }
    }
}
