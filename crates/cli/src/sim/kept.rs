//! Checkpoints of `tidepool sim run`: what makes an experiment go on where it was (`docs/formats/26-simulation.md`).

use super::outputs::Outputs;
use super::pfs_flags::RunArgs;
use super::phold::keep;
use super::sweep::plan::digest;
use crate::exit::{Context, Failure, Kind, Result};
use std::fmt;
use std::path::Path;
use tidepool_sim::checkpoint::{LoadError, Reader, Saved, checksum};
use tidepool_sim::{Simulation, saved};
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::{Pfs, load};

const MAGIC: &[u8; 8] = b"TPSIMRUN";
const VERSION: u32 = 1;
/// Bytes of the checksum at the end.
const CRC_LEN: usize = 4;

/// All that decides what a run comes to and writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// Of the program: another one may have other models.
    version: String,
    /// Of what the file says, with all files that it names.
    experiment: u64,
    seed: u64,
    outputs: String,
}

saved!(struct About { version, experiment, seed, outputs });

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let About { version, experiment, seed, outputs } = self;
        write!(f, "experiment {experiment:016x}, seed {seed}, {outputs}, version {version}")
    }
}

impl About {
    pub fn new(experiment: &Experiment, seed: u64, args: &RunArgs) -> About {
        let named = [("--csv", args.csv.is_some()), ("--sub-requests", args.sub_requests.is_some())];
        let mut outputs: Vec<String> =
            named.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name.to_string()).collect();
        if args.timeline.is_some() {
            let window = args.window();
            outputs.push(format!(
                "--timeline from {} to {} ns, {} events",
                window.from, window.to, window.events_max
            ));
        }
        About {
            version: env!("CARGO_PKG_VERSION").into(),
            experiment: digest(experiment),
            seed,
            outputs: if outputs.is_empty() { "no files".into() } else { outputs.join(", ") },
        }
    }

    /// Why a run of ours cannot go on from one of theirs.
    fn differs(&self, theirs: &About) -> Option<String> {
        if self.version != theirs.version {
            return Some(format!(
                "it was made by version {} of tidepool; this is {}, whose models may differ",
                theirs.version, self.version
            ));
        }
        if self.experiment != theirs.experiment {
            let text = "it is of another experiment: the file, or one of the files that it names, has changed since or is another one";
            return Some(text.into());
        }
        if self.seed != theirs.seed {
            return Some(format!("it is of a run with the seed {}; this one has {}", theirs.seed, self.seed));
        }
        (self.outputs != theirs.outputs).then(|| {
            format!(
                "its run writes: {}; this one: {}; give it the same of --csv, --sub-requests and --timeline",
                theirs.outputs, self.outputs
            )
        })
    }
}

/// A checkpoint as it is read.
pub struct Kept {
    outputs: Vec<u8>,
    simulation: Vec<u8>,
}

