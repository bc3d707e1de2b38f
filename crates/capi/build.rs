//! Both names under which the library is installed mean one file: programs that link with
//! either, or with both, load it once.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnorns.so");
}
