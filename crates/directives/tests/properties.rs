//! Whatever a script holds is read or refused with a place in it, and directives read back as they were written.

use proptest::collection::{btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use std::num::NonZeroU64;
use std::time::Duration;
use tidepool_directives::{
    At, ChunkSize, Client, Deploy, Directives, Encryption, Flush, Fs, Lifetime, MappingText, Mode, Persist,
    PersistOp, Place, Placement, PoolRequest, Reading, Said, SlurmBuffer, Stage, TierRequest, Timeouts,
    Workflow, lines_of_options, with_lines,
};

fn said<T>(value: T) -> Said<T> {
    Said::new(value, &At::Line { line: 1, column: 1 })
}

/// A path below something, out of any bytes; `number` makes it unlike the others.
fn path(number: usize, bytes: &[u8]) -> Vec<u8> {
    let name: Vec<u8> = bytes.iter().map(|byte| if *byte == b'/' { b'_' } else { *byte }).collect();
    [format!("n{number}/x").as_bytes(), &name].concat()
}

/// Any place but one in the job's own pools.
fn place() -> impl Strategy<Value = Place> {
    let bytes = vec(1u8..=255, 0..20);
    (any::<bool>(), select(vec!["a://", "nvme0://", "é b#://", "x=1\\://"]), bytes).prop_map(
        |(plain, name, bytes)| match plain {
            true => Place::Path([b"/", path(0, &bytes).as_slice()].concat()),
            false => Place::Dataspace { name: name.into(), path: path(0, &bytes) },
        },
    )
}

fn mapping() -> impl Strategy<Value = MappingText> {
    let known =
        ["replicate", "scatter", "scatter:p \"{rank}#", "gather", "gather:é{node}", "file:/m capacity=1"];
    select(known.to_vec()).prop_map(|text| text.parse().unwrap())
}

fn stages() -> impl Strategy<Value = Vec<Said<Stage>>> {
    let one = (place(), vec(1u8..=255, 0..20), of(mapping()));
    vec(one, 0..4).prop_map(|all| {
        let each = all.into_iter().enumerate().map(|(number, (origin, bytes, mapping))| {
            let destination = Place::Dataspace { name: "b://".into(), path: path(number, &bytes) };
            said(Stage { origin: said(origin), destination: said(destination), mapping: mapping.map(said) })
        });
        each.collect()
    })
}

fn persist() -> impl Strategy<Value = Said<Persist>> {
    let ops = vec![PersistOp::Store, PersistOp::Delete, PersistOp::Share, PersistOp::Unshare];
    let user = "[^\\x00-\\x20=\\x7f-\\x9f]{1,10}";
    let times = of(1..520 * 7 * 86_400u64);
    (select(ops), place(), user, any::<bool>(), times).prop_map(|(op, location, user, named, seconds)| {
        let user = (named || matches!(op, PersistOp::Share | PersistOp::Unshare)).then(|| said(user));
        let expires = seconds.filter(|_| op == PersistOp::Store).map(Duration::from_secs);
        said(Persist { op, location: said(location), user, expires })
    })
}

fn layout() -> impl Strategy<Value = (Option<Placement>, Option<ChunkSize>, Option<u16>)> {
    prop_oneof![
        Just((None, None, None)),
        Just((Some(Placement::Local), None, None)),
        Just((Some(Placement::Group), Some(ChunkSize::Auto), None)),
        (any::<u16>(), 12..25u32).prop_map(|(stripe, bits)| (
            Some(Placement::Wide),
            Some(ChunkSize::Bytes(1 << bits)),
            Some(stripe)
        )),
    ]
}

fn tiers() -> impl Strategy<Value = TierRequest> {
    let of_tiers = (
        select(vec![(true, false), (false, true), (true, true)]),
        "/[^\\x00/.][^\\x00/]{0,6}",
        of(select(vec!["hp", "ia", "model"])),
        of(select(vec![Flush::Strategy, Flush::Idle])),
        of(any::<bool>()),
        of(1u64..=1 << 60),
        of((1..=u64::MAX).prop_map(|bytes| NonZeroU64::new(bytes).unwrap())),
    );
    let some =
        of_tiers.prop_map(|((burst, pfs), dir, strategy, flush, no_local, phase_bytes, link_bandwidth)| {
            TierRequest {
                burst: burst.then(|| format!("/b{dir}")),
                pfs: pfs.then(|| format!("/p{dir}")),
                strategy: strategy.map(String::from),
                flush,
                no_local,
                phase_bytes,
                link_bandwidth,
            }
        });
    prop_oneof![Just(TierRequest::default()), some]
}

fn pool() -> impl Strategy<Value = PoolRequest> {
    let modes = select(vec![Mode::Posix, Mode::Relaxed, Mode::Compat]);
    let clients = select(vec![Client::Auto, Client::Fuse, Client::Preload]);
    let deploys = select(vec![Deploy::Shared, Deploy::Subset(3), Deploy::Dedicated(7)]);
    let encryptions = select(vec![Encryption::Off, Encryption::Full]);
    let tidepool = (of(1u64..), of(modes), layout(), of(Just(Fs::Tidepool)), of(encryptions), tiers());
    let tidepool =
        tidepool.prop_map(|(size, mode, (placement, chunk_size, stripe), fs, encrypt, tiers)| PoolRequest {
            size: size.map(said),
            mode,
            placement,
            chunk_size,
            stripe,
            fs,
            encrypt,
            tiers,
            ..PoolRequest::default()
        });
    let other = prop_oneof![Just(Fs::Local), "[^\\x00]{1,8}".prop_map(Fs::Script)];
    let other = other.prop_map(|fs| PoolRequest { fs: Some(fs), ..PoolRequest::default() });
    let lifetimes = select(vec![Lifetime::Job, Lifetime::Campaign]);
    (prop_oneof![tidepool, other], of(8usize..=100_000), of(deploys), of(clients), of(lifetimes)).prop_map(
        |(pool, nodes, deploy, client, lifetime)| {
            let nodes = nodes.filter(|_| pool.fs != Some(Fs::Local));
            PoolRequest { nodes, deploy, client, lifetime, ..pool }
        },
    )
}

fn pools() -> impl Strategy<Value = Vec<Said<PoolRequest>>> {
    let named =
        (btree_set("[a-z0-9_][a-zA-Z0-9._-]{0,9}", 0..4), vec(pool(), 4)).prop_map(|(names, pools)| {
            let each = names.into_iter().zip(pools);
            each.map(|(name, pool)| said(PoolRequest { name: Some(said(name)), ..pool })).collect()
        });
    // Without a name it ends with its job.
    let own = pool().prop_map(|pool| vec![said(PoolRequest { lifetime: None, ..pool })]);
    prop_oneof![named, own]
}

fn workflow() -> impl Strategy<Value = Workflow> {
    prop_oneof![
        Just(Workflow::default()),
        (of("[a-z0-9_][a-zA-Z0-9._-]{0,39}"), any::<bool>()).prop_map(|(name, end)| Workflow {
            start: true,
            name,
            end,
            ..Workflow::default()
        }),
        (btree_set(1u32.., 1..5), any::<bool>(), any::<bool>()).prop_map(|(prior, end, same_nodes)| {
            Workflow { prior: prior.into_iter().map(said).collect(), end, same_nodes, ..Workflow::default() }
        }),
    ]
}

fn directives() -> impl Strategy<Value = Directives> {
    let time = || of((1u64..=2_073_600).prop_map(Duration::from_secs));
    let slurm = vec(("[a-zA-Z0-9.]{1,6}", "[a-z=#]{0,3}[a-z]"), 0..2);
    let rest = (any::<bool>(), time(), time(), (of(1u32..), of(1u32..), of(1u32..=i32::MAX as u32)), slurm);
    let items = (stages(), stages(), vec(persist(), 0..4), workflow(), pools());
    (items, rest).prop_map(|((stage_in, stage_out, persist, workflow, pools), rest)| {
        let (reserve, in_time, out_time, (resume, discard, end_pool), slurm) = rest;
        let slurm = slurm.into_iter().map(|(capacity, pool)| said(SlurmBuffer { capacity, pool }));
        Directives {
            stage_in,
            stage_out,
            persist,
            workflow,
            pools,
            reserve,
            timeouts: Timeouts { stage_in: in_time, stage_out: out_time },
            resume: resume.map(said),
            discard: discard.map(said),
            end_pool: end_pool.map(said),
            slurm: slurm.collect(),
        }
    })
}

/// Everything that is told has a place in the script, at most one column behind the end of a line.
fn assert_inside(script: &[u8]) {
    let lines: Vec<usize> =
        script.split(|b| *b == b'\n').map(|line| String::from_utf8_lossy(line).chars().count()).collect();
    let reading = Reading::of(script);
    for told in reading.problems.iter().chain(&reading.warnings) {
        let At::Line { line, column } = told.at else { panic!("{told}") };
        assert!((1..=lines.len()).contains(&line), "{told}");
        assert!((1..=lines[line - 1] + 1).contains(&column), "{told}");
    }
    assert_eq!(Directives::parse(script).is_ok(), reading.problems.is_empty());
}

/// Parts of directives, near enough to right ones to get far.
fn near_script() -> impl Strategy<Value = Vec<u8>> {
    let parts = [
        "#NORNS ",
        "#TIDEPOOL ",
        "\n#NORNS ",
        "\n",
        " ",
        "\\\n#NORNS ",
        "\\\n",
        "\\",
        "\"",
        "#",
        "# NORNS",
        "é",
        "\u{7f}",
        "stage_in ",
        "stage_out ",
        "persist ",
        "store ",
        "share ",
        "pool ",
        "size=",
        "10GiB ",
        "nodes=",
        "3 ",
        "fs=",
        "script:x ",
        "timeout ",
        "stage_in=",
        "2h ",
        "resume ",
        "discard ",
        "end-pool ",
        "7 ",
        "workflow-start ",
        "workflow-prior-dependency ",
        "workflow-end ",
        "workflow-same-nodes ",
        "reserve ",
        "a://x ",
        "/b ",
        "pool://p ",
        "..",
        "/",
        "$X",
        "capacity=",
        "pool=",
        "scatter:{rank} ",
        "<<E\n",
        "E\n",
        "\r\n",
        "\0",
        "\t",
    ];
    let part = prop_oneof![
        20 => select(parts.to_vec()).prop_map(|part| part.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..4),
    ];
    vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn directives_read_back_as_they_were_written(all in directives()) {
        let lines = all.to_lines();
        let script = format!("#!/bin/sh\n{}\nsrun ./a.out\n", lines.join("\n"));
        let read = Directives::parse(script.as_bytes());
        let (read, _) = read.map_err(|problems| TestCaseError::fail(format!("{script}{problems:?}")))?;
        prop_assert_eq!(&read, &all);
        prop_assert_eq!(read.to_lines(), lines);
    }

    #[test]
    fn any_bytes_are_a_script_or_refused_with_places_in_it(script in vec(any::<u8>(), 0..200)) {
        assert_inside(&script);
    }

    #[test]
    fn nearly_right_scripts_are_refused_with_places_in_them(script in near_script()) {
        assert_inside(&script);
    }

    #[test]
    fn what_is_read_in_nearly_right_scripts_reads_back(script in near_script()) {
        if let Ok((all, _)) = Directives::parse(&script) {
            let lines = all.to_lines().join("\n");
            prop_assert_eq!(Directives::parse(lines.as_bytes()).map(|(read, _)| read), Ok(all));
        }
    }

    #[test]
    fn options_make_lines_that_are_read(value in "([a-z]{0,6}=?[0-9a-zA-Z]{0,4}|size=1|nodes=2|\"|#| |,|\\PC){0,8}") {
        for option in ["tidepool", "workflow-start", "workflow-prior-dependency", "workflow-end"] {
            match lines_of_options(&[(option, &value)]) {
                Ok(lines) => {
                    let script = with_lines(b"#!/bin/sh\n#NORNS workflow-prior-dependency 4000000000\n", &lines);
                    let script = if option == "workflow-start" { with_lines(b"", &lines) } else { script };
                    prop_assert_eq!(Directives::parse(&script).err(), None);
                }
                Err(problems) => {
                    for problem in problems {
                        let At::Option { column, .. } = problem.at else { panic!("{problem}") };
                        prop_assert!(column <= value.chars().count() + 1);
                    }
                }
            }
        }
    }
}
