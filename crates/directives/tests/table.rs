//! Good and bad lines, with what is told of them and where (`docs/formats/21-directives.md`).

use std::num::NonZeroU64;
use std::time::Duration;
use tidepool_directives::{
    ChunkSize, Client, DEPENDENCIES_MAX, DIRECTIVES_MAX, Deploy, Directives, Encryption, Flush, Fs,
    LINE_BYTES_MAX, Lifetime, Mapping, Mode, PROBLEMS_MAX, PersistOp, Place, Placement, Reading,
    SCRIPT_BYTES_MAX, TierRequest, WORDS_MAX, with_lines,
};

/// What is told of a script whose first line is `#!/bin/sh`.
fn problems(lines: &[u8]) -> Vec<String> {
    let reading = Reading::of(&[b"#!/bin/sh\n", lines].concat());
    reading.problems.iter().map(ToString::to_string).collect()
}

fn warnings(lines: &str) -> Vec<String> {
    let reading = Reading::of(format!("#!/bin/sh\n{lines}").as_bytes());
    assert_eq!(reading.problems, [], "{lines}");
    reading.warnings.iter().map(ToString::to_string).collect()
}

fn parse(script: &str) -> Directives {
    Directives::parse(script.as_bytes()).unwrap_or_else(|problems| panic!("{script}: {problems:?}")).0
}

fn place(text: &str) -> Place {
    Place::parse(text.as_bytes()).unwrap()
}

const NONE: [&str; 0] = [];
const WHOLE: &str = "\
#!/bin/bash
#SBATCH --nodes=4
# Everything that can be said.

#NORNS capacity=10GB pool=nvme
#TIDEPOOL pool name=fast size=10GiB nodes=4 deploy=dedicated:1 mode=relaxed chunk-size=1MiB placement=wide stripe=2 \\
#TIDEPOOL   client=preload encrypt=off lifetime=workflow   # goes on
#TIDEPOOL pool name=own fs=\"script:/opt/make fs\" deploy=shared client=auto
#TIDEPOOL pool name=deep burst=/bb/ana \"pfs=/work/my data\" strategy=hp flush=idle no-local=yes phase-bytes=1GB link-bandwidth=117MB
#NORNS stage_in lustre://in nvme0://in scatter:processor{rank}
#TIDEPOOL stage_in \"/scratch/ana/with blank\" fast://in
#NORNS\tstage_out nvme0://out lustre://out gather:from-{node}
#NORNS stage_out fast://out /scratch/ana/out file:/scratch/ana/map
#NORNS persist store nvme0://keep expires=42d
#NORNS persist share nvme0://keep bob
#NORNS workflow-prior-dependency 12, 13,14 \\
#NORNS 15
#NORNS workflow-same-nodes
#NORNS workflow-end
#TIDEPOOL reserve
#TIDEPOOL timeout stage_in=30s stage_out=2h
#TIDEPOOL resume 11
#TIDEPOOL end-pool 3
srun ./solver
";

#[test]
fn pools_are_read() {
    let all = parse(WHOLE);
    let [fast, own, deep] = all.pools.as_slice() else { panic!("{:?}", all.pools) };
    assert_eq!(fast.at.to_string(), "line 6, column 11");
    assert_eq!((fast.size.as_ref().unwrap().value, fast.nodes), (10 << 30, Some(4)));
    assert_eq!((fast.deploy, fast.mode), (Some(Deploy::Dedicated(1)), Some(Mode::Relaxed)));
    assert_eq!((fast.chunk_size, fast.stripe), (Some(ChunkSize::Bytes(1 << 20)), Some(2)));
    assert_eq!((fast.placement, fast.client), (Some(Placement::Wide), Some(Client::Preload)));
    assert_eq!((fast.encrypt, own.encrypt), (Some(Encryption::Off), None));
    assert_eq!((fast.lifetime, fast.fs.as_ref()), (Some(Lifetime::Workflow), None));
    assert_eq!(fast.dataspace(), "fast://");
    assert_eq!(own.fs, Some(Fs::Script("/opt/make fs".into())));
    let tiers = TierRequest {
        burst: Some("/bb/ana".into()),
        pfs: Some("/work/my data".into()),
        strategy: Some("hp".into()),
        flush: Some(Flush::Idle),
        no_local: Some(true),
        phase_bytes: Some(1_000_000_000),
        link_bandwidth: NonZeroU64::new(117_000_000),
    };
    assert_eq!((&deep.tiers, own.tiers.is_any()), (&tiers, false));
}

