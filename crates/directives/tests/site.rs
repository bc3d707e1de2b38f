//! Directives against what a site has, and options of the command that submits a job.

use std::borrow::Cow;
use tidepool_directives::{
    DataspaceKind, Directives, LINE_BYTES_MAX, OPTIONS, Place, Site, SiteDataspace, check, lines_of_options,
    with_lines,
};

const NONE: [&str; 0] = [];

fn dataspaces() -> Vec<SiteDataspace> {
    let dataspace =
        |name: &str, kind, mount: &str| SiteDataspace { name: name.into(), kind, mount: mount.into() };
    vec![
        dataspace("nvme0://", DataspaceKind::Local, "/mnt/nvme0"),
        dataspace("lustre://", DataspaceKind::Shared, "/scratch/"),
        dataspace("home://", DataspaceKind::Shared, "/scratch/home"),
        dataspace("s3://", DataspaceKind::Object, "s3://bucket"),
    ]
}

fn site(dataspaces: &[SiteDataspace]) -> Site<'_> {
    Site {
        dataspaces: Cow::Borrowed(dataspaces),
        has_user: &|user| user == "bob",
        pool_size_max: Some(1 << 40),
        job: Some(7),
    }
}

fn told(lines: &str) -> Vec<String> {
    let (directives, _) = Directives::parse(lines.as_bytes()).unwrap();
    check(&directives, &site(&dataspaces())).iter().map(ToString::to_string).collect()
}

#[test]
fn what_a_site_has_is_accepted() {
    let lines = "\
#TIDEPOOL pool name=fast size=1TiB
#TIDEPOOL pool name=own
#NORNS stage_in lustre://in nvme0://in replicate
#NORNS stage_in /scratch/ana/in own://in
#NORNS stage_in s3://data nvme0://data file:/scratch/map
#NORNS stage_out nvme0://out /scratch/home/ana gather
#NORNS stage_out /mnt/nvme0/log fast://log gather:{node}
#NORNS persist share nvme0://keep bob
#NORNS persist store /mnt/nvme0/keep
#NORNS workflow-prior-dependency 6 8
#TIDEPOOL resume 5
";
    assert_eq!(told(lines), NONE);
}

#[test]
fn what_a_site_has_not_is_told() {
    for (lines, expected) in [
        (
            "#NORNS stage_in lustr://in nvme0://in",
            "line 1, column 17: there is no dataspace 'lustr://'; did you mean 'lustre://in'?",
        ),
        (
            "#TIDEPOOL pool name=fastest\n#NORNS stage_in lustre://in fstest://in",
            "line 2, column 29: there is no dataspace 'fstest://'; did you mean 'fastest://in'?",
        ),
        (
            "#NORNS stage_out nvme0://out beegfsondemand://out",
            "line 1, column 30: there is no dataspace 'beegfsondemand://'; there are nvme0://, lustre://, home://, s3://",
        ),
        (
            "#NORNS stage_in /scratches/in nvme0://in",
            "line 1, column 17: '/scratches/in' is in no directory of a dataspace; there are /mnt/nvme0 (nvme0://), /scratch/ (lustre://), /scratch/home (home://)",
        ),
        (
            "#NORNS stage_in nvme0://in lustre://in scatter",
            "line 1, column 40: 'scatter' brings data to nodes, and 'lustre://in' is one place for all nodes; leave the mapping away",
        ),
        (
            "#TIDEPOOL pool\n#NORNS stage_in lustre://in pool://in scatter:p{rank}",
            "line 2, column 39: 'scatter:p{rank}' brings data to nodes, and 'pool://in' is one place for all nodes; leave the mapping away",
        ),
        (
            "#NORNS stage_out s3://out nvme0://out gather",
            "line 1, column 39: 'gather' fetches data from nodes, and 's3://out' is one place for all nodes; leave the mapping away",
        ),
        (
            "#NORNS persist store lustre://keep",
            "line 1, column 22: 'lustre://keep' is not on the nodes' own storage, so nobody takes it away",
        ),
        (
            "#TIDEPOOL pool\n#NORNS persist store pool://keep",
            "line 2, column 22: 'pool://keep' is in a pool, which lifetime= keeps, not 'persist'",
        ),
        ("#NORNS persist share nvme0://keep eve", "line 1, column 35: there is no user 'eve'"),
        (
            "#NORNS persist store nvme1://keep",
            "line 1, column 22: there is no dataspace 'nvme1://'; did you mean 'nvme0://keep'?",
        ),
        (
            "#TIDEPOOL pool name=lustre",
            "line 1, column 16: 'lustre://' is a dataspace of this site; give the pool another name",
        ),
        (
            "#TIDEPOOL pool nodes=2 size=2TiB",
            "line 1, column 24: a pool has at most 1.0 TiB here, not 2.0 TiB",
        ),
        ("#NORNS workflow-prior-dependency 6 7", "line 1, column 36: job 7 is this job itself"),
        ("#TIDEPOOL resume 7", "line 1, column 18: job 7 is this job itself"),
    ] {
        assert_eq!(told(lines), [expected], "{lines}");
    }
}

