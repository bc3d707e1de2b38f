//! `tidepool bench md`: create, stat and remove empty files, as mdtest does.

use super::worker::{Layout, Phase, Work};
use super::{Case, run};
use crate::exit::{Failure, Kind, Result};
use crate::flags::BenchMdArgs;
use std::process::ExitCode;

const PHASES: [Phase; 6] =
    [Phase::Prepare, Phase::Create, Phase::Stat, Phase::Remove, Phase::Clear, Phase::Finish];

pub fn bench(args: &BenchMdArgs) -> Result<ExitCode> {
    if args.files == 0 {
        return Err(Failure::new(Kind::Usage, "--files must be at least 1"));
    }
    let case = |name: &str, layout| Case { name: name.into(), work: Work::Md { files: args.files, layout } };
    let cases =
        [case("one shared directory", Layout::Shared), case("a directory per process", Layout::PerProcess)];
    run("md", &args.shape, &cases, &PHASES)
}