#[test]
fn staging_and_locations_are_read() {
    let all = parse(WHOLE);
    let [a, b] = all.stage_in.as_slice() else { panic!("{:?}", all.stage_in) };
    let by_rank = Mapping::ScatterByRank { before: "processor".into(), after: String::new() };
    assert_eq!((&a.origin.value, &a.destination.value), (&place("lustre://in"), &place("nvme0://in")));
    assert_eq!(a.mapping.as_ref().unwrap().value, by_rank);
    assert_eq!(b.origin.value, place("/scratch/ana/with blank"));
    assert_eq!((b.destination.at.to_string(), b.mapping.as_ref()), ("line 11, column 46".into(), None));
    let [c, d] = all.stage_out.as_slice() else { panic!("{:?}", all.stage_out) };
    assert_eq!(c.mapping.as_ref().unwrap().to_string(), "gather:from-{node}");
    assert_eq!(d.mapping.as_ref().unwrap().value, Mapping::File("/scratch/ana/map".to_string()));
    let [store, share] = all.persist.as_slice() else { panic!("{:?}", all.persist) };
    assert_eq!((store.op, store.user.as_ref()), (PersistOp::Store, None));
    assert_eq!(store.expires, Some(Duration::from_secs(42 * 86_400)));
    assert_eq!((share.op, share.user.as_ref().unwrap().value.as_str()), (PersistOp::Share, "bob"));
}

#[test]
fn the_rest_is_read() {
    let (all, warnings) = Directives::parse(WHOLE.as_bytes()).unwrap();
    assert_eq!(warnings, []);
    let prior: Vec<u32> = all.workflow.prior.iter().map(|job| job.value).collect();
    assert_eq!(prior, [12, 13, 14, 15]);
    assert_eq!(all.workflow.prior[3].at.to_string(), "line 17, column 8");
    assert!(all.workflow.end && all.workflow.same_nodes && !all.workflow.start && all.reserve);
    assert_eq!(all.timeouts.stage_in, Some(Duration::from_secs(30)));
    assert_eq!(all.timeouts.stage_out, Some(Duration::from_secs(7200)));
    assert_eq!(all.resume.as_ref().unwrap().value, 11);
    assert_eq!(all.end_pool.as_ref().unwrap().value, 3);
    assert_eq!((all.slurm[0].capacity.as_str(), all.slurm[0].pool.as_str()), ("10GB", "nvme"));
}

#[test]
fn the_canonical_lines_are_pinned() {
    let lines = parse(WHOLE).to_lines();
    assert_eq!(
        lines,
        [
            "#NORNS capacity=10GB pool=nvme",
            "#TIDEPOOL pool name=fast size=10GiB nodes=4 deploy=dedicated:1 mode=relaxed chunk-size=1MiB placement=wide stripe=2 client=preload encrypt=off lifetime=workflow",
            "#TIDEPOOL pool name=own deploy=shared client=auto fs=\"script:/opt/make fs\"",
            "#TIDEPOOL pool name=deep burst=/bb/ana pfs=\"/work/my data\" strategy=hp flush=idle no-local=yes phase-bytes=1000000000 link-bandwidth=117000000",
            "#NORNS stage_in lustre://in nvme0://in \"scatter:processor{rank}\"",
            "#NORNS stage_in \"/scratch/ana/with blank\" fast://in",
            "#NORNS stage_out nvme0://out lustre://out \"gather:from-{node}\"",
            "#NORNS stage_out fast://out /scratch/ana/out file:/scratch/ana/map",
            "#NORNS persist store nvme0://keep expires=6w",
            "#NORNS persist share nvme0://keep bob",
            "#NORNS workflow-prior-dependency 12 13 14 15",
            "#NORNS workflow-same-nodes",
            "#NORNS workflow-end",
            "#TIDEPOOL reserve",
            "#TIDEPOOL timeout stage_in=30s stage_out=2h",
            "#TIDEPOOL resume 11",
            "#TIDEPOOL end-pool 3",
        ]
    );
    assert_eq!(parse(&lines.join("\n")), parse(WHOLE));
    let start = "#NORNS workflow-start run-7\n#TIDEPOOL pool chunk-size=auto\n";
    assert_eq!(parse(start).to_lines(), ["#TIDEPOOL pool chunk-size=auto", "#NORNS workflow-start run-7"]);
    let hidden = "#TIDEPOOL stage_in a://x?capacity=1 b://y\n";
    assert_eq!(parse(hidden).to_lines(), ["#NORNS stage_in \"a://x?capacity\\x3D1\" b://y"]);
}

#[test]
fn what_programs_get_is_pinned() {
    let text = "#TIDEPOOL pool size=1KiB chunk-size=auto deploy=subset:2 fs=tidepool placement=wide pfs=/p strategy=ia no-local=no\n\
        #NORNS stage_in \"lustre://\\xFF\" pool://in replicate\n#NORNS persist unshare a://k bob\n\
        #NORNS workflow-start w\n#TIDEPOOL timeout stage_in=2m\n";
    let expected = [
        r#"{"stage_in":[{"origin":"lustre://�","destination":"pool://in","mapping":"replicate"}],"stage_out":[],"#,
        r#""persist":[{"op":"unshare","location":"a://k","user":"bob","expires":null}],"#,
        r#""workflow":{"start":true,"name":"w","prior":[],"end":false,"same_nodes":false},"#,
        r#""pools":[{"name":null,"size":1024,"nodes":null,"deploy":"subset:2","mode":null,"chunk_size":"auto","#,
        r#""placement":"wide","stripe":null,"client":null,"encrypt":null,"lifetime":null,"fs":"tidepool","#,
        r#""burst":null,"pfs":"/p","strategy":"ia","flush":null,"no_local":false,"phase_bytes":null,"link_bandwidth":null}],"#,
        r#""reserve":false,"timeouts":{"stage_in":120,"stage_out":null},"resume":null,"discard":null,"end_pool":null,"slurm":[]}"#,
    ];
    assert_eq!(serde_json::to_string(&parse(text)).unwrap(), expected.concat());
    let problem = &Reading::of(b"#NORNS pol").problems[0];
    let json = r#"{"line":1,"column":8,"message":"unknown directive 'pol'","suggestion":"pool"}"#;
    assert_eq!(serde_json::to_string(problem).unwrap(), json);
}

