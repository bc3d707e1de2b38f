//! Links out of pools: what they lead to is in the copy, or the copy is not complete.

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use support::{Place, memory_dir};
use tidepool_client::Client;
use tidepool_stage::{
    Control, DirRef, End, LocalEnd, PoolEnd, StageOptions, StageReport, What, move_tree, stage,
};
use tidepool_testkit::{Cluster, cred};

struct Pool {
    cluster: Cluster,
    client: Arc<Client>,
}

impl Pool {
    fn new() -> Pool {
        let cluster = Cluster::start(2);
        let client = Arc::new(cluster.client());
        Pool { cluster, client }
    }

    fn end(&self, path: &str) -> PoolEnd {
        PoolEnd::at_path(self.client.clone(), path.as_bytes(), cred(), true).unwrap()
    }

    fn file(&self, dir: &str, name: &str, text: &str) {
        let end = self.end(dir);
        let file = end.create(&end.root(), name.as_bytes()).unwrap();
        end.write(&file, 0, text.as_bytes()).unwrap();
    }

    /// `@` stands for the pool's path.
    fn link(&self, dir: &str, name: &str, target: &str) {
        let mount = self.client.pool().mount.as_os_str().as_bytes().to_vec();
        let target = target.replace('@', std::str::from_utf8(&mount).unwrap());
        let end = self.end(dir);
        end.make_symlink(&end.root(), name.as_bytes(), target.as_bytes()).unwrap();
    }

    fn copy(&self, from: &str, what: &What, to: &Path, options: &StageOptions) -> StageReport {
        stage(&self.end(from), &LocalEnd::create(to).unwrap(), what, options, &Control::default())
    }
}

/// A result, and a working directory beside it with a link of its own.
fn work(pool: &Pool) {
    pool.file("work", "r", "result");
    pool.file("work/dir", "a", "of a");
    pool.link("work/dir", "b", "a");
    pool.link("work/dir", "c", "../r");
    pool.link("work", "to-home", "/etc/hostname");
    pool.file("out", "f", "own");
    pool.end("out/sub");
}

fn text(path: &Path) -> String {
    assert!(fs::symlink_metadata(path).unwrap().is_file(), "{}", path.display());
    fs::read_to_string(path).unwrap()
}

fn target(path: &Path) -> String {
    fs::read_link(path).unwrap().to_str().unwrap().into()
}

#[test]
fn what_lies_elsewhere_in_the_pool_comes_along() {
    let (pool, place) = (Pool::new(), Place::new(memory_dir()));
    work(&pool);
    for (dir, name, to) in [
        ("out", "rel", "../work/r"),
        ("out", "abs", "@/work/r"),
        ("out", "twice", "@//work/./../work/r"),
        ("out/sub", "deep", "../../work/r"),
        ("out/sub", "zigzag", "../sub/../../work/r"),
        ("out", "dir", "../work/dir"),
        ("out/sub", "dir", "@/work/dir/"),
        ("out", "chain", "../work/dir/c"),
    ] {
        pool.link(dir, name, to);
    }
    for options in [place.options(), StageOptions { ordered: true, workers: 1, ..place.options() }] {
        let dst = place.dst();
        for _ in 0..2 {
            let report = pool.copy("out", &What::Tree, &dst, &options);
            assert!(report.complete && report.warning_count == 0, "{report:#?}");
        }
        for file in ["rel", "abs", "twice", "sub/deep", "sub/zigzag", "chain", "dir/c", "sub/dir/c"] {
            assert_eq!(text(&dst.join(file)), "result", "{file}");
        }
        for dir in ["dir", "sub/dir"] {
            assert_eq!(text(&dst.join(dir).join("a")), "of a");
            assert_eq!(target(&dst.join(dir).join("b")), "a");
        }
        assert!(place.parts_left().is_empty() && place.journals() == 0);
        fs::remove_dir_all(dst).unwrap();
    }
}

