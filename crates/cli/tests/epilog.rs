//! What the epilog of a job removes from its node, and what it does not, with real users: the job's (alice) and another (bob).

mod common;

use common::{OwnStager, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const ALICE: u32 = 31_001;
const BOB: u32 = 31_002;

/// A node with one tracked dataspace, `nvme0://`, and a shared one.
struct Node {
    dir: TempDir,
    stager: OwnStager,
}

impl Node {
    /// None without root.
    fn start(config: &str) -> Option<Node> {
        if !rustix::process::getuid().is_root() {
            println!("SKIPPED: needs root, to have files of several users");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let open = |path: PathBuf, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open(dir.path().into(), 0o755);
        for name in ["local", "lustre"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            open(dir.path().join(name), 0o1777);
        }
        let at = dir.path().display();
        let space = |name: &str, kind: &str, mount: &str| {
            format!("[[dataspace]]\nname = \"{name}://\"\nkind = \"{kind}\"\nmount = \"{at}/{mount}\"\n")
        };
        let config = format!(
            "node = \"n0\"\njobs-dir = \"{at}/jobs\"\n{config}\n{}tracked = true\n{}",
            space("nvme0", "local", "local"),
            space("lustre", "shared", "lustre")
        );
        let stager = OwnStager::with(&config);
        Some(Node { dir, stager })
    }

    /// Runs a shell as a user, in the directory of both dataspaces. Bob is in alice's group.
    fn sh(&self, uid: u32, script: &str) {
        let (uid, groups) = (uid.to_string(), ALICE.to_string());
        let words = ["--reuid", &uid, "--regid", &uid, "--groups", &groups, "sh", "-ec", script];
        let done = Command::new("setpriv").args(words).current_dir(self.dir.path()).output().unwrap();
        assert!(done.status.success(), "{script}: {}", text(&done));
    }

    fn register(&self, job: u32) {
        let job = job.to_string();
        self.stager.ok(&[
            "job",
            "register",
            &job,
            "--host",
            "n0",
            "--limit",
            "nvme0://",
            "--limit",
            "lustre://",
        ]);
    }

    /// Hands copies of a job over, as hooks do it.
    fn submit(&self, job: u32, held: bool, lines: &str) {
        let list = self.dir.path().join("tasks");
        fs::write(&list, lines).unwrap();
        let (behalf, list) = (format!("{ALICE}:{ALICE}:{job}"), list.display().to_string());
        let held = if held { vec!["--held"] } else { vec![] };
        self.stager.ok(&[&["submit", "--on-behalf", &behalf, "--from", &list], &held[..]].concat());
    }

    /// Copies that come in before the program starts.
    fn copy(&self, job: u32, lines: &str) {
        self.submit(job, false, lines);
        for _ in 0..600 {
            let shown = self.stager.ok(&["--json", "list", "--job", &job.to_string()]);
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let tasks = shown["tasks"].as_array().expect("a list of tasks");
            if tasks.iter().all(|task| !["pending", "running"].contains(&task["state"].as_str().unwrap())) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("the copies do not end");
    }

    /// Runs the epilog, demands its exit code; what it said.
    fn epilog(&self, job: u32, code: i32) -> String {
        let (job, jobs) = (job.to_string(), self.dir.path().join("jobs").display().to_string());
        let user = format!("{ALICE}:{ALICE}");
        let words =
            ["slurm", "epilog", "--job", &job, "--user", &user, "--jobs-dir", &jobs, "--limit", "60s"];
        let mut command = self.stager.sandbox.tidepool(&words);
        let socket = self.stager.socket();
        command.env("TIDEPOOL_STAGER_CONTROL", &socket).env("TIDEPOOL_STAGER_SOCKET", &socket);
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{}", text(&done));
        text(&done)
    }

    fn mark(&self, job: u32) -> String {
        fs::read_to_string(self.dir.path().join(format!("jobs/{job}"))).unwrap()
    }

    /// Everything on the node that is no directory.
    fn files(&self) -> Vec<String> {
        let root = self.dir.path().join("local");
        let found =
            Command::new("find").arg(&root).args(["!", "-type", "d", "-printf", "%P\n"]).output().unwrap();
        let mut names: Vec<String> =
            String::from_utf8(found.stdout).unwrap().lines().map(String::from).collect();
        names.sort();
        names
    }

    fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.dir.path().join(path)).is_ok()
    }
}

const INPUT: &str = "mkdir lustre/in; echo mesh > lustre/in/mesh; echo more > lustre/in/more";

#[test]
fn data_of_the_users_other_jobs_stay() {
    let Some(node) = Node::start("") else { return };
    node.sh(ALICE, "mkdir local/alice; echo checkpoint > local/alice/checkpoint-of-job-500");
    node.register(501);
    let said = node.epilog(501, 0);
    assert_eq!(node.files(), ["alice/checkpoint-of-job-500"]);
    assert!(said.contains("nvme0://: 1 entries of user 31001 stay"), "{said}");
    assert_eq!(node.mark(501), "over");
}

#[test]
fn data_of_others_in_a_directory_of_the_group_stay() {
    let Some(node) = Node::start("") else { return };
    node.sh(ALICE, "mkdir local/project; chmod 2770 local/project");
    node.sh(BOB, "umask 007; mkdir local/project/bob; echo precious | tee local/project/bob/data > local/project/bob.dat");
    node.sh(ALICE, "echo mine > local/project/alice.tmp");
    node.register(501);
    node.epilog(501, 0);
    assert_eq!(node.files(), ["project/alice.tmp", "project/bob.dat", "project/bob/data"]);
}

#[test]
fn a_result_whose_failed_stage_out_is_old_stays() {
    let Some(node) = Node::start("ended-max = 20") else { return };
    node.sh(
        ALICE,
        "mkdir local/run lustre/out; echo RESULT > local/run/result; touch lustre/out/file
         for i in $(seq 60); do echo x > local/run/f$i; done",
    );
    node.register(502);
    let copies: String = (1..=60).map(|i| format!("copy nvme0://run/f{i} lustre://out/f{i}\n")).collect();
    node.submit(502, true, &format!("copy nvme0://run/result lustre://out/file/result\n{copies}"));
    let said = node.epilog(502, 112);
    assert!(said.contains("its data stay here"), "{said}");
    assert_eq!(node.mark(502), "kept");
    assert!(node.has("local/run/result"));
}

#[test]
fn what_the_jobs_copies_made_goes_with_the_users_files_in_it_and_nothing_of_others() {
    let Some(node) = Node::start("") else { return };
    node.sh(ALICE, INPUT);
    node.register(503);
    node.copy(503, "copy lustre://in nvme0://case/in\ncopy lustre://in/mesh nvme0://alone/deep/mesh\n");
    // What the job's program and somebody of the same group do.
    node.sh(ALICE, "echo scratch > local/case/in/scratch; chgrp -R 31001 local/case; chmod 2770 local/case local/case/in");
    node.sh(BOB, "echo precious > local/case/in/bob.dat; mkdir local/case/bob");
    node.epilog(503, 0);
    assert_eq!(node.files(), ["case/in/bob.dat"]);
    assert_eq!(fs::metadata(node.dir.path().join("local/case/bob")).unwrap().uid(), BOB);
    assert!(!node.has("local/alone"));
    assert!(node.has("lustre/in/mesh"));
}

#[test]
fn a_kept_location_in_what_the_jobs_copies_made_stays() {
    let Some(node) = Node::start("") else { return };
    node.sh(ALICE, INPUT);
    node.register(504);
    node.copy(504, "copy lustre://in nvme0://case\n");
    node.sh(ALICE, "mkdir -p local/case/for-later/a; echo kept > local/case/for-later/a/data");
    node.stager.ok(&["persist", "store", "nvme0://case/for-later", "--owner", "31001"]);
    node.epilog(504, 0);
    assert_eq!(node.files(), ["case/for-later/a/data"]);
}

#[test]
fn links_lead_to_nothing_that_is_removed() {
    let Some(node) = Node::start("") else { return };
    node.sh(ALICE, INPUT);
    node.sh(
        ALICE,
        "mkdir -p local/other local/there; echo mine > local/other/data; echo mine > local/other/mesh",
    );
    node.register(505);
    node.copy(505, "copy lustre://in nvme0://case\ncopy lustre://in/mesh nvme0://there/mesh\n");
    // One in what was made, and one in place of a directory on the way to it.
    node.sh(ALICE, "ln -s ../other local/case/link; mv local/there local/moved; ln -s other local/there");
    node.epilog(505, 0);
    assert_eq!(node.files(), ["moved/mesh", "other/data", "other/mesh", "there"]);
}

#[test]
fn nothing_is_removed_for_a_job_whose_copies_all_failed() {
    let Some(node) = Node::start("") else { return };
    node.sh(ALICE, "mkdir -p local/case lustre/in; echo mine > local/case/data");
    node.register(506);
    node.copy(506, "copy lustre://missing nvme0://case/a\ncopy lustre://in/neither nvme0://case/b\n");
    node.epilog(506, 0);
    assert_eq!(node.files(), ["case/data"]);
}

#[test]
fn of_two_jobs_of_a_user_on_the_node_each_removes_its_own() {
    let Some(node) = Node::start("") else { return };
    node.sh(ALICE, INPUT);
    node.register(507);
    node.register(508);
    node.copy(507, "copy lustre://in/mesh nvme0://case/first\n");
    // In the directory that the first job's copy made.
    node.copy(508, "copy lustre://in/mesh nvme0://case/second\ncopy lustre://in nvme0://own\n");
    node.epilog(507, 0);
    assert_eq!(node.files(), ["case/second", "own/mesh", "own/more"]);
    node.epilog(508, 0);
    assert_eq!(node.files(), [""; 0]);
}
