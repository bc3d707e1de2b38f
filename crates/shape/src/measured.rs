//! What `tidepool tiers measure` has found: `docs/formats/25-shaped-tiers.md`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tidepool_iosched::curve::{CurveError, POINTS_MAX};
use tidepool_iosched::{Curve, Curves};

/// In the directory that was measured.
pub const FILE_NAME: &str = "tidepool-curves.json";
const VERSION: u32 = 1;
/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Repeats of one point.
const REPEATS_MAX: usize = 1000;

/// Curves of a directory's storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub version: u32,
    /// When it was measured, in milliseconds since 1970.
    pub at_ms: u64,
    /// With what: the program and its version.
    pub with: String,
    pub host: String,
    /// The name of the shape, where this is no real storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaped: Option<String>,
    /// `write` or `read`.
    pub direction: String,
    /// Of each process.
    pub bytes: u64,
    pub block: u64,
    /// Whether the kernel's page cache was passed by.
    pub direct: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequential: Vec<Point>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strided: Vec<Point>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub random: Vec<Point>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    pub processes: u32,
    /// Of all processes together: the median.
    pub bytes_per_s: u64,
    /// Each repeat's.
    pub repeats: Vec<u64>,
}

#[derive(Debug)]
pub enum MeasuredError {
    Io { what: &'static str, path: PathBuf, source: io::Error },
    NotMeasured { path: PathBuf, why: String },
}

impl fmt::Display for MeasuredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeasuredError::Io { what, path, source } => write!(f, "{what} {}: {source}", path.display()),
            MeasuredError::NotMeasured { path, why } => {
                write!(f, "{}: {why}; measure again, or remove it", path.display())
            }
        }
    }
}

impl std::error::Error for MeasuredError {}

impl Point {
    /// None for no repeats.
    pub fn of(processes: u32, repeats: &[u64]) -> Option<Point> {
        let mut sorted = repeats.to_vec();
        sorted.sort_unstable();
        let (below, above) = (*sorted.get(sorted.len().wrapping_sub(1) / 2)?, sorted[sorted.len() / 2]);
        Some(Point { processes, bytes_per_s: below + (above - below) / 2, repeats: repeats.to_vec() })
    }
}

impl Measured {
    pub fn new(with: &str, host: &str, at_ms: u64) -> Measured {
        Measured {
            version: VERSION,
            at_ms,
            with: with.into(),
            host: host.into(),
            shaped: None,
            direction: "write".into(),
            bytes: 0,
            block: 0,
            direct: true,
            sequential: Vec::new(),
            strided: Vec::new(),
            random: Vec::new(),
        }
    }

