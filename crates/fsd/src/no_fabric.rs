//! In place of `fabric.rs` in builds without libfabric: there is no such thing as a [`Fabric`].

use crate::serve::Service;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use tidepool_types::SessionId;
use tidepool_wire::message::{Bytes, Reply};

pub enum Fabric {}

impl Fabric {
    pub fn open(provider: &str, _listens: Option<SocketAddr>, _advertise: &str) -> Result<Fabric, String> {
        Err(format!(
            "this tidepoold was built without libfabric, which --fabric {provider} needs \
             (cargo build --features libfabric)"
        ))
    }

    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        match *self {}
    }

    pub fn needs_tick(&self) -> bool {
        match *self {}
    }

    pub fn ring(&self) {
        match *self {}
    }

    pub fn take_ring(&self) -> bool {
        match *self {}
    }

    pub fn admit(&self, _: u64, _: SessionId, _: &Bytes, _: u64) -> io::Result<([u8; 32], Reply)> {
        match *self {}
    }

    pub fn dismiss(&self, _: [u8; 32]) {
        match *self {}
    }

    pub fn turn(&self, _: &Service, _: impl FnOnce(), _: impl Fn(u64, bool)) {
        match *self {}
    }
}
