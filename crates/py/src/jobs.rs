//! Run times of jobs predicted, for `tidepool.jobs`: predictors as objects that learn job by job, and whole logs at once.
//!
//! Columns of a log are bytes that numpy takes as they are: 64-bit numbers, little-endian, -1 where nothing is known. What is
//! predicted comes back as three numbers for each job: the run time and [`LEVELS`]' times, in seconds.

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidepool_joblog::{Job as Logged, Options};
use tidepool_predict::catalog::{ALL, Copied, Entry};
use tidepool_predict::conformal::Calibrated;
use tidepool_predict::judge::{JOBS_OF_USER_MIN, Judged, Measures};
use tidepool_predict::replay::{Past, replay, replay_to_the_end};
use tidepool_predict::{Job, LEVELS, Point, Prediction};

/// Bytes of a number.
const WORD: usize = 8;
/// Numbers of a prediction.
const PREDICTED: usize = 1 + LEVELS.len();

/// Name and description of each predictor.
#[pyfunction]
pub fn predictors() -> Vec<(&'static str, &'static str)> {
    ALL.iter().map(|entry| (entry.name, entry.about)).collect()
}

/// Jobs of a user below which it is not looked at alone.
#[pyfunction]
pub fn jobs_of_user_min() -> usize {
    JOBS_OF_USER_MIN
}

fn entry(name: &str) -> PyResult<&'static Entry> {
    Entry::named(name).ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
        PyValueError::new_err(format!("'{name}' is no predictor; there are {}", known.join(", ")))
    })
}

/// A log of any format, as columns, with what was repaired.
#[pyfunction]
pub fn read_log<'py>(py: Python<'py>, bytes: &[u8], jobs_max: Option<usize>) -> PyResult<Bound<'py, PyDict>> {
    let options = Options { jobs_max: jobs_max.unwrap_or(usize::MAX), ..Options::default() };
    let read = py.detach(|| tidepool_joblog::read(bytes, &options));
    let log = read.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let dict = PyDict::new(py);
    let put = |name: &str, value: &dyn Fn(&Logged) -> i64| {
        let column: Vec<u8> = log.jobs.iter().flat_map(|job| value(job).to_le_bytes()).collect();
        dict.set_item(name, PyBytes::new(py, &column))
    };
    let known = |value: Option<u32>| value.map_or(-1, i64::from);
    put("number", &|job| job.number as i64)?;
    put("submit_s", &|job| job.submit_s as i64)?;
    put("wait_s", &|job| job.waited_s.map_or(-1, |wait| wait as i64))?;
    // As the log has it: what outlived its limit did.
    put("run_s", &|job| job.ran_s() as i64)?;
    put("request_s", &|job| if job.asked { job.request_s as i64 } else { -1 })?;
    // What it was given later is not known at its submission; it stands for what the log does not say.
    put("processors", &|job| i64::from(job.requested_processors.unwrap_or(job.processors)))?;
    put("given_processors", &|job| i64::from(job.processors))?;
    put("user", &|job| known(job.user))?;
    put("group", &|job| known(job.group))?;
    put("executable", &|job| known(job.executable))?;
    put("queue", &|job| known(job.queue))?;
    put("partition", &|job| known(job.partition))?;
    let repairs: Vec<_> = log.repairs.list().into_iter().filter(|(_, count)| *count > 0).collect();
    dict.set_item("repairs", repairs)?;
    dict.set_item("machine_processors", log.processors)?;
    Ok(dict)
}

/// A log as Python has it.
pub(crate) struct Columns<'py> {
    dict: &'py Bound<'py, PyDict>,
    jobs: usize,
}

