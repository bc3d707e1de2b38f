//! The same job description without a batch system: `tidepool run --job SCRIPT`, and `tidepool plan SCRIPT`.

mod common;

use common::sshd::Sshd;
use common::{Sandbox, doors, processes_of, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A machine with a shared directory and storage of its own, as a site's file tells.
struct Site {
    sandbox: Sandbox,
}

impl Site {
    fn new() -> Site {
        let site = Site { sandbox: Sandbox::new() };
        let space = |name: &str, kind: &str| {
            let mount = site.path(name);
            fs::create_dir(&mount).unwrap();
            let mount = mount.display();
            format!("[[dataspace]]\nname = \"{name}://\"\nkind = \"{kind}\"\nmount = \"{mount}\"\n")
        };
        let bucket = "[[dataspace]]\nname = \"s3://\"\nkind = \"object\"\nmount = \"s3://bucket\"\n";
        let text = space("nvme0", "local") + &space("lustre", "shared") + bucket;
        fs::write(site.path("site.toml"), text).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
    }

    fn put(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Directives and commands as `job.sh`, which nobody may execute: sbatch does not mind either.
    fn script(&self, directives: &str, commands: &str) {
        self.put("job.sh", &format!("#!/bin/bash\n#SBATCH -N 1\n{directives}\nset -e\n{commands}\n"));
        fs::set_permissions(self.path("job.sh"), Permissions::from_mode(0o644)).unwrap();
    }

    /// `tidepool run --job job.sh` in the sandbox's directory, with more words before and after.
    fn command(&self, flags: &[&str], args: &[&str]) -> Command {
        let run = [&["run", "--site", "site.toml"], flags, &["--job", "job.sh"], args].concat();
        let mut command = self.sandbox.tidepool(&run);
        command.current_dir(self.sandbox.dir.path());
        command
    }

    fn run(&self, flags: &[&str], args: &[&str]) -> Output {
        self.command(flags, args).output().unwrap()
    }

    /// Runs it and demands this exit code; what it said on standard output and on standard error.
    fn ends(&self, code: i32, flags: &[&str], args: &[&str]) -> (String, String) {
        let output = self.run(flags, args);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (words(&output.stdout), words(&output.stderr))
    }

    /// What is in a directory, sorted.
    fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn assert_nothing_left(&self, when: &str) {
        assert_eq!(self.names("nvme0"), [""; 0], "{when}");
        self.sandbox.assert_nothing_left(when);
    }
}

fn said(json: &str) -> Value {
    serde_json::from_str(json.lines().last().unwrap_or_default()).unwrap_or_else(|_| panic!("{json}"))
}

/// WANTS 17: a script that Slurm takes, as it is: data go into the pool and onto the node's own storage, and come back.
#[test]
fn w17_a_script_runs_without_a_batch_system() {
    for door in doors() {
        let site = Site::new();
        site.put("lustre/case/mesh", "1 2 3\n");
        site.put("lustre/case/sub/field", "4 5 6\n");
        site.put("lustre/tables/t", "7\n");
        site.script(
            &format!(
                "#TIDEPOOL pool size=64MiB client={door}\n\
                 #NORNS stage_in  lustre://case pool://case\n\
                 #NORNS stage_in  lustre://tables nvme0://tables replicate\n\
                 #NORNS stage_out pool://case/out lustre://out\n\
                 #NORNS stage_out nvme0://tables/log lustre://log gather"
            ),
            "test $PWD = \"$1\"\ntest -f $TIDEPOOL_POOL\ntest $TIDEPOOL_POOL_DIR = $TIDEPOOL_DIR\n\
             test $LUSTRE/case/mesh -ef $1/lustre/case/mesh\n\
             mkdir $TIDEPOOL_DIR/case/out\n\
             cat $TIDEPOOL_DIR/case/mesh $TIDEPOOL_DIR/case/sub/field $NVME0/tables/t > $TIDEPOOL_DIR/case/out/all\n\
             echo \"$2\" $(basename $0) > $NVME0/tables/log\nexit 7",
        );
        let here = site.path("").display().to_string();
        let here = here.trim_end_matches('/');
        let (out, told) = site.ends(7, &["--json"], &[here, "--", "two words"]);
        assert_eq!(site.read("lustre/out/all"), "1 2 3\n4 5 6\n7\n", "{told}");
        assert_eq!(site.read("lustre/log"), "two words job.sh\n", "{told}");
        let report = said(&out);
        assert_eq!((&report["program_exit"], &report["exit"]), (&json!(7), &json!(7)), "{report}");
        assert_eq!((&report["complete"], &report["script"]), (&json!(true), &json!("job.sh")), "{report}");
        let phases: Vec<&str> =
            report["phases"].as_array().unwrap().iter().map(|p| p["phase"].as_str().unwrap()).collect();
        let expected =
            ["start", "stage-in", "stage-in", "program", "stage-out", "stage-out", "stop", "clean"];
        assert_eq!(phases, expected, "{report}");
        let copy = &report["phases"][2];
        assert_eq!((&copy["from"], &copy["to"]), (&json!("lustre://tables"), &json!("nvme0://tables")));
        assert_eq!((&copy["files"], &copy["complete"]), (&json!(1), &json!(true)));
        site.assert_nothing_left(door);
    }
}

/// Every mapping, on the one node that there is.
#[test]
fn mappings_bring_everything_to_this_node() {
    let site = Site::new();
    for rank in 0..3 {
        site.put(&format!("lustre/case/processor{rank}/f"), &format!("{rank}\n"));
    }
    site.put("lustre/map", "processor1 n7 one\nprocessor2 n8 two\nprocessor2 n9 two\n");
    site.script(
        &format!(
            "#NORNS stage_in lustre://case nvme0://ranked scatter:processor{{rank}}\n\
             #NORNS stage_in lustre://case nvme0://turned scatter\n\
             #NORNS stage_in lustre://case nvme0://listed file:{}\n\
             #NORNS stage_in lustre://map nvme0://map\n\
             #NORNS stage_out nvme0://ranked lustre://out gather:of-{{node}}\n\
             #NORNS stage_out nvme0://listed lustre://listed",
            site.path("lustre/map").display()
        ),
        "test -z \"$TIDEPOOL_DIR$TIDEPOOL_POOL\"\ncmp $NVME0/map $LUSTRE/map\ncat $NVME0/{ranked,turned}/*/f\nuname -n > $NVME0/ranked/name",
    );
    let (out, told) = site.ends(0, &[], &[]);
    assert_eq!(out, "0\n1\n2\n0\n1\n2\n", "{told}");
    assert_eq!(site.names("lustre/listed"), ["one", "two"]);
    let [name] = &site.names("lustre/out")[..] else { panic!("one node") };
    assert_eq!(*name, format!("of-{}", site.read(&format!("lustre/out/{name}/name")).trim()));
    assert_eq!(site.names(&format!("lustre/out/{name}")), ["name", "processor0", "processor1", "processor2"]);
    site.assert_nothing_left("after mappings");

    site.put("lustre/case/constant", "");
    site.script("#NORNS stage_in lustre://case nvme0://x scatter:processor{rank}", "");
    let (_, told) = site.ends(111, &[], &[]);
    assert!(told.contains("entry 'constant' does not look like 'processor{rank}'"), "{told}");
    site.script("#NORNS stage_in lustre://map nvme0://x scatter", "");
    let (_, told) = site.ends(111, &[], &[]);
    assert!(told.contains("is no directory"), "{told}");
    site.assert_nothing_left("after mappings that fit nothing");
}

/// What is kept stays, what was there stays, what is to go goes.
#[test]
fn persist_says_what_stays() {
    let site = Site::new();
    site.put("lustre/case/mesh/m", "m\n");
    site.put("lustre/case/log", "l\n");
    site.put("nvme0/theirs/file", "theirs\n");
    site.put("nvme0/shared/theirs", "theirs\n");
    site.put("nvme0/old/file", "old\n");
    site.script(
        "#NORNS stage_in lustre://case nvme0://ana/case\n#NORNS stage_in lustre://case nvme0://shared\n\
         #NORNS persist store nvme0://ana/case/mesh\n#NORNS persist delete nvme0://old",
        "test -f $NVME0/old/file\necho new > $NVME0/ana/case/mesh/new\necho mine > $NVME0/mine",
    );
    site.ends(0, &[], &[]);
    assert_eq!(site.names("nvme0"), ["ana", "mine", "shared", "theirs"]);
    assert_eq!(site.names("nvme0/ana/case"), ["mesh"]);
    assert_eq!(site.names("nvme0/ana/case/mesh"), ["m", "new"]);
    assert_eq!(site.names("nvme0/shared"), ["theirs"]);
    assert_eq!(site.names("nvme0/theirs"), ["file"]);
    site.sandbox.assert_nothing_left("after persist");

    // The next job of a workflow uses it where it is, and is the last that does.
    let next = "#NORNS stage_in nvme0://ana/case nvme0://ana/case\n#NORNS persist delete nvme0://ana/case";
    site.script(next, "cat $NVME0/ana/case/mesh/new");
    let (out, told) = site.ends(0, &["--json"], &[]);
    assert!(out.starts_with("new\n"), "{out}");
    let staged = &said(&out)["phases"][0];
    assert_eq!((&staged["files"], &staged["bytes_copied"]), (&json!(2), &json!(0)), "{told}");
    assert_eq!(site.names("nvme0/ana"), [""; 0]);
    let (_, told) = site.ends(111, &[], &[]);
    assert!(told.contains("nvme0://ana/case does not exist"), "{told}");
}

#[test]
fn scripts_with_plain_paths_need_no_site() {
    if Path::new("/etc/tidepool/slurm.toml").exists() {
        println!("SKIPPED: this machine has a site's file, so that places are held against it");
        return;
    }
    let site = Site::new();
    site.put("in/f", "1\n");
    let (input, work, output) = (site.path("in"), site.path("work"), site.path("out"));
    let (input, work, output) = (input.display(), work.display(), output.display());
    site.script(
        &format!(
            "#TIDEPOOL pool\n#NORNS stage_in {input} pool://a\n#NORNS stage_in {input} {work}\n\
             #NORNS stage_out pool://a {output}"
        ),
        "cp -r work $TIDEPOOL_DIR/a/b",
    );
    let run = |args: &[&str]| {
        let mut command = site.sandbox.tidepool(&[&["run", "--job", "job.sh"], args].concat());
        command.current_dir(site.sandbox.dir.path()).output().unwrap()
    };
    let done = run(&[]);
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!((site.read("out/f"), site.read("out/b/f")), ("1\n".into(), "1\n".into()));
    // Whether this is the node's own storage nobody has said, so it is not taken away.
    assert_eq!(site.read("work/f"), "1\n");
    site.assert_nothing_left("without a site");

    site.script("#NORNS stage_in lustre://a nvme0://a\n#NORNS persist store /x", "");
    let done = run(&[]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done));
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(told.contains("job.sh:3:17: error: nobody knows where 'lustre://' is"), "{told}");
    assert!(told.contains("--site FILE"), "{told}");
    site.script("#NORNS persist store /x", "");
    let told = text(&run(&[]));
    assert!(told.contains("job.sh:3:8: error: whether '/x' is on the nodes' own storage"), "{told}");
}

/// Exit 2 with lines and columns as `slurm lint` has them, and nothing is started.
#[test]
fn directives_that_cannot_be_carried_out_are_refused() {
    let site = Site::new();
    site.put("lustre/a/f", "");
    let site_file = site.path("site.toml").display().to_string();
    for bad in
        ["#NORNS stage_inn lustre://a nvme0://a", "#NORNS stage_in lustr://a nvme0://a", "#TIDEPOOL pol"]
    {
        site.script(bad, "touch ran");
        let script = site.path("job.sh").display().to_string();
        let linted =
            site.sandbox.tidepool(&["slurm", "lint", "--site", &site_file, &script]).output().unwrap();
        assert_eq!(linted.status.code(), Some(123), "{}", text(&linted));
        let expected = String::from_utf8_lossy(&linted.stdout).replace(&script, "job.sh");
        let (_, told) = site.ends(2, &[], &[]);
        assert!(told.starts_with(&expected), "{told}\nlint: {expected}");
    }
    let several = "#TIDEPOOL pool name=a client=preload\n#TIDEPOOL pool name=b client=preload";
    for (directives, words) in [
        ("#NORNS persist share nvme0://a root", "job.sh:3:8: error: 'persist share' needs a stager"),
        ("#NORNS persist unshare nvme0://a root", "job.sh:3:8: error: 'persist unshare' needs a stager"),
        ("#NORNS persist store nvme0://a nobody", "what is of nobody needs a stager"),
        ("#NORNS persist delete /SANDBOX/nvme0", "is all of a dataspace"),
        ("#NORNS stage_in s3://a nvme0://a", "job.sh:3:17: error: 's3://a' is in an object store"),
        (
            "#TIDEPOOL pool\n#NORNS stage_in pool://a nvme0://a",
            "job.sh:4:17: error: 'pool://a' is empty before the job",
        ),
        ("#TIDEPOOL pool name=a lifetime=campaign", "lifetime=campaign: a pool ends with its job"),
        ("#NORNS stage_in lustre://a nvme0://a file:/no/such", "job.sh:3:38: error: 'file:/no/such': "),
        (several, "job.sh:3:11: error: several pools have to be mounted: client=preload"),
    ] {
        let root = site.path("").display().to_string();
        site.script(&directives.replace("/SANDBOX", root.trim_end_matches('/')), "touch ran");
        let (_, told) = site.ends(2, &[], &[]);
        assert!(told.contains(words), "{directives}: {told}");
        assert!(told.contains("nothing was started"), "{told}");
    }
    site.put("job.sh", "#TIDEPOOL pool\ntouch ran\n");
    let (_, told) = site.ends(2, &[], &[]);
    assert!(told.contains("job.sh:1:1: error: the first line has to be #!"), "{told}");
    for (args, code, words) in [
        (&["run", "--job", "job.sh", "--in", "/a:/b"][..], 2, "cannot be used with"),
        (&["run", "--job", "job.sh", "--fs", "local"], 2, "cannot be used with"),
        (&["run", "--job", "no-such.sh"], 2, "no-such.sh: No such file"),
        (&["run", "--site", "site.toml", "--", "true"], 2, "--job"),
        (&["run", "ls", "-l"], 2, "unexpected argument"),
        (&["run", "ls"], 2, "tidepool run -- ls"),
        (&["run"], 2, "which program?"),
    ] {
        let output = site.sandbox.tidepool(args).current_dir(site.path("")).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
    assert!(!site.path("ran").exists());
    site.assert_nothing_left("after refusals");
}

/// Each way to fail has its exit code, and leaves what it has to and nothing else.
#[test]
fn failures_have_their_exit_codes() {
    let site = Site::new();
    site.put("lustre/a/f", "1\n");
    let stage_in = "#TIDEPOOL pool\n#NORNS stage_in lustre://a nvme0://a\n";
    site.script(&format!("{stage_in}#NORNS stage_in lustre://missing pool://x"), "touch ran");
    let (_, told) = site.ends(111, &[], &[]);
    assert!(told.contains("lustre://missing does not exist"), "{told}");
    site.assert_nothing_left("before anything is started");

    // What is not mounted here is not written to.
    fs::rename(site.path("lustre"), site.path("away")).unwrap();
    site.script("#NORNS stage_out nvme0://a lustre://a", "touch ran");
    let (_, told) = site.ends(111, &[], &[]);
    assert!(told.contains("lustre:// is") && told.contains("no such directory here"), "{told}");
    fs::rename(site.path("away"), site.path("lustre")).unwrap();

    // A part of it comes, and goes again.
    site.put("lustre/b", "");
    site.script(
        &format!("{stage_in}#NORNS stage_in nvme0://a/f nvme0://c\n#NORNS stage_in lustre://a nvme0://c/d"),
        "touch ran",
    );
    let (_, told) = site.ends(111, &[], &[]);
    assert!(told.contains("nvme0/c"), "{told}");
    assert!(!site.path("ran").exists());
    site.assert_nothing_left("after a stage-in that failed");

    site.script(stage_in, "exit 3");
    site.ends(3, &[], &[]);
    site.put("job.sh", &format!("#!/no/such/program\n{stage_in}"));
    let (_, told) = site.ends(127, &[], &[]);
    assert!(told.contains("job.sh: /no/such/program: program not found"), "{told}");
    site.put("job.sh", "#!/bin/sh\n#TIDEPOOL pool size=900TiB\n");
    let (_, told) = site.ends(110, &[], &[]);
    assert!(told.contains("do not fit"), "{told}");
    site.assert_nothing_left("after programs that failed");
}

/// Exit 112: results that could not be staged out stay, in the pool and on the node, and people are told how to go on.
#[test]
fn results_that_cannot_be_staged_out_stay() {
    let site = Site::new();
    site.put("lustre/a/f", "1\n");
    site.put("lustre/taken", "a file, and no directory\n");
    site.script(
        "#TIDEPOOL pool\n#NORNS stage_in lustre://a nvme0://a\n#NORNS stage_out nvme0://a lustre://taken/a\n\
         #NORNS stage_out pool://r lustre://taken/r\n#NORNS stage_out pool://well lustre://well\n#NORNS persist delete nvme0://old",
        "mkdir $TIDEPOOL_DIR/{r,well}\necho 2 | tee $TIDEPOOL_DIR/{r,well}/f\necho 3 > $NVME0/a/g\nmkdir $NVME0/old",
    );
    let (out, told) = site.ends(112, &["--json"], &[]);
    let report = said(&out);
    assert_eq!((&report["program_exit"], &report["exit"]), (&json!(0), &json!(112)), "{report}");
    assert_eq!(site.names("nvme0"), ["a", "old"]);
    assert_eq!(site.read("lustre/well/f"), "2\n", "one that fails does not keep the others: {told}");
    let advice =
        told.lines().find(|line| line.contains("tidepool cp -T")).unwrap_or_else(|| panic!("{told}"));
    assert!(told.contains("tidepool drain"), "{told}");

    fs::remove_file(site.path("lustre/taken")).unwrap();
    site.sandbox.ok(&["drain"]);
    assert_eq!(site.read("lustre/taken/r/f"), "2\n");
    let words: Vec<&str> = advice.split('\'').nth(1).unwrap().split(' ').skip(1).collect();
    site.sandbox.ok(&words);
    assert_eq!((site.read("lustre/taken/a/f"), site.read("lustre/taken/a/g")), ("1\n".into(), "3\n".into()));
    site.sandbox.assert_nothing_left("after what people are told to do");
}

/// `workflow` lines and the like only mean something where jobs wait for each other.
#[test]
fn what_needs_a_batch_system_is_told_and_left_out() {
    let site = Site::new();
    site.put("lustre/a", "");
    site.script(
        "#TIDEPOOL pool nodes=4 deploy=dedicated:2\n#TIDEPOOL reserve\n#TIDEPOOL resume 5\n#TIDEPOOL timeout stage_in=1d\n\
         #NORNS workflow-prior-dependency 3 4\n#NORNS workflow-same-nodes\n#NORNS workflow-end\n\
         #NORNS stage_in lustre://a nvme0://a\n#NORNS capacity=1GB pool=x",
        "",
    );
    let (out, told) = site.ends(0, &["--json"], &[]);
    let warnings = said(&out)["warnings"].clone();
    for words in [
        "workflow-prior-dependency is ignored: in Slurm this job would wait until job 3, 4 has ended well",
        "workflow-same-nodes is ignored",
        "workflow-end is ignored",
        "reserve is ignored",
        "resume is ignored: in Slurm this job would finish the stage-out of job 5",
        "nodes= and deploy= are ignored: this is one machine",
    ] {
        assert!(told.contains(words) && warnings.to_string().contains(words), "{words}: {told}");
    }
    assert_eq!(warnings.as_array().unwrap().len(), 6, "{warnings}");
    site.assert_nothing_left("after warnings");
}

#[test]
fn several_pools_have_names_and_are_mounted() {
    if !doors().contains(&"fuse") {
        return;
    }
    let site = Site::new();
    site.put("lustre/a/f", "1\n");
    site.script(
        "#TIDEPOOL pool name=fast\n#TIDEPOOL pool name=plain fs=local\n#NORNS stage_in lustre://a fast://a\n\
         #NORNS stage_out plain://b lustre://b",
        "test -z \"$TIDEPOOL_DIR\"\ntest -f $TIDEPOOL_FAST_POOL\ncp -r $TIDEPOOL_FAST_DIR/a $TIDEPOOL_PLAIN_DIR/b",
    );
    site.ends(0, &[], &[]);
    assert_eq!(site.read("lustre/b/f"), "1\n");
    site.assert_nothing_left("after two pools");
}

#[test]
fn a_dry_run_of_a_script_starts_nothing() {
    let site = Site::new();
    site.put("lustre/a/f", "12345\n");
    site.script(
        "#TIDEPOOL pool\n#NORNS stage_in lustre://a nvme0://a\n#NORNS stage_in nvme0://a pool://a\n\
         #NORNS stage_out pool://a lustre://b\n#NORNS persist store nvme0://kept\n#NORNS persist delete nvme0://gone",
        "touch ran",
    );
    let (out, _) = site.ends(0, &["--dry-run"], &["1", "2"]);
    for words in [
        "would start a pool as pool://: 1 daemon(s)",
        "would copy lustre://a (1 files, 6 B) to nvme0://a",
        "would copy nvme0://a (not there yet) to pool://a",
        "would run: job.sh 1 2",
        "would copy pool://a to lustre://b",
        "would stop the pool",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let (out, _) = site.ends(0, &["--dry-run", "--json"], &["1"]);
    let told = said(&out);
    let copies = json!([
        {"from": "lustre://a", "to": "nvme0://a", "files": 1, "bytes": 6},
        {"from": "nvme0://a", "to": "pool://a", "files": null, "bytes": null},
    ]);
    assert_eq!((&told["stage_in"], &told["program"]), (&copies, &json!(["job.sh", "1"])), "{told}");
    let path = |name: &str| site.path(name).display().to_string();
    assert_eq!(told["filled"], json!([path("nvme0/a")]));
    assert_eq!(
        (&told["kept"], &told["deleted"]),
        (&json!([path("nvme0/kept")]), &json!([path("nvme0/gone")]))
    );
    assert!(!site.path("ran").exists());
    site.assert_nothing_left("after dry runs");
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ctrl-C while the script runs: what it has written is staged out, and nothing is left.
#[test]
fn a_stopped_script_leaves_nothing() {
    let site = Site::new();
    site.put("lustre/a/f", "1\n");
    site.script(
        "#TIDEPOOL pool\n#NORNS stage_in lustre://a nvme0://a\n#NORNS stage_out nvme0://a lustre://b",
        "echo 2 > $NVME0/a/g\ntouch running\nexec sleep 1000",
    );
    let child = site.command(&[], &[]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the script runs", || site.path("running").exists());
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130), "{}", text(&done));
    assert_eq!(site.read("lustre/b/g"), "2\n");
    site.assert_nothing_left("after Ctrl-C");
}

/// SIGTERM at random moments, over all phases: nothing is left, but what could not be staged out, and this is said.
#[test]
fn scripts_stopped_at_any_moment_leave_nothing() {
    let mut rng = tidepool_testkit::Rng::from_env("scripts_stopped_at_any_moment_leave_nothing");
    let rounds = std::env::var("TIDEPOOL_STOPS").ok().and_then(|t| t.parse().ok()).unwrap_or(12);
    for round in 0..rounds {
        let site = Site::new();
        (0..200).for_each(|n| site.put(&format!("lustre/a/f{n}"), &format!("{n}\n").repeat(1000)));
        site.script(
            "#TIDEPOOL pool client=preload\n#NORNS stage_in lustre://a nvme0://ana/a\n#NORNS stage_in nvme0://ana/a pool://a\n\
             #NORNS stage_out pool://a lustre://b\n#NORNS stage_out nvme0://ana/a lustre://c",
            "exec sleep 0.2",
        );
        let child = site.command(&[], &[]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pause = Duration::from_micros(rng.below(900_000));
        std::thread::sleep(pause);
        // It may have ended just now.
        let _ = kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM);
        let done = child.wait_with_output().unwrap();
        let when = format!("round {round}: after {pause:?}: {}", text(&done));
        if done.status.code() == Some(112) {
            assert!(when.contains("tidepool drain") && when.contains("nvme0/ana/a stays"), "{when}");
            site.sandbox.ok(&["drain"]);
            fs::remove_dir_all(site.path("nvme0/ana")).unwrap();
            // The journal of the other copy, for 'tidepool cp'.
            let _ = fs::remove_dir_all(site.sandbox.runtime().join(".cp"));
        }
        site.assert_nothing_left(&when);
    }
}

/// Two runs do not take each other's data away; a run that was killed is in nobody's way.
#[test]
fn runs_do_not_share_what_they_take_away() {
    let site = Site::new();
    site.put("lustre/a/f", "1\n");
    let wait = "touch running\nwhile test -e running; do sleep 0.05; done";
    site.script("#NORNS stage_in lustre://a nvme0://a", wait);
    let first = site.command(&[], &[]).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the first one runs", || site.path("running").exists());
    site.script("#NORNS stage_in lustre://a nvme0://a/b", "");
    let (_, told) = site.ends(111, &[], &[]);
    let pid = first.id();
    assert!(told.contains(&format!("belongs to job.sh, which process {pid} runs")), "{told}");
    site.script("#NORNS stage_in lustre://a nvme0://c", "");
    site.ends(0, &[], &[]);
    assert_eq!(site.read("nvme0/a/f"), "1\n");
    fs::remove_file(site.path("running")).unwrap();
    let done = first.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    site.assert_nothing_left("after both");

    site.script("#NORNS stage_in lustre://a nvme0://a", wait);
    let mut killed = site.command(&[], &[]).spawn().unwrap();
    wait_for("it runs", || site.path("running").exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    fs::remove_file(site.path("running")).unwrap();
    wait_for("the script has ended", || processes_of(site.sandbox.dir.path()).is_empty());
    assert_eq!(site.read("nvme0/a/f"), "1\n", "what was staged stays: nobody knows what is in it by now");
    site.script("#NORNS stage_in lustre://a nvme0://a", "");
    site.ends(0, &[], &[]);
    assert_eq!(site.names("nvme0"), ["a"]);
    site.sandbox.assert_nothing_left("after a run that was killed");
}

/// Over hosts there is the pool; the script and the nodes' own storage are here.
#[test]
fn hosts_are_for_the_pool() {
    let Some(sshd) = Sshd::start() else { return };
    let site = Site::new();
    site.put("lustre/a/f", "1\n");
    site.script(
        "#TIDEPOOL pool nodes=1 client=preload\n#NORNS stage_in lustre://a pool://a\n#NORNS stage_in lustre://a nvme0://a\n\
         #NORNS stage_out pool://a lustre://b",
        "echo $TIDEPOOL_NODES > $TIDEPOOL_DIR/a/nodes",
    );
    let mut command = site.command(&["--hosts", "node-a,node-b"], &[]);
    let done = command.env("TIDEPOOL_SSH", sshd.words()).output().unwrap();
    assert!(done.status.success(), "{}\nsshd: {}", text(&done), sshd.log());
    assert_eq!(site.read("lustre/b/nodes"), "node-a,node-b\n");
    let told = text(&done);
    assert!(told.contains("1 daemon(s)"), "{told}");
    assert!(told.contains("the 2 hosts are for the pool only"), "{told}");
    site.assert_nothing_left("after hosts");
    // The same in a job of PBS, whose nodes nobody has to name.
    site.put("nodes", "node-a\nnode-a\nnode-b\n");
    fs::remove_dir_all(site.path("lustre/b")).unwrap();
    let mut command = site.command(&[], &[]);
    command.env("PBS_NODEFILE", site.path("nodes")).env("TIDEPOOL_SSH", sshd.words());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}\nsshd: {}", text(&done), sshd.log());
    assert_eq!(site.read("lustre/b/nodes"), "node-a,node-b\n");
    site.assert_nothing_left("after a job of PBS");
    site.script("#TIDEPOOL pool nodes=3", "");
    let (_, told) = site.ends(2, &["--hosts", "node-a,node-b"], &[]);
    assert!(told.contains("job.sh:3:11: error: nodes=3: the job has 2 nodes"), "{told}");
}

/// What the plan of the script is, as JSON, and the exit code.
fn plan(site: &Site, flags: &[&str]) -> (Value, Option<i32>) {
    let args = [&["plan", "--site", "site.toml", "--json", "job.sh"], flags].concat();
    let output = site.sandbox.tidepool(&args).current_dir(site.path("")).output().unwrap();
    let told = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    (told, output.status.code())
}

/// A database of nodes with a disk for everything, whose speed and room are given.
fn database(site: &Site, nodes: &[(&str, f64, u64)]) -> String {
    let (db, lines) = (site.path("r.db").display().to_string(), site.path("records.jsonl"));
    let mut text = String::new();
    for (host, rate, room) in nodes {
        let disk = json!({"target": "/", "kind": "xfs", "source": "sda", "device": "8:1", "disk": "sda", "disk_kind": "nvme",
            "read_only": false, "total_bytes": room, "available_bytes": room, "files": 1, "files_free": 1});
        let spread = json!({"median": rate, "min": rate, "max": rate});
        let rates = |path: &Path| json!({"path": path, "public": true, "write": spread, "read": spread});
        let stores = [rates(&site.path("nvme0")), rates(Path::new("/tmp"))];
        for (extractor, data) in
            [("filesystems", json!({"filesystems": [disk]})), ("storage-rates", json!({"stores": stores}))]
        {
            let line = json!({"host": host, "extractor": extractor, "version": 1, "class": "dynamic", "source": "test",
                "taken_ms": 1, "data": data});
            text.push_str(&format!("{line}\n"));
        }
    }
    fs::write(&lines, text).unwrap();
    site.sandbox.ok(&["sysmap", "import", "--db", &db, lines.to_str().unwrap()]);
    db
}

fn steps(told: &Value) -> Vec<(String, String, String)> {
    let word = |value: &Value| value.as_str().unwrap_or("-").to_string();
    let of = |step: &Value| (word(&step["step"]), word(&step["from"]), word(&step["to"]));
    told["steps"].as_array().unwrap_or_else(|| panic!("{told}")).iter().map(of).collect()
}

/// WANTS 23: what a script would do, in order, with sizes and times from what is known of the nodes.
#[test]
fn w23_a_script_is_planned_step_by_step() {
    let site = Site::new();
    site.put("lustre/case/a", &"x".repeat(60_000));
    site.put("lustre/case/b", &"x".repeat(40_000));
    site.put("lustre/tables", &"x".repeat(50_000));
    site.script(
        "#SBATCH --nodes=2 --time=1:00\n#TIDEPOOL pool size=1GiB deploy=subset:1 chunk-size=1MiB\n\
         #NORNS stage_in lustre://case pool://case\n#NORNS stage_in lustre://tables nvme0://kept/t\n\
         #NORNS stage_in lustre://case nvme0://case scatter\n#NORNS stage_in nvme0://kept/t nvme0://more\n\
         #NORNS stage_out pool://out lustre://out\n#NORNS stage_out nvme0://log lustre://log\n#NORNS persist store nvme0://kept\n\
         #NORNS persist delete nvme0://old",
        "srun ./solver",
    );
    let db = database(&site, &[("n1", 1e6, 10 << 30), ("n2", 1e5, 10 << 30)]);
    let (told, code) = plan(&site, &["--db", &db, "--hosts", "n1,n2"]);
    assert_eq!(code, Some(0), "{told}");
    let step = |what: &str, from: &str, to: &str| (what.into(), from.into(), to.into());
    assert_eq!(
        steps(&told),
        [
            step("pool", "-", "pool://"),
            step("stage in", "lustre://case", "pool://case"),
            step("stage in", "lustre://tables", "nvme0://kept/t"),
            step("stage in", "lustre://case", "nvme0://case"),
            step("stage in", "nvme0://kept/t", "nvme0://more"),
            step("program", "-", "-"),
            step("stage out", "pool://out", "lustre://out"),
            step("stage out", "nvme0://log", "lustre://log"),
            step("stays", "-", "nvme0://kept"),
            step("goes", "-", "nvme0://old"),
            step("goes", "-", "pool://"),
            step("goes", "-", "nvme0://case"),
            step("goes", "-", "nvme0://more"),
        ]
    );
    let of = |number: usize, key: &str| told["steps"][number][key].clone();
    assert_eq!((of(1, "files"), of(1, "bytes"), of(1, "seconds")), (json!(2), json!(100_000), json!(0.1)));
    // Every node gets all of it, the slow one too; of what is scattered, half.
    assert_eq!((of(2, "bytes_each"), of(2, "seconds")), (json!(50_000), json!(0.5)));
    assert_eq!(
        (of(3, "bytes_each"), of(3, "seconds"), of(3, "basis")),
        (json!(50_000), json!(0.5), json!("measured"))
    );
    // What an earlier line brings is as large as its origin.
    assert_eq!((of(4, "bytes"), of(6, "bytes")), (json!(50_000), Value::Null));
    assert_eq!((&told["nodes"], &told["walltime_seconds"]), (&json!(2), &json!(60.0)));
    assert_eq!((&told["partial"], &told["problems"]), (&json!(true), &json!([])));
    let pool = &told["pools"][0];
    assert_eq!((&pool["dataspace"], &pool["daemons"]), (&json!("pool://"), &json!(1)));
    assert_eq!(
        (&pool["deploy"]["value"], &pool["chunk_size"]["value"]),
        (&json!("subset:1"), &json!(1 << 20))
    );
    assert_eq!(pool["room"]["needed_bytes"], json!(1 << 30));
    assert!(pool["costs"]["share"].as_f64().unwrap() > 0.0, "{pool}");

    // Flags win, as sbatch's do; a number of nodes that nobody has named is one of nodes nobody knows.
    let (told, _) =
        plan(&site, &["--chunk-size", "2MiB", "--walltime", "2h", "--nodes", "3", "--stage-out", "1MB"]);
    assert_eq!((&told["nodes"], &told["walltime_seconds"]), (&json!(3), &json!(7200.0)));
    assert_eq!(told["pools"][0]["chunk_size"]["value"], json!(2 << 20));
    assert_eq!(told["steps"][6]["bytes"], json!(1_000_000));
    assert!(told["notes"].to_string().contains("asks for 2 nodes, and this is planned on 3"), "{told}");
    assert!(told["pools"][0]["warnings"].to_string().contains("nothing is known of node 1"), "{told}");
    let (told, code) = plan(&site, &["--local"]);
    assert_eq!((&told["nodes"], code), (&json!(1), Some(0)), "{told}");

    let output =
        site.sandbox.tidepool(&["plan", "--site", "site.toml", "job.sh"]).current_dir(site.path("")).output();
    let said = text(&output.unwrap());
    for part in [
        "job.sh: 2 node(s), for at most 1 min 00 s",
        "every node gets all of it",
        "97.7 KiB, 48.8 KiB on a node, 2 files",
        "pools and staging: at least",
        "pool://: 2 node(s), whichever they will be",
        "--chunk-size",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    site.assert_nothing_left("after plans");
}

/// Shared storage of a pool is a directive, too: planned, used, and left empty.
#[test]
fn a_script_asks_for_tiers() {
    let site = Site::new();
    let dir = |name: &str| {
        fs::create_dir(site.path(name)).unwrap();
        site.path(name).display().to_string()
    };
    let (burst, pfs) = (dir("burst"), dir("deep"));
    let pool = format!("#TIDEPOOL pool burst={burst} pfs={pfs} strategy=hp no-local=yes client=preload");
    site.script(
        &format!("{pool}\n#NORNS stage_out pool://f lustre://f"),
        &format!(
            "head -c 1000000 /dev/zero > $TIDEPOOL_DIR/f\n{} pool status > status",
            env!("CARGO_BIN_EXE_tidepool")
        ),
    );
    let (told, code) = plan(&site, &[]);
    assert_eq!(code, Some(0), "{told}");
    let how = format!("burst buffer {burst}, parallel file system {pfs}, strategy hp");
    assert!(told["steps"][0]["how"].as_str().unwrap().contains(&how), "{told}");
    let (out, _) = site.ends(0, &["--dry-run"], &[]);
    assert!(out.contains(&how), "{out}");
    site.ends(0, &[], &[]);
    let status = site.read("status");
    assert!(status.contains("local 0 B, burst ") && !status.contains("burst 0 B, pfs 0 B"), "{status}");
    assert_eq!(site.read("lustre/f").len(), 1_000_000);
    for dir in [&burst, &pfs] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "{dir}");
    }
    // A flag is held against what the script says.
    let words = site.ends(2, &["--pfs", &burst], &[]).1;
    assert!(words.contains("name the same directory"), "{words}");
    site.script("#TIDEPOOL pool burst=/nowhere/of/this/name", "");
    let (told, _) = plan(&site, &[]);
    assert!(told["notes"].to_string().contains("burst=/nowhere/of/this/name: there is no such"), "{told}");
    site.assert_nothing_left("after pools on tiers");
}

/// Exit code 123 when something speaks against a script, with the place where it is said.
#[test]
fn w23_what_speaks_against_a_script_is_told() {
    let site = Site::new();
    site.put("lustre/case/a", &"x".repeat(100_000));
    let db = database(&site, &[("n1", 1e4, 10 << 30), ("n2", 1e4, 100_000)]);
    let nodes = ["--db", &db, "--hosts", "n1,n2"];
    for (script, line, words) in [
        ("#NORNS stage_inn lustre://case nvme0://case", 3, "unknown directive 'stage_inn'"),
        ("#NORNS stage_in lustr://case nvme0://case", 3, "there is no dataspace 'lustr://'"),
        ("#TIDEPOOL pool nodes=3", 3, "nodes=3: the job has 2 nodes"),
        ("#NORNS stage_in lustre://missing nvme0://x", 3, "'lustre://missing' cannot be staged in"),
        ("#NORNS stage_in lustre://case nvme0://case", 3, "n2 has room for 87.9 KiB"),
        (
            "#TIDEPOOL timeout stage_in=1s\n#NORNS stage_in lustre://case nvme0://case scatter",
            4,
            "its timeout is 1.0 s",
        ),
        ("#TIDEPOOL pool lifetime=campaign", 3, "needs a name"),
        ("#SBATCH --nodes=two", 3, "'two' is no number of nodes"),
    ] {
        site.script(script, "");
        let (told, code) = plan(&site, &nodes);
        assert_eq!(code, Some(123), "{script}: {told}");
        let [problem] = told["problems"].as_array().unwrap().as_slice() else { panic!("{script}: {told}") };
        assert!(problem.to_string().contains(words), "{script}: {problem}");
        assert_eq!(problem["line"], json!(line), "{script}: {problem}");
    }
    // What Slurm's hooks can do is nothing that speaks against it.
    site.script("#TIDEPOOL pool name=a lifetime=campaign", "");
    let (told, code) = plan(&site, &nodes);
    assert!(code == Some(0) && told["notes"].to_string().contains("for Slurm's hooks"), "{told}");
    site.script("#TIDEPOOL pool size=900TiB", "");
    let (told, code) = plan(&site, &nodes);
    assert_eq!((code, &told["pools"][0]["room"]["fits"]), (Some(123), &json!(false)), "{told}");
    // As lint prints it.
    site.script("#NORNS stage_inn lustre://case nvme0://case", "");
    let script = site.path("job.sh").display().to_string();
    let site_file = site.path("site.toml").display().to_string();
    let say = |words: &[&str]| {
        let output =
            site.sandbox.tidepool(&[words, &["--site", &site_file, &script]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(123), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(say(&["plan"]), say(&["slurm", "lint"]));
    // What is not mounted here, and what an object store has, nobody can look at.
    fs::rename(site.path("lustre"), site.path("away")).unwrap();
    site.script(
        "#TIDEPOOL pool fs=local\n#NORNS stage_in lustre://case pool://a\n#NORNS stage_in s3://b pool://b",
        "",
    );
    let (told, code) = plan(&site, &[]);
    assert_eq!(
        (code, &told["steps"][1]["bytes"], &told["pools"][0]["room"]),
        (Some(0), &Value::Null, &Value::Null)
    );
    assert!(told["notes"].to_string().contains("fs=local is made by 'tidepool run --job'"), "{told}");
    // In Slurm pools are where the site says.
    let more = format!("pool-store = \"/pools\"\n{}", site.read("site.toml"));
    site.put("site.toml", &more);
    site.script("#TIDEPOOL pool", "");
    for (flags, store) in
        [(&["--nodes", "2"][..], "/pools"), (&["--nodes", "2", "--store", "/mine"], "/mine")]
    {
        assert_eq!(plan(&site, flags).0["pools"][0]["store"]["value"], json!(store));
    }
    site.put("job.sh", "#!/bin/sh\n");
    for (args, words) in [
        (&["--stage-in", "1MB"][..], "--stage-in is for scripts with one pool"),
        (&["--nodes", "0"], "at least one node"),
    ] {
        let args = [&["plan", "job.sh"], args].concat();
        let output = site.sandbox.tidepool(&args).current_dir(site.path("")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(words), "{}", text(&output));
    }
}
