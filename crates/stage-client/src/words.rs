//! What people write, but for places: limits, users, times, policies, states, kinds.

use std::time::Duration;
use tidepool_types::parse_size;
use tidepool_wire::stager::{DataspaceKind, JobLimit, OnBehalf, Policy, ProcessSpec, TaskState};

pub const POLICIES: [(&str, Policy); 4] = [
    ("first-come", Policy::FirstCome),
    ("shortest-first", Policy::ShortestFirst),
    ("fair-by-job", Policy::FairByJob),
    ("fair-by-user", Policy::FairByUser),
];

pub const STATES: [(&str, TaskState); 5] = [
    ("pending", TaskState::Pending),
    ("running", TaskState::Running),
    ("finished", TaskState::Finished),
    ("failed", TaskState::Failed),
    ("cancelled", TaskState::Cancelled),
];

pub const KINDS: [(&str, DataspaceKind); 4] = [
    ("local", DataspaceKind::Local),
    ("shared", DataspaceKind::Shared),
    ("pool", DataspaceKind::Pool),
    ("object", DataspaceKind::Object),
];

/// Seconds of each unit of [`parse_duration`].
const UNITS: [(&str, f64); 7] =
    [("", 1.0), ("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0), ("w", 604_800.0)];

/// The value of a name in one of the tables above.
pub fn parse_word<T: Copy>(table: &[(&str, T)], text: &str) -> Result<T, String> {
    let found = table.iter().find(|(name, _)| *name == text);
    let names = || table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.map(|(_, value)| *value).ok_or_else(|| format!("'{text}' is none of {}", names()))
}

/// The name of a value in one of the tables above; each value has one.
pub(crate) fn word<T: Copy + PartialEq>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, of)| *of == value).map_or("unknown", |(name, _)| name)
}

/// `nvme0://=100GiB`, or `nvme0://` alone for no limit.
pub fn parse_limit(text: &str) -> Result<JobLimit, String> {
    let (name, quota) = match text.rsplit_once('=') {
        None => (text, 0),
        Some((name, size)) => (name, parse_size(size).map_err(|e| e.to_string())?),
    };
    Ok(JobLimit { dataspace: dataspace_name(name)?, quota })
}

/// The name of a dataspace, `nvme0://`; `nvme0` alone means the same.
pub fn dataspace_name(text: &str) -> Result<String, String> {
    match text.strip_suffix("://").unwrap_or(text) {
        "" => Err("the name of a dataspace is missing; write it as nvme0://".into()),
        name if name.contains('/') => {
            Err(format!("'{text}' is no name of a dataspace; write it as nvme0://"))
        }
        name => Ok(format!("{name}://")),
    }
}

/// `UID:GID`, two numbers.
pub fn parse_ids(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    ids.ok_or_else(|| "write a numeric user and group, such as 1000:1000".into())
}

/// `UID:GID`, or `UID:GID:JOB`.
pub fn parse_on_behalf(text: &str) -> Result<OnBehalf, String> {
    let numbers: Option<Vec<u32>> = text.split(':').map(|part| part.parse().ok()).collect();
    match numbers.as_deref() {
        Some([uid, gid]) => Ok(OnBehalf { uid: *uid, gid: *gid, job: 0 }),
        Some([uid, gid, job]) => Ok(OnBehalf { uid: *uid, gid: *gid, job: *job }),
        _ => Err("write UID:GID or UID:GID:JOB, all numbers, such as 1000:1000:42".into()),
    }
}

/// `90`, `1.5s`, `500ms`, `30m`, `12h`, `7d`, `6w`: seconds without a unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let advice = || format!("'{text}' is no time; write a number and s, m, h, d or w, such as 30s or 6w");
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| advice())?;
    let seconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| *seconds);
    Duration::try_from_secs_f64(number * seconds.ok_or_else(advice)?).map_err(|_| advice())
}

/// A process, and who owns it now where the caller does not say.
pub fn process_spec(pid: i32, uid: Option<u32>, gid: Option<u32>) -> Result<ProcessSpec, String> {
    use std::os::unix::fs::MetadataExt;
    if let (Some(uid), Some(gid)) = (uid, gid) {
        return Ok(ProcessSpec { pid, uid, gid });
    }
    let found = std::fs::metadata(format!("/proc/{pid}"))
        .map_err(|error| format!("process {pid}: {error}; is it gone? name its user with --uid and --gid"))?;
    Ok(ProcessSpec { pid, uid: uid.unwrap_or(found.uid()), gid: gid.unwrap_or(found.gid()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_ids_are_read() {
        let limit = |dataspace: &str, quota| Ok(JobLimit { dataspace: dataspace.into(), quota });
        assert_eq!(parse_limit("nvme0://"), limit("nvme0://", 0));
        assert_eq!(parse_limit("nvme0"), limit("nvme0://", 0));
        assert_eq!(parse_limit("a=b://=2MiB"), limit("a=b://", 2 << 20));
        assert!(parse_limit("a://=x").is_err() && parse_limit("=1").is_err() && parse_limit("a/b").is_err());
        assert_eq!(parse_ids("7:8"), Ok((7, 8)));
        assert!(parse_ids("7").is_err() && parse_ids("root:root").is_err());
        assert_eq!(parse_on_behalf("7:8:9"), Ok(OnBehalf { uid: 7, gid: 8, job: 9 }));
        assert_eq!(parse_on_behalf("7:8"), Ok(OnBehalf { uid: 7, gid: 8, job: 0 }));
        assert!(["7", "7:8:9:1", "a:b", "", "7:-1"].iter().all(|text| parse_on_behalf(text).is_err()));
    }

    #[test]
    fn times_are_read() {
        let read = |text| parse_duration(text).map(|time| time.as_millis());
        for (text, ms) in
            [("90", 90_000), ("1.5s", 1500), ("20ms", 20), ("2m", 120_000), ("6w", 3_628_800_000)]
        {
            assert_eq!(read(text), Ok(ms), "{text}");
        }
        for wrong in ["", "s", "-1", "1y", "1 h", "1..2", "1e3", "99999999999999999999w"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_word_has_a_value_and_every_value_a_word() {
        assert_eq!(parse_word(&STATES, "failed"), Ok(TaskState::Failed));
        assert_eq!(word(&POLICIES, Policy::FairByUser), "fair-by-user");
        let error = parse_word(&KINDS, "tape").expect_err("there is no such kind");
        assert_eq!(error, "'tape' is none of local, shared, pool, object");
    }
}
