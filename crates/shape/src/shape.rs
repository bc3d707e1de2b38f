//! What a tier is slowed down to.

use crate::read::Wrong;
use serde::{Deserialize, Serialize};
use tidepool_iosched::{Curve, Curves};

/// Bytes of a name.
pub const NAME_MAX: usize = 32;
/// Largest burst: 1 TB.
pub const BURST_BYTES_MAX: u64 = 1_000_000_000_000;

/// A token bucket whose rate is that of a curve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Shape {
    name: String,
    burst_bytes: u64,
    curves: Curves,
}

impl Shape {
    pub fn new(name: &str, burst_bytes: u64, curves: Curves) -> Result<Shape, Wrong> {
        let known = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        if name.is_empty() || name.len() > NAME_MAX || !name.as_bytes().iter().all(known) {
            return Err(Wrong::Name(name.into()));
        }
        if burst_bytes > BURST_BYTES_MAX {
            return Err(Wrong::Burst(burst_bytes));
        }
        Ok(Shape { name: name.into(), burst_bytes, curves })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Let through at once after idleness.
    pub fn burst_bytes(&self) -> u64 {
        self.burst_bytes
    }

    pub fn curves(&self) -> &Curves {
        &self.curves
    }

    /// FNV-1a of its JSON: whether two are the same.
    pub fn digest(&self) -> u64 {
        fnv(serde_json::to_string(self).expect("numbers and a name always serialize").as_bytes())
    }
}

/// FNV-1a, 64 bits: for telling things apart that nobody forges.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// As JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    burst_bytes: u64,
    sequential: Vec<(u32, u64)>,
    strided: Vec<(u32, u64)>,
    random: Vec<(u32, u64)>,
}

impl TryFrom<Raw> for Shape {
    type Error = Wrong;

    fn try_from(raw: Raw) -> Result<Shape, Wrong> {
        let curve = |key: &'static str, points: &[(u32, u64)]| {
            Curve::new(points).map_err(|why| Wrong::Curve { key: key.into(), why })
        };
        let curves = Curves {
            sequential: curve("sequential", &raw.sequential)?,
            strided: curve("strided", &raw.strided)?,
            random: curve("random", &raw.random)?,
        };
        Shape::new(&raw.name, raw.burst_bytes, curves)
    }
}

impl From<Shape> for Raw {
    fn from(shape: Shape) -> Raw {
        let Curves { sequential, strided, random } = &shape.curves;
        let points = |curve: &Curve| curve.points().to_vec();
        Raw {
            sequential: points(sequential),
            strided: points(strided),
            random: points(random),
            burst_bytes: shape.burst_bytes,
            name: shape.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"name":"pfs","burst_bytes":4000,"sequential":[[1,20],[8,60]],"strided":[[1,5]],"random":[[1,2]]}"#;

    #[test]
    fn a_shape_is_this_json() {
        let curve = |points: &[(u32, u64)]| Curve::new(points).unwrap();
        let curves = Curves {
            sequential: curve(&[(1, 20), (8, 60)]),
            strided: curve(&[(1, 5)]),
            random: curve(&[(1, 2)]),
        };
        let shape = Shape::new("pfs", 4000, curves).unwrap();
        assert_eq!(serde_json::to_string(&shape).unwrap(), TEXT);
        assert_eq!(serde_json::from_str::<Shape>(TEXT).unwrap(), shape);
        assert_eq!(shape.digest(), fnv(TEXT.as_bytes()));
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c, "as published");
    }

    #[test]
    fn what_is_no_shape_is_refused() {
        for (from, to, word) in [
            ("pfs", "", "name"),
            ("pfs", "P", "name"),
            ("pfs", "a/b", "name"),
            ("4000", "1000000000001", "burst"),
            ("[1,20]", "[9,20]", "follows"),
            ("[[1,5]]", "[]", "strided"),
            ("\"random\"", "\"randon\"", "randon"),
        ] {
            let error = serde_json::from_str::<Shape>(&TEXT.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(word), "{to}: {error}");
        }
        let long = TEXT.replace("pfs", &"a".repeat(NAME_MAX + 1));
        assert!(serde_json::from_str::<Shape>(&long).is_err());
    }
}
