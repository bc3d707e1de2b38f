//! Listings with attributes through a mount that may keep them.

#![forbid(unsafe_code)]

mod common;

use common::{pool, run};
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn a_long_listing_through_a_caching_mount_says_what_the_other_mount_did() {
    let Some(pool) = pool("listing") else { return };
    let keeping = pool.mount_with("keeping", |mut options| {
        options.cache_ttl_ms = 500;
        options
    });
    let plain = pool.mount("plain");
    let (keeping, plain) = (keeping.path(), plain.path());
    fs::create_dir(plain.join("d")).unwrap();
    for i in 0..300 {
        fs::write(plain.join(format!("d/f{i}")), vec![1; i]).unwrap();
        if i % 3 == 0 {
            fs::rename(plain.join(format!("d/f{i}")), plain.join(format!("d/moved{i}"))).unwrap();
        }
    }
    (0..40).for_each(|i| fs::create_dir_all(plain.join(format!("d/sub{i}/below"))).unwrap());
    let list = |dir| run(dir, "find", &["d", "-printf", "%p %y %s %n %i %m %T@\n"]);
    let (Some(mut kept), Some(mut asked)) = (
        list(keeping).map(|text| text.lines().map(String::from).collect::<Vec<_>>()),
        list(plain).map(|text| text.lines().map(String::from).collect::<Vec<_>>()),
    ) else {
        return;
    };
    kept.sort();
    asked.sort();
    assert_eq!(kept.len(), 1 + 300 + 80);
    assert_eq!(kept, asked);

    // What is too old is asked for again.
    fs::write(plain.join("d/f1"), "longer").unwrap();
    fs::remove_file(plain.join("d/f2")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(fs::metadata(keeping.join("d/f1")).unwrap().size(), 6);
    assert!(!keeping.join("d/f2").exists());
    assert_eq!(fs::read_dir(keeping.join("d")).unwrap().count(), 299 + 40);
}
