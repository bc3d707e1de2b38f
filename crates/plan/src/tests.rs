use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

const GB: u64 = 1_000_000_000;

/// A node with `/tmp` on its system disk and a fast disk at `/local`.
fn facts(tmp_bytes: u64, local: Option<(&str, u64)>) -> Facts {
    let fs = |target: &str, disk: &str, kind: &str, bytes: u64| json!({"target": target, "kind": "xfs", "disk": disk, "disk_kind": kind, "read_only": false, "available_bytes": bytes});
    let mut all = vec![fs("/", "sda", "hdd", tmp_bytes), fs("/dev/shm", "", "memory", 900 * GB)];
    all[1]["kind"] = json!("tmpfs");
    all.extend(local.map(|(kind, bytes)| fs("/local", "nvme0n1", kind, bytes)));
    Facts::of([("filesystems", &json!({ "filesystems": all }))])
}

fn node(number: usize, facts: Option<Facts>) -> Node {
    Node { name: format!("n{number}"), facts, leaf: None, writable: vec!["/local".into()] }
}

fn machine(nodes: Vec<Node>) -> Machine {
    Machine {
        nodes,
        user: 1000,
        daemons_here: None,
        launcher: Launcher::Ssh { fan_out: 8 },
        oversubscription: None,
    }
}

/// Nodes that are alike.
fn alike(count: usize, facts: &Facts) -> Machine {
    machine((0..count).map(|n| node(n, Some(facts.clone()))).collect())
}

fn with_records(facts: &Facts, records: &[(&str, Value)]) -> Facts {
    let more = Facts::of(records.iter().map(|(name, data)| (*name, data)));
    let Facts { disks, interfaces, numa, rates, peers, strange, .. } = more;
    Facts { filesystems: facts.filesystems.clone(), disks, interfaces, numa, rates, peers, strange }
}

fn rates(path: &str, write: f64, read: f64) -> (&'static str, Value) {
    let spread = |median: f64| json!({"median": median, "min": median, "max": median});
    (
        "storage-rates",
        json!({"stores": [{"path": path, "public": true, "write": spread(write), "read": spread(read)}]}),
    )
}

fn plan(machine: &Machine, job: &Job) -> Plan {
    Plan::make(machine, job, &Asked::default()).unwrap()
}

fn pattern(sharing: Sharing) -> Pattern {
    Pattern { sharing: Some(sharing), ..Pattern::default() }
}

#[test]
fn g10_the_store_is_the_fastest_disk_of_all_nodes_that_has_room() {
    let both = facts(500 * GB, Some(("nvme", 1000 * GB)));
    let chosen = |machine: &Machine, bytes| plan(machine, &Job { bytes, ..Job::default() }).store;
    let store = chosen(&alike(4, &both), None);
    assert_eq!((store.value.as_str(), store.basis), ("/local", Basis::Recorded), "{}", store.why);
    // One node without it: nobody has it.
    let mut mixed = alike(4, &both);
    mixed.nodes[2].facts = Some(facts(500 * GB, None));
    assert_eq!(chosen(&mixed, None).value, "/tmp");
    // A node that its owner may not write to.
    let mut closed = alike(4, &both);
    closed.nodes[3].writable.clear();
    assert_eq!(chosen(&closed, None).value, "/tmp");
    // Too small for the job's data, of which each node gets a quarter.
    let small = alike(4, &facts(500 * GB, Some(("nvme", 10 * GB))));
    assert_eq!(chosen(&small, Some(36 * GB)).value, "/local");
    assert_eq!(chosen(&small, Some(37 * GB)).value, "/tmp");
    // Memory is never taken without being asked for.
    let memory_only = alike(2, &facts(GB, None));
    assert_eq!(chosen(&memory_only, Some(500 * GB)).value, "/tmp");
    // Nothing is known.
    let store = chosen(&machine(vec![node(0, None), node(1, Some(both))]), None);
    assert_eq!((store.value.as_str(), store.basis), ("/tmp", Basis::Usual));
}

