//! The testbed and the synthetic benchmark of S3 §IV for the fluid model.
//!
//! No number here was measured, and none is read off the paper's figures:
//!
//! - 4 + 4 I/O nodes with 480 GB and 1.2 TB each, 8 compute nodes, Gigabit Ethernet: S3 §IV-A.
//! - 117 MB/s per link: 1 Gb/s less the headers of Ethernet, IP and TCP at frames of 1,500 bytes. Four carry 468 MB/s.
//! - The curves: the text of S3 §II-B says only that bandwidth rises and then falls over 2 to 64 processes, that the SSDs'
//!   falls less, and that it is much higher. So all points are ASSUMED with that shape: the burst buffer's peak is 94 % of four
//!   links and falls by 14 % until 64 processes; the PFS's is half of four links and falls by 27 %; random is slower by a
//!   tenth on SSDs and by four fifths on disks. Only the ratio of the two at 64 processes, 2.1, has a source: the
//!   paper's `hp` is twice as fast as its baseline, which is that ratio if nothing else mattered.
//! - Beyond 64 processes nothing is known: the bandwidth stays, or ([`Shape::beyond`]) falls on.
//! - I/O ratio: I/O over total time of one application alone on the PFS.
//! - Node-local memory: S3 §IV-A names none. [`Shape::local`] assumes an SSD of 480 GB and 450 MB/s in each compute node.

use super::{SharedTier, Testbed, Workload};
use crate::curve::{Curve, Curves};
use crate::model::{JobId, Pattern};
use std::sync::Arc;

const MB: u64 = 1_000_000;
pub const GB: u64 = 1_000 * MB;
/// What one Gigabit Ethernet link carries, in bytes/s.
pub const LINK_BYTES_PER_S: u64 = 117 * MB;

/// (processes, MB/s).
type Points = &'static [(u32, u64)];
const BURST: Points = &[(2, 210), (4, 330), (8, 420), (16, 440), (32, 420), (64, 380)];
const BURST_RANDOM: Points = &[(2, 180), (4, 290), (8, 370), (16, 395), (32, 375), (64, 335)];
const PFS: Points = &[(2, 110), (4, 180), (8, 230), (16, 245), (32, 215), (64, 180)];
const PFS_RANDOM: Points = &[(2, 22), (4, 36), (8, 46), (16, 49), (32, 40), (64, 30)];

/// What is assumed.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The PFS's bandwidth in percent of the points above.
    pub pfs_percent: u64,
    /// How much of the fall from the peak there is, in percent: 0 for curves that stay at their peaks.
    pub fall_percent: u64,
    /// Bandwidth in percent with each doubling beyond 64 processes, of the burst buffer and the PFS.
    pub beyond: Option<(u64, u64)>,
    /// Compute nodes of each application.
    pub nodes_per_app: u64,
    /// Each node has one link; without, links carry what tiers can.
    pub links: bool,
    pub local: bool,
}

/// Two applications on four nodes each.
pub const PLAIN: Shape =
    Shape { pfs_percent: 100, fall_percent: 100, beyond: None, nodes_per_app: 4, links: true, local: false };

impl Shape {
    fn curve(self, points: Points, percent: u64, beyond: Option<u64>) -> Curve {
        let peak = points.iter().map(|point| point.1).max().unwrap_or(0);
        let at_peak = points.iter().position(|point| point.1 == peak).unwrap_or(0);
        let fallen = |at: usize, mb: u64| {
            let fall = if at > at_peak { (peak - mb) * self.fall_percent / 100 } else { peak - mb };
            (peak - fall.min(peak - 1)) * percent * MB / 100
        };
        let mut points: Vec<(u32, u64)> =
            points.iter().enumerate().map(|(at, (n, mb))| (*n, fallen(at, *mb))).collect();
        for _ in 0..2 {
            let (processes, rate) = points[points.len() - 1];
            points.extend(beyond.map(|percent| (processes * 2, rate * percent / 100)));
        }
        Curve::new(&points).expect("the points above make a curve")
    }

    fn curves(self, sequential: Points, random: Points, percent: u64, beyond: Option<u64>) -> Arc<Curves> {
        let (sequential, random) =
            (self.curve(sequential, percent, beyond), self.curve(random, percent, beyond));
        Arc::new(Curves { strided: sequential.clone(), sequential, random })
    }

    pub fn testbed(self) -> Testbed {
        let (burst, pfs) = self.beyond.unzip();
        Testbed {
            burst: SharedTier {
                capacity_bytes: 4 * 480 * GB,
                curves: self.curves(BURST, BURST_RANDOM, 100, burst),
            },
            pfs: SharedTier {
                capacity_bytes: 4 * 1200 * GB,
                curves: self.curves(PFS, PFS_RANDOM, self.pfs_percent, pfs),
            },
            flush_streams: 4,
            lump_bytes: GB,
            schedulers: 1,
            delay_ns: 0,
        }
    }

    /// `apps` times 32 processes that write 1 GB each and step, with I/O as this part of their time alone on the PFS.
    pub fn workloads(self, apps: u64, ratio_percent: u64, steps: u32) -> Vec<Workload> {
        let links = self.links.then_some(self.nodes_per_app * LINK_BYTES_PER_S);
        let rate = self.curve(PFS, self.pfs_percent, None).at(32).min(links.unwrap_or(u64::MAX));
        let alone_ns = u128::from(32 * GB) * 1_000_000_000 / u128::from(rate);
        let compute_ns = alone_ns * u128::from(100 - ratio_percent) / u128::from(ratio_percent);
        let nodes = self.nodes_per_app;
        let workload = |job| Workload {
            job: JobId(job),
            processes: 32,
            weight: 1,
            pattern: Pattern::Sequential,
            bytes_per_process: GB,
            steps,
            compute_ns: compute_ns as u64,
            start_ns: 0,
            link_bytes_per_s: links,
            local: self.local.then_some((nodes * 480 * GB, nodes * 450 * MB)),
        };
        (1..=apps).map(workload).collect()
    }
}
