//! Listing 2 of the paper, unchanged, against a real stager.

mod common;
#[path = "common/stager.rs"]
mod stager;

use stager::Running;

#[test]
fn the_papers_listing_stores_its_buffer() {
    let running = Running::start();
    let mut tmp0 = running.dataspace("b");
    tmp0.name = "tmp0://".into();
    running.allow(&tmp0);
    running.run_c("listing2", &[]);
    assert_eq!(std::fs::read(running.path("b/path/to/output")).unwrap(), [b'x'; 100_000]);
}
