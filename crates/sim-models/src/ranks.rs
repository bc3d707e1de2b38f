//! A system run by several ranks: messages and records as bytes, and what the processes of all ranks have come to.
//!
//! States of devices are large and of many kinds, so they stay at their ranks: at the end these tell each other results.

use crate::cache::CacheResult;
use crate::message::{Kind, Message, Op, Step};
use crate::node::NodeResult;
use crate::results::{PieceResult, Place, Record, RequestResult, Results, ServerResult, Work, gather_from};
use crate::system::{Pfs, Role, State};
use std::collections::BTreeMap;
use tidepool_devices::ssd::Counts;
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::{Emitted, Error, Options, Over, Simulation, Sink, Time, saved};

saved!(enum Op { 0 => Open, 1 => Read, 2 => Write, 3 => Fsync, 4 => Close, 5 => Create, 6 => Stat, 7 => Unlink, 8 => Barrier });
saved!(enum Kind {
    0 => Start, 1 => Wake, 2 => Finished, 3 => Request, 4 => Received, 5 => Processed, 6 => Ack, 7 => Data,
    8 => DataReceived, 9 => Submit, 10 => Complete, 11 => Response, 12 => Redirect, 13 => Idle,
    14 => Cached, 15 => Old, 16 => Timeout, 17 => Arrived, 18 => Released, 19 => Call,
    20 => Return,
});
saved!(struct Message { kind, op, file, request, offset, local, length, sender, receiver, start, end });
saved!(struct Step { kind, op, offset, length });
saved!(struct RequestResult { application, rank, number, op, file, offset, length, begin, end });
saved!(struct PieceResult { op, file, request, offset, length, sender, receiver, start, end, redirected });
saved!(enum Place { 0 => Threads, 1 => Device });
saved!(struct Work { place, server, op, file, offset, length, came, begin, until });
saved!(enum Record { 0 => Request(request), 1 => Step(step), 2 => Piece(piece), 3 => Work(work), 4 => Waits(server) });
saved!(struct CacheResult { hits, misses, read_ahead, overwritten, dirty_most, dirty, throttled });
saved!(struct NodeResult { number, ranks, requests, written, read, flushed, cache });
/// What a server and its device did, as far as their ranks know it: `down` and `energy` need to know when all ended.
#[derive(Clone)]
struct ServerShare {
    result: ServerResult,
}

