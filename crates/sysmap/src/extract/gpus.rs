//! Accelerators, where there are some.

use super::pci::place_of;
use super::{Extractor, Found, Gaps, Source, told};
use crate::record::{Class, Missing};
use crate::system::System;
use serde::Serialize;

const DRM: &str = "/sys/class/drm";
const NVIDIA: &str = "/proc/driver/nvidia/gpus";

#[derive(Serialize, Debug, PartialEq)]
struct Gpus {
    gpus: Vec<Gpu>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Gpu {
    pci: String,
    model: Option<String>,
    driver: Option<String>,
    numa_node: Option<u32>,
}

pub const GPUS: Extractor = Extractor {
    name: "gpus",
    about: "graphics processors",
    class: Class::Static,
    version: 1,
    sources: &[
        Source { name: "nvidia", about: NVIDIA, read: |system, gaps| told(by_nvidia(system, gaps)) },
        Source { name: "drm", about: DRM, read: |system, _| told(by_drm(system)) },
    ],
};

fn by_nvidia(system: &System, gaps: &mut Gaps) -> Found<Gpus> {
    let mut gpus = Vec::new();
    for pci in system.names(NVIDIA)? {
        let about =
            super::or_note(system.text(&format!("{NVIDIA}/{pci}/information")), gaps).unwrap_or_default();
        let model =
            about.lines().find_map(|line| line.strip_prefix("Model:")).map(|model| model.trim().to_string());
        let numa_node = place_of(system, &format!("/sys/bus/pci/devices/{pci}")).numa_node;
        gpus.push(Gpu { pci, model, driver: Some("nvidia".into()), numa_node });
    }
    Ok(Gpus { gpus })
}

/// Cards with render nodes: what only shows a console is none.
fn by_drm(system: &System) -> Found<Gpus> {
    if !system.has("/sys/class") {
        return Err(Missing::new(DRM, "there is no /sys here"));
    }
    // A node without any has no such directory.
    let names = system.names(DRM).unwrap_or_default();
    let mut gpus = Vec::new();
    for name in names.iter().filter(|name| name.starts_with("renderD")) {
        let place = place_of(system, &format!("{DRM}/{name}/device"));
        let driver = system.linked_name(&format!("{DRM}/{name}/device/driver"));
        gpus.extend(place.pci.map(|pci| Gpu { pci, model: None, driver, numa_node: place.numa_node }));
    }
    Ok(Gpus { gpus })
}
