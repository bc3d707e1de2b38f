//! Results for people in the words of NORNS; the rest is `tidepool_stage_client::show`.

use tidepool_stage_client::show::{limit, table};
use tidepool_stage_client::{DataspaceInfo, DataspaceKind};
use tidepool_types::format_size;

pub fn kind(kind: DataspaceKind) -> &'static str {
    match kind {
        DataspaceKind::Local => "posix",
        DataspaceKind::Shared => "lustre",
        DataspaceKind::Pool => "pool",
        DataspaceKind::Object => "object",
    }
}

pub fn dataspaces(all: &[DataspaceInfo]) -> String {
    let row = |info: &DataspaceInfo| {
        let space = &info.dataspace;
        let tracked = if space.tracked { "yes" } else { "no" }.to_string();
        let (name, kind, mount) = (space.name.clone(), kind(space.kind).to_string(), space.mount.clone());
        [name, kind, mount, tracked, limit(space.capacity), limit(info.quota), format_size(info.used)]
    };
    let head = ["NAMESPACE", "TYPE", "MOUNT", "TRACKED", "CAPACITY", "QUOTA", "USED"];
    table(head, all.iter().map(row).collect())
}
