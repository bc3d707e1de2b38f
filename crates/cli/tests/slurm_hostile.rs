//! A hostile user beside an honest one on a real cluster: four nodes with root's stagers, which listen to each other and to programs of
//! NORNS. Bob tries from processes without a job and from a job of his what the issue of hostile users names, through every interface;
//! Alice's job on the same nodes has her data, and nothing of hers or of root's is read, changed or ended.
//!
//! | interface | what it is tried with | what cannot be said there |
//! |---|---|---|
//! | wire: format 11 on the user socket, format 13 at `listen` | `hostile.py wire`, `garbage`, `relay` | |
//! | the published NORNS socket | `norns` | whose name, priority, speed; cancel, list, keep, clean up |
//! | C libraries | `c`, `hostile.c` | whose name, priority, speed; resume, list, keep, clean up |
//! | Python package | `python` | to hold tasks, to clean up: it has no such calls |
//! | command line | `command` | memory: the command has none to offer |
//! | directives of job scripts | the table in `directives` | other hosts, memory, tasks by number, administration: no such words |
//!
//! Signals, files of root's, planted directories, workers and floods are of no interface: `processes`, `files`, `plant`, `worker`, `board`,
//! `flood`. What `tidepool slurm install --check` asks of hooks is in `slurm_user.rs`.

mod common;

use common::cluster::{ALICE, BOB, Cluster};
use common::text;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: usize = 1 << 20;
const NODES: [&str; 4] = ["node1", "node2", "node3", "node4"];
/// What Alice and root keep to themselves has this in it.
const SECRET: &str = "nobody else's";

struct Scene {
    cluster: Cluster,
    data: Vec<u8>,
}

fn shown(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}