#[test]
fn measured_rates_count_more_than_kinds() {
    let both = facts(500 * GB, Some(("nvme", 1000 * GB)));
    let measured = |tmp: f64, local: f64| {
        let (name, mut data) = rates("/tmp", tmp, tmp);
        data["stores"].as_array_mut().unwrap().push(rates("/local", local, local).1["stores"][0].clone());
        with_records(&both, &[(name, data)])
    };
    let store = plan(&alike(2, &measured(9e8, 3e8)), &Job::default()).store;
    assert_eq!((store.value.as_str(), store.basis), ("/tmp", Basis::Measured), "{}", store.why);
    assert_eq!(plan(&alike(2, &measured(3e8, 9e8)), &Job::default()).store.value, "/local");
    // Measured by somebody who may write there, where the job's owner may not.
    let measured_by = |uid: u32| {
        let mut facts = measured(3e8, 9e8);
        let local = facts.rates.iter_mut().find(|rate| rate.path == "/local").unwrap();
        (local.public, local.uid) = (false, Some(uid));
        let mut two = alike(2, &facts);
        two.nodes.iter_mut().for_each(|node| node.writable.clear());
        plan(&two, &Job::default()).store.value
    };
    assert_eq!((measured_by(0).as_str(), measured_by(1000).as_str()), ("/tmp", "/local"));
    // Not measured everywhere: kinds count.
    let mut partly = alike(2, &measured(9e8, 3e8));
    partly.nodes[1].facts = Some(both);
    assert_eq!(plan(&partly, &Job::default()).store.value, "/local");
}

#[test]
fn a12_files_of_single_processes_stay_on_their_node_or_their_switch() {
    let mut four = alike(4, &facts(500 * GB, None));
    for (at, node) in four.nodes.iter_mut().enumerate() {
        node.leaf = Some(format!("leaf{}", at / 2));
    }
    four.oversubscription = Some(2.0);
    let own = Job { pattern: pattern(Sharing::Own), ..Job::default() };
    assert_eq!(plan(&four, &own).placement.value, Placement::Local);
    // One node that stages all in would have it all.
    let staged = Job { stage_in: Some(GB), ..own.clone() };
    let grouped = plan(&four, &staged);
    assert_eq!(grouped.placement.value, Placement::Group);
    assert_eq!(grouped.groups.value, ["leaf0", "leaf0", "leaf1", "leaf1"]);
    let full = Job { bytes: Some(2000 * GB), ..own.clone() };
    assert_eq!(plan(&four, &full).placement.value, Placement::Group, "more than a node has");
    // A network that is as wide above as below needs no groups; nor do shared files profit.
    let fat = Machine { oversubscription: Some(1.0), ..four.clone() };
    assert_eq!(plan(&fat, &staged).placement.value, Placement::Wide);
    let shared = Job { pattern: pattern(Sharing::Shared), ..Job::default() };
    assert_eq!(plan(&four, &shared).placement.value, Placement::Wide);
    assert_eq!(plan(&four, &Job::default()).placement.value, Placement::Wide);
    // Asked for without names: the switches.
    let asked = Asked { placement: Some(Placement::Group), ..Asked::default() };
    let plan = Plan::make(&four, &Job::default(), &asked).unwrap();
    assert_eq!(plan.groups.value, ["leaf0", "leaf0", "leaf1", "leaf1"]);
}

#[test]
fn a10_nodes_get_chunks_in_turn() {
    let stripe = |machine: &Machine| plan(machine, &Job::default()).stripe.value;
    assert_eq!(stripe(&alike(4, &facts(500 * GB, None))), 4);
    assert_eq!(stripe(&alike(1, &facts(500 * GB, None))), 0);
    let four = alike(4, &facts(500 * GB, None));
    let with = |asked: Asked| Plan::make(&four, &Job::default(), &asked).unwrap().stripe.value;
    assert_eq!(with(Asked { stripe: Some(0), ..Asked::default() }), 0);
    assert_eq!(with(Asked { placement: Some(Placement::Wide), ..Asked::default() }), 4);
    assert_eq!(with(Asked { weights: vec![1, 2, 3, 4], ..Asked::default() }), 0);
}

