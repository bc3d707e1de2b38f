//! What Python asks for: its dataclasses, read attribute by attribute.

use crate::buffer::Buffer;
use crate::enums::known;
use crate::errors::bad_place;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use tidepool_stage_client::{
    DataspaceSpec, JobLimit, JobSpec, OnBehalf, ProcessSpec, Resource, TaskSpec, parse_place,
};

#[derive(FromPyObject)]
pub enum End<'py> {
    Memory(Bound<'py, Buffer>),
    Place(OsString),
}

impl End<'_> {
    fn read(&self) -> PyResult<Resource> {
        match self {
            End::Memory(buffer) => {
                let buffer = buffer.get();
                Ok(Resource::Memory { address: buffer.address, size: buffer.size })
            }
            End::Place(text) => parse_place(text.as_bytes()).map_err(bad_place),
        }
    }
}

#[derive(FromPyObject)]
pub struct Task<'py> {
    op: u8,
    src: End<'py>,
    dst: Option<End<'py>>,
    priority: i32,
    verify: u8,
    bandwidth: u64,
    size_hint: u64,
    on_behalf: Option<Behalf>,
}

#[derive(FromPyObject)]
struct Behalf {
    uid: u32,
    gid: u32,
    job: u32,
}

impl Task<'_> {
    pub fn read(self) -> PyResult<TaskSpec> {
        Ok(TaskSpec {
            op: known(self.op)?,
            src: self.src.read()?,
            dst: self.dst.map(|dst| dst.read()).transpose()?,
            priority: self.priority,
            verify: known(self.verify)?,
            bandwidth: self.bandwidth,
            size_hint: self.size_hint,
            on_behalf: self.on_behalf.map(|Behalf { uid, gid, job }| OnBehalf { uid, gid, job }),
        })
    }
}

#[derive(FromPyObject)]
pub struct Dataspace {
    name: String,
    kind: u8,
    mount: String,
    tracked: bool,
    capacity: u64,
    streams_max: u32,
    bandwidth: u64,
}

impl Dataspace {
    pub fn read(self) -> PyResult<DataspaceSpec> {
        let Dataspace { name, kind, mount, tracked, capacity, streams_max, bandwidth } = self;
        Ok(DataspaceSpec { name, kind: known(kind)?, mount, tracked, capacity, streams_max, bandwidth })
    }
}

#[derive(FromPyObject)]
pub struct Job {
    id: u32,
    hosts: Vec<String>,
    limits: Vec<Limit>,
    bandwidth: u64,
}

#[derive(FromPyObject)]
struct Limit {
    dataspace: String,
    quota: u64,
}

impl Job {
    pub fn read(self) -> JobSpec {
        let limits = self.limits.into_iter().map(|Limit { dataspace, quota }| JobLimit { dataspace, quota });
        JobSpec { id: self.id, hosts: self.hosts, limits: limits.collect(), bandwidth: self.bandwidth }
    }
}

#[derive(FromPyObject)]
pub struct Process {
    pid: i32,
    uid: u32,
    gid: u32,
}

impl Process {
    pub fn read(self) -> ProcessSpec {
        ProcessSpec { pid: self.pid, uid: self.uid, gid: self.gid }
    }
}