const DIRECTIVES: &str = "stage_in, stage_out, persist, workflow-start, workflow-prior-dependency, workflow-end, \
    workflow-same-nodes, pool, reserve, timeout, resume, discard, end-pool";
const KEYS: &str = "size, nodes, deploy, mode, chunk-size, placement, stripe, client, encrypt, lifetime, name, fs, burst, pfs, \
    strategy, flush, no-local, phase-bytes, link-bandwidth";
const MAPPINGS: &str =
    "replicate, scatter, scatter:PATTERN with {rank}, gather, gather:NAME with {node}, file:PATH";
const SIZE: &str = "write a whole number with an optional unit, such as 4096, 512KiB or 1GB";

/// One mistake each: the lines, and all that is told. `DIRECTIVES` and so on stand for the texts above.
const BAD: &[(&str, &str)] = &[
    // Directives.
    ("#NORNS stage_inn a://x b://y", "2, 8: unknown directive 'stage_inn'; did you mean 'stage_in'?"),
    ("#TIDEPOOL  Pool", "2, 12: unknown directive 'Pool'; did you mean 'pool'?"),
    ("#NORNS size=1GiB", "2, 8: unknown directive 'size=1GiB'; did you mean 'pool size=1GiB'?"),
    ("#NORNS stage_in=9m", "2, 8: unknown directive 'stage_in=9m'; did you mean 'timeout stage_in=9m'?"),
    ("#NORNS frobnicate", "2, 8: unknown directive 'frobnicate'; there are DIRECTIVES"),
    ("#NORNS", "2, 1: no directive follows '#NORNS'; there are DIRECTIVES"),
    ("#TIDEPOOL # pool", "2, 1: no directive follows '#TIDEPOOL'; there are DIRECTIVES"),
    // Staging.
    ("#NORNS stage_in", "2, 16: the origin is missing"),
    ("#NORNS stage_in a://x  # b://y", "2, 31: the destination is missing"),
    (
        "#NORNS stage_in in a://y",
        "2, 17: 'in' is no place: write DATASPACE://PATH, or a path that starts with '/'",
    ),
    (
        "#NORNS stage_in lustre:/in b://y",
        "2, 17: 'lustre:/in' is no place: write DATASPACE://PATH, or a path that starts with '/'; did you mean 'lustre://in'?",
    ),
    (
        "#NORNS stage_out $NVME0/out b://y",
        "2, 18: '$NVME0/out' is no place: no variable is expanded here; did you mean 'nvme0://out'?",
    ),
    (
        "#NORNS stage_in n1:42000/a://x b://y",
        "2, 17: 'n1:42000/a://x' is at another stager; scripts name dataspaces only; did you mean 'a://x'?",
    ),
    ("#NORNS stage_in ://x b://y", "2, 17: the dataspace has no name in '://x'"),
    ("#NORNS stage_in a://x/../../y b://y", "2, 17: 'a://x/../../y' has '..' in it; write where it leads"),
    ("#NORNS stage_in /x/.. b://y", "2, 17: '/x/..' has '..' in it; write where it leads"),
    (
        "#NORNS stage_in a://x b://y sctter",
        "2, 29: 'sctter' is no mapping: it is not known; there are MAPPINGS",
    ),
    (
        "#NORNS stage_in a://x b://y scatter:{node}",
        "2, 29: 'scatter:{node}' is no mapping: its pattern has no {rank}; there are MAPPINGS",
    ),
    (
        "#NORNS stage_in a://x b://y file:map",
        "2, 29: 'file:map' is no mapping here: the file's path has to start with '/'",
    ),
    ("#NORNS stage_in a://x b://y scatter now", "2, 37: 'now' is one word too many"),
    ("#NORNS stage_out a://x a:///x/", "2, 24: 'a:///x/' is also the origin"),
    (
        "#NORNS stage_in a://x b://y\n#NORNS stage_in c://x b:///./y",
        "3, 23: 'b:///./y' is the destination of two copies; the other is in line 2, column 23",
    ),
    (
        "#NORNS stage_out a://x b://y\n#NORNS stage_out c://x b://y",
        "3, 24: 'b://y' is the destination of two copies; the other is in line 2, column 24",
    ),
    // Locations.
    ("#NORNS persist", "2, 15: store, delete, share or unshare is missing"),
    ("#NORNS persist store", "2, 21: the location is missing"),
    (
        "#NORNS persist stor a://x",
        "2, 16: 'stor' is none of store, delete, share, unshare; did you mean 'store'?",
    ),
    ("#NORNS persist store a://./", "2, 22: 'a://./' is all of it; name what is kept there"),
    ("#NORNS persist share a://x", "2, 27: the user is missing"),
    ("#NORNS persist share a://x bob eve", "2, 32: 'eve' is one word too many"),
    ("#NORNS persist share a://x \"b b\"", "2, 28: a user's name has 1 to 256 bytes, no blanks and no '='"),
    ("#NORNS persist share a://x b=b", "2, 28: a user's name has 1 to 256 bytes, no blanks and no '='"),
    ("#NORNS persist store a://x expires=", "2, 28: 'expires=' has no value"),
    ("#NORNS persist store a://x bob expire=6w", "2, 32: unknown key 'expire'; did you mean 'expires'?"),
    ("#NORNS persist store a://x expires=6w bob", "2, 39: 'bob' is one word too many"),
    (
        "#NORNS persist store a://x expires=6w expires=7w",
        "2, 39: 'expires' is there twice; the first is in line 2, column 28",
    ),
    ("#NORNS persist delete a://x expires=6w", "2, 29: 'expires=' is for 'persist store'"),
    ("#NORNS persist store a://x expires=0d", "2, 28: a time is at least 1s"),
    ("#NORNS persist store a://x expires=521w", "2, 28: '521w' is longer than 520w"),
    (
        "#NORNS persist store a://x expires=42",
        "2, 28: '42' is no time; write a whole number and s, m, h, d or w, such as 6w",
    ),
    ("#NORNS persist share a://x \"\\xFF\"", "2, 28: '\\xff' is no UTF-8 text"),
    // Workflows.
    (
        "#NORNS workflow-start my/flow",
        "2, 23: 'my/flow' is no name of a workflow: use up to 40 letters, digits, '-', '_' and '.'",
    ),
    ("#NORNS workflow-start\n#NORNS workflow-end now", "3, 21: 'now' is one word too many"),
    ("#NORNS workflow-prior-dependency", "2, 33: the number of a job is missing"),
    ("#NORNS workflow-prior-dependency ,", "2, 35: the number of a job is missing"),
    ("#NORNS workflow-prior-dependency 1,x", "2, 34: 'x' is no number of a job"),
    ("#NORNS workflow-prior-dependency 0", "2, 34: '0' is no number of a job"),
    ("#NORNS workflow-prior-dependency 12_3", "2, 34: '12_3' is no number of a job"),
    ("#NORNS workflow-prior-dependency 7 8 7", "2, 38: job 7 is there twice"),
    (
        "#NORNS workflow-start\n#NORNS workflow-prior-dependency 7",
        "2, 8: the job that starts a workflow comes after no other; this one does in line 3, column 8",
    ),
    ("#NORNS workflow-same-nodes", "2, 8: the nodes of which job? 'workflow-prior-dependency' names it"),
    ("#NORNS workflow-end", "2, 8: the end of which workflow? 'workflow-prior-dependency' names a job of it"),
    (
        "#NORNS workflow-start\n#NORNS workflow-start",
        "3, 8: 'workflow-start' is there twice; the first is in line 2, column 8",
    ),
    // Pools.
    ("#TIDEPOOL pool sise=1GiB", "2, 16: unknown key 'sise'; did you mean 'size'?"),
    ("#TIDEPOOL pool encrypt=ful", "2, 16: 'ful' is neither 'off' nor 'full'; did you mean 'full'?"),
    (
        "#TIDEPOOL pool encrypt=auth",
        "2, 16: there is no 'auth': proofs without encryption take longer than encryption does; say 'full'",
    ),
    (
        "#TIDEPOOL pool fs=local encrypt=full",
        "2, 25: 'encrypt' is for fs=tidepool, not for fs=local; leave one of the two away",
    ),
    ("#TIDEPOOL pool colour=red", "2, 16: unknown key 'colour'; the keys are KEYS"),
    (
        "#TIDEPOOL pool 10GiB",
        "2, 16: '10GiB' is not KEY=VALUE; the keys are KEYS; did you mean 'size=10GiB'?",
    ),
    ("#TIDEPOOL pool node", "2, 16: 'node' is not KEY=VALUE; the keys are KEYS; did you mean 'nodes=...'?"),
    ("#TIDEPOOL pool size=", "2, 16: 'size=' has no value"),
    (
        "#TIDEPOOL pool size=1 mode=posix size=2",
        "2, 34: 'size' is there twice; the first is in line 2, column 16",
    ),
    ("#TIDEPOOL pool size=1.5GiB", "2, 16: '1.5GiB' is not a size: fractions are not accepted; SIZE"),
    ("#TIDEPOOL pool size=-1", "2, 16: '-1' is not a size: it does not start with a digit; SIZE"),
    ("#TIDEPOOL pool size=10XB", "2, 16: '10XB' is not a size: the unit is unknown; SIZE"),
    (
        "#TIDEPOOL pool size=99999999TiB",
        "2, 16: '99999999TiB' is not a size: it is larger than 2^64 bytes; SIZE",
    ),
    ("#TIDEPOOL pool size=0", "2, 16: a pool of 0 bytes holds nothing"),
    ("#TIDEPOOL pool nodes=0", "2, 16: '0' is no number from 1 to 100000"),
    ("#TIDEPOOL pool nodes=two", "2, 16: 'two' is no number from 1 to 100000"),
    (
        "#TIDEPOOL pool deploy=subset",
        "2, 16: deploy 'subset': write shared, subset:N or dedicated:N, with N nodes for daemons",
    ),
    ("#TIDEPOOL pool deploy=subset:3 nodes=2", "2, 16: daemons on 3 nodes are too many for a pool on 2"),
    (
        "#TIDEPOOL pool nodes=2 deploy=dedicated:2",
        "2, 24: of 2 nodes, 2 for daemons alone leave none for programs",
    ),
    ("#TIDEPOOL pool mode=strict", "2, 16: 'strict' is none of posix, relaxed, compat"),
    (
        "#TIDEPOOL pool chunk-size=3MiB",
        "2, 16: 3145728 bytes: a chunk is 4KiB, 8KiB, 16KiB ... (a power of two), at most 16MiB",
    ),
    (
        "#TIDEPOOL pool chunk-size=big",
        "2, 16: 'big' is not a size: it does not start with a digit; SIZE, or auto",
    ),
    (
        "#TIDEPOOL pool placement=wyde",
        "2, 16: 'wyde' is none of wide, local, weighted, group; did you mean 'wide'?",
    ),
    (
        "#TIDEPOOL pool placement=local chunk-size=1MiB",
        "2, 32: files with placement 'local' are not cut into chunks; leave the chunk size away",
    ),
    (
        "#TIDEPOOL pool stripe=2 placement=group",
        "2, 16: a stripe is for placement 'wide', not 'group'; leave one of the two away",
    ),
    ("#TIDEPOOL pool stripe=65536", "2, 16: stripe '65536': write a number from 0 to 65535"),
    ("#TIDEPOOL pool stripe=+1", "2, 16: stripe '+1': write a number from 0 to 65535"),
    ("#TIDEPOOL pool client=fusee", "2, 16: 'fusee' is none of auto, fuse, preload; did you mean 'fuse'?"),
    ("#TIDEPOOL pool lifetime=ever", "2, 16: 'ever' is none of job, workflow, campaign"),
    (
        "#TIDEPOOL pool name=a/b",
        "2, 16: 'a/b' is no pool name: use up to 40 letters, digits, '-', '_' and '.'",
    ),
    ("#TIDEPOOL pool fs=gpfs", "2, 16: 'gpfs' is none of tidepool, local, script:PROGRAM"),
    ("#TIDEPOOL pool fs=script:", "2, 16: 'script:' is none of tidepool, local, script:PROGRAM"),
    (
        "#TIDEPOOL pool fs=local mode=compat",
        "2, 25: 'mode' is for fs=tidepool, not for fs=local; leave one of the two away",
    ),
    ("#TIDEPOOL pool nodes=2 fs=local", "2, 16: fs=local is a directory of one node"),
    ("#TIDEPOOL pool brust=/b", "2, 16: unknown key 'brust'; did you mean 'burst'?"),
    (
        "#TIDEPOOL pool burst=scratch strategy=ia",
        "2, 16: 'scratch' does not start with '/'; write the directory's whole path",
    ),
    (
        "#TIDEPOOL pool pfs=$SCRATCH",
        "2, 16: '$SCRATCH': no variable is expanded here; write the directory's whole path",
    ),
    ("#TIDEPOOL pool pfs=/work/../x", "2, 16: '/work/../x' has '..' in it; write where it leads"),
    (
        "#TIDEPOOL pool pfs=/p strategy=fcsf",
        "2, 23: 'fcsf' is none of baseline, hp, ia, fcfs, set10, fair, model; did you mean 'fcfs'?",
    ),
    ("#TIDEPOOL pool pfs=/p flush=always", "2, 23: 'always' is none of strategy, idle"),
    (
        "#TIDEPOOL pool strategy=ia",
        "2, 16: 'strategy' is for pools with shared storage: name it with pfs=, burst= or both",
    ),
    ("#TIDEPOOL pool pfs=/p phase-bytes=0", "2, 23: a phase of 0 bytes is none"),
    ("#TIDEPOOL pool pfs=/p link-bandwidth=0", "2, 23: a link of 0 bytes a second carries nothing"),
    (
        "#TIDEPOOL pool pfs=/p phase-bytes=2.5GB",
        "2, 23: '2.5GB' is not a size: fractions are not accepted; SIZE",
    ),
    (
        "#TIDEPOOL pool no-local=yes",
        "2, 16: 'no-local' is for pools with shared storage: name it with pfs=, burst= or both",
    ),
    (
        "#TIDEPOOL pool strategy=baseline burst=/b",
        "2, 16: strategy=baseline uses the parallel file system only; name it with pfs=",
    ),
    (
        "#TIDEPOOL pool burst=/b pfs=/./b/",
        "2, 25: '/./b/' is the burst buffer, too; leave one of the two away",
    ),
    (
        "#TIDEPOOL pool fs=local burst=/b",
        "2, 25: 'burst' is for fs=tidepool, not for fs=local; leave one of the two away",
    ),
    (
        "#TIDEPOOL pool name=a lifetime=workflow",
        "2, 11: lifetime=workflow is for jobs of a workflow: use 'workflow-start', or 'workflow-prior-dependency'",
    ),
    (
        "#TIDEPOOL pool lifetime=campaign\n#TIDEPOOL pool name=b",
        "2, 11: a pool that outlives its job needs a name, by which other jobs find it: name=NAME",
    ),
    ("#TIDEPOOL pool name=a\n#TIDEPOOL pool", "3, 11: each of several pools needs a name: name=NAME"),
    (
        "#TIDEPOOL pool name=a\n#TIDEPOOL pool name=a",
        "3, 16: two pools are called 'a'; the other is in line 2, column 16",
    ),
    (
        "#NORNS stage_in a://x pool://in",
        "2, 23: the job has no pool for 'pool://in': there is no 'pool' line",
    ),
    (
        "#TIDEPOOL pool name=fast\n#NORNS stage_out pool://out a://x",
        "3, 18: the job's pool is 'fast://'; did you mean 'fast://out'?",
    ),
    (
        "#TIDEPOOL pool name=a\n#TIDEPOOL pool name=b\n#NORNS stage_in c://x pool://x",
        "4, 23: the job has several pools: use the name of one of them",
    ),
    // The rest.
    (
        "#TIDEPOOL reserve\n#TIDEPOOL reserve\n#NORNS stage_in a://x b://x",
        "3, 11: 'reserve' is there twice; the first is in line 2, column 11",
    ),
    ("#TIDEPOOL timeout", "2, 18: stage_in=TIME or stage_out=TIME is missing"),
    ("#TIDEPOOL timeout stage=1h", "2, 19: unknown key 'stage'; did you mean 'stage_in'?"),
    (
        "#TIDEPOOL timeout stage_in=10",
        "2, 19: '10' is no time; write a whole number and s, m, h or d, such as 10m",
    ),
    ("#TIDEPOOL timeout stage_in=25d", "2, 19: '25d' is longer than 24d"),
    ("#TIDEPOOL resume", "2, 17: the number of a job is missing"),
    ("#TIDEPOOL discard", "2, 18: the number of a job is missing"),
    ("#TIDEPOOL resume 1 2", "2, 20: '2' is one word too many"),
    ("#TIDEPOOL end-pool", "2, 19: the number of a pool is missing"),
    (
        "#TIDEPOOL end-pool scratch",
        "2, 20: 'scratch' is no number of a pool; 'tidepool slurm pools' tells them",
    ),
    (
        "#TIDEPOOL end-pool 1\n#TIDEPOOL end-pool 2",
        "3, 11: 'end-pool' is there twice; the first is in line 2, column 11",
    ),
    ("#NORNS capacity=10GB", "2, 21: Slurm needs pool= as well"),
    ("#NORNS pool=nvme", "2, 17: Slurm needs capacity= as well"),
    ("#NORNS capacity=1 pool=\"a b\"", "2, 19: this is for Slurm, which knows no quotation marks"),
    ("#NORNS capacity=1 pool=a size=2", "2, 26: unknown key 'size'; the keys are capacity, pool"),
    // Words and lines.
    ("#NORNS stage_in \"a://x", "2, 17: this quotation does not end"),
    (
        "#NORNS stage_in \"a://é\\q\" b://x",
        "2, 23: after a backslash comes \", \\, n, t, or x and two hexadecimal digits other than 00",
    ),
    ("#TIDEPOOL pool mode=\u{1b}[31m", "2, 16: '\\u{1b}[31m' is none of posix, relaxed, compat"),
    ("#NORNS stage_in a://\0 b://x", "2, 21: a word has no zero bytes"),
    (
        "#NORNS stage_in a://é \\\n#NORNS   b://y here",
        "3, 16: 'here' is no mapping: it is not known; there are MAPPINGS",
    ),
    ("#NORNS stage_in a://é \\\n#NORNS", "3, 7: the destination is missing"),
    (
        "#NORNS stage_in a://x \\\nb://y",
        "2, 23: the next line has to start with '#NORNS' as well, because of this '\\'",
    ),
    (
        "#NORNS stage_in a://é \\\n\n#NORNS workflow-start",
        "2, 23: the next line has to start with '#NORNS' as well, because of this '\\'",
    ),
    (
        "#NORNS stage_in a://x \\\n#TIDEPOOL pool",
        "2, 23: the next line has to start with '#NORNS' as well, because of this '\\'",
    ),
    (
        "#NORNS stage_in a://x b://x \\",
        "2, 29: the next line has to start with '#NORNS' as well, because of this '\\'",
    ),
    ("#NORNS stage_in a://x \\ \n", "2, 23: this '\\' joins nothing: blanks follow it; remove them"),
    (
        "#NORNS workflow-start \r\n",
        "2, 23: this line ends with a carriage return, and sbatch refuses scripts with such lines; dos2unix converts it",
    ),
    // Below the header.
    (
        "echo\n#NORNS stage_in a://x b://y",
        "3, 1: this '#NORNS' would be ignored: Slurm reads directives above line 2 only, the first that is no comment; move it up",
    ),
    (
        "  \n#TIDEPOOL pool",
        "3, 1: this '#TIDEPOOL' would be ignored: Slurm reads directives above line 2 only, which has blanks and so is not empty; move it up",
    ),
    (
        "cat <<A\nB\n#NORNS fine\nA\necho $((1<<n))\ncat <<-'E'\n\tE\n#NORNS late",
        "9, 1: this '#NORNS' would be ignored: Slurm reads directives above line 2 only, the first that is no comment; move it up",
    ),
];