#[test]
fn a_site_without_dataspaces_says_so() {
    let (directives, _) = Directives::parse(b"#NORNS stage_in a://x /b\n").unwrap();
    let told: Vec<String> = check(&directives, &site(&[])).iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "line 1, column 17: there is no dataspace 'a://'; there are none",
            "line 1, column 23: '/b' is in no directory of a dataspace; there are none"
        ]
    );
}

#[test]
fn a_message_names_a_few_of_many_dataspaces() {
    let many: Vec<SiteDataspace> = (0..10)
        .map(|n| SiteDataspace {
            name: format!("{n}://"),
            kind: DataspaceKind::Shared,
            mount: format!("/{n}"),
        })
        .collect();
    let (directives, _) = Directives::parse(b"#NORNS stage_in lustre://x 1://x\n").unwrap();
    let told: Vec<String> = check(&directives, &site(&many)).iter().map(ToString::to_string).collect();
    let names = "0://, 1://, 2://, 3://, 4://, 5://, 6://, 7://, ...";
    assert_eq!(told, [format!("line 1, column 17: there is no dataspace 'lustre://'; there are {names}")]);
}

#[test]
fn paths_are_in_the_dataspace_that_is_mounted_deepest() {
    let all = dataspaces();
    let site = site(&all);
    let resolve = |path: &[u8]| site.resolve(path).map(|(dataspace, path)| (dataspace.name.as_str(), path));
    assert_eq!(resolve(b"/scratch/home/ana"), Some(("home://", b"ana".to_vec())));
    assert_eq!(resolve(b"//scratch/./homes/ana/"), Some(("lustre://", b"homes/ana".to_vec())));
    assert_eq!(resolve(b"/scratch"), Some(("lustre://", Vec::new())));
    assert_eq!((resolve(b"/scratc"), resolve(b"/")), (None, None));
}

