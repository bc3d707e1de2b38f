//! The headers say what the library is: numbers, layouts, names.

mod common;

use common::{c_source, compile, include, library, succeeded};
use norns::types::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};
use std::process::Command;
use tempfile::TempDir;
use tidepool_norns::numbers;
use tidepool_stage_client::Code;

/// Expressions of C and the values they must have.
fn expected() -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for (code, name, _) in Code::ALL {
        all.insert(format!("NORNS_{name}"), i64::from(*code));
    }
    macro_rules! number {
        ($($c:literal = $rust:expr),* $(,)?) => { $( all.insert($c.to_string(), $rust as i64); )* };
    }
    number! {
        "NORNS_EUNDEFINED" = numbers::EUNDEFINED,
        "NORNS_EPENDING" = numbers::EPENDING,
        "NORNS_EINPROGRESS" = numbers::EINPROGRESS,
        "NORNS_EFINISHED" = numbers::EFINISHED,
        "NORNS_EFINISHEDWERROR" = numbers::EFINISHEDWERROR,
        "NORNS_ETASKERROR" = numbers::EFINISHEDWERROR,
        "NORNS_ERRMAX" = numbers::ERRMAX,
        "NORNS_PROCESS_MEMORY" = numbers::PROCESS_MEMORY,
        "NORNS_POSIX_PATH" = numbers::POSIX_PATH,
        "NORNS_NULL_RESOURCE" = numbers::NULL_RESOURCE,
        "R_LOCAL" = numbers::R_LOCAL,
        "R_REMOTE" = numbers::R_REMOTE,
        "R_SHARED" = numbers::R_SHARED,
        "NORNS_IOTASK_COPY" = numbers::IOTASK_COPY,
        "NORNS_IOTASK_MOVE" = numbers::IOTASK_MOVE,
        "NORNS_IOTASK_REMOVE" = numbers::IOTASK_REMOVE,
        "NORNS_BACKEND_NVML" = numbers::BACKEND_NVML,
        "NORNS_BACKEND_LUSTRE" = numbers::BACKEND_LUSTRE,
        "NORNS_BACKEND_ECHOFS" = numbers::BACKEND_ECHOFS,
        "NORNS_BACKEND_POSIX_FILESYSTEM" = numbers::BACKEND_POSIX_FILESYSTEM,
        "NORNSCTL_CMD_PING" = numbers::CMD_PING,
        "NORNSCTL_CMD_PAUSE_LISTEN" = numbers::CMD_PAUSE_LISTEN,
        "NORNSCTL_CMD_RESUME_LISTEN" = numbers::CMD_RESUME_LISTEN,
        "NORNSCTL_CMD_SHUTDOWN" = numbers::CMD_SHUTDOWN,
        "NORNS_MOUNT_MAX" = NORNS_MOUNT_MAX,
        "sizeof(norns_tid_t)" = size_of::<norns_tid_t>(),
        "sizeof(norns_flags_t)" = size_of::<norns_flags_t>(),
        "sizeof(norns_status_t)" = size_of::<norns_status_t>(),
        "sizeof(norns_error_t)" = size_of::<norns_error_t>(),
        "sizeof(norns_op_t)" = size_of::<norns_op_t>(),
        "sizeof(nornsctl_command_t)" = size_of::<u32>(),
        "sizeof(nornsctl_backend_flags_t)" = size_of::<u32>(),
        "sizeof(pid_t)" = size_of::<i32>(),
        "sizeof(uid_t)" = size_of::<u32>(),
        "sizeof(gid_t)" = size_of::<u32>(),
        "(norns_tid_t)-1 > 0" = 1,
        "(norns_flags_t)-1 > 0" = 1,
        "(norns_error_t)-1 < 0" = 1,
    }
    macro_rules! layout {
        ($($name:ident { $($field:ident),* })*) => { $(
            let name = stringify!($name);
            all.insert(format!("sizeof({name})"), size_of::<$name>() as i64);
            all.insert(format!("_Alignof({name})"), align_of::<$name>() as i64);
            $( all.insert(format!("offsetof({name}, {})", stringify!($field)), offset_of!($name, $field) as i64); )*
        )* };
    }
    layout! {
        norns_memory_region_t { b_addr, b_size }
        norns_posix_path_t { p_nsid, p_host, p_path }
        norns_stat_t { st_status, st_task_error, st_sys_errno, st_pending, st_total }
        norns_iotask_t { t_id, t_op, t_src, t_dst, __t_status }
        norns_dataspace_info_t { di_type, di_track, di_capacity, di_quota, di_used, di_mount }
        nornsctl_backend_t { b_type, b_track, b_mount, b_capacity }
        nornsctl_job_limit_t { l_nsid, l_quota }
        nornsctl_job_t { j_hosts, j_nhosts, j_limits, j_nlimits }
        nornsctl_proc_t { p_pid, p_uid, p_gid }
        nornsctl_stat_t { st_running_tasks, st_pending_tasks, st_eta }
    }
    // The union has no name in C.
    let place = offset_of!(norns_resource_t, r_place) as i64;
    all.insert("sizeof(norns_resource_t)".into(), size_of::<norns_resource_t>() as i64);
    all.insert("offsetof(norns_resource_t, r_flags)".into(), offset_of!(norns_resource_t, r_flags) as i64);
    all.insert("offsetof(norns_resource_t, r_buffer)".into(), place);
    all.insert("offsetof(norns_resource_t, r_posix_path)".into(), place);
    all
}

