//! Flash devices.
