//! Tidepool's own pools: data are where the placement of clients and daemons says.

mod common;

use common::{application, class, fast_network, fixed, idle_server, station, writes};
use tidepool_placement::Placer;
use tidepool_sim::{Options, Time};
use tidepool_sim_models::pool::{PoolError, PoolLayout};
use tidepool_sim_models::striping::Layout;
use tidepool_sim_models::workload::{Ior, Mdtest, Program, Sharing};
use tidepool_sim_models::{Op, Pfs, Results, run};
use tidepool_types::{self as types, Ino};

const SERVERS: usize = 5;
const CHUNK: u64 = 65_536;

fn simulate(layout: types::Layout, weights: &[u32], near: Option<u64>, program: Program) -> Results {
    let classes = vec![class("s", SERVERS as u32, station(1, fixed(1_000)))];
    let layout = Layout::Pool(PoolLayout::new(layout, weights).unwrap());
    let mut pfs =
        Pfs::new(fast_network(50_000), idle_server(10), classes, layout, vec![application(program)]).unwrap();
    (pfs.near, pfs.keep_requests) = (near.map(Time), true);
    run(pfs, 1, &Options::default()).unwrap().1
}

fn written(results: &Results) -> Vec<u64> {
    results.servers.iter().map(|server| server.bytes_written).collect()
}

/// Record of a file: its home by the hash of its name, as daemons do it.
fn ino(file: u32, placer: &Placer) -> Ino {
    Ino::new(placer.entry_owner(Ino::ROOT, &file.to_le_bytes()), u64::from(file) + 2)
}

#[test]
fn every_chunk_is_where_the_placement_says() {
    let weights = [1, 2, 0, 3, 1];
    for layout in [
        types::Layout::wide(CHUNK, 0).unwrap(),
        types::Layout::wide(CHUNK, 3).unwrap(),
        types::Layout::weighted(CHUNK).unwrap(),
    ] {
        // Three ranks with a file each of 40 chunks, and half a chunk in each write.
        let ior = Ior {
            sharing: Sharing::PerProcess,
            block: 40 * CHUNK,
            transfer: CHUNK / 2,
            file: 7,
            ..writes(3, 1)
        };
        let results = simulate(layout, &weights, None, Program::Ior(ior));
        let used = layout.placement() == types::Placement::Weighted;
        let placer = Placer::new(SERVERS, if used { &weights } else { &[] }).unwrap();
        let mut expected = vec![0; SERVERS];
        for file in 7..10 {
            for chunk in 0..40 {
                expected[usize::from(placer.chunk_owner(ino(file, &placer), layout, chunk))] += CHUNK;
            }
        }
        assert_eq!(written(&results), expected, "{layout:?}");
    }
}

#[test]
fn local_files_are_on_their_makers_node_and_need_no_network() {
    let near = 2_000;
    let ior = Ior { sharing: Sharing::PerProcess, block: 4 * CHUNK, transfer: CHUNK, ..writes(7, 1) };
    let local = simulate(types::Layout::LOCAL, &[1; SERVERS], Some(near), Program::Ior(ior.clone()));
    // Seven ranks on five nodes: two have two.
    assert_eq!(written(&local), [2, 2, 1, 1, 1].map(|ranks| ranks * 4 * CHUNK));
    // There and back, to the device and back, the device; on two nodes behind another rank's.
    let one = 2 * near + 20 + 1_000;
    assert!(local.all.iter().all(|r| [one, one + 1_000].contains(&(r.end - r.begin))));
    let wide = simulate(types::Layout::wide(CHUNK, 0).unwrap(), &[1; SERVERS], Some(near), Program::Ior(ior));
    let own = wide.all.iter().filter(|r| r.end - r.begin < 100_000).count();
    // One chunk of five is near by chance; of 28.
    assert!((1..14).contains(&own), "{own}");
}