/// Something of a user's, with this mode.
fn own(path: &Path, id: u32, mode: u32, content: Option<&str>) {
    match content {
        Some(content) => fs::write(path, content).unwrap(),
        None => fs::create_dir(path).unwrap(),
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    chown(path, Some(id), Some(id)).unwrap();
}

impl Scene {
    fn new() -> Option<Scene> {
        let cluster = Cluster::start(4)?;
        let data = cluster.input("alice", "case/mesh", MIB + 5);
        cluster.input("alice", "big", 32 * MIB);
        cluster.input("bob", "big", 32 * MIB);
        cluster.input("bob", "tree/x", 10);
        let (alice, bob, roots) = (cluster.pfs("alice"), cluster.pfs("bob"), cluster.pfs("roots"));
        own(&alice.join("private"), ALICE, 0o700, None);
        own(&alice.join("private/secret"), ALICE, 0o600, Some(SECRET));
        own(&alice.join("private/map"), ALICE, 0o600, Some("mesh node1\n"));
        own(&alice.join("open"), ALICE, 0o755, None);
        own(&alice.join("open/letter"), ALICE, 0o644, Some("to all"));
        own(&roots, 0, 0o600, Some(SECRET));
        own(&bob.join("in"), BOB, 0o644, Some("bob's"));
        own(&bob.join("ways"), BOB, 0o755, None);
        for (to, name) in [
            (shown(alice.join("private")), "alice"),
            (shown(alice.join("open/letter")), "letter"),
            ("/etc/shadow".into(), "shadow"),
        ] {
            symlink(to, bob.join("ways").join(name)).unwrap();
        }
        let fifo = Command::new("mkfifo").args(["-m", "666"]).arg(bob.join("ways/fifo")).status();
        assert!(fifo.unwrap().success());
        let scene = Scene { cluster, data };
        scene.reconfigure();
        for node in NODES {
            let script = format!(
                "umask 077; mkdir /mnt/nvme0/alice-own; printf %s \"{SECRET}\" > /mnt/nvme0/alice-own/secret
                 chown -R {ALICE}:{ALICE} /mnt/nvme0/alice-own
                 mkdir -m 777 /mnt/nvme0/project; mkdir -m 755 /mnt/nvme0/bob; chown {BOB}:{BOB} /mnt/nvme0/bob"
            );
            scene.sh(node, "root", &script);
        }
        Some(scene)
    }

    /// Stagers listen to programs of NORNS, too, and users get to a limit of theirs within a test.
    fn reconfigure(&self) {
        for node in NODES {
            let file = self.cluster.dir().join(format!("etc/stager-{node}.toml"));
            let old = fs::read_to_string(&file).unwrap();
            let new = "norns-socket = \"/run/tidepool/stager/norns.socket\"\nuser-tasks-max = 400\n";
            fs::write(&file, format!("{new}{old}")).unwrap();
            self.cluster.control(&["stager", "kill", node]);
            self.cluster.control(&["stager", "start", node]);
        }
        for node in NODES {
            let is_up = ["sh", "-c", "test -S /run/tidepool/stager/norns.socket"];
            self.cluster.until("the stager is up", || self.cluster.on(node, &is_up).status.success());
        }
    }

    /// Runs a shell on a machine as somebody; what it says.
    fn sh(&self, machine: &str, user: &str, script: &str) -> String {
        let id = ["alice", "bob"].iter().position(|name| *name == user).map_or(0, |at| ALICE + at as u32);
        let (id, home) = (id.to_string(), format!("HOME={}", shown(self.cluster.home(user))));
        let become_ = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "env", &home];
        let done = self.cluster.on(machine, &[&become_[..], &["sh", "-ec", script]].concat());
        assert!(done.status.success(), "{machine}, {user}: {script}: {}", text(&done));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn note(&self, user: &str, name: &str) -> PathBuf {
        self.cluster.home(user).join(name)
    }

    fn tell(&self, user: &str, name: &str) {
        fs::write(self.note(user, name), "").unwrap();
    }

    fn hear(&self, user: &str, name: &str, nodes: &[&str]) {
        for node in nodes {
            let (note, broken) = (self.note(user, &format!("{name}{node}")), self.note(user, "broken"));
            self.cluster.until(&format!("{user} says {name}{node}"), || note.exists() || broken.exists());
            assert!(note.exists(), "{user}: {name}{node}: {}", self.cluster.log(user, 1));
        }
    }

    /// What is Bob's to run: his program, the C program and the Python package, where he can read them.
    fn install(&self) -> PathBuf {
        let dir = self.cluster.path("hostile");
        fs::create_dir_all(dir.join("package/tidepool")).unwrap();
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let built = Path::new(env!("CARGO_BIN_EXE_tidepool")).parent().unwrap();
        fs::copy(manifest.join("tests/programs/hostile.py"), dir.join("hostile.py")).unwrap();
        for entry in fs::read_dir(manifest.join("../../python/tidepool")).unwrap().map(Result::unwrap) {
            if entry.path().is_file() {
                fs::copy(entry.path(), dir.join("package/tidepool").join(entry.file_name())).unwrap();
            }
        }
        fs::copy(built.join("lib_native.so"), dir.join("package/tidepool/_native.abi3.so")).unwrap();
        for name in ["libnorns.so", "libnornsctl.so"] {
            fs::copy(built.join("libnorns.so"), dir.join(name)).unwrap();
        }
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(manifest.join("../capi/include"));
        compiler.arg("-o").arg(dir.join("hostile")).arg(manifest.join("tests/programs/hostile.c"));
        compiler.arg("-L").arg(&dir).args(["-lnorns", "-lnornsctl"]);
        let compiled = compiler.arg(format!("-Wl,-rpath,{}", shown(&dir))).output().unwrap();
        assert!(compiled.status.success(), "{}", text(&compiled));
        fs::write(dir.join("log.swf"), "; MaxProcs: 8\n1 1 60 600 4 -1 -1 4 3600 -1 1 1 1 -1 -1 -1 -1 -1\n")
            .unwrap();
        dir
    }

    /// Processes of the cluster's machines that are not Bob's.
    fn victims(&self) -> Vec<u32> {
        let space = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let machines = [&NODES[..], &["ctl"]].concat();
        let spaces: Vec<_> = machines
            .iter()
            .map(|name| fs::read_to_string(self.cluster.dir().join(format!("run/space-{name}.pid"))).unwrap())
            .map(|pid| space(pid.trim()).expect("the machine is there"))
            .collect();
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| {
            let pid = entry.file_name().to_string_lossy().into_owned();
            let foreign = entry.metadata().is_ok_and(|meta| meta.uid() != BOB);
            (foreign && space(&pid).is_some_and(|own| spaces.contains(&own))).then(|| pid.parse().ok())?
        })
        .collect()
    }

    fn stagers(&self) -> Vec<String> {
        let pid =
            |node| fs::read_to_string(self.cluster.dir().join(format!("run/stager-{node}.pid"))).unwrap();
        let pids: Vec<String> = NODES.into_iter().map(|node| pid(node).trim().to_string()).collect();
        for pid in &pids {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            assert!(name.starts_with("tidepool-staged"), "a stager has ended: process {pid} is '{name}'");
        }
        pids
    }

    /// Owner, mode and content of what is not Bob's, on all nodes and in the shared file system.
    fn belongings(&self) -> String {
        let (pfs, dir) = (shown(self.cluster.pfs("")), shown(self.cluster.dir()));
        let (pfs, dir) = (pfs.trim_end_matches('/'), dir.as_str());
        let shared = format!(
            "{pfs}/alice/private {pfs}/alice/open {pfs}/alice/case {pfs}/alice/big {pfs}/roots {dir}/etc"
        );
        let local = "/mnt/nvme0/alice-own /mnt/nvme0/alice-kept /mnt/nvme0/alice-case";
        let look = |machine: &str, places: &str| {
            let script = format!(
                "find {places} -exec stat -c '%n %u:%g %a %F' {{}} + | sort; find {places} -type f -exec sha256sum {{}} + | sort -k2"
            );
            self.sh(machine, "root", &script)
        };
        let mut all = look("node1", &shared);
        for node in NODES {
            all.push_str(&look(node, local));
            all.push_str(&self.sh(node, "root", "stat -c '%n %u:%g %a %F' /run/tidepool /run/tidepool/stager /run/tidepool/stager/* /etc/passwd /dev/null"));
        }
        all
    }

    /// Before Alice has anything there, Bob takes names of hers in `/tmp`, and says what is to be removed when her jobs end.
    fn plant(&self) {
        let record = r#"{\"boot_id\":\"$(cat /proc/sys/kernel/random/boot_id)\",\"job\":\"$job\",\"agent\":0,\"daemons\":[1],\"stores\":[\"/mnt/nvme0/alice-own\"]}"#;
        let records = format!(
            "for job in 1 2 3 4 5 6; do mkdir -m 777 x$job; echo \"{record}\" > x$job/node-0.json; echo '{{}}' > x$job/pool.json
             mkdir -p job-$job/mnt/out; done
             mkdir -m 777 .stager; touch .stager/user.socket"
        );
        let base = format!("/tmp/tidepool-{ALICE}");
        for (node, script) in [
            ("node1", format!("umask 0; mkdir -m 777 {base}; cd {base}; {records}")),
            ("node2", format!("ln -s /etc {base}; ln -s /mnt/nvme0/alice-own {base}-1")),
            ("node3", format!("mkfifo -m 666 {base}")),
            ("node4", format!("umask 0; mkdir -m 777 {base} {base}-1; cd {base}-1; {records}")),
        ] {
            self.sh(node, "bob", &script);
        }
    }

    /// Alice's job: data on four nodes and in a pool, tasks of her own, results of both.
    fn honest(&self) -> u32 {
        let (home, tidepool) = (shown(self.cluster.home("alice")), self.cluster.tidepool());
        let step = format!(
            "set -ex; umask 077; node=$SLURMD_NODENAME; t=\"{tidepool} stage\"
             mkdir $NVME0/alice-kept $NVME0/alice-out; echo kept > $NVME0/alice-kept/f
             $t submit --bandwidth 64KiB copy lustre://alice/big nvme0://alice-big > {home}/running-$node
             $t submit copy lustre://alice/nothing nvme0://alice-nothing > {home}/failed-$node
             $t wait $(cat {home}/failed-$node) && exit 3
             echo $$ > {home}/process-$node; touch {home}/ready-$node
             until [ -e {home}/work ]; do sleep 0.2; done
             $t status $(cat {home}/running-$node) | grep running
             $t cancel $(cat {home}/running-$node)
             next=node$((${{node#node}} % 4 + 1))
             $t submit --wait copy $next:42000/nvme0://alice-case nvme0://alice-from-next
             cmp $NVME0/alice-from-next/mesh $NVME0/alice-case/mesh
             cp $NVME0/alice-case/mesh $TIDEPOOL_DIR/out/$node; cmp $TIDEPOOL_DIR/out/$node $TIDEPOOL_DIR/in/mesh
             cp $TIDEPOOL_DIR/in/mesh $NVME0/alice-out/$node
             rm -r $NVME0/alice-from-next; touch {home}/worked-$node
             until [ -e {home}/end ]; do sleep 0.2; done"
        );
        own(&self.note("alice", "step.sh"), ALICE, 0o755, Some(&step));
        let body = format!(
            "#TIDEPOOL pool size=64MiB client=fuse\n\
             #NORNS stage_in lustre://alice/case nvme0://alice-case replicate\n\
             #NORNS stage_in lustre://alice/case pool://in\n\
             #NORNS stage_out pool://out lustre://alice/out\n\
             #NORNS stage_out nvme0://alice-out lustre://alice/parts gather\n\
             #NORNS persist store nvme0://alice-kept\n\
             mkdir $TIDEPOOL_DIR/out; srun sh {home}/step.sh || touch {home}/broken\n"
        );
        let job = self.cluster.sbatch(&["-N4"], &body);
        self.hear("alice", "ready-", &NODES);
        job
    }

    fn number(&self, name: &str) -> u32 {
        fs::read_to_string(self.note("alice", name)).unwrap().trim().parse().expect(name)
    }

    /// What Bob knows: more than he could find out.
    fn facts(&self, job: u32, programs: &Path) -> String {
        let dir = self.cluster.dir();
        let tasks = |node| [self.number(&format!("running-{node}")), self.number(&format!("failed-{node}"))];
        let tasks: serde_json::Map<_, _> =
            NODES.into_iter().map(|node| (node.to_string(), json!(tasks(node)))).collect();
        let not_his: Vec<String> = ["stagers", "etc", "tidepool", "state", "pfs/alice", "home/alice"]
            .map(|name| shown(dir.join(name)))
            .into_iter()
            .chain(["/run/tidepool", "/mnt/nvme0/alice-own", "/mnt/nvme0/alice-kept"].map(String::from))
            .collect();
        let secrets: Vec<String> =
            ["etc/stager-node1.secret", "etc/controller.secret", "stagers/node1/journal", "tidepool/jobs.db"]
                .map(|name| shown(dir.join(name)))
                .into_iter()
                .chain([shown(self.cluster.pfs("alice/private/secret")), shown(self.cluster.pfs("roots"))])
                .collect();
        let facts = json!({
            "alice_job": job, "alice_process": self.number("process-node1"), "alice_tasks": tasks, "nodes": NODES,
            "tidepool": self.cluster.tidepool(), "c": shown(programs.join("hostile")), "package": shown(programs.join("package")),
            "log": shown(programs.join("log.swf")), "dir": shown(&dir), "pfs": shown(dir.join("pfs")), "home": shown(self.cluster.home("bob")),
            "victims": self.victims(), "not_his": not_his, "secrets": secrets, "relay": 42_000,
        });
        let file = programs.join("facts.json");
        fs::write(&file, facts.to_string()).unwrap();
        format!("/usr/bin/python3 -B {} {}", shown(programs.join("hostile.py")), shown(file))
    }

    /// Bob's program on a machine, without a job.
    fn alone(&self, machine: &str, program: &str, what: &str) -> String {
        // One that ends too early has not tried all, which is found by what it has printed.
        self.sh(machine, "bob", &format!("cd; {program} {what} 2>&1 || true"))
    }
}

/// Checks what Bob's program has printed: nothing was done, each refusal says why, and all of it was tried.
fn check(said: &str, where_: &str, tried: &[(&str, usize)]) -> Vec<String> {
    let mut troubles = Vec::new();
    let mut rows: Vec<Value> = Vec::new();
    for line in said.lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(row) if row.is_object() => rows.push(row),
            _ => troubles.push(format!("{where_}: {line}")),
        }
    }
    for row in &rows {
        let told = format!("{where_}: {} {}: {}", row["by"], row["name"], row["said"]);
        if row["done"] == true {
            troubles.push(format!("DONE {told}"));
        } else if row["named"] == false {
            troubles.push(format!("not named {told}"));
        }
    }
    for (by, least) in tried {
        let own: Vec<&Value> = rows.iter().filter(|row| row["by"] == *by).collect();
        let ended = own.iter().any(|row| row["name"] == "end");
        if own.len() < *least || !ended {
            troubles.push(format!("{where_}: {by}: only {} of {least} attempts", own.len()));
        }
        println!("{where_}: {by}: {} attempts", own.len());
    }
    troubles
}

#[track_caller]
fn none(troubles: Vec<String>) {
    assert!(troubles.is_empty(), "{} troubles:\n{}", troubles.len(), troubles.join("\n"));
}

/// A script's directives, and what is said when it is submitted; or, if it is taken, why its job did not have its way.
enum Fate {
    Refused,
    Failed,
    /// It runs, and what it asks for afterwards is not done.
    Ran,
}
use Fate::{Failed, Ran, Refused};

/// Whatever a job script may ask for, the controller asks in its owner's name.
fn directives(scene: &Scene, job: u32) -> Vec<String> {
    let pfs = shown(scene.cluster.dir().join("pfs"));
    let rows = [
        ("#NORNS stage_in lustre://alice/private/secret nvme0://bob/d1", Failed, "permission denied"),
        ("#NORNS stage_in lustre://roots nvme0://bob/d2", Failed, "permission denied"),
        (
            "#NORNS stage_in lustre://bob/ways/alice/secret nvme0://bob/d3",
            Failed,
            "leads out of the dataspace",
        ),
        ("#NORNS stage_in lustre://bob/in nvme0://alice-own/secret", Failed, "permission denied"),
        ("#NORNS stage_in lustre://bob/../alice/private nvme0://bob/d4", Refused, "'..'"),
        (
            "#NORNS stage_in lustre://bob/tree nvme0://bob/d5 file:/etc/shadow",
            Failed,
            "no node can be asked for it",
        ),
        (
            "#NORNS stage_in lustre://bob/tree nvme0://bob/d6 file:/dev/zero",
            Failed,
            "no node can be asked for it",
        ),
        (
            "#NORNS stage_in lustre://bob/tree nvme0://bob/d7 file:PFS/alice/private/map",
            Failed,
            "permission denied",
        ),
        (
            "#NORNS stage_in lustre://bob/tree nvme0://bob/d8 file:PFS/bob/ways/shadow",
            Failed,
            "symbolic links",
        ),
        ("#NORNS stage_in lustre://bob/tree nvme0://bob/d9 file:PFS/bob/ways/fifo", Failed, "illegal seek"),
        ("#NORNS stage_in node2:42000/nvme0://alice-own nvme0://bob/d10", Refused, "node2:42000"),
        ("#NORNS persist share lustre://alice/private bob", Refused, "nodes' own storage"),
        ("#TIDEPOOL resume JOB", Refused, "another user's"),
        ("#TIDEPOOL discard JOB", Refused, "another user's"),
        ("#TIDEPOOL end-pool 1", Refused, "there is none"),
        ("#NORNS workflow-prior-dependency JOB", Refused, "part of no workflow"),
        ("# Submitted to Tidepool by user 20001\n#NORNS workflow-start", Refused, "take it out"),
        ("#TIDEPOOL pool burst=PFS/alice/private client=preload", Failed, "permission denied"),
        ("#NORNS stage_out nvme0://bob-out lustre://alice/open/letter", Ran, "permission denied"),
        ("#NORNS stage_out nvme0://alice-own lustre://bob/stolen", Ran, "permission denied"),
        (
            "#TIDEPOOL timeout stage_in=2s\n#NORNS persist delete nvme0://alice-kept",
            Failed,
            "in use by job JOB",
        ),
    ];
    ask(scene, "-N1", &rows.map(|(lines, fate, words)| (lines.replace("PFS", &pfs), fate, words)), job)
}

/// Submits them all, and says of each what was not as it should be.
fn ask(scene: &Scene, nodes: &str, rows: &[(String, Fate, &str)], job: u32) -> Vec<String> {
    let cluster = &scene.cluster;
    let (mut troubles, mut taken) = (Vec::new(), Vec::new());
    for (lines, fate, words) in rows {
        let [lines, words] = [lines.as_str(), *words].map(|text| text.replace("JOB", &job.to_string()));
        let body = format!("{lines}\numask 77; echo x > $NVME0/bob-out\n");
        match (cluster.try_sbatch("bob", &[nodes], &body), fate) {
            (Ok(id), Failed | Ran) => taken.push((id, lines, fate, words)),
            (Err(said), Refused) if said.to_lowercase().contains(&words) => {}
            (said, _) => troubles.push(format!("directive: {lines}: {said:?}")),
        }
    }
    for (id, lines, fate, words) in taken {
        let state = cluster.wait(id).state();
        let told = format!("{} ({})", cluster.reason(id), cluster.events(id).join("; "));
        let wanted = if matches!(fate, Ran) { "COMPLETED" } else { "CANCELLED" };
        if state != wanted || !told.to_lowercase().contains(&words) {
            troubles.push(format!("directive: {lines}: {state}: {told}"));
        }
    }
    troubles
}

#[test]
fn a_hostile_user_harms_nobody() {
    let Some(scene) = Scene::new() else { return };
    let cluster = &scene.cluster;
    let programs = scene.install();
    let stagers = scene.stagers();
    scene.plant();
    let job = scene.honest();
    let program = scene.facts(job, &programs);
    let before = scene.belongings();
    let mut troubles = Vec::new();

    // Processes of Bob's on the nodes, without a job.
    let tries = [
        (
            "node1",
            "by-node command files processes",
            &[("wire", 50), ("command", 40), ("files", 10), ("processes", 10)][..],
        ),
        ("node2", "by-node files", &[("norns", 30), ("files", 10)]),
        ("node3", "by-node garbage", &[("c", 40), ("garbage", 28)]),
        ("node4", "by-node files", &[("python", 40), ("files", 10)]),
    ];
    std::thread::scope(|scope| {
        let all =
            tries.map(|(node, what, tried)| (node, tried, scope.spawn(|| scene.alone(node, &program, what))));
        for (node, tried, said) in all {
            troubles.extend(check(&said.join().unwrap(), &format!("{node} without a job"), tried));
        }
    });
    troubles.extend(relayed(&scene, &program));

    // The same from a job of his on the same nodes, which has a right to use the stagers.
    let home = shown(cluster.home("bob"));
    let body = format!(
        "#NORNS stage_in lustre://bob/tree nvme0://bob-tree replicate\n\
         srun -Q -N4 {program} by-node > {home}/by-node.json 2>&1\n\
         srun -Q -N1 -n1 -wnode1 {program} command files processes worker > {home}/one.json 2>&1\n\
         touch {home}/tried-; until [ -e {home}/flood ]; do sleep 0.2; done\n\
         srun -Q -N4 {program} flood > {home}/flood.json 2>&1\n"
    );
    let bobs = cluster.try_sbatch("bob", &["-N4"], &body).unwrap();
    scene.hear("bob", "tried-", &[""]);
    let said = |name: &str| fs::read_to_string(scene.note("bob", name)).unwrap_or_default();
    troubles.extend(check(
        &said("by-node.json"),
        "in a job",
        &[("wire", 50), ("norns", 30), ("c", 40), ("python", 40)],
    ));
    troubles.extend(check(
        &said("one.json"),
        "in a job",
        &[("command", 40), ("files", 10), ("processes", 10), ("worker", 3)],
    ));
    troubles.extend(directives(&scene, job));
    troubles.extend(cut_off(&scene, &program));
    epilogs(&scene);
    none(troubles);

    // He takes what he can get, and Alice's work is done all the same.
    scene.tell("bob", "flood");
    scene.hear("bob", "flood-", &NODES);
    scene.tell("alice", "work");
    scene.hear("alice", "worked-", &NODES);
    scene.tell("bob", "stop");
    let ended = cluster.wait(bobs);
    assert_eq!(ended.state(), "COMPLETED", "{}\n{}", cluster.overview(), cluster.log("bob", bobs));
    none(check(&said("flood.json"), "in a job", &[("flood", 3 * 4)]));

    assert_eq!(scene.belongings(), before, "what is hers and root's is as it was");
    assert_eq!(scene.stagers(), stagers, "root's stagers are those of the beginning");
    scene.tell("alice", "end");
    assert_eq!(
        cluster.wait(job).state(),
        "COMPLETED",
        "{}\n{}",
        cluster.overview(),
        cluster.log("alice", job)
    );
    cluster.until("the job is done", || cluster.phase(job) == "done");
    for node in NODES {
        for place in ["out", "parts"] {
            let path = cluster.pfs("alice").join(place).join(node);
            assert!(fs::read(&path).unwrap() == scene.data, "{}", shown(&path));
            assert_eq!(fs::metadata(&path).unwrap().uid(), ALICE);
        }
    }
    // What she keeps is hers, also when nothing of hers runs.
    let rows = [
        ("#NORNS persist store nvme0://alice-kept", Failed, "persisted already, for user 20001"),
        ("#NORNS persist delete nvme0://alice-kept", Ran, "nothing of this user's is kept there"),
        ("#NORNS persist share nvme0://alice-kept bob", Ran, "nothing of this user's is kept there"),
        ("#NORNS persist unshare nvme0://alice-kept alice", Ran, "nothing of this user's is kept there"),
        ("#NORNS stage_in nvme0://alice-kept nvme0://bob/kept", Failed, "permission denied"),
    ];
    none(ask(&scene, "-N4", &rows.map(|(lines, fate, words)| (lines.into(), fate, words)), job));
    for node in NODES {
        let kept =
            scene.sh(node, "root", "stat -c '%u %a' /mnt/nvme0/alice-kept; cat /mnt/nvme0/alice-kept/f");
        assert_eq!(kept, format!("{ALICE} 700\nkept\n"), "{node}");
    }
    nothing_got_out(&scene);
}

/// Who has the controller's key calls Bob by mistake. He passes the greeting on to a stager, and is nobody there all the same.
fn relayed(scene: &Scene, program: &str) -> Vec<String> {
    let secret = shown(scene.cluster.dir().join("etc/controller.secret"));
    std::thread::scope(|scope| {
        let relay = scope.spawn(|| scene.alone("ctl", program, "relay"));
        scene.hear("bob", "listening", &[""]);
        let words = ["stage", "--at", "ctl:42000", "--secret-file", &secret, "dataspace", "list"];
        let done = scene.cluster.by("slurm", &[&[scene.cluster.tidepool().as_str()], &words[..]].concat());
        assert!(!done.status.success() && !done.stderr.is_empty(), "{}", text(&done));
        check(&relay.join().unwrap(), "ctl", &[("relay", 3)])
    })
}

/// A pool of Bob's, of which he cuts off what its daemons share with whoever reads it.
fn cut_off(scene: &Scene, program: &str) -> Vec<String> {
    let cluster = &scene.cluster;
    let file = shown(scene.note("bob", "board.json"));
    let body = format!(
        "#TIDEPOOL pool size=64MiB client=fuse\nhead -c 2000000 /dev/zero > $TIDEPOOL_DIR/x\n{program} board > {file} 2>{file}.err\n"
    );
    let job = cluster.try_sbatch("bob", &["-N1", "-wnode4"], &body).unwrap();
    cluster.wait(job);
    check(&fs::read_to_string(file).unwrap_or_default(), "pool", &[("board", 2)])
}

/// When other jobs on her nodes end, Bob's and her own, nothing of hers is removed.
fn epilogs(scene: &Scene) {
    let cluster = &scene.cluster;
    let (home, tree) = (shown(cluster.home("bob")), "/mnt/nvme0/project/tree");
    let body = format!(
        "#NORNS stage_in lustre://bob/tree nvme0://project/tree\n#NORNS stage_in lustre://bob/tree nvme0://bob/swapped\n\
         #NORNS stage_in lustre://bob/in \"nvme0://bob/$(touch {home}/called);touch {home}/called\"\n\
         chmod 777 {tree}; ln -s /mnt/nvme0/alice-own {tree}/link\n\
         rm -r $NVME0/bob/swapped; ln -s /mnt/nvme0/alice-own $NVME0/bob/swapped\n\
         touch {home}/swapped-; until [ -e {home}/swap-end ]; do sleep 0.2; done\n"
    );
    let job = cluster.try_sbatch("bob", &["-N1", "-wnode1"], &body).unwrap();
    scene.hear("bob", "swapped-", &[""]);
    scene.sh("node1", "bob", "echo checkpoint > /mnt/nvme0/bob/checkpoint");
    scene.sh(
        "node1",
        "alice",
        &format!("umask 077; echo hers > {tree}/alice.dat; mkdir {tree}/alice; echo hers > {tree}/alice/x"),
    );
    scene.tell("bob", "swap-end");
    let another = cluster.sbatch(&["-N1", "-wnode1"], "true\n");
    for id in [job, another] {
        assert_eq!(cluster.wait(id).state(), "COMPLETED", "{}", cluster.overview());
    }
    let left = scene.sh(
        "node1",
        "root",
        &format!("cat {tree}/alice.dat {tree}/alice/x /mnt/nvme0/bob/checkpoint; ls -A {tree}"),
    );
    assert!(!scene.note("bob", "called").exists(), "names are no commands");
    assert_eq!(left, "hers\nhers\ncheckpoint\nalice\nalice.dat\n");
    // Her pool is up, whatever Bob's records say.
    let pool = scene.sh("node1", "alice", &format!("{} pool list", cluster.tidepool()));
    assert!(pool.contains("running"), "{pool}");
}

/// No file of Bob's has what she and root keep to themselves, and no secret of her pool or of the stagers.
fn nothing_got_out(scene: &Scene) {
    let dir = shown(scene.cluster.dir());
    let own =
        format!("find / -xdev -user {BOB} -type f 2>/dev/null -exec grep -la \"{SECRET}\" {{}} + || true");
    for node in NODES {
        let own = own.replace("find /", "find /mnt/nvme0 /tmp /run");
        assert_eq!(scene.sh(node, "root", &own), "", "{node}");
    }
    let shared = own.replace("find /", &format!("find {dir}/pfs {dir}/home"));
    assert_eq!(scene.sh("ctl", "root", &shared), "");
    // Nor has anything of hers gone where Bob had taken the place of her pools.
    for node in NODES {
        let into = format!(
            "for place in /tmp/tidepool-{ALICE}*; do [ $(stat -c %u $place) != {BOB} ] || find $place -user {ALICE}; done"
        );
        assert_eq!(scene.sh(node, "root", &into), "", "{node}");
    }
}

/// Bob knows the number of Alice's next job, and takes the place of its pool on one of its nodes. Programs of the job are told where
/// the pool really is, and write nothing into what is his.
#[test]
fn programs_find_the_pool_and_not_what_lies_in_its_place() {
    let Some(cluster) = Cluster::start(2) else { return };
    let data = cluster.input("alice", "in", 100_000);
    let scene = Scene { cluster, data };
    let cluster = &scene.cluster;
    let base = format!("/tmp/tidepool-{ALICE}");
    scene.sh(
        "node1",
        "bob",
        &format!("umask 0; mkdir -p {base}/job-1/mnt {base}/job-2/mnt; touch {base}/job-1/pool.json"),
    );
    for client in ["fuse", "preload"] {
        let job = cluster.sbatch(
            &["-N2"],
            &format!(
                "#TIDEPOOL pool size=64MiB client={client}\n#NORNS stage_in lustre://alice/in pool://in\n\
                 #NORNS stage_out pool://out lustre://alice/{client}\n\
                 mkdir $TIDEPOOL_DIR/out; srun sh -c 'cp $TIDEPOOL_DIR/in $TIDEPOOL_DIR/out/$SLURMD_NODENAME'; echo $TIDEPOOL_DIR\n"
            ),
        );
        let ended = cluster.wait(job);
        let stolen = scene.sh("node1", "bob", &format!("find {base}/*/mnt -mindepth 1"));
        assert_eq!(stolen, "", "{}", cluster.log("alice", job));
        assert_eq!(ended.state(), "COMPLETED", "{}\n{}", cluster.overview(), cluster.log("alice", job));
        assert_eq!(cluster.log("alice", job), format!("{base}-1/job-{job}/mnt\n"));
        for node in &NODES[..2] {
            assert!(
                fs::read(cluster.pfs("alice").join(client).join(node)).unwrap() == scene.data,
                "{client} {node}"
            );
        }
    }
}