#[test]
fn what_is_in_the_copy_is_linked_to_there() {
    let (pool, place) = (Pool::new(), Place::new(memory_dir()));
    work(&pool);
    pool.link("out", "dir", "../work/dir");
    let cases = [
        ("out", "near", "f", "f"),
        ("out/sub", "up", "../f", "../f"),
        ("out", "abs", "@/out/f", "f"),
        ("out/sub", "abs", "@/out/f", "../f"),
        ("out/sub", "self", "@/out/sub", "."),
        ("out", "round-about", "../out/f", "f"),
        ("out", "over", "dir/a", "dir/a"),
        ("out/sub", "over-abs", "@/out/dir/a", "../dir/a"),
        ("out/sub", "coming", "@/out/later", "../later"),
        ("out", "home", "/etc/hostname", "/etc/hostname"),
        ("out", "beside", "@2/out/f", "@2/out/f"),
        ("out", "through", "../work/to-home", "/etc/hostname"),
    ];
    cases.iter().for_each(|(dir, name, to, _)| pool.link(dir, name, to));
    let report = pool.copy("out", &What::Tree, &place.dst(), &place.options());
    assert!(report.complete && report.warning_count == 0, "{report:#?}");
    let mount = pool.client.pool().mount.display().to_string();
    for (dir, name, _, made) in cases {
        let at = place.dst().join(dir.strip_prefix("out").unwrap().trim_start_matches('/')).join(name);
        assert_eq!(target(&at), made.replace('@', &mount), "{dir}/{name}");
    }
    assert_eq!(text(&place.dst().join("f")), "own");
    // All of a pool: nothing lies elsewhere.
    let all = place.dir.path().join("all");
    assert!(pool.copy("", &What::Tree, &all, &place.options()).complete);
    assert_eq!(target(&all.join("out/dir")), "../work/dir");
    assert_eq!(fs::read_to_string(all.join("out/sub/abs")).unwrap(), "own");
}

#[test]
fn what_has_no_end_or_is_not_there_is_said() {
    for (links, words) in [
        (vec![("out", "up", "..")], "it leads to /, which it is in"),
        (vec![("out/sub", "top", "@/")], "it leads to /, which it is in"),
        (vec![("out", "away", "../work"), ("work", "back", "../out")], "it leads to /out, which it is in"),
    ] {
        let (pool, place) = (Pool::new(), Place::new(memory_dir()));
        work(&pool);
        links.iter().for_each(|(dir, name, to)| pool.link(dir, name, to));
        let report = pool.copy("out", &What::Tree, &place.dst(), &place.options());
        let told = format!("{:?}", report.errors);
        assert!(
            report.complete == (words == "which it is in") || told.contains(words),
            "{links:?}: {report:#?}"
        );
        assert_eq!(text(&place.dst().join("f")), "own");
    }
    // Round within what comes along is a link of the copy's own.
    let (pool, place) = (Pool::new(), Place::new(memory_dir()));
    work(&pool);
    pool.link("out", "away", "../work");
    pool.link("work/dir", "again", "@/work");
    let report = pool.copy("out", &What::Tree, &place.dst(), &place.options());
    assert!(report.complete, "{report:#?}");
    assert_eq!(target(&place.dst().join("away/dir/again")), "..");
    let (pool, place) = (Pool::new(), Place::new(memory_dir()));
    work(&pool);
    pool.link("out", "gone", "../work/gone");
    let report = pool.copy("out", &What::Tree, &place.dst(), &place.options());
    assert!(report.complete && report.warning_count == 1, "{report:#?}");
    assert!(report.warnings[0].path == "gone" && report.warnings[0].text.contains("where nothing is"));
    assert_eq!(target(&place.dst().join("gone")), "../work/gone");
}

#[test]
fn a_link_that_is_named_is_followed_and_none_is_moved_away_from_its_file() {
    let (pool, place) = (Pool::new(), Place::new(memory_dir()));
    work(&pool);
    pool.link("out", "rel", "../work/r");
    pool.link("out", "near", "f");
    for (name, content) in [("rel", "result"), ("near", "own")] {
        let what = What::Entry { from: name.into(), to: b"copy".to_vec() };
        assert!(pool.copy("out", &what, &place.dst(), &place.options()).complete, "{name}");
        assert_eq!(text(&place.dst().join("copy")), content);
        fs::remove_file(place.dst().join("copy")).unwrap();
    }
    let (src, dst) = (pool.end("out"), LocalEnd::create(&place.dst()).unwrap());
    let moved = move_tree(&src, &dst, &What::Tree, &StageOptions::default(), &Control::default());
    assert!(!moved.complete && format!("{:?}", moved.copy.errors).contains("copy it instead"), "{moved:#?}");
    assert!(src.read_link(&src.root(), b"rel").is_ok(), "nothing of it was removed");
    // Within the pool links lead where they led.
    let within = stage(&src, &pool.end("second"), &What::Tree, &StageOptions::default(), &Control::default());
    assert!(within.complete, "{within:#?}");
    let second = pool.end("second");
    assert_eq!(second.read_link(&DirRef::clone(&second.root()), b"rel").unwrap(), b"../work/r");
    assert!(pool.client.open_objects().is_empty(), "files were left open");
    drop(pool.cluster);
}