#[test]
fn a15_on_one_machine_files_are_not_cut() {
    let here = |daemons| Machine { daemons_here: Some(daemons), ..alike(1, &facts(500 * GB, None)) };
    let placement =
        |daemons, asked| Plan::make(&here(daemons), &Job::default(), &asked).unwrap().placement.value;
    assert_eq!(placement(4, Asked::default()), Placement::Local);
    assert_eq!(placement(1, Asked::default()), Placement::Wide);
    assert_eq!(placement(4, Asked { quota: Some(GB), ..Asked::default() }), Placement::Wide);
    assert_eq!(placement(4, Asked { quota: Some(0), ..Asked::default() }), Placement::Local);
    assert_eq!(placement(4, Asked { chunk_size: Some(4096), ..Asked::default() }), Placement::Wide);
    assert_eq!(placement(4, Asked { stripe: Some(0), ..Asked::default() }), Placement::Wide);
    let of = |sharing, transfer| {
        let pattern = Pattern { transfer: Some(transfer), ..pattern(sharing) };
        plan(&here(4), &Job { pattern, ..Job::default() }).placement.value
    };
    assert_eq!(of(Sharing::Shared, 1 << 20), Placement::Wide);
    let cpu = json!({"numa": [{"node": 0, "cpus": "0-1"}]});
    let two_cores = with_records(&facts(500 * GB, None), &[("cpu", cpu)]);
    let here_too = Machine { daemons_here: Some(4), ..alike(1, &two_cores) };
    let large = |transfer| {
        let pattern = Pattern { transfer: Some(transfer), ..pattern(Sharing::Shared) };
        let plan = plan(&here_too, &Job { pattern, ..Job::default() });
        (plan.chunk_size.value, plan.stripe.value)
    };
    assert_eq!(large(1 << 20), (1 << 20, 2));
    assert_eq!((large(3 << 19), large(64 << 20)), ((1 << 20, 2), (4 << 20, 2)));
    assert_eq!(of(Sharing::Shared, 8192), Placement::Local);
    assert_eq!(of(Sharing::Own, 1 << 20), Placement::Local);
}

#[test]
fn g10_uneven_nodes_get_weights() {
    let of = |write: f64| with_records(&facts(500 * GB, None), &[rates("/tmp", write, write)]);
    let uneven = machine(vec![node(0, Some(of(4e8))), node(1, Some(of(1e8))), node(2, Some(of(2e8)))]);
    let chosen = plan(&uneven, &Job::default());
    assert_eq!((chosen.placement.value, chosen.weights.value), (Placement::Weighted, vec![100, 25, 50]));
    let even = machine(vec![node(0, Some(of(4.0e8))), node(1, Some(of(3.5e8)))]);
    assert_eq!(plan(&even, &Job::default()).placement.value, Placement::Wide);
    // By room, only where the data would not fit otherwise.
    let sizes = machine(vec![node(0, Some(facts(100 * GB, None))), node(1, Some(facts(300 * GB, None)))]);
    let chosen = |bytes| plan(&sizes, &Job { bytes: Some(bytes), ..Job::default() });
    assert_eq!(chosen(150 * GB).placement.value, Placement::Wide);
    let weighted = chosen(300 * GB);
    assert_eq!(
        (weighted.placement.value, &weighted.weights.value[..]),
        (Placement::Weighted, &[33, 100][..])
    );
    assert_eq!(weighted.room.fits(), Some(true));
    let over = chosen(400 * GB);
    assert_eq!(over.room.fits(), Some(false));
    assert!(over.warnings.iter().any(|w| w.contains("do not fit")), "{:?}", over.warnings);
}

#[test]
fn w18_room_is_checked_before_the_job() {
    let two = alike(2, &facts(100 * GB, None));
    let room = |job: &Job, asked: &Asked| Plan::make(&two, job, asked).unwrap().room;
    let job = Job { bytes: Some(180 * GB), ..Job::default() };
    assert_eq!(room(&job, &Asked::default()).fits(), Some(true));
    let more = Job { bytes: Some(180 * GB + 2), ..Job::default() };
    assert_eq!(room(&more, &Asked::default()).fits(), Some(false));
    let quota = Asked { quota: Some(170 * GB), ..Asked::default() };
    let limited = room(&job, &quota);
    assert_eq!((limited.fits(), limited.tightest.as_deref()), (Some(false), Some("the quota")));
    // What is staged in has to fit, even if nothing was said of the rest.
    assert_eq!(
        room(&Job { stage_in: Some(190 * GB), ..Job::default() }, &Asked::default()).fits(),
        Some(false)
    );
    assert_eq!(room(&Job::default(), &Asked::default()).fits(), None);
    // A daemon with weight 0 takes no data.
    let weights = Asked { weights: vec![1, 0], ..Asked::default() };
    assert_eq!(room(&job, &weights).available, Some(90 * GB));
}

