//! Ranks as threads of one process: links of channels.

use std::sync::mpsc::{Receiver, Sender, channel};
use tidepool_sim::{Link, LinkError};

/// Changes what this rank gives another one in the call with this number.
pub type Tamper = Box<dyn FnMut(u64, &mut Vec<u8>) + Send>;

pub struct Local {
    rank: usize,
    calls: u64,
    /// By rank; that of this one is not used.
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    pub tamper: Tamper,
}

/// A link for each of so many ranks.
pub fn links(ranks: usize) -> Vec<Local> {
    let mut from: Vec<Vec<_>> = (0..ranks).map(|_| Vec::new()).collect();
    let mut to: Vec<Vec<_>> = (0..ranks).map(|_| Vec::new()).collect();
    for sends in &mut to {
        for receives in &mut from {
            let (sender, receiver) = channel();
            sends.push(sender);
            receives.push(receiver);
        }
    }
    let ends = to.into_iter().zip(from).enumerate();
    ends.map(|(rank, (to, from))| Local { rank, calls: 0, to, from, tamper: Box::new(|_, _| ()) }).collect()
}

impl Link for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn exchange(&mut self, out: &[&[u8]], into: &mut [Vec<u8>]) -> Result<(), LinkError> {
        let gone = |rank| LinkError(format!("rank {rank} is gone"));
        self.calls += 1;
        for (rank, (to, out)) in self.to.iter().zip(out).enumerate().filter(|(rank, _)| *rank != self.rank) {
            let mut bytes = out.to_vec();
            (self.tamper)(self.calls, &mut bytes);
            to.send(bytes).map_err(|_| gone(rank))?;
        }
        for (rank, (from, into)) in
            self.from.iter().zip(into).enumerate().filter(|(rank, _)| *rank != self.rank)
        {
            *into = from.recv().map_err(|_| gone(rank))?;
        }
        Ok(())
    }
}

/// What each rank comes to.
pub fn on_ranks<T: Send>(
    links: Vec<Local>,
    run: impl Fn(&mut Local) -> T + Sync,
) -> Vec<std::thread::Result<T>> {
    std::thread::scope(|scope| {
        let run = &run;
        let all: Vec<_> = links.into_iter().map(|mut link| scope.spawn(move || run(&mut link))).collect();
        all.into_iter().map(|rank| rank.join()).collect()
    })
}
