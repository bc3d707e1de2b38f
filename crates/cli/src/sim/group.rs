//! The processes that run a simulation together: this one alone, or with `--mpi` the ranks of an MPI program.
//!
//! What goes wrong for all ranks in the same way, as a fault of the model, is told by rank 0, and all end. What goes wrong at
//! one rank is told there and ends all, because the others wait for it.

use crate::exit::{Context, Failure, Kind, Result};
use std::process::ExitCode;
use tidepool_sim::checkpoint::Saved;
use tidepool_sim::{Emitted, Error, Link, Model, Options, Over, Report, Simulation, Time};
use tidepool_sim_mpi::World;

pub struct Group {
    world: Option<World>,
    /// No other rank waits for this one if it ends now.
    free: bool,
}

/// What a run took, on all ranks together.
#[derive(Clone, Copy)]
pub struct Cost {
    pub cpu_seconds: f64,
    /// Of the rank that used most.
    pub memory_peak_bytes: u64,
}

impl Group {
    /// Does something on all ranks. Rank 0 alone tells how it ended, unless one rank alone gives up.
    pub fn run(mpi: bool, run: impl FnOnce(&mut Group) -> Result<ExitCode>) -> Result<ExitCode> {
        let join = || World::join().context(Kind::Usage, || "--mpi".to_string());
        let mut group = Group { world: if mpi { Some(join()?) } else { None }, free: false };
        let ended = run(&mut group);
        let first = group.is_first();
        let Some(world) = group.world else { return ended };
        match ended {
            Err(failure) if !group.free && world.ranks() > 1 => {
                eprintln!("tidepool: rank {} of {}: {failure}", world.rank(), world.ranks());
                world.end_all(failure.code())
            }
            ended => {
                world.leave();
                match ended {
                    Err(failure) if !first => Ok(ExitCode::from(failure.code())),
                    ended => ended,
                }
            }
        }
    }

    pub fn ranks(&self) -> usize {
        self.world.as_ref().map_or(1, World::ranks)
    }

    /// The one that tells and writes.
    pub fn is_first(&self) -> bool {
        self.world.as_ref().is_none_or(|world| world.rank() == 0)
    }

    /// What comes out the same at all ranks, for example because it depends on the command line alone.
    pub fn same<T>(&mut self, ended: Result<T>) -> Result<T> {
        self.free |= ended.is_err();
        ended
    }

    /// Takes a simulation on, here or on all ranks. `about` says which model it is.
    pub fn simulate<M: Model<State: Saved, Message: Saved, Record: Saved>>(
        &mut self,
        simulation: &mut Simulation<M>,
        until: Time,
        options: &Options<'_>,
        about: &str,
    ) -> Result<Report> {
        let ended = match &mut self.world {
            None => simulation.run(until, options),
            Some(link) => simulation.run_over(until, options, &mut Over { link, about }),
        };
        self.judged(ended)
    }

    /// The same, and the first of them gives records on.
    pub fn simulate_with<M: Model<State: Saved, Message: Saved, Record: Saved>>(
        &mut self,
        simulation: &mut Simulation<M>,
        until: Time,
        options: &Options<'_>,
        about: &str,
        sink: impl FnMut(Emitted<M::Record>) + Send,
    ) -> Result<Report> {
        let ended = match &mut self.world {
            None => simulation.run_with(until, options, sink),
            Some(link) => simulation.run_over_with(until, options, &mut Over { link, about }, sink),
        };
        self.judged(ended)
    }

    /// Does something that only several ranks do.
    pub fn together<T>(
        &mut self,
        about: &str,
        run: impl FnOnce(&mut Over<'_>) -> std::result::Result<T, Error>,
    ) -> Result<T> {
        let Some(link) = &mut self.world else {
            return Err(Failure::new(Kind::Usage, "--mpi: there are no ranks"));
        };
        let ended = run(&mut Over { link, about });
        self.judged(ended)
    }

    fn judged<T>(&mut self, ended: std::result::Result<T, Error>) -> Result<T> {
        let alone = matches!(ended, Err(Error::Ranks(_)));
        let ended = ended.context(Kind::Other, || "sim".to_string());
        if alone { ended } else { self.same(ended) }
    }

    /// The way to the other ranks, where there may be some.
    pub fn link(&mut self) -> Option<&mut World> {
        self.world.as_mut()
    }

    /// All ranks are through with what they do together.
    pub fn end(&mut self) -> Result<()> {
        self.each([])?;
        self.free = true;
        Ok(())
    }

    /// What each rank says, in the order of ranks.
    fn each<const N: usize>(&mut self, mine: [u64; N]) -> Result<Vec<[u64; N]>> {
        let Some(world) = &mut self.world else { return Ok(vec![mine]) };
        let bytes: Vec<u8> = mine.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut into = vec![bytes.clone(); world.ranks()];
        let met = world.exchange(&vec![&bytes[..]; into.len()], &mut into);
        met.context(Kind::Other, || "sim".to_string())?;
        let words = |bytes: &Vec<u8>| {
            let (words, rest) = bytes.as_chunks::<8>();
            let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            <[u64; N]>::try_from(words).ok().filter(|_| rest.is_empty())
        };
        let all: Option<Vec<_>> = into.iter().map(words).collect();
        let strange = || Failure::new(Kind::Other, "sim: another rank is at another point of the program");
        all.ok_or_else(strange)
    }

    /// Whether any rank says so.
    pub fn any(&mut self, mine: bool) -> Result<bool> {
        Ok(self.each([mine.into()])?.iter().any(|[one]| *one != 0))
    }

    /// What all ranks took, when this one took `mine`. The last thing that they do together.
    pub fn cost(&mut self, mine: Cost) -> Result<Cost> {
        let all = self.each([mine.cpu_seconds.to_bits(), mine.memory_peak_bytes])?;
        self.free = true;
        Ok(Cost {
            cpu_seconds: all.iter().map(|[cpu, _]| f64::from_bits(*cpu)).sum(),
            memory_peak_bytes: all.iter().map(|[_, memory]| *memory).max().unwrap_or(0),
        })
    }
}
