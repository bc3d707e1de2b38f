//! The tiers' bandwidths, for strategies that reckon with them.

use crate::config::TierConfig;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_iosched::{Curves, Tier};
use tidepool_shape::{Measured, MeasuredError, Shape};

/// Why a tier's bandwidth is not known.
#[derive(Debug)]
pub enum CurvesError {
    Measured(MeasuredError),
    NotMeasured { dir: PathBuf, strategy: String },
    OtherShape { dir: PathBuf, measured: Option<String>, used: Option<String> },
}

impl fmt::Display for CurvesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape =
            |name: &Option<String>| name.as_ref().map_or("unshaped".into(), |n| format!("shaped as '{n}'"));
        match self {
            CurvesError::Measured(error) => error.fmt(f),
            CurvesError::NotMeasured { dir, strategy } => {
                let dir = dir.display();
                write!(
                    f,
                    "{dir} was not measured, and strategy '{strategy}' reckons with bandwidths; run 'tidepool tiers measure {dir}', or choose another strategy"
                )
            }
            CurvesError::OtherShape { dir, measured, used } => {
                let (dir, measured, used) = (dir.display(), shape(measured), shape(used));
                write!(
                    f,
                    "{dir} was measured {measured} and is used {used}; measure it again as it is used: 'tidepool tiers measure {dir}'"
                )
            }
        }
    }
}

impl std::error::Error for CurvesError {}

/// The curves of a tier of a pool, in its directory. What is shaped is as fast as its shape says.
pub fn curves_of(tiers: &TierConfig, tier: Tier, dir: &Path) -> Result<Arc<Curves>, CurvesError> {
    let shape = tiers.shape(tier).map(|(_, shape)| shape);
    match (Measured::read(dir).map_err(CurvesError::Measured)?, shape) {
        (Some(measured), shape) => {
            let used = shape.map(|shape| shape.name().to_string());
            match measured.shaped == used {
                true => Ok(Arc::new(measured.curves())),
                false => Err(CurvesError::OtherShape { dir: dir.into(), measured: measured.shaped, used }),
            }
        }
        (None, Some(shape)) => Ok(Arc::new(Shape::curves(shape).clone())),
        (None, None) => Err(CurvesError::NotMeasured { dir: dir.into(), strategy: tiers.strategy.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_iosched::Curve;
    use tidepool_shape::Point;

    #[test]
    fn measured_or_shaped_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let flat = |rate| Curve::flat(rate).unwrap();
        let curves = Curves { sequential: flat(10), strided: flat(10), random: flat(10) };
        let shape = Shape::new("hdd", 0, curves.clone()).unwrap();
        let plain =
            TierConfig { pfs: Some(dir.path().into()), strategy: "fair".into(), ..Default::default() };
        let shaped = TierConfig { shape_pfs: Some(shape), ..plain.clone() };
        let ask = |tiers: &TierConfig| curves_of(tiers, Tier::Pfs, dir.path()).map_err(|e| e.to_string());
        assert!(ask(&plain).unwrap_err().contains("run 'tidepool tiers measure"));
        assert_eq!(*ask(&shaped).unwrap(), curves);
        let mut measured = Measured::new("test", "host", 0);
        measured.sequential.extend(Point::of(1, &[20]));
        measured.write(dir.path()).unwrap();
        assert_eq!(ask(&plain).unwrap().sequential, flat(20));
        assert!(ask(&shaped).unwrap_err().contains("was measured unshaped and is used shaped as 'hdd'"));
        std::fs::write(dir.path().join(tidepool_shape::FILE_NAME), "{").unwrap();
        assert!(ask(&plain).is_err());
    }
}