    /// None where nothing was measured.
    pub fn read(dir: &Path) -> Result<Option<Measured>, MeasuredError> {
        let path = dir.join(FILE_NAME);
        let fail = |why: String| MeasuredError::NotMeasured { path: path.clone(), why };
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MeasuredError::Io { what: "reading", path, source }),
            Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => {
                return Err(fail(format!("larger than {FILE_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
        }
        let measured: Measured = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
        if measured.version != VERSION {
            return Err(fail(format!("version {} is not known", measured.version)));
        }
        let points = || measured.patterns().into_iter().flat_map(|(_, points)| points);
        if points().any(|point| point.repeats.len() > REPEATS_MAX) {
            return Err(fail(format!("more than {REPEATS_MAX} repeats of a point")));
        }
        measured.try_curves().map_err(|error| fail(error.to_string()))?;
        Ok(Some(measured))
    }

    /// In place of what was there.
    pub fn write(&self, dir: &Path) -> Result<(), MeasuredError> {
        let path = dir.join(FILE_NAME);
        let text = serde_json::to_string(self).expect("words and numbers always serialize");
        let temporary = dir.join(format!("{FILE_NAME}.{}", std::process::id()));
        let put = fs::write(&temporary, text + "\n").and_then(|()| fs::rename(&temporary, &path));
        put.map_err(|source| {
            let _ = fs::remove_file(&temporary);
            MeasuredError::Io { what: "writing", path, source }
        })
    }

    /// By the patterns' names.
    pub fn patterns(&self) -> [(&'static str, &[Point]); 3] {
        [("sequential", &self.sequential), ("strided", &self.strided), ("random", &self.random)]
    }

    /// For a scheduler. A pattern that was not measured is taken for the first of sequential, strided and random that was.
    pub fn curves(&self) -> Curves {
        self.try_curves().expect("checked when it was read")
    }

    /// The same, for what was not read from a file.
    pub fn try_curves(&self) -> Result<Curves, CurveError> {
        let curve = |points: &[Point]| {
            if points.len() > POINTS_MAX {
                return Err(CurveError::TooMany(points.len()));
            }
            Curve::new(&points.iter().map(|point| (point.processes, point.bytes_per_s)).collect::<Vec<_>>())
        };
        let measured = |points: &[Point]| (!points.is_empty()).then(|| curve(points)).transpose();
        let [sequential, strided, random] =
            [measured(&self.sequential)?, measured(&self.strided)?, measured(&self.random)?];
        let first = sequential.as_ref().or(strided.as_ref()).or(random.as_ref());
        let other = first.ok_or(CurveError::Empty)?.clone();
        Ok(Curves {
            sequential: sequential.unwrap_or_else(|| other.clone()),
            strided: strided.unwrap_or_else(|| other.clone()),
            random: random.unwrap_or(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"version":1,"at_ms":1000,"with":"tidepool 0.1.0","host":"n1","shaped":"pfs","direction":"write","bytes":4096,"block":4096,"direct":true,"sequential":[{"processes":1,"bytes_per_s":20,"repeats":[10,30]},{"processes":8,"bytes_per_s":60,"repeats":[60]}],"random":[{"processes":1,"bytes_per_s":2,"repeats":[2]}]}"#;

    fn measured() -> Measured {
        Measured {
            shaped: Some("pfs".into()),
            bytes: 4096,
            block: 4096,
            sequential: vec![Point::of(1, &[10, 30]).unwrap(), Point::of(8, &[60]).unwrap()],
            random: vec![Point::of(1, &[2]).unwrap()],
            ..Measured::new("tidepool 0.1.0", "n1", 1000)
        }
    }

    #[test]
    fn what_was_measured_is_this_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Measured::read(dir.path()).unwrap().is_none());
        measured().write(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join(FILE_NAME)).unwrap(), format!("{TEXT}\n"));
        let read = Measured::read(dir.path()).unwrap().unwrap();
        assert_eq!(read, measured());
        let curves = read.curves();
        assert_eq!((curves.sequential.at(8), curves.random.at(8)), (60, 2));
        assert_eq!(curves.strided, curves.sequential, "not measured");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        for (from, to, word) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"host\"", "\"hots\"", "hots"),
            ("\"processes\":8", "\"processes\":1", "follows"),
            ("\"bytes_per_s\":60", "\"bytes_per_s\":0", "0 bytes/s"),
            ("}]}", "}]", "EOF"),
        ] {
            fs::write(dir.path().join(FILE_NAME), TEXT.replacen(from, to, 1)).unwrap();
            let error = Measured::read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("measure again"), "{error}");
        }
        fs::write(dir.path().join(FILE_NAME), vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(Measured::read(dir.path()).unwrap_err().to_string().contains("larger"));
    }

    #[test]
    fn the_middle_counts() {
        let of = |repeats: &[u64]| Point::of(1, repeats).map(|point| point.bytes_per_s);
        assert_eq!((of(&[]), of(&[7]), of(&[9, 1]), of(&[9, 1, 2])), (None, Some(7), Some(5), Some(2)));
        assert_eq!(of(&[u64::MAX, u64::MAX]), Some(u64::MAX));
    }
}