#[test]
fn numbers_and_layouts_are_the_same_in_c() {
    let mut source = String::from(
        "#include <norns.h>\n#include <nornsctl.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for expression in expected().keys() {
        writeln!(source, "printf(\"%s\\t%lld\\n\", \"{expression}\", (long long)({expression}));").unwrap();
    }
    source.push_str("return 0; }\n");
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("values.c");
    std::fs::write(&path, source).unwrap();
    let program = compile(&dir, &path, &["-std=c11"]);
    let printed = succeeded(&Command::new(program).output().unwrap());
    let found: BTreeMap<String, i64> = printed
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(expression, value)| (expression.to_string(), value.parse().unwrap()))
        .collect();
    assert_eq!(found, expected());
}

/// The published layouts, so that nobody changes both sides together.
#[test]
fn layouts_are_pinned() {
    assert_eq!(size_of::<norns_resource_t>(), 32);
    assert_eq!(size_of::<norns_stat_t>(), 32);
    assert_eq!((size_of::<norns_iotask_t>(), offset_of!(norns_iotask_t, __t_status)), (104, 72));
    assert_eq!((size_of::<nornsctl_backend_t>(), offset_of!(nornsctl_backend_t, b_track)), (24, 4));
    assert_eq!(size_of::<nornsctl_job_t>(), 32);
    assert_eq!(size_of::<nornsctl_stat_t>(), 24);
}

/// Functions that the headers declare but do not define.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in ["norns_error.h", "norns_resources.h", "norns.h", "nornsctl.h"] {
        let text = std::fs::read_to_string(include().join("norns").join(header)).unwrap();
        let code: Vec<String> = without_comments(&text).lines().map(str::to_string).collect();
        let mut inside = 0;
        let mut statement = String::new();
        for line in code.iter().filter(|l| !l.trim_start().starts_with('#') && !l.starts_with("extern \"C\""))
        {
            for letter in line.chars().chain([' ']) {
                match letter {
                    '{' => inside += 1,
                    '}' => (inside, statement) = ((inside - 1i32).max(0), String::new()),
                    ';' if inside == 0 => names.extend(function(&std::mem::take(&mut statement))),
                    _ if inside == 0 => statement.push(letter),
                    _ => {}
                }
            }
        }
    }
    names
}

/// `char *norns_strerror(norns_error_t errnum)`: the word before the parenthesis.
fn function(statement: &str) -> Option<String> {
    let (before, _) = statement.split_once('(')?;
    let name = before.rsplit([' ', '*']).next()?.trim();
    Some(name.to_string())
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |code, part| code + part.split_once("*/").map_or("", |(_, rest)| rest))
}

#[test]
fn what_is_exported_is_declared_and_nothing_else() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let exported: BTreeSet<String> =
        succeeded(&output).lines().filter_map(|l| l.split(' ').nth(2)).map(str::to_string).collect();
    assert_eq!(exported, declared());
    assert!(exported.len() > 35 && exported.contains("norns_cancel"), "{exported:?}");
}

#[test]
fn each_header_stands_alone_in_c_and_cpp() {
    let headers = [
        "norns.h",
        "nornsctl.h",
        "norns/norns.h",
        "norns/nornsctl.h",
        "norns/norns_types.h",
        "norns/norns_error.h",
        "norns/norns_resources.h",
        "norns/nornsctl_types.h",
    ];
    let dir = TempDir::new().unwrap();
    for (number, header) in headers.iter().enumerate() {
        for (ending, standard) in [("c", "-std=c11"), ("c", "-std=gnu99"), ("cc", "-std=c++11")] {
            let path = dir.path().join(format!("h{number}.{ending}"));
            let twice = format!("#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}\n");
            std::fs::write(&path, twice).unwrap();
            compile(&dir, &path, &[standard]);
        }
    }
}

#[test]
fn the_papers_listing_compiles_unchanged() {
    let dir = TempDir::new().unwrap();
    compile(&dir, &c_source("listing2.c"), &["-std=c99"]);
}

#[test]
fn without_a_stager_everything_returns() {
    let dir = TempDir::new().unwrap();
    let program = compile(&dir, &c_source("alone.c"), &["-std=gnu11"]);
    let config = dir.path().join("norns.conf");
    let sockets =
        format!("global_settings: [ global_socket: {0}/g, control_socket: {0}/c ]\n", dir.path().display());
    std::fs::write(&config, sockets).unwrap();
    for config in [config.as_path(), &dir.path().join("missing.conf")] {
        succeeded(&Command::new(&program).env("NORNS_CONFIG_FILE", config).output().unwrap());
    }
}
