//! Shared storage that pools use: where they tell their loads, and what was measured there.

use super::flags::Where;
use super::who::{Held, Known, Scene};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolChoice;
use crate::instance::{self, Instance};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_fsd::TierConfig;
use tidepool_fsd::loads::{self, Load, Loads};
use tidepool_iosched::{Curves, Tier};
use tidepool_shape::Measured;

/// The directories of a pool's tiers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The slowest one: loads are told there.
    pub dir: PathBuf,
    burst: Option<PathBuf>,
    /// The slowest one is a burst buffer.
    no_pfs: bool,
}

impl Place {
    pub fn of(tiers: &TierConfig) -> Option<Place> {
        let (burst, pfs) = (tiers.burst.clone(), tiers.pfs.clone());
        let dir = pfs.clone().or_else(|| burst.clone())?;
        Some(Place { dir, burst, no_pfs: pfs.is_none() })
    }

    fn dir_of(&self, tier: Tier) -> Option<&Path> {
        match tier {
            Tier::Local => None,
            Tier::Burst => self.burst.as_deref(),
            Tier::Pfs if self.no_pfs => None,
            Tier::Pfs => Some(&self.dir),
        }
    }

    /// What all have told there.
    fn loads(&self, now_ms: u64) -> Result<Vec<Load>> {
        Loads::all(&self.dir, now_ms).map_err(|error| {
            let path = self.dir.join(loads::DIR);
            let text = format!(
                "reading loads in {}: {error}; name a directory of shared storage that you may read",
                path.display()
            );
            Failure::new(Kind::Other, text)
        })
    }
}

/// The places that are meant; an error when there is none.
pub fn places(at: &Where) -> Result<Vec<Place>> {
    let pools = match &at.pool {
        Some(name) => vec![instance::find(&PoolChoice { pool: Some(name.clone()) })?],
        None => instance::list(),
    };
    let found = places_of(at, &pools)?;
    match (&at.pool, found.is_empty()) {
        (_, false) => Ok(found),
        (Some(name), true) => {
            let text = format!(
                "pool '{name}' has its own storage only; start it with --burst or --pfs, or name DIR"
            );
            Err(Failure::new(Kind::NoPool, text))
        }
        (None, true) => {
            let text = "no pool of yours here uses shared storage; name its directory, as 'tidepool top DIR'";
            Err(Failure::new(Kind::NoPool, text))
        }
    }
}

/// Those that are named, or else those of some pools.
pub fn places_of(at: &Where, pools: &[Instance]) -> Result<Vec<Place>> {
    let mut own: Vec<Place> =
        pools.iter().filter_map(|pool| pool.tiers().as_ref().and_then(Place::of)).collect();
    own.sort_by(|a, b| a.dir.cmp(&b.dir));
    own.dedup_by(|a, b| a.dir == b.dir);
    if at.dirs.is_empty() {
        return Ok(own);
    }
    let burst = at.burst.as_ref().map(std::path::absolute).transpose();
    let burst = burst.context(Kind::Usage, || "--burst".into())?;
    let named = |dir: &PathBuf| {
        let dir = std::path::absolute(dir).context(Kind::Usage, || dir.display().to_string())?;
        let is_dir = std::fs::metadata(&dir).context(Kind::Other, || dir.display().to_string())?.is_dir();
        if !is_dir {
            return Err(Failure::new(Kind::Usage, format!("{}: is no directory; name one", dir.display())));
        }
        let known = own.iter().find(|place| place.dir == dir && burst.is_none());
        Ok(known.cloned().unwrap_or(Place { dir, burst: burst.clone(), no_pfs: false }))
    };
    at.dirs.iter().map(named).collect()
}

/// What a tier's outputs say beside the numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Note {
    /// That it is shaped.
    pub label: Option<String>,
    /// Why its curves are not used.
    pub trouble: Option<String>,
}

impl Note {
    fn read(dir: &Path) -> (Note, Option<Arc<Curves>>) {
        let (measured, trouble) = match Measured::read(dir) {
            Ok(measured) => (measured, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let shaped = tidepool_shape::in_use(dir).or_else(|| measured.as_ref()?.shaped.clone());
        let note = Note { label: shaped.map(|name| tidepool_shape::label(&name)), trouble };
        (note, measured.map(|measured| Arc::new(measured.curves())))
    }
}

/// Looks at one place now and then.
pub struct Observer {
    pub place: Place,
    held: Held,
}

/// What was seen at one moment.
pub struct Look {
    pub dir: PathBuf,
    pub at_ms: u64,
    pub loads: Vec<Load>,
    pub scene: Scene,
    burst: Note,
    pfs: Note,
}

impl Look {
    pub fn note(&self, tier: Tier) -> Note {
        match tier {
            Tier::Local => Note::default(),
            Tier::Burst => self.burst.clone(),
            Tier::Pfs => self.pfs.clone(),
        }
    }
}

impl Observer {
    pub fn new(place: Place) -> Observer {
        Observer { place, held: Held::default() }
    }

    pub fn look(&mut self) -> Result<Look> {
        let at_ms = since_1970_ms();
        let loads = self.place.loads(at_ms)?;
        self.held.look(&loads);
        let read = |tier| self.place.dir_of(tier).map(Note::read).unwrap_or_default();
        let ((burst_note, burst), (pfs_note, pfs)) = (read(Tier::Burst), read(Tier::Pfs));
        let known = Known { no_pfs: self.place.no_pfs, burst, pfs };
        let scene = Scene::of(&loads, &known, &self.held);
        Ok(Look { dir: self.place.dir.clone(), at_ms, loads, scene, burst: burst_note, pfs: pfs_note })
    }
}

fn since_1970_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