impl Saved for ServerShare {
    fn save(&self, out: &mut Vec<u8>) {
        // All of them by name, so that a new one cannot be forgotten.
        let ServerResult {
            number,
            class,
            requests,
            inside_most,
            bytes_read,
            bytes_written,
            device_busy,
            threads_busy,
            device_time,
            device_requests,
            redirected,
            moved,
            down: _,
            energy: _,
            cache,
            merged,
            flash,
        } = self.result;
        number.save(out);
        class.save(out);
        inside_most.save(out);
        [requests, bytes_read, bytes_written, device_busy, threads_busy, device_time, device_requests]
            .save(out);
        [redirected, moved, merged].save(out);
        cache.save(out);
        flash.map(|counts| [counts.host_pages, counts.programmed_pages, counts.erased_blocks]).save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<ServerShare, LoadError> {
        let (number, class, inside_most) = (u32::load(from)?, u16::load(from)?, u32::load(from)?);
        let [requests, bytes_read, bytes_written, device_busy, threads_busy, device_time, device_requests] =
            Saved::load(from)?;
        let [redirected, moved, merged] = Saved::load(from)?;
        let cache = Saved::load(from)?;
        let flash: Option<[u64; 3]> = Saved::load(from)?;
        let flash = flash.map(|[host_pages, programmed_pages, erased_blocks]| Counts {
            host_pages,
            programmed_pages,
            erased_blocks,
        });
        let result = ServerResult {
            number,
            class,
            requests,
            inside_most,
            bytes_read,
            bytes_written,
            device_busy,
            threads_busy,
            device_time,
            device_requests,
            redirected,
            moved,
            down: 0,
            energy: None,
            cache,
            merged,
            flash,
        };
        Ok(ServerShare { result })
    }
}

/// What the processes of one rank have come to.
struct Share {
    end: u64,
    quiet: u64,
    requests: u64,
    bytes_read: u64,
    bytes_written: u64,
    waited: u128,
    failed: u64,
    open: u64,
    switched: u64,
    servers: Vec<ServerShare>,
    nodes: Vec<NodeResult>,
}

saved!(struct Share { end, quiet, requests, bytes_read, bytes_written, waited, failed, open, switched, servers, nodes });

impl Share {
    fn read(bytes: &[u8]) -> Result<Share, LoadError> {
        let mut from = Reader::new(bytes);
        let share = Share::load(&mut from)?;
        if from.is_empty() { Ok(share) } else { Err(LoadError::Damaged("something follows its end")) }
    }
}

/// As [`run`](crate::run), by all ranks together. All get the same results; rank 0 alone gets records (`all`, `steps`). The
/// simulation has only this rank's states of the end. `over.about` has to tell all that decides what the model does.
pub fn run_over(
    pfs: Pfs,
    seed: u64,
    options: &Options<'_>,
    over: &mut Over<'_>,
) -> Result<(Simulation<Pfs>, Results), Error> {
    let (mut all, mut steps) = (Vec::new(), Vec::new());
    let sink = |emitted: Emitted<Record>| match emitted.record {
        Record::Request(request) => all.push(request),
        Record::Step(step) => steps.push((emitted.at.time, emitted.process, step)),
        Record::Piece(_) | Record::Work(_) | Record::Waits(_) => {}
    };
    let (simulation, results) = run_over_with(pfs, seed, options, over, sink)?;
    Ok((simulation, Results { all, steps, ..results }))
}

/// As [`run_with`](crate::run_with), by all ranks together: rank 0's `sink` gets the records of all.
pub fn run_over_with(
    pfs: Pfs,
    seed: u64,
    options: &Options<'_>,
    over: &mut Over<'_>,
    mut sink: impl FnMut(Emitted<Record>) + Send,
) -> Result<(Simulation<Pfs>, Results), Error> {
    let mut simulation = Simulation::new(pfs, seed)?;
    let wanted: Option<Sink<'_, Record>> = if simulation.model().writes() { Some(&mut sink) } else { None };
    let (report, mut own) = simulation.run_over_once(Time::MAX, options, over, wanted)?;
    // A device adds to its server, which is the process before it, and has done nothing here when it is another rank's.
    if matches!(simulation.model().roles().get(own.start), Some(Role::Device(_))) {
        own.start -= 1;
    }
    let states: Vec<&State> = simulation.states().skip(own.start).take(own.len()).collect();
    let mine = gather_from(simulation.model(), report, simulation.trace(), states.into_iter());
    let mut results = together(mine, over)?;
    results.finish(simulation.model());
    Ok((simulation, results))
}

/// The results of all ranks in one.
fn together(mine: Results, over: &mut Over<'_>) -> Result<Results, Error> {
    let (rank, ranks) = (over.link.rank(), over.link.ranks());
    let mut bytes = Vec::new();
    let share = |results: &Results| Share {
        end: results.end.0,
        quiet: results.quiet.0,
        requests: results.requests,
        bytes_read: results.bytes_read,
        bytes_written: results.bytes_written,
        waited: results.waited,
        failed: results.failed,
        open: results.open,
        switched: results.switched,
        servers: results.servers.iter().map(|result| ServerShare { result: *result }).collect(),
        nodes: results.nodes.clone(),
    };
    share(&mine).save(&mut bytes);
    let mut into = vec![Vec::new(); ranks];
    let told = over.link.exchange(&vec![&bytes[..]; ranks], &mut into);
    told.map_err(|error| Error::Ranks(format!("ranks cannot reach each other: {error}")))?;
    into[rank] = bytes;
    let mut all = Results {
        end: Time::ZERO,
        quiet: Time::ZERO,
        requests: 0,
        bytes_read: 0,
        bytes_written: 0,
        waited: 0,
        failed: 0,
        open: 0,
        switched: 0,
        servers: Vec::new(),
        nodes: Vec::new(),
        ..mine
    };
    let mut servers = BTreeMap::new();
    for (rank, bytes) in into.iter().enumerate() {
        let share = Share::read(bytes)
            .map_err(|error| Error::Ranks(format!("the results that rank {rank} sent: {error}")))?;
        all.end = all.end.max(Time(share.end));
        all.quiet = all.quiet.max(Time(share.quiet));
        all.requests += share.requests;
        all.bytes_read += share.bytes_read;
        all.bytes_written += share.bytes_written;
        all.waited += share.waited;
        all.failed += share.failed;
        all.open += share.open;
        all.switched += share.switched;
        all.nodes.extend(share.nodes);
        for ServerShare { result: server } in share.servers {
            match servers.get_mut(&server.number) {
                None => drop(servers.insert(server.number, server)),
                Some(there) => add(there, &server),
            }
        }
    }
    all.servers = servers.into_values().collect();
    Ok(all)
}

/// A server is at one rank and its device may be at another: each has nothing of what the other one has.
fn add(there: &mut ServerResult, other: &ServerResult) {
    // All of them by name, so that a new one cannot be forgotten.
    let ServerResult {
        number: _,
        class: _,
        requests,
        inside_most,
        bytes_read,
        bytes_written,
        device_busy,
        threads_busy,
        device_time,
        device_requests,
        redirected,
        moved,
        down: _,
        energy: _,
        cache,
        merged,
        flash,
    } = *other;
    there.inside_most = there.inside_most.max(inside_most);
    there.requests += requests;
    there.bytes_read += bytes_read;
    there.bytes_written += bytes_written;
    there.device_busy += device_busy;
    there.threads_busy += threads_busy;
    there.device_time += device_time;
    there.device_requests += device_requests;
    there.redirected += redirected;
    there.moved += moved;
    there.merged += merged;
    there.cache = there.cache.or(cache);
    there.flash = there.flash.or(flash);
}