#[test]
fn g10_daemons_go_where_their_disk_is() {
    let numa = json!({"numa": [{"node": 0, "cpus": "0-3"}, {"node": 1, "cpus": "4-5,8"}]});
    let disks = |at: Value| json!({"disks": [{"name": "sda", "numa_node": at}]});
    let of = |at| with_records(&facts(500 * GB, None), &[("cpu", numa.clone()), ("disks", disks(at))]);
    let mut mixed = machine(vec![node(0, Some(of(json!(1)))), node(1, Some(of(Value::Null)))]);
    let cores = plan(&mixed, &Job::default()).cores;
    assert_eq!((cores.value, cores.basis), (vec![vec![4, 5, 8], vec![]], Basis::Recorded));
    let asked = Asked { cores: Some(vec![2]), ..Asked::default() };
    assert_eq!(Plan::make(&mixed, &Job::default(), &asked).unwrap().cores.value, [[2], [2]]);
    mixed.nodes[1].facts = None;
    assert_eq!(plan(&mixed, &Job::default()).cores.value, [[0u16; 0]; 2]);
}

#[test]
fn g10_the_interface_is_the_fastest_of_every_node() {
    let of = |speeds: &[(&str, u64)]| {
        let interface = |(name, speed): &(&str, u64)| json!({"name": name, "kind": "ethernet", "megabits_per_second": speed, "up": true, "driver": "x", "numa_node": null});
        let all: Vec<Value> = speeds.iter().map(interface).collect();
        with_records(&facts(500 * GB, None), &[("network", json!({ "interfaces": all }))])
    };
    let nic = |one: &[(&str, u64)], other: &[(&str, u64)]| {
        let two = machine(vec![node(0, Some(of(one))), node(1, Some(of(other)))]);
        plan(&two, &Job::default()).nic.value
    };
    let both: &[(&str, u64)] = &[("eth0", 1000), ("eth1", 25_000)];
    assert_eq!(nic(both, both).as_deref(), Some("eth1"));
    assert_eq!(nic(both, &[("eth0", 1000), ("eth1", 1000)]), None);
    assert_eq!(nic(both, &[("eth1", 25_000)]), None, "where there is one, its name leads to it");
    assert_eq!(nic(&[("eth0", 20_000), ("eth1", 25_000)], both), None);
}

#[test]
fn a16_nodes_that_programs_do_not_need_keep_data() {
    let four = alike(4, &facts(100 * GB, None));
    let deploy = |needed| plan(&four, &Job { program_nodes: Some(needed), ..Job::default() }).deploy.value;
    assert_eq!(deploy(3), Deploy::Dedicated(1));
    assert_eq!((deploy(4), deploy(9), deploy(0)), (Deploy::Shared, Deploy::Shared, Deploy::Shared));
    let job = Job { program_nodes: Some(3), bytes: Some(91 * GB), ..Job::default() };
    assert_eq!(plan(&four, &job).room.fits(), Some(false), "one node keeps it all");
}

#[test]
fn copies_to_each_nodes_own_storage_are_as_fast_as_the_slowest() {
    let fast = with_records(&facts(500 * GB, Some(("nvme", 1000 * GB))), &[rates("/local", 2e9, 4e9)]);
    let slow = with_records(&facts(500 * GB, Some(("ssd", 100 * GB))), &[rates("/local", 1e9, 2e9)]);
    let both = machine(vec![node(0, Some(fast.clone())), node(1, Some(slow))]);
    let copied = both.own_copy("/local/case", Some(10 * GB), true);
    assert_eq!((copied.seconds, copied.basis), (Some(10.0), Basis::Measured), "{}", copied.why);
    assert_eq!(both.own_copy("/local", Some(10 * GB), false).seconds, Some(5.0));
    assert_eq!(both.own_room("/local/case"), Some((90 * GB, "n1")));
    let half = machine(vec![node(0, Some(fast)), node(1, None)]);
    assert_eq!((half.own_copy("/local", Some(GB), true).seconds, half.own_room("/local")), (None, None));
    assert_eq!(both.own_copy("/local", None, true).seconds, None);
}