impl<'py> Columns<'py> {
    /// Each row has 64 bits in each column.
    pub fn new(dict: &'py Bound<'py, PyDict>) -> PyResult<Columns<'py>> {
        let submits: PyBackedBytes = dict
            .get_item("submit_s")?
            .ok_or_else(|| PyKeyError::new_err("no column 'submit_s'"))?
            .extract()?;
        Ok(Columns { dict, jobs: submits.len() / WORD })
    }

    fn bytes(&self, name: &str) -> PyResult<PyBackedBytes> {
        let column =
            self.dict.get_item(name)?.ok_or_else(|| PyKeyError::new_err(format!("no column '{name}'")))?;
        let column: PyBackedBytes = column.extract()?;
        if column.len() != self.jobs * WORD {
            let text = format!("column '{name}' has {} bytes, not {WORD} for each job", column.len());
            return Err(PyValueError::new_err(text));
        }
        Ok(column)
    }

    pub fn numbers(&self, name: &str) -> PyResult<Vec<i64>> {
        let bytes = self.bytes(name)?;
        Ok(words(&bytes).map(i64::from_le_bytes).collect())
    }

    /// None below 0.
    pub fn marks(&self, name: &str) -> PyResult<Vec<Option<u32>>> {
        let numbers = self.numbers(name)?;
        let mark = |number: i64| match number {
            ..0 => Ok(None),
            _ => u32::try_from(number).map(Some).map_err(|_| {
                PyValueError::new_err(format!("{number} in column '{name}' is above {}", u32::MAX))
            }),
        };
        numbers.into_iter().map(mark).collect()
    }

    fn past(&self) -> PyResult<Vec<Past>> {
        let (submits, starts) = (self.numbers("submit_s")?, self.numbers("start_s")?);
        let runs = self.bytes("run_s")?;
        let requests = self.numbers("request_s")?;
        let (processors, users) = (self.marks("processors")?, self.marks("user")?);
        let (groups, executables) = (self.marks("group")?, self.marks("executable")?);
        let (queues, partitions) = (self.marks("queue")?, self.marks("partition")?);
        let past = |(at, run): (usize, [u8; WORD])| {
            let job = Job {
                id: at as u64,
                submit_s: submits[at].max(0) as u64,
                request_s: u64::try_from(requests[at]).ok(),
                processors: processors[at].unwrap_or(0),
                user: users[at],
                group: groups[at],
                executable: executables[at],
                queue: queues[at],
                partition: partitions[at],
            };
            Past { job, start_s: starts[at].max(0) as u64, run_s: f64::from_le_bytes(run).max(0.0) }
        };
        let past: Vec<Past> = words(&runs).enumerate().map(past).collect();
        in_order(past.iter().map(|past| past.job.submit_s))?;
        Ok(past)
    }
}

/// Refuses jobs that are not in the order of their submission.
pub(crate) fn in_order(submits: impl Iterator<Item = u64>) -> PyResult<()> {
    if submits.is_sorted() {
        return Ok(());
    }
    Err(PyValueError::new_err("jobs are not in the order of their submission"))
}

/// The jobs of a dictionary of columns.
fn past(columns: &Bound<'_, PyDict>) -> PyResult<Vec<Past>> {
    Columns::new(columns)?.past()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; WORD]> {
    bytes.chunks_exact(WORD).map(|chunk| std::array::from_fn(|at| chunk[at]))
}

fn floats(bytes: &[u8], count: usize, what: &str) -> PyResult<Vec<f64>> {
    if bytes.len() != count * WORD {
        return Err(PyValueError::new_err(format!("{what}: {} bytes, not {}", bytes.len(), count * WORD)));
    }
    Ok(words(bytes).map(f64::from_le_bytes).collect())
}

fn numbers(prediction: &Prediction) -> [f64; PREDICTED] {
    [prediction.run_s, prediction.within_s[0], prediction.within_s[1]]
}

fn packed<'py>(py: Python<'py>, predictions: &[Prediction]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = predictions.iter().flat_map(numbers).flat_map(f64::to_le_bytes).collect();
    PyBytes::new(py, &bytes)
}

/// Learns job by job.
#[pyclass(frozen)]
pub struct Predictor {
    inner: Mutex<Box<dyn Copied>>,
}

impl Predictor {
    fn held(&self) -> MutexGuard<'_, Box<dyn Copied>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Predictor {
    #[new]
    fn new(name: &str) -> PyResult<Predictor> {
        Ok(Predictor { inner: entry(name)?.make_copied().into() })
    }