/// The home of a file does all that moves no data; directories have no server of their own.
#[test]
fn files_are_made_at_their_homes() {
    let (ranks, files) = (4, 20);
    let mdtest = Mdtest { ranks, files, bytes: 0, directories: Sharing::Shared, file: 0 };
    let results =
        simulate(types::Layout::wide(CHUNK, 0).unwrap(), &[1; SERVERS], None, Program::Mdtest(mdtest));
    let placer = Placer::new(SERVERS, &[]).unwrap();
    let mut expected = vec![0; SERVERS];
    // Made, closed, looked at, taken away.
    (0..ranks * files).for_each(|file| expected[usize::from(ino(file, &placer).home())] += 4);
    assert_eq!(results.servers.iter().map(|server| server.requests).collect::<Vec<_>>(), expected);
    assert_eq!(results.all.iter().filter(|r| r.op == Op::Unlink).count() as u32, ranks * files);
}

/// Two groups, of two and of three: what a rank makes lies on its node's group, chunk for chunk where the placement says.
#[test]
fn files_of_a_rank_are_on_its_nodes_group() {
    let groups = [0, 1, 1, 0, 1];
    let placer = Placer::new(SERVERS, &[]).unwrap().grouped(&groups).unwrap();
    let home = |layout, near: &[u16], file: u32| {
        let (name, owner) = (file.to_le_bytes(), placer.entry_owner(Ino::ROOT, &file.to_le_bytes()));
        Ino::new(placer.home_in_group(layout, owner, near, (Ino::ROOT, &name)), u64::from(file) + 2)
    };
    for named in [None, Some(1)] {
        let layout = types::Layout::group(CHUNK, named).unwrap();
        for sharing in [Sharing::PerProcess, Sharing::Shared] {
            let (block, transfer, ranks) = (20 * CHUNK, CHUNK, 7);
            let ior = Ior { sharing, block, transfer, file: 3, ..writes(ranks, 1) };
            let classes = vec![class("s", SERVERS as u32, station(1, fixed(1_000)))];
            let pool = Layout::Pool(PoolLayout::grouped(layout, &[1; SERVERS], &groups).unwrap());
            let applications = vec![application(Program::Ior(ior))];
            let pfs = Pfs::new(fast_network(50_000), idle_server(10), classes, pool, applications).unwrap();
            let results = run(pfs, 1, &Options::default()).unwrap().1;
            let mut expected = vec![0; SERVERS];
            for rank in 0..ranks {
                // A file that all share is made by the first rank.
                let (file, maker, first) = match sharing {
                    Sharing::PerProcess => (3 + rank, rank, 0),
                    Sharing::Shared => (3, 0, u64::from(rank) * 20),
                };
                let ino = home(layout, &[maker as u16 % SERVERS as u16], file);
                for chunk in first..first + 20 {
                    expected[usize::from(placer.chunk_owner(ino, layout, chunk))] += CHUNK;
                }
            }
            assert_eq!(written(&results), expected, "{layout} {sharing:?}");
            let of_group =
                |group| (0..SERVERS).filter(|n| groups[*n] == group).map(|n| expected[n]).sum::<u64>();
            // Ranks 0, 3 and 5 live on servers of group 0.
            let group_0 = match (named, sharing) {
                (Some(_), _) => 0,
                (None, Sharing::Shared) => 7,
                (None, Sharing::PerProcess) => 3,
            };
            assert_eq!([of_group(0), of_group(1)], [group_0, 7 - group_0].map(|files| files * 20 * CHUNK));
        }
    }
}

#[test]
fn what_is_no_pool_is_refused() {
    let wide = types::Layout::wide(CHUNK, 0).unwrap();
    assert_eq!(PoolLayout::new(wide, &[]), Err(PoolError::Members(0)));
    let on = |group| types::Layout::group(CHUNK, group).unwrap();
    assert_eq!(PoolLayout::new(on(None), &[1]), Err(PoolError::NoGroups));
    assert_eq!(PoolLayout::grouped(on(Some(2)), &[1, 1], &[0, 1]), Err(PoolError::NoSuchGroup(2)));
    assert!(matches!(PoolLayout::grouped(on(None), &[1, 1], &[0]), Err(PoolError::Groups(_))));
    let weighted = types::Layout::weighted(CHUNK).unwrap();
    assert!(matches!(PoolLayout::new(weighted, &[0, 0]), Err(PoolError::Weights(_))));
}
