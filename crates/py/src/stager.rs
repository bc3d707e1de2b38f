//! One method for each of the Rust API's, with the interpreter's lock released while the stager is asked.

use crate::enums::known;
use crate::errors::{raised, raised_midway};
use crate::specs::{Dataspace, Job, Process, Task};
use crate::values::Value;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use tidepool_stage_client::StageError;

type Answer<'py> = PyResult<Bound<'py, PyAny>>;

#[pyclass(frozen)]
pub struct Stager {
    inner: tidepool_stage_client::Stager,
}

impl Stager {
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        question: impl Send + FnOnce(&tidepool_stage_client::Stager) -> Result<T, StageError>,
    ) -> PyResult<T> {
        py.detach(|| question(&self.inner)).map_err(|error| raised(py, error))
    }

    fn tell<'py, T: Send + Value>(
        &self,
        py: Python<'py>,
        question: impl Send + FnOnce(&tidepool_stage_client::Stager) -> Result<T, StageError>,
    ) -> Answer<'py> {
        self.ask(py, question)?.to_python(py)
    }
}

#[pymethods]
impl Stager {
    #[new]
    fn new(py: Python<'_>, socket: PathBuf, name: &str) -> PyResult<Stager> {
        let connected = py.detach(|| tidepool_stage_client::Stager::connect_as(socket, name));
        Ok(Stager { inner: connected.map_err(|error| raised(py, error))? })
    }

    fn node(&self) -> String {
        self.inner.node()
    }

    fn pid(&self) -> u32 {
        self.inner.pid()
    }

    fn is_control(&self) -> bool {
        self.inner.is_control()
    }

    fn ping(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |stager| stager.ping())
    }

    fn submit(&self, py: Python<'_>, task: Task<'_>) -> PyResult<u32> {
        let task = task.read()?;
        self.ask(py, |stager| stager.submit(&task))
    }

    fn submit_and_wait_for<'py>(&self, py: Python<'py>, task: Task<'py>, limit: Duration) -> Answer<'py> {
        let task = task.read()?;
        self.tell(py, |stager| stager.submit_and_wait_for(&task, limit))
    }

    fn submit_many<'py>(&self, py: Python<'py>, tasks: Vec<Task<'py>>) -> Answer<'py> {
        let tasks = tasks.into_iter().map(Task::read).collect::<PyResult<Vec<_>>>()?;
        let submitted = py.detach(|| self.inner.submit_many(tasks));
        submitted.map_err(|error| raised_midway(py, error))?.to_python(py)
    }

    fn status<'py>(&self, py: Python<'py>, id: u32) -> Answer<'py> {
        self.tell(py, |stager| stager.status(id))
    }

    fn wait<'py>(&self, py: Python<'py>, ids: Vec<u32>, any: bool, timeout: Option<Duration>) -> Answer<'py> {
        self.tell(py, |stager| stager.wait(&ids, any, timeout))
    }

    fn cancel(&self, py: Python<'_>, id: u32) -> PyResult<()> {
        self.ask(py, |stager| stager.cancel(id))
    }

    fn resume(&self, py: Python<'_>, id: u32) -> PyResult<()> {
        self.ask(py, |stager| stager.resume(id))
    }

    fn list<'py>(&self, py: Python<'py>, job: Option<u32>, only: Option<u8>) -> Answer<'py> {
        let only = only.map(known).transpose()?;
        self.tell(py, |stager| stager.list(job, only))
    }

    fn list_page<'py>(
        &self,
        py: Python<'py>,
        job: Option<u32>,
        only: Option<u8>,
        after: u32,
        max: u32,
    ) -> Answer<'py> {
        let only = only.map(known).transpose()?;
        self.tell(py, |stager| stager.list_page(job, only, after, max))
    }

    fn plan<'py>(&self, py: Python<'py>, task: Task<'py>) -> Answer<'py> {
        let task = task.read()?;
        self.tell(py, |stager| stager.plan(&task))
    }

    fn forget(&self, py: Python<'_>, id: u32) -> PyResult<()> {
        self.ask(py, |stager| stager.forget(id))
    }

    fn daemon_status<'py>(&self, py: Python<'py>) -> Answer<'py> {
        self.tell(py, |stager| stager.daemon_status())
    }

    fn dataspaces<'py>(&self, py: Python<'py>) -> Answer<'py> {
        self.tell(py, |stager| stager.dataspaces())
    }

    fn job_report<'py>(&self, py: Python<'py>, job: u32) -> Answer<'py> {
        self.tell(py, |stager| stager.job_report(job))
    }

    fn persist(
        &self,
        py: Python<'_>,
        op: u8,
        dataspace: &str,
        path: OsString,
        user: u32,
        expires: u64,
    ) -> PyResult<Option<u32>> {
        let op = known(op)?;
        self.ask(py, |stager| stager.persist(op, dataspace, path.as_bytes(), user, expires))
    }

    fn persisted<'py>(&self, py: Python<'py>) -> Answer<'py> {
        self.tell(py, |stager| stager.persisted())
    }

    fn register_dataspace(&self, py: Python<'_>, dataspace: Dataspace) -> PyResult<()> {
        let dataspace = dataspace.read()?;
        self.ask(py, |stager| stager.register_dataspace(&dataspace))
    }

    fn update_dataspace(&self, py: Python<'_>, dataspace: Dataspace) -> PyResult<()> {
        let dataspace = dataspace.read()?;
        self.ask(py, |stager| stager.update_dataspace(&dataspace))
    }

    fn unregister_dataspace(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.ask(py, |stager| stager.unregister_dataspace(name))
    }

    fn register_job(&self, py: Python<'_>, job: Job) -> PyResult<()> {
        let job = job.read();
        self.ask(py, |stager| stager.register_job(&job))
    }

    fn update_job(&self, py: Python<'_>, job: Job) -> PyResult<()> {
        let job = job.read();
        self.ask(py, |stager| stager.update_job(&job))
    }

    fn unregister_job<'py>(&self, py: Python<'py>, job: u32) -> Answer<'py> {
        self.tell(py, |stager| stager.unregister_job(job))
    }

    fn add_process(&self, py: Python<'_>, job: u32, process: Process) -> PyResult<()> {
        self.ask(py, |stager| stager.add_process(job, process.read()))
    }

    fn remove_process(&self, py: Python<'_>, job: u32, process: Process) -> PyResult<()> {
        self.ask(py, |stager| stager.remove_process(job, process.read()))
    }

    fn command(&self, py: Python<'_>, command: u8) -> PyResult<()> {
        let command = known(command)?;
        self.ask(py, |stager| stager.command(command))
    }

    fn jobs<'py>(&self, py: Python<'py>) -> Answer<'py> {
        self.tell(py, |stager| stager.jobs())
    }

    fn leftovers<'py>(&self, py: Python<'py>, dataspace: &str, max: u32) -> Answer<'py> {
        self.tell(py, |stager| stager.leftovers(dataspace, max))
    }

    fn set_policy(&self, py: Python<'_>, policy: u8) -> PyResult<()> {
        let policy = known(policy)?;
        self.ask(py, |stager| stager.set_policy(policy))
    }
}
