//! Compiles `shim.c` against libfabric's headers.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=src/shim.c");
    if env::var_os("CARGO_FEATURE_LIBFABRIC").is_none() {
        return;
    }
    let mut build = cc::Build::new();
    build.file("src/shim.c").warnings_into_errors(true);
    if build.try_compile("tidepool_fabric_shim").is_err() {
        println!("cargo:warning=the feature libfabric needs libfabric's headers: install libfabric-dev");
        panic!("cannot compile shim.c; its messages are above");
    }
}
