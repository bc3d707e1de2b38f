//! Pools with `--fabric`, in builds with libfabric and without.

mod common;

use common::{Sandbox, text};
use std::fs;

fn start(sandbox: &Sandbox, provider: &str) -> std::process::Output {
    let args = ["pool", "start", "--name", "f", "--nodes", "2", "--client", "preload", "--fabric", provider];
    sandbox.tidepool(&args).output().unwrap()
}

#[test]
#[cfg(not(feature = "libfabric"))]
fn without_libfabric_a_fabric_is_a_clear_error() {
    let sandbox = Sandbox::new();
    let refused = start(&sandbox, "tcp;ofi_rxm");
    assert!(!refused.status.success());
    assert!(text(&refused).contains("built without libfabric"), "{}", text(&refused));
    sandbox.assert_nothing_left("after a fabric that is not there");
    sandbox.ok(&["pool", "start", "--name", "f", "--nodes", "1", "--client", "preload"]);
    let wanted = sandbox.tidepool(&["ls", "--pool", "f", "/"]).env("TIDEPOOL_TRANSPORT", "fabric").output();
    let wanted = text(&wanted.unwrap());
    assert!(wanted.contains("does not listen on TCP") || wanted.contains("--fabric"), "{wanted}");
    sandbox.ok(&["pool", "stop", "--pool", "f"]);
    let _ = fs::remove_dir_all(sandbox.store());
}

/// What is copied in over the fabric comes out over the fabric and over shared memory.
#[test]
#[cfg(feature = "libfabric")]
fn commands_use_the_fabric() {
    let sandbox = Sandbox::new();
    let data: Vec<u8> = (0..5_000_001u32).map(|i| (i * 11 / 7) as u8).collect();
    let file = sandbox.path("data");
    fs::write(&file, &data).unwrap();
    for provider in ["tcp;ofi_rxm", "shm"] {
        let started = start(&sandbox, provider);
        if text(&started).contains("libfabric.so") {
            println!("SKIPPED: {}", text(&started));
            return;
        }
        assert!(started.status.success(), "{}", text(&started));
        let fabric = |args: &[&str]| {
            let output = sandbox.tidepool(args).env("TIDEPOOL_TRANSPORT", "fabric").output().unwrap();
            assert!(output.status.success(), "{provider} {args:?}: {}", text(&output));
            output.stdout
        };
        fabric(&["cp", "--pool", "f", file.to_str().unwrap(), "pool:/data"]);
        assert!(fabric(&["cat", "--pool", "f", "/data"]) == data, "{provider}");
        assert!(sandbox.tidepool(&["cat", "--pool", "f", "/data"]).output().unwrap().stdout == data);
        // Programs with the preload library do without.
        let preload = ["exec", "--pool", "f", "--client", "preload", "--", "cat", "data"];
        assert!(fabric(&preload) == data, "{provider}");
        fabric(&["pool", "stop", "--pool", "f"]);
        sandbox.assert_nothing_left(provider);
    }
}

#[test]
#[cfg(feature = "libfabric")]
fn a_provider_that_is_none_is_named() {
    let sandbox = Sandbox::new();
    for (provider, word) in [("pigeon", "pigeon"), ("net", "a whole core")] {
        let refused = start(&sandbox, provider);
        assert!(!refused.status.success());
        assert!(text(&refused).contains(word), "{}", text(&refused));
        sandbox.assert_nothing_left(provider);
    }
}