    /// Another that knows the same.
    fn copied(&self, py: Python<'_>) -> Predictor {
        Predictor { inner: py.detach(|| self.held().copied()).into() }
    }

    #[expect(clippy::too_many_arguments, reason = "fields of a job")]
    fn submitted(
        &self,
        id: u64,
        submit_s: u64,
        request_s: Option<u64>,
        processors: u32,
        user: Option<u32>,
        group: Option<u32>,
        executable: Option<u32>,
        queue: Option<u32>,
        partition: Option<u32>,
    ) -> (f64, f64, f64) {
        let job = Job { id, submit_s, request_s, processors, user, group, executable, queue, partition };
        self.held().submitted(&job).into_numbers()
    }

    fn started(&self, id: u64, at_s: u64) {
        self.held().started(id, at_s);
    }

    fn ended(&self, id: u64, run_s: f64) {
        self.held().ended(id, run_s);
    }

    fn cancelled(&self, id: u64) {
        self.held().cancelled(id);
    }

    /// Tells it a log, whose jobs' ids are their places; with `to_the_end` all of them have taught when it returns.
    fn replay<'py>(
        &self,
        py: Python<'py>,
        columns: &Bound<'py, PyDict>,
        to_the_end: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let past = past(columns)?;
        let predictions = py.detach(|| {
            let mut held = self.held();
            match to_the_end {
                true => replay_to_the_end(&past, &mut **held),
                false => replay(&past, &mut **held),
            }
        });
        Ok(packed(py, &predictions))
    }
}

trait Numbers {
    fn into_numbers(self) -> (f64, f64, f64);
}

impl Numbers for Prediction {
    fn into_numbers(self) -> (f64, f64, f64) {
        let [run_s, within_90, within_95] = numbers(&self);
        (run_s, within_90, within_95)
    }
}

/// Says what it was given for each place of a log.
struct Given(Vec<f64>);

impl Point for Given {
    fn predict(&mut self, job: &Job) -> f64 {
        self.0[job.id as usize]
    }

    fn learn(&mut self, _: &Job, _: f64, _: f64) {}
}

/// Adds times that hold to run times that somebody else has predicted: for each job from those that were over by then.
#[pyfunction]
pub fn calibrated<'py>(
    py: Python<'py>,
    columns: &Bound<'py, PyDict>,
    points: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let past = past(columns)?;
    let points = floats(points, past.len(), "predicted run times")?;
    let predictions = py.detach(|| replay(&past, &mut Calibrated::new(Given(points))));
    Ok(packed(py, &predictions))
}

/// How good predictions of some jobs were.
#[pyfunction]
pub fn measures<'py>(
    py: Python<'py>,
    users: &[u8],
    runs: &[u8],
    predictions: &[u8],
) -> PyResult<Bound<'py, PyDict>> {
    let jobs = users.len() / WORD;
    let runs = floats(runs, jobs, "run times")?;
    let said = floats(predictions, jobs * PREDICTED, "predictions")?;
    let judged = |(at, user): (usize, [u8; WORD])| Judged {
        user: u32::try_from(i64::from_le_bytes(user)).ok(),
        run_s: runs[at],
        prediction: Prediction {
            run_s: said[at * PREDICTED],
            within_s: std::array::from_fn(|level| said[at * PREDICTED + 1 + level]),
        },
    };
    let judged: Vec<Judged> = words(users).enumerate().map(judged).collect();
    let Measures { jobs, of_users_s, under, mean_s, pinball_s, covered, covered_tenths } =
        py.detach(|| Measures::of(&judged));
    let dict = PyDict::new(py);
    dict.set_item("jobs", jobs)?;
    dict.set_item("of_users_s", of_users_s)?;
    dict.set_item("under", under)?;
    dict.set_item("mean_s", mean_s)?;
    dict.set_item("pinball_s", pinball_s)?;
    dict.set_item("covered", covered)?;
    dict.set_item("covered_tenths", covered_tenths)?;
    Ok(dict)
}