/// Why bytes are no such checkpoint.
#[derive(Debug)]
enum Unfit {
    Unknown,
    Load(LoadError),
    Differs(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Unknown => write!(f, "it is no checkpoint of `tidepool sim run`, version {VERSION}"),
            Unfit::Load(error) => error.fmt(f),
            Unfit::Differs(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Unfit {}

impl From<LoadError> for Unfit {
    fn from(error: LoadError) -> Unfit {
        Unfit::Load(error)
    }
}

impl Kept {
    /// What a run that is about this goes on from.
    pub fn read(file: &Path, about: &About) -> Result<Kept> {
        let what = || file.display().to_string();
        let bytes = std::fs::read(file).context(Kind::Other, what)?;
        Kept::parse(&bytes, about).context(Kind::Other, what)
    }

    fn parse(bytes: &[u8], about: &About) -> std::result::Result<Kept, Unfit> {
        let head = MAGIC.len() + size_of::<u32>();
        let known = bytes.len() >= head + CRC_LEN
            && bytes.starts_with(MAGIC)
            && bytes[MAGIC.len()..head] == VERSION.to_le_bytes();
        if !known {
            return Err(Unfit::Unknown);
        }
        let (content, sum) = bytes.split_at(bytes.len() - CRC_LEN);
        if checksum(0, content).to_le_bytes() != sum {
            return Err(LoadError::Damaged("its checksum is wrong").into());
        }
        let mut from = Reader::new(&content[head..]);
        let theirs = About::load(&mut from)?;
        if let Some(why) = about.differs(&theirs) {
            return Err(Unfit::Differs(why));
        }
        let mut part = || {
            let len = usize::try_from(from.u64()?).map_err(|_| LoadError::Damaged("it ends too early"))?;
            from.take(len).map(<[u8]>::to_vec)
        };
        let (outputs, simulation) = (part()?, part()?);
        match from.is_empty() {
            true => Ok(Kept { outputs, simulation }),
            false => Err(LoadError::Damaged("something follows its end").into()),
        }
    }

    /// The run's files and sums as they were; files only where `writes`.
    pub fn outputs(&self, args: &RunArgs, pfs: &mut Pfs, writes: bool) -> Result<Outputs> {
        Outputs::go_on(args, pfs, writes, &self.outputs)
    }

    pub fn simulation(&self, pfs: Pfs, about: &About, file: &Path) -> Result<Simulation<Pfs>> {
        load(pfs, &about.to_string(), &self.simulation).context(Kind::Other, || file.display().to_string())
    }
}

/// Where a run is kept.
pub struct Keeper<'a> {
    pub about: &'a About,
    /// None: nowhere.
    pub file: Option<&'a Path>,
}

impl Keeper<'_> {
    /// Replaces the checkpoint as a whole, when all that it counts on is in the run's files.
    pub fn keep(&self, simulation: &Simulation<Pfs>, outputs: &mut Outputs) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        let written = outputs.save()?;
        let inner =
            simulation.save(&self.about.to_string()).context(Kind::Other, || "sim run".to_string())?;
        let mut bytes = MAGIC.to_vec();
        VERSION.save(&mut bytes);
        self.about.save(&mut bytes);
        for part in [written, inner] {
            (part.len() as u64).save(&mut bytes);
            bytes.extend(part);
        }
        checksum(0, &bytes).save(&mut bytes);
        keep(file, &bytes).context(Kind::Other, || file.display().to_string())
    }
}

/// What `--every` may be.
pub fn check(args: &RunArgs) -> Result<()> {
    match args.every {
        Some(tidepool_sim::Time::ZERO) => Err(Failure::new(Kind::Usage, "--every: at least 1ns")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        About { version: "1.2.3".into(), experiment: 0x1122, seed: 7, outputs: "--csv".into() }
    }

    fn sealed(content: &[u8]) -> Vec<u8> {
        [content, &checksum(0, content).to_le_bytes()].concat()
    }

    /// Head, about, two parts.
    #[rustfmt::skip]
    const GOLDEN: [&str; 11] = [
        "545053494d52554e", // magic
        "01000000", // version
        "0500000000000000", "312e322e33", // version of the program
        "2211000000000000", // experiment
        "0700000000000000", // seed
        "0500000000000000", "2d2d637376", // outputs
        "0100000000000000aa", // files and sums
        "0200000000000000bbcc", // the simulation
        "", // checksum follows
    ];

    fn golden() -> Vec<u8> {
        let hex = GOLDEN.concat();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn bytes_are_those_of_the_format() {
        let mut head = MAGIC.to_vec();
        VERSION.save(&mut head);
        about().save(&mut head);
        assert!(golden().starts_with(&head));
        let kept = Kept::parse(&sealed(&golden()), &about()).unwrap();
        assert_eq!((kept.outputs, kept.simulation), (vec![0xaa], vec![0xbb, 0xcc]));
    }

    fn refused(bytes: &[u8], about: &About) -> String {
        match Kept::parse(bytes, about) {
            Ok(_) => panic!("it was accepted"),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn others_and_damage_are_told_apart() {
        let bytes = sealed(&golden());
        for (other, why) in [
            (About { version: "2.0.0".into(), ..about() }, "by version 1.2.3"),
            (About { experiment: 1, ..about() }, "another experiment"),
            (About { seed: 8, ..about() }, "seed 7; this one has 8"),
            (About { outputs: "no files".into(), ..about() }, "--csv; this one: no files"),
        ] {
            assert!(refused(&bytes, &other).contains(why), "{}", refused(&bytes, &other));
        }
        for at in 0..bytes.len() {
            refused(&bytes[..at], &about());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            refused(&flipped, &about());
        }
        let content = golden();
        for at in 12..content.len() {
            refused(&sealed(&content[..at]), &about());
            let mut huge = content.clone();
            let end = (at + 8).min(huge.len());
            huge[at..end].fill(0xff);
            // A length that is not there is refused; what is in the parts is not looked at here.
            if at < content.len() - 10 {
                refused(&sealed(&huge), &about());
            }
        }
        let more = [&content[..], &[0]].concat();
        assert!(refused(&sealed(&more), &about()).contains("follows its end"));
    }
}
