//! A sweep's directory: `sweep.json` says which sweep it is of, `points/NUMBER.json` has the result of a point. Files are
//! written aside and renamed, so each is there as a whole or not at all, whenever a process is killed; several processes may
//! work on a sweep at once, because a point's result does not depend on who finds it.

use super::plan::{Plan, Point};
use crate::exit::{Context, Failure, Kind, Result};
use crate::sim::phold::keep;
use serde_json::{Map, Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub struct Store<'a> {
    plan: &'a Plan,
    dir: PathBuf,
}

impl<'a> Store<'a> {
    /// Makes the directory, or finds that it is of this sweep.
    pub fn open(plan: &'a Plan, dir: &Path) -> Result<Store<'a>> {
        let (points, about) = (dir.join("points"), dir.join("sweep.json"));
        fs::create_dir_all(&points).context(Kind::Other, || points.display().to_string())?;
        let identity = plan.identity();
        match fs::read(&about) {
            Ok(bytes) if serde_json::from_slice::<Value>(&bytes).is_ok_and(|there| there == identity) => {}
            Ok(_) => {
                let why = "is of another sweep: other knobs, values, seeds, experiment or version; choose another --out";
                return Err(Failure::new(Kind::Usage, format!("{}: {why}", about.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let bytes = format!("{identity:#}\n");
                keep(&about, bytes.as_bytes()).context(Kind::Other, || about.display().to_string())?;
            }
            Err(error) => return Err(error).context(Kind::Other, || about.display().to_string()),
        }
        Ok(Store { plan, dir: dir.into() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn point_path(&self, number: u64) -> PathBuf {
        self.dir.join("points").join(format!("{number:07}.json"))
    }

    /// What a point is, as its file and its rows begin.
    fn about(&self, point: &Point) -> Map<String, Value> {
        let knobs =
            self.plan.space.iter().zip(&point.values).map(|(vary, value)| (vary.name.clone(), json!(value)));
        let mut about = Map::new();
        about.insert("point".into(), point.number.into());
        about.insert("knobs".into(), knobs.collect::<Map<_, _>>().into());
        about.insert("seed".into(), point.seed.into());
        about
    }

    /// The result of a point, if it is there and of this very point.
    pub fn result(&self, point: &Point) -> Option<Value> {
        let bytes = fs::read(self.point_path(point.number)).ok()?;
        let mut value: Value = serde_json::from_slice(&bytes).ok()?;
        let about = self.about(point);
        let same = about.iter().all(|(key, expected)| value.get(key) == Some(expected));
        if same { value.get_mut("result").map(Value::take) } else { None }
    }

    pub fn keep(&self, point: &Point, result: Value) -> Result<()> {
        let mut all = self.about(point);
        all.insert("result".into(), result);
        let path = self.point_path(point.number);
        let bytes = format!("{:#}\n", Value::from(all));
        keep(&path, bytes.as_bytes()).context(Kind::Other, || path.display().to_string())
    }

    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        keep(&path, text.as_bytes()).context(Kind::Other, || path.display().to_string())
    }

    /// Points and results, those that are there; and numbers of those that are not.
    pub fn all(&self) -> (Vec<(Point, Value)>, Vec<u64>) {
        let (mut done, mut missing) = (Vec::new(), Vec::new());
        for number in 0..self.plan.points() {
            let point = self.plan.point(number);
            match self.result(&point) {
                Some(result) => done.push((point, result)),
                None => missing.push(number),
            }
        }
        (done, missing)
    }
}
