//! What processes of the model tell each other.

use std::sync::Arc;
use tidepool_iosched::{PastPhase, Pattern, Phase};

/// What a scheduler tells the others of its application.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    pub at_ns: u64,
    pub running: bool,
    /// None while it computes or reads.
    pub phase: Option<Phase>,
    pub past: Arc<Vec<PastPhase>>,
}

/// Who has data at a server: an application itself, or its flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowId {
    pub app: u32,
    pub flush: bool,
}

impl FlowId {
    pub fn index(self) -> usize {
        2 * self.app as usize + usize::from(self.flush)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Write,
    Read,
}

/// A part of a chunk at a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub flow: FlowId,
    /// Of the application's chunks on their way.
    pub slot: u32,
    /// Which part of the chunk.
    pub part: u8,
    pub access: Access,
    pub bytes: u64,
    pub pattern: Pattern,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// To oneself: the application starts.
    Start,
    /// To oneself: a compute phase is over.
    Computed,
    /// To oneself: time to tell and to ask.
    Tick,
    /// To oneself: node-local storage has written or read a chunk.
    Local {
        slot: u32,
    },
    News {
        from: u32,
        told: Arc<Told>,
    },
    /// A server has served a part, or has no room for it; what it has free then.
    Part {
        slot: u32,
        part: u8,
        served: bool,
        server: u32,
        free: u64,
    },
    /// What a server has free, when that has changed much.
    Room {
        server: u32,
        free: u64,
    },
    /// So many processes use the server from now on.
    Open {
        flow: FlowId,
        processes: u32,
        weight: u32,
    },
    Close {
        flow: FlowId,
    },
    Ask(Request),
    /// Data of an application have gone elsewhere.
    Free {
        app: u32,
        bytes: u64,
    },
    /// To oneself: the request that was served is done.
    Served,
}

impl Message {
    /// For the trace's hash.
    pub fn digest(&self) -> u64 {
        let fold = |words: &[u64]| {
            words
                .iter()
                .fold(0, |hash: u64, word| (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(23))
        };
        match self {
            Message::Start => 1,
            Message::Computed => 2,
            Message::Tick => 3,
            Message::Local { slot } => fold(&[4, (*slot).into()]),
            Message::News { from, told } => {
                let (bytes, tier) = told.phase.map_or((0, 0), |phase| {
                    (phase.written_bytes + 1, phase.tier.map_or(0, |tier| 1 + tier as u64))
                });
                fold(&[5, (*from).into(), told.at_ns, u64::from(told.running), bytes, tier])
            }
            Message::Part { slot, part, served, server, free } => {
                fold(&[6, (*slot).into(), (*part).into(), u64::from(*served), (*server).into(), *free])
            }
            Message::Room { server, free } => fold(&[7, (*server).into(), *free]),
            Message::Open { flow, processes, weight } => {
                fold(&[8, flow.index() as u64, (*processes).into(), (*weight).into()])
            }
            Message::Close { flow } => fold(&[9, flow.index() as u64]),
            Message::Ask(request) => {
                fold(&[10, request.flow.index() as u64, request.slot.into(), request.bytes])
            }
            Message::Free { app, bytes } => fold(&[11, (*app).into(), *bytes]),
            Message::Served => 12,
        }
    }
}