#[test]
fn each_mistake_is_told_with_its_place() {
    let mut wrong = Vec::new();
    for (lines, expected) in BAD {
        let (place, text) = expected.split_once(": ").unwrap();
        let text = text.replace("DIRECTIVES", DIRECTIVES).replace("KEYS", KEYS);
        let text = text.replace("MAPPINGS", MAPPINGS).replace("SIZE", SIZE);
        let expected = format!("line {}: {text}", place.replace(", ", ", column "));
        let told = problems(lines.as_bytes());
        if told != [expected.as_str()] {
            wrong.push(format!("{lines}\n  expected {expected}\n  told     {told:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_mistakes_are_told_at_once_and_in_order() {
    let told = problems(
        b"#NORNS stage_in x y z\n#TIDEPOOL pool size=x nodes=x\n#NORNS persist sell bar 1 2\n#NORNS workflow-same-nodes\necho\n#NORNS late\n",
    );
    let places: Vec<&str> = told.iter().filter_map(|text| text.split(": ").next()).collect();
    let expected = [(2, 17), (2, 19), (2, 21), (3, 16), (3, 23), (4, 16), (4, 21), (4, 27), (7, 1)];
    assert_eq!(places, expected.map(|(line, column)| format!("line {line}, column {column}")));
}

#[test]
fn bytes_that_are_no_text_are_refused_in_directives_alone() {
    let told = problems(&["#NORNS stage_in a://é".as_bytes(), b"\xff b://x\n"].concat());
    assert_eq!(told, ["line 2, column 22: here is something that is no UTF-8 text"]);
    assert_eq!(problems(b"# \xff\n#NORNS workflow-start\necho \xff\n"), NONE);
}

#[test]
fn long_directives_are_refused() {
    let long = format!("#NORNS stage_in a://x{} \\\n#NORNS b://x\n#NORNS pol", "y".repeat(LINE_BYTES_MAX));
    assert_eq!(
        problems(long.as_bytes()),
        [
            "line 2, column 1: a directive has at most 65536 bytes",
            "line 4, column 8: unknown directive 'pol'; did you mean 'pool'?"
        ]
    );
    let many = format!("#NORNS stage_in{}", " a://x".repeat(WORDS_MAX));
    assert_eq!(problems(many.as_bytes()), ["line 2, column 1: a directive has at most 2000 words"]);
    let joints = "\\\n#NORNS             ".repeat(LINE_BYTES_MAX / 18);
    let joined = format!("#NORNS stage_in {joints}\n#NORNS x");
    assert_eq!(
        problems(joined.as_bytes()),
        [
            "line 2, column 1: a directive has at most 65536 bytes".to_string(),
            format!(
                "line {}, column 8: unknown directive 'x'; there are {DIRECTIVES}",
                LINE_BYTES_MAX / 18 + 3
            )
        ]
    );
}

#[test]
fn many_directives_jobs_and_problems_are_refused() {
    let stages = |n: usize| (0..n).map(|n| format!("#NORNS stage_in a://x b://{n}\n")).collect::<String>();
    assert_eq!(problems(stages(DIRECTIVES_MAX).as_bytes()), NONE);
    let expected = format!("line {}, column 1: a script has at most 1000 directives", DIRECTIVES_MAX + 2);
    assert_eq!(problems(stages(DIRECTIVES_MAX + 2).as_bytes()), [expected]);
    let jobs: String = (1..=DEPENDENCIES_MAX + 1).map(|job| format!(" {job}")).collect();
    let told = problems(format!("#NORNS workflow-prior-dependency{jobs}").as_bytes());
    assert_eq!(told, ["line 2, column 3927: a job depends on at most 1000 others"]);
    let told = problems("#NORNS x\n".repeat(PROBLEMS_MAX + 7).as_bytes());
    assert_eq!(told.len(), PROBLEMS_MAX);
    assert_eq!(told[PROBLEMS_MAX - 1], "line 101, column 8: there is more: only 99 are told");
    let told = problems(&vec![b'\n'; SCRIPT_BYTES_MAX]);
    assert_eq!(told, ["line 1, column 1: a script has at most 67108864 bytes"]);
}

#[test]
fn comments_that_look_like_directives_are_told() {
    for (line, meant) in [
        ("# NORNS stage_in a b", "#NORNS stage_in"),
        ("#norns stage_in a b", "#NORNS stage_in"),
        ("#norns", "#NORNS"),
        ("#NORN stag_in", "#NORNS stag_in"),
        ("#TIDEPOL pool", "#TIDEPOOL pool"),
        ("#NORNSstage_in a b", "#NORNS stage_in"),
        ("#NORNS: pool size=1", "#NORNS pool"),
        ("#  tidepool size=1GiB", "#TIDEPOOL size=1GiB"),
        ("#NORNS\u{a0}pool", "#NORNS pool"),
    ] {
        let text = format!("this is a comment, not a directive: '{line}'; did you mean '{meant}'?");
        assert_eq!(warnings(line), [format!("line 2, column 1: {text}")]);
    }
    let indented = warnings("  #NORNS stage_in a b");
    assert_eq!(
        indented,
        ["line 2, column 3: '#NORNS' is read in the first column only: blanks stand before it"]
    );
    let comments = "#\n".repeat(9_998);
    assert_eq!(warnings(&format!("{comments}#norns")).len(), 1);
    assert_eq!(warnings(&format!("{comments}#\n#norns")), NONE);
    for plain in [
        "# The Norns decide what stage we are in",
        "# Tidepool pool of four nodes",
        "# norns stages data",
        "#NORM of the vector",
        "#TIDEPOOL_DIR=/x srun ./a.out",
        "#SBATCH -N 1",
        "#",
        "echo '#NORNS stage_in'",
    ] {
        assert_eq!(warnings(plain), NONE, "{plain}");
    }
}

#[test]
fn what_is_odd_is_told() {
    for (lines, expected) in [
        ("#TIDEPOOL reserve", "line 2, column 11: nodes are reserved for stage_in, and nothing is staged in"),
        (
            "#TIDEPOOL timeout stage_out=1h",
            "line 2, column 11: there is a time for stage_out, and no stage_out",
        ),
        (
            "#NORNS stage_in /scratch/$USER/in a://x",
            "line 2, column 17: no variable is expanded here: '/scratch/$USER/in' is taken as it stands",
        ),
        (
            "#NORNS stage_in a://capacity=1 b://x",
            "line 2, column 17: Slurm takes 'capacity=' for its own, wherever it stands; write it as \"capacity\\x3D\", in quotation marks",
        ),
    ] {
        assert_eq!(warnings(lines), [expected]);
    }
    for fine in [
        "#TIDEPOOL stage_in a://capacity=1 b://x",
        "#NORNS capacity=1GB pool=nvme",
        "#NORNS stage_in a://cost$ b://5$",
        "#TIDEPOOL resume 7\n#TIDEPOOL timeout stage_out=1h",
    ] {
        assert_eq!(warnings(fine), NONE, "{fine}");
    }
}

#[test]
fn scripts_without_directives_ask_for_nothing() {
    for script in
        ["", "\n", "#!/bin/sh", "echo", "\\", "#\\\n", "#!/bin/sh\n\n# x\nsrun a\n# NORNS was here\n"]
    {
        assert_eq!(parse(script), Directives::default(), "{script}");
    }
}

#[test]
fn only_the_first_component_of_a_heterogeneous_job_has_directives() {
    let script = "#!/bin/sh\n#NORNS workflow-start\n#SBATCH hetjob\n#SBATCH --nodes=2\n";
    assert!(parse(script).workflow.start);
    let more = with_lines(format!("{script}true\n").as_bytes(), &["#TIDEPOOL reserve".into()]);
    let more = String::from_utf8(more).unwrap();
    assert!(parse(&more).reserve && more.find("reserve") < more.find("hetjob"), "{more}");
    assert_eq!(
        problems(b"#NORNS workflow-start\n#SBATCH  PackJob\n\n#TIDEPOOL pool\ntrue\n"),
        [
            "line 5, column 1: this '#TIDEPOOL' stands below '#SBATCH hetjob' in line 3: only the first component of a job may have directives; move it up"
        ]
    );
    for other in ["#SBATCH --comment=hetjob", "#SBATCHhetjob", "# SBATCH hetjob", "#SBATCH hetjobs"] {
        assert_eq!(problems(format!("{other}\n#TIDEPOOL pool\n").as_bytes()), NONE, "{other}");
    }
}