#[test]
fn a17_costs_are_a_share_of_the_wall_time() {
    let nvme = facts(0, Some(("nvme", 1000 * GB)));
    let network = json!({"interfaces": [{"name": "eth0", "kind": "ethernet", "megabits_per_second": 100_000, "up": true, "driver": "x", "numa_node": null}]});
    let two = alike(2, &with_records(&nvme, &[("network", network)]));
    let job = Job {
        stage_in: Some(400 * GB),
        stage_out: Some(0),
        walltime: Some(Duration::from_secs(1000)),
        ..Job::default()
    };
    let costs = plan(&two, &job).costs;
    // Two stores of 2 GB/s each; half of the data goes over a link of 11.25 GB/s.
    assert_eq!(costs.stage_in.seconds, Some(100.0), "{}", costs.stage_in.why);
    assert!(costs.stage_in.why.contains("the stores take"), "{}", costs.stage_in.why);
    assert_eq!((costs.stage_in.basis, costs.stage_out.seconds), (Basis::Assumed, Some(0.0)));
    let start = costs.start.seconds.unwrap();
    assert_eq!(costs.share, Some((100.0 + start) / 1000.0));
    let warned = |walltime| {
        let job = Job { walltime: Some(Duration::from_secs(walltime)), ..job.clone() };
        plan(&two, &job).warnings.iter().any(|w| w.contains("may not be worth it"))
    };
    assert!(warned(600) && !warned(86_400));
    // A slow network instead.
    let slow = json!({"interfaces": [{"name": "eth0", "kind": "ethernet", "megabits_per_second": 1000, "up": true, "driver": "x", "numa_node": null}]});
    let two = alike(2, &with_records(&nvme, &[("network", slow)]));
    let costs = plan(&two, &job).costs;
    assert!(costs.stage_in.why.contains("the network takes"), "{}", costs.stage_in.why);
    assert!((costs.stage_in.seconds.unwrap() - 200e9 / 112.5e6).abs() < 0.01);
    // Nothing known: no figure is made up.
    let costs = plan(&machine(vec![node(0, None)]), &job).costs;
    assert_eq!((costs.stage_in.seconds, costs.partial), (None, true));
}

#[test]
fn contradictions_are_refused() {
    let one = alike(1, &facts(GB, None));
    let make = |asked: Asked| Plan::make(&one, &Job::default(), &asked);
    let local = Some(Placement::Local);
    let cut = make(Asked { placement: local, chunk_size: Some(4096), ..Asked::default() });
    assert_eq!(cut.unwrap_err(), LayoutError::LocalIsNotCut);
    let striped = make(Asked { placement: local, stripe: Some(2), ..Asked::default() });
    assert_eq!(striped.unwrap_err(), LayoutError::StripeNeedsWide(Placement::Local));
    let odd = make(Asked { chunk_size: Some(5000), ..Asked::default() });
    assert_eq!(odd.unwrap_err(), LayoutError::ChunkSize(5000));
    let asked = make(Asked { stripe: Some(3), chunk_size: Some(1 << 20), ..Asked::default() }).unwrap();
    assert_eq!(asked.layout(), Layout::wide(1 << 20, 3));
}

#[test]
fn plans_are_told_to_people_and_programs() {
    let told = plan(&alike(2, &facts(100 * GB, None)), &Job { bytes: Some(GB), ..Job::default() });
    let rows = told.rows();
    assert!(rows.iter().all(|row| !row.why.is_empty() && row.flag.starts_with("--")));
    let json = told.json();
    assert_eq!(json["chunk_size"]["value"], 512 << 10);
    assert_eq!(json["room"]["fits"], true);
    assert_eq!(json["placement"]["basis"], "usual");
}

