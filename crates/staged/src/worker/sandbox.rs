//! What a worker gives up before it does anything for its user. There is no way back from here.

use super::message::Setting;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, getgroups, getppid, getrlimit, getuid,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// Descriptors of a worker: two for each file being copied, and some for each connection.
const DESCRIPTORS_MAX: u64 = 65_536;

/// What root's own tasks need to copy files as they are: owners, modes, devices, capabilities of files, and the memory of root's
/// processes.
const ROOT_KEEPS: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SYS_PTRACE);

/// System calls that no copy needs, and that are the first step of most ways out.
const FORBIDDEN: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_acct,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capset,
];

fn failed<E: Display>(what: &str) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("cannot {what}: {error}")
}

/// Becomes the user, and gives up everything else. The process has one thread. The error says what could not be given up;
/// nothing may be done then.
pub fn enter(setting: &Setting) -> Result<(), String> {
    if !getuid().is_root() {
        return Err("only root's stager has workers".into());
    }
    limit(setting)?;
    let keeps = if setting.uid == 0 { ROOT_KEEPS } else { CapabilitySet::empty() };
    drop_bounding(keeps)?;
    become_user(setting)?;
    clear_ambient_capability_set().map_err(failed("drop ambient capabilities"))?;
    let sets = CapabilitySets { effective: keeps, permitted: keeps, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed("drop capabilities"))?;
    // Its user could trace it otherwise.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("keep tracers away"))?;
    set_no_new_privs(true).map_err(failed("give up new privileges"))?;
    check(setting, keeps)?;
    // A change of identity forgets it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("end with the supervisor"))?;
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(setting.supervisor) {
        return Err("the supervisor has ended".into());
    }
    filter()
}

fn limit(setting: &Setting) -> Result<(), String> {
    let lower = |resource, most: u64| {
        let hard = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        setrlimit(resource, Rlimit { current: Some(hard), maximum: Some(hard) })
    };
    lower(Resource::Nofile, DESCRIPTORS_MAX).map_err(failed("limit descriptors"))?;
    lower(Resource::Core, 0).map_err(failed("forbid core files"))?;
    if setting.memory > 0 {
        lower(Resource::Data, setting.memory).map_err(failed("limit memory"))?;
    }
    Ok(())
}

fn drop_bounding(keeps: CapabilitySet) -> Result<(), String> {
    for one in CapabilitySet::all().difference(keeps).iter() {
        match remove_capability_from_bounding_set(one) {
            // This kernel does not know it.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(errno) => return Err(failed("drop capabilities")(errno)),
        }
    }
    Ok(())
}

fn become_user(setting: &Setting) -> Result<(), String> {
    let groups: Vec<Gid> = setting.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(setting.uid), Gid::from_raw(setting.gid));
    set_thread_groups(&groups).map_err(failed("take the user's groups"))?;
    set_thread_res_gid(gid, gid, gid).map_err(failed("take the user's group"))?;
    set_thread_res_uid(uid, uid, uid).map_err(failed("take the user's id"))
}

/// What the kernel says, after all that was asked of it.
fn check(setting: &Setting, keeps: CapabilitySet) -> Result<(), String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").map_err(failed("look at itself"))?;
    let ids = |what: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
        line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    if ids("Uid:") != [setting.uid; 4] || ids("Gid:") != [setting.gid; 4] {
        return Err(format!("this process has not become user {}:{}", setting.uid, setting.gid));
    }
    let groups = getgroups().map_err(failed("look at its groups"))?;
    let groups: BTreeSet<u32> = groups.into_iter().map(Gid::as_raw).collect();
    if groups != setting.groups.iter().copied().collect() {
        return Err("this process has other groups than its user".into());
    }
    let held = capabilities(None).map_err(failed("look at its capabilities"))?;
    if !keeps.contains(held.permitted | held.effective | held.inheritable) {
        return Err("this process has kept capabilities".into());
    }
    Ok(())
}

fn filter() -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed("filter system calls"))?;
    let rules: BTreeMap<i64, _> = FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(failed("filter system calls"))?;
    apply_filter(&program).map_err(failed("filter system calls"))
}
