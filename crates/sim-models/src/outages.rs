//! When servers are down (S1 §V names fault tolerance as what is to come).
//!
//! A server that is down does nothing, and keeps what it had: what it was at goes on when it is up again, what comes waits.
//! Its threads and its device therefore have a clock of their own, which stands still meanwhile: next available times are
//! times of that clock.

use crate::span::Span;
use std::fmt;
use tidepool_sim::{Stream, Time};

/// Most outages of all servers together.
pub const OUTAGES_MAX: usize = 1 << 20;
/// Of the streams from which outages are drawn, so that they are not those of the processes.
const STREAMS: u64 = 0x6f75_7461_6765_7321;

/// Why there are no such outages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutageError {
    TooMany,
    /// It is not there.
    NoSuchServer(u32),
    /// One that ends when it begins.
    Empty(u32),
}

impl fmt::Display for OutageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutageError::TooMany => write!(f, "servers fail more than {OUTAGES_MAX} times in all"),
            OutageError::NoSuchServer(number) => write!(f, "server {number} is to fail, which is not there"),
            OutageError::Empty(number) => write!(f, "server {number} fails and is up again at once"),
        }
    }
}

impl std::error::Error for OutageError {}

/// A server is down from a time on, up to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Outage {
    pub server: u32,
    pub from: Time,
    pub to: Time,
}

/// One of a server's, and how long it was up before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Down {
    from: u64,
    to: u64,
    up: u64,
}

/// All outages, by server; nothing for servers that never fail.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outages {
    servers: Vec<Vec<Down>>,
}

impl Outages {
    /// Of so many servers. Those that touch are one.
    pub fn new(servers: u32, mut all: Vec<Outage>) -> Result<Outages, OutageError> {
        if all.len() > OUTAGES_MAX {
            return Err(OutageError::TooMany);
        }
        if all.is_empty() {
            return Ok(Outages::default());
        }
        all.sort_unstable();
        let mut of: Vec<Vec<Down>> = vec![Vec::new(); servers as usize];
        for Outage { server, from, to } in all {
            if from >= to {
                return Err(OutageError::Empty(server));
            }
            let of = of.get_mut(server as usize).ok_or(OutageError::NoSuchServer(server))?;
            match of.last_mut() {
                Some(last) if from.0 <= last.to => last.to = last.to.max(to.0),
                last => {
                    let up = last.map_or(from.0, |last| last.up + (from.0 - last.to));
                    of.push(Down { from: from.0, to: to.0, up });
                }
            }
        }
        Ok(Outages { servers: of })
    }

    /// The last outage that has begun by a time.
    fn last(&self, server: u32, now: u64) -> Option<&Down> {
        let all = self.servers.get(server as usize)?;
        all[..all.partition_point(|down| down.from <= now)].last()
    }

    /// Until when a server is down that is.
    #[inline]
    pub fn down_until(&self, server: u32, now: u64) -> Option<u64> {
        if self.servers.is_empty() {
            return None;
        }
        self.last(server, now).map(|down| down.to).filter(|to| *to > now)
    }

    /// What a server's own clock tells at a time.
    #[inline]
    pub fn clock(&self, server: u32, now: u64) -> u64 {
        if self.servers.is_empty() {
            return now;
        }
        self.last(server, now).map_or(now, |down| down.up + now.saturating_sub(down.to))
    }

    /// The first time at which a server's own clock tells this.
    #[inline]
    pub fn when(&self, server: u32, clock: u64) -> u64 {
        let Some(all) = self.servers.get(server as usize) else { return clock };
        let last = all[..all.partition_point(|down| down.up < clock)].last();
        last.map_or(clock, |down| down.to.saturating_add(clock - down.up))
    }

    /// How long a server is down before a time.
    pub fn down(&self, server: u32, until: u64) -> u64 {
        until - self.clock(server, until)
    }
}

/// Failures of a server that come up to a time: `between` after the start or a repair, for `repair`.
pub fn drawn(
    seed: u64,
    server: u32,
    (between, repair): (Span, Span),
    until: Time,
    all: &mut Vec<Outage>,
) -> Result<(), OutageError> {
    let mut random = Stream::new(seed ^ STREAMS, server.into());
    let mut at = 0u64;
    loop {
        // At least a tick each, so that it ends.
        at = at.saturating_add(between.draw(&mut random).max(1));
        if at > until.0 {
            return Ok(());
        }
        let to = at.saturating_add(repair.draw(&mut random).max(1));
        if all.len() >= OUTAGES_MAX {
            return Err(OutageError::TooMany);
        }
        all.push(Outage { server, from: Time(at), to: Time(to) });
        at = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of ticks.
        #[test]
        fn clocks_stand_still_while_a_server_is_down(
            spans in proptest::collection::vec((0u32..2, 0u64..40, 1u64..9), 0..9),
        ) {
            let outage = |&(server, from, length): &(u32, u64, u64)| {
                Outage { server, from: Time(from), to: Time(from + length) }
            };
            let outages = Outages::new(2, spans.iter().map(outage).collect()).unwrap();
            for server in 0..2 {
                let down = |tick: u64| {
                    let mut mine = spans.iter().filter(|span| span.0 == server);
                    mine.any(|(_, from, length)| (*from..from + length).contains(&tick))
                };
                let mut clock = 0;
                for now in 0..60 {
                    prop_assert_eq!(outages.clock(server, now), clock);
                    prop_assert_eq!(outages.down(server, now), now - clock);
                    prop_assert_eq!(outages.down_until(server, now).is_some(), down(now));
                    if let Some(until) = outages.down_until(server, now) {
                        prop_assert!((now..until).all(down) && !down(until));
                    }
                    let first = (0..=now).find(|at| outages.clock(server, *at) == clock);
                    prop_assert_eq!(Some(outages.when(server, clock)), first);
                    clock += u64::from(!down(now));
                }
            }
        }
    }

    #[test]
    fn outages_that_cannot_be_are_refused() {
        let outage = |server, from, to| Outage { server, from: Time(from), to: Time(to) };
        assert_eq!(Outages::new(1, vec![outage(1, 0, 1)]), Err(OutageError::NoSuchServer(1)));
        assert_eq!(Outages::new(1, vec![outage(0, 4, 4)]), Err(OutageError::Empty(0)));
        let mut all = Vec::new();
        let often = (Span::NONE, Span::NONE);
        assert_eq!(drawn(1, 0, often, Time(u64::MAX), &mut all), Err(OutageError::TooMany));
    }

    #[test]
    fn drawn_ones_have_their_means() {
        let ms = |n: u64| Span::Exponential(Time(n * 1_000_000));
        let mut all = Vec::new();
        drawn(4, 0, (ms(9), ms(1)), Time(100_000_000_000), &mut all).unwrap();
        let down: u64 = all.iter().map(|outage| outage.to.0 - outage.from.0).sum();
        // Ten thousand of them; the share of the time is a tenth.
        assert!((9_500..10_500).contains(&all.len()), "{}", all.len());
        assert!((9_500_000_000..10_500_000_000).contains(&down), "{down}");
    }
}
