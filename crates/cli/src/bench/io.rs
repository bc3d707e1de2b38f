//! `tidepool bench io`: write and read files, as IOR does.

use super::worker::{Layout, Order, Phase, Work};
use super::{Case, run};
use crate::exit::{Failure, Kind, Result};
use crate::flags::{BenchIoArgs, LayoutFlag, OrderFlag};
use std::process::ExitCode;
use tidepool_types::format_size;
use tidepool_workload::data::STAMP_STEP;

const PHASES: [Phase; 6] =
    [Phase::Prepare, Phase::Write, Phase::Read, Phase::Verify, Phase::Clear, Phase::Finish];
/// Largest transfer: each process keeps one in memory.
const TRANSFER_MAX: u64 = 1 << 30;

pub fn bench(args: &BenchIoArgs) -> Result<ExitCode> {
    let mut cases = Vec::new();
    for layout in &args.layouts {
        for order in &args.orders {
            for transfer in &args.sizes {
                cases.push(case(args.file_size, *layout, *order, *transfer)?);
            }
        }
    }
    run("io", &args.shape, &cases, &PHASES)
}

/// Whole transfers of `transfer` bytes, at least one, in a file of `file_size` bytes.
pub fn work(file_size: u64, layout: Layout, order: Order, transfer: u64) -> Result<Work> {
    if transfer == 0 || transfer > TRANSFER_MAX || !transfer.is_multiple_of(STAMP_STEP as u64) {
        let text = format!("--sizes {transfer}: a transfer is a multiple of 4KiB, at most 1GiB");
        return Err(Failure::new(Kind::Usage, text));
    }
    let bytes = (file_size / transfer).max(1) * transfer;
    Ok(Work::Io { transfer, bytes, layout, order, seed: transfer })
}

fn case(file_size: u64, layout: LayoutFlag, order: OrderFlag, transfer: u64) -> Result<Case> {
    let (layout, where_) = match layout {
        LayoutFlag::Files => (Layout::PerProcess, "file per process"),
        LayoutFlag::Shared => (Layout::Shared, "shared file"),
    };
    let (order, how) = match order {
        OrderFlag::Sequential => (Order::Sequential, "sequential"),
        OrderFlag::Random => (Order::Random, "random"),
    };
    let name = format!("{where_}, {how}, {}", format_size(transfer));
    Ok(Case { name, work: work(file_size, layout, order, transfer)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_moves_whole_transfers() {
        let made = |file, transfer| case(file, LayoutFlag::Shared, OrderFlag::Random, transfer);
        for (file, transfer, wanted) in [(100_000, 8192, 98_304), (1, 4096, 4096)] {
            let Work::Io { bytes, .. } = made(file, transfer).unwrap().work else { panic!("io is data") };
            assert_eq!(bytes, wanted);
        }
        assert!(made(1 << 20, 1000).is_err());
        assert!(made(1 << 20, 0).is_err());
    }
}