fn any_facts() -> impl Strategy<Value = Option<Facts>> {
    let kinds = prop_oneof![Just("nvme"), Just("ssd"), Just("hdd"), Just("virtual"), Just("odd")];
    let rate = prop_oneof![Just(None), (1.0f64..1e11).prop_map(Some)];
    let some = (0u64..2000 * GB, kinds, 0u64..2000 * GB, rate).prop_map(|(tmp, kind, local, rate)| {
        let facts = facts(tmp, Some((kind, local)));
        match rate {
            Some(rate) => with_records(&facts, &[rates("/tmp", rate, rate)]),
            None => facts,
        }
    });
    proptest::option::weighted(0.8, some)
}

prop_compose! {
    fn any_machine()(
        known in proptest::collection::vec((any_facts(), proptest::option::of(0u8..3)), 1..9),
        here in proptest::option::of(1usize..5),
        oversubscription in proptest::option::of(0.5f64..8.0),
    ) -> Machine {
        let nodes = known.into_iter().enumerate().map(|(at, (facts, leaf))| Node {
            leaf: leaf.map(|leaf| format!("leaf{leaf}")),
            ..node(at, facts)
        });
        let mut nodes: Vec<Node> = nodes.collect();
        if here.is_some() {
            nodes.truncate(1);
        }
        Machine { daemons_here: here, oversubscription, ..machine(nodes) }
    }
}

proptest! {
    /// Whatever is known, a plan can be carried out: its layout is one, its lists have the right lengths. And a plan that
    /// says the data fit is right: shared out as it says, no node gets more than it can give.
    #[test]
    fn plans_can_be_carried_out(
        machine in any_machine(),
        bytes in proptest::option::of(0u64..8000 * GB),
        stage_in in proptest::option::of(0u64..100 * GB),
        own in proptest::option::of(any::<bool>()),
        program_nodes in proptest::option::of(0usize..9),
    ) {
        let sharing = own.map(|own| if own { Sharing::Own } else { Sharing::Shared });
        let job = Job { bytes, stage_in, pattern: Pattern { sharing, ..Pattern::default() }, program_nodes, ..Job::default() };
        let plan = Plan::make(&machine, &job, &Asked::default()).unwrap();
        let with_daemons = match plan.deploy.value {
            Deploy::Shared => machine.nodes.len(),
            Deploy::Subset(n) | Deploy::Dedicated(n) => n,
        };
        let each = machine.daemons_here.unwrap_or(1);
        prop_assert!(with_daemons >= 1 && with_daemons <= machine.nodes.len());
        prop_assert!(plan.layout().is_ok());
        prop_assert_eq!(plan.cores.value.len(), with_daemons);
        for count in [plan.weights.value.len(), plan.groups.value.len()] {
            prop_assert!(count == 0 || count == with_daemons * each);
        }
        prop_assert_eq!(plan.placement.value == Placement::Weighted, !plan.weights.value.is_empty());
        prop_assert_eq!(plan.placement.value == Placement::Group, !plan.groups.value.is_empty());
        if plan.room.fits() == Some(true) {
            let needed = bytes.max(stage_in).unwrap() as f64;
            let weight = |daemon: usize| f64::from(plan.weights.value.get(daemon).copied().unwrap_or(1));
            let total: f64 = (0..with_daemons * each).map(weight).sum();
            for (at, node) in machine.nodes[..with_daemons].iter().enumerate() {
                let own: f64 = (at * each..(at + 1) * each).map(weight).sum();
                let free = node.facts.as_ref().unwrap().filesystem_of(&plan.store.value).unwrap().available_bytes;
                prop_assert!(needed * own / total <= free as f64, "{}", node.name);
            }
        }
    }
}

#[test]
fn deployments_are_read_as_they_are_written() {
    for text in ["shared", "subset:2", "dedicated:1"] {
        assert_eq!(text.parse::<Deploy>().unwrap().to_string(), text);
    }
    for bad in ["", "subset", "subset:0", "shared:1", "dedicated:x"] {
        assert!(bad.parse::<Deploy>().is_err(), "{bad}");
    }
}