fn lines(options: &[(&str, &str)]) -> Result<Vec<String>, Vec<String>> {
    lines_of_options(options).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn options_are_directives() {
    assert_eq!(lines(&[]), Ok(Vec::new()));
    assert_eq!(
        lines(&[
            ("--tidepool", "size=10GiB   nodes=2"),
            ("workflow-prior-dependency", "7,8"),
            ("workflow-end", "")
        ])
        .unwrap(),
        ["#TIDEPOOL pool size=10GiB nodes=2", "#NORNS workflow-prior-dependency 7 8", "#NORNS workflow-end"]
    );
    assert_eq!(lines(&[("tidepool", "")]).unwrap(), ["#TIDEPOOL pool"]);
    assert_eq!(lines(&[("--workflow-start", "run-7")]).unwrap(), ["#NORNS workflow-start run-7"]);
    // The script may say what they miss.
    let alone = [("workflow-same-nodes", ""), ("tidepool", "name=a lifetime=workflow")];
    assert_eq!(
        lines(&alone).unwrap(),
        ["#TIDEPOOL pool name=a lifetime=workflow", "#NORNS workflow-same-nodes"]
    );
    for option in OPTIONS {
        let value = if option == "workflow-prior-dependency" { "1" } else { "" };
        assert_eq!(lines(&[(option, value)]).map(|lines| lines.len()), Ok(1), "{option}");
    }
}

#[test]
fn options_are_refused_as_lines_are() {
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    for (option, value, expected) in [
        (
            "tidepool",
            "size=é nodez=1",
            "option --tidepool, column 8: unknown key 'nodez'; did you mean 'nodes'?",
        ),
        ("--tidepool", "\"size", "option --tidepool, column 1: this quotation does not end"),
        (
            "tidepool",
            "é\n#NORNS stage_in /etc/shadow a://x",
            "option --tidepool, column 2: a value has no line feeds or other control characters",
        ),
        ("tidepool", &long, "option --tidepool, column 1: a value has at most 65536 bytes"),
        (
            "workflow-prior-dependency",
            "",
            "option --workflow-prior-dependency, column 1: the number of a job is missing",
        ),
        (
            "workflow-prior-dependency",
            "7 7x",
            "option --workflow-prior-dependency, column 3: '7x' is no number of a job",
        ),
        ("workflow-end", "yes", "option --workflow-end, column 1: 'yes' is one word too many"),
        (
            "--workflow-strat",
            "",
            "option --workflow-strat, column 1: unknown option '--workflow-strat'; did you mean '--workflow-start'?",
        ),
    ] {
        let told = lines(&[(option, value)]).expect_err(expected);
        assert_eq!(told.last().map(String::as_str), Some(expected), "{told:?}");
    }
    assert_eq!(
        lines(&[("workflow-start", ""), ("workflow-prior-dependency", "7")]).unwrap_err(),
        [
            "option --workflow-start, column 1: the job that starts a workflow comes after no other; this one does in option --workflow-prior-dependency, column 1"
        ]
    );
    assert_eq!(
        lines(&[("tidepool", ""), ("tidepool", "name=a")]).unwrap_err(),
        ["option --tidepool, column 1: each of several pools needs a name: name=NAME"]
    );
}

#[test]
fn lines_are_put_where_they_move_no_directive() {
    let lines = ["#NORNS workflow-start".to_string()];
    let heading = "# What the options of the command that submitted this job say:\n#NORNS workflow-start\n";
    for (script, before, after) in [
        (
            "#!/bin/sh\n#NORNS stage_in a://x b://x\n\nsrun a\n#x\n",
            "#!/bin/sh\n#NORNS stage_in a://x b://x\n\n",
            "srun a\n#x\n",
        ),
        ("#!/bin/sh", "#!/bin/sh\n", ""),
        ("srun a", "", "srun a"),
        ("", "", ""),
        ("# a\n  \n# b\n", "# a\n", "  \n# b\n"),
        ("#NORNS workflow-end \\\necho", "#NORNS workflow-end \\\n", "echo"),
    ] {
        let whole = String::from_utf8(with_lines(script.as_bytes(), &lines)).unwrap();
        assert_eq!(whole, format!("{before}{heading}{after}"));
        assert_eq!(with_lines(script.as_bytes(), &[]), script.as_bytes());
        let problems =
            |script: &str| Directives::parse(script.as_bytes()).err().map(|problems| problems.len());
        assert_eq!(problems(&whole), problems(script), "{script}");
    }
}

#[test]
fn places_keep_every_byte() {
    let path: Vec<u8> = (1..=255).collect();
    let place = Place::parse(&[b"a://", path.as_slice()].concat()).unwrap();
    assert_eq!(place.to_bytes(), [b"a://", path.as_slice()].concat());
}
