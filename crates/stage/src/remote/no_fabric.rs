//! In place of `fabric.rs` in builds without libfabric: there is no such thing as a [`Fabric`].

use std::io;
use std::net::TcpStream;
use tidepool_transport::remote::Aside;

#[derive(Clone, Debug)]
pub enum Fabric {}

impl Fabric {
    pub fn open(provider: &str, _at: Option<&str>) -> Result<Fabric, String> {
        Err(format!(
            "this program was built without libfabric, which fabric provider '{provider}' needs \
             (cargo build --features libfabric)"
        ))
    }

    pub fn provider(&self) -> &str {
        match *self {}
    }

    pub fn moved(&self) -> u64 {
        match *self {}
    }

    pub(super) fn name(&self) -> &[u8] {
        match *self {}
    }

    pub(super) fn way(&self, _: &TcpStream, _: &[u8], _: u64, _: u64) -> io::Result<Box<dyn Aside>> {
        match *self {}
    }
}
