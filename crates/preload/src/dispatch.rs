//! System call instructions outside libc: those of Rust programs with `rustix`, of Go programs that are linked with libc, of
//! whatever brings its own.
//!
//! The kernel hands them over (syscall user dispatch): a thread that is *watched* gets SIGSYS for each call made outside a
//! range of addresses, in which libc, the loader and this library lie; and the handler does the call as `syscall` would.
//!
//! ```text
//!   address space    program | libraries it opens | libc ... this library ... loader | vDSO
//!                    `------- handed over -------' `------------ the kernel's ------------'
//! ```
//! Exec ends the watching, fork does in the child until it is watched again. The handler may not be kept from running: SIGSYS
//! is taken out of every mask of the program's. See decision 49.

use crate::inside::{self, BLOCK};
use crate::lock::ForkLock;
use crate::raw::{self, err, sys};
use crate::real::real;
use crate::sharing::{self, Child};
use crate::{config, elf, numbers, stack};
use libc::{c_int, ucontext_t};
use std::alloc::Layout;
use std::arch::{asm, naked_asm};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const ON: usize = 1;
const SYS_USER_DISPATCH: i32 = 2;
const ARCH_X86_64: u32 = 0xc000_003e;
const SET_BYTES: usize = 8;
/// SIGSYS in a set of the kernel's.
const OURS: u64 = 1 << (libc::SIGSYS - 1);
/// Signals 32 and 33, which glibc keeps for itself.
const LIBCS: u64 = 0b11 << 31;
/// Length of a system call instruction.
const INSTRUCTION: i64 = 2;

/// The range that stays the kernel's; 0 while nothing is watched.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// The program uses the dispatch itself (Wine): its signals are its own.
static PROGRAMS: AtomicBool = AtomicBool::new(false);
/// What the program does with SIGSYS.
static ACTION: ForkLock<Action> = ForkLock::new(Action { handler: 0, flags: 0, restorer: 0, mask: 0 });

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

/// The kernel's `siginfo_t` of SIGSYS.
#[repr(C)]
struct Info {
    signal: i32,
    error: i32,
    code: i32,
    pad: i32,
    address: usize,
    number: i32,
    arch: u32,
}

/// True while calls outside libc are handed over.
pub fn is_on() -> bool {
    START.load(Ordering::Relaxed) != 0
}

/// Begins to watch this thread and all that it makes. Called once, by the constructor.
pub fn begin() {
    if !config::catches_raw_calls() {
        return;
    }
    let Some((start, len)) = range() else {
        return config::log(&[b"calls outside libc are not caught: libc or the loader not found"]);
    };
    set_action(trapped as *const () as usize);
    START.store(start, Ordering::Relaxed);
    LEN.store(len, Ordering::Relaxed);
    if watch() < 0 {
        START.store(0, Ordering::Relaxed);
        set_action(libc::SIG_DFL);
        config::log(&[
            b"calls outside libc are not caught: the kernel has no syscall user dispatch (Linux 5.11)",
        ]);
    }
}

/// By libc's function, whose way back from handlers can be unwound.
fn set_action(handler: usize) {
    // SAFETY: numbers and an empty pointer; the first word of a set is the kernel's set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        *(&raw mut action.sa_mask).cast::<u64>() = !OURS;
        real!(SIGACTION(libc::SIGSYS, &raw const action, 0)
            as fn(c_int, *const libc::sigaction, usize) -> c_int);
    }
}

/// From the lowest of libc, the loader and this library up: to the end of all addresses where the program lies below (the
/// vDSO is up there), else to the highest of the three.
fn range() -> Option<(usize, usize)> {
    const TOP: usize = 0x7fff_ffff_f000;
    // SAFETY: numbers.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    let images =
        [elf::find(b"libc.so")?, elf::find(b"ld-linux")?, elf::of_address(begin as *const () as usize)?];
    let start = images.iter().map(|image| image.text.0).min()?;
    let end = images.iter().map(|image| image.text.0 + image.text.1).max()?;
    Some((start, if program < start { TOP - start } else { end - start }))
}

/// Watches this thread, if any are watched.
pub fn watch() -> isize {
    if !is_on() || PROGRAMS.load(Ordering::Relaxed) {
        return 0;
    }
    let unblock = OURS;
    // SAFETY: the selector is this thread's own for as long as it runs outside the range.
    unsafe {
        sys!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const unblock, 0, SET_BYTES);
        sys!(
            libc::SYS_prctl,
            PR_SET_SYSCALL_USER_DISPATCH,
            ON,
            START.load(Ordering::Relaxed),
            LEN.load(Ordering::Relaxed),
            inside::selector(BLOCK)
        )
    }
}

/// `prctl`, by which a program may take the dispatch for itself.
pub fn prctl(a: [usize; 5]) -> isize {
    if a[0] == PR_SET_SYSCALL_USER_DISPATCH {
        PROGRAMS.store(true, Ordering::Relaxed);
    }
    type A = usize;
    // SAFETY: the caller's arguments.
    unsafe { real!(PRCTL(a[0] as c_int, a[1], a[2], a[3], a[4]) as fn(c_int, A, A, A, A) -> c_int) }
}

/// The handler. Comes with all signals held back but its own, so that what it has to set right is set right.
///
/// # Safety
/// The kernel's arguments of a handler of SIGSYS.
unsafe extern "C-unwind" fn trapped(signal: c_int, info: *const Info, context: *mut ucontext_t) {
    // SAFETY: the caller's promise. Errno is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        if (*info).code != SYS_USER_DISPATCH || PROGRAMS.load(Ordering::Relaxed) {
            return pass_on(signal, info, context);
        }
        let registers = &mut (*context).uc_mcontext.gregs;
        let number = i64::from((*info).number);
        let arguments =
            [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
                .map(|register| registers[register as usize] as usize);
        if (*info).arch != ARCH_X86_64 {
            return step_aside(registers);
        }
        if number == libc::SYS_sigaltstack {
            return make_from_here(registers);
        }
        if matches!(number, libc::SYS_clone | libc::SYS_clone3) {
            match Child::asked(number, arguments) {
                Some(child) if child.is_on_own_stack() => {
                    return make_child_from_here(registers, number, child);
                }
                Some(child) if child.is_done_as_fork() => {}
                _ => return step_aside(registers),
            }
        }
        let result = match number {
            libc::SYS_rt_sigreturn => return_from(registers[libc::REG_RSP as usize] as usize),
            libc::SYS_rt_sigprocmask => change_mask(arguments, (&raw mut (*context).uc_sigmask).cast()),
            _ => perform(number, arguments, context),
        };
        (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
        *libc::__errno_location() = errno;
    }
}

/// Lets the program do the call itself: an old number of 32 bits, a child on the very stack that its parent goes on with, or
/// arguments for the kernel to refuse.
/// The thread is watched again when it next is at work on the pool.
fn step_aside(registers: &mut [i64; 23]) {
    inside::selector(inside::ALLOW);
    registers[libc::REG_RIP as usize] -= INSTRUCTION;
}

/// The end of another handler: as if the program had done it.
///
/// # Safety
/// The stack pointer of a thread that calls `rt_sigreturn`.
unsafe fn return_from(stack: usize) -> ! {
    // SAFETY: the caller's promise; nothing of this frame is needed any more.
    unsafe { asm!("mov rsp, {}", "mov eax, 15", "syscall", in(reg) stack, options(noreturn)) }
}

/// `rt_sigprocmask`: the mask is what the thread gets when the handler returns.
///
/// # Safety
/// The arguments of the call; `mask` is the context's.
unsafe fn change_mask(a: [usize; 6], mask: *mut u64) -> isize {
    let (new, old) = (a[1] as *const u64, a[2] as *mut u64);
    let given = |set: usize| set == 0 || raw::is_memory(set, SET_BYTES);
    if a[3] != SET_BYTES {
        return err(libc::EINVAL);
    }
    if !given(a[1]) || !given(a[2]) {
        return err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let before = *mask;
        if !new.is_null() {
            let Some(after) = masked(a[0] as c_int, before, new.read_unaligned()) else {
                return err(libc::EINVAL);
            };
            *mask = after;
        }
        if !old.is_null() {
            old.write_unaligned(before);
        }
    }
    0
}

/// The mask after a change, with what must not be in it left out; `None` for a way that does not exist.
fn masked(how: c_int, before: u64, set: u64) -> Option<u64> {
    let after = match how {
        libc::SIG_BLOCK => before | set,
        libc::SIG_UNBLOCK => before & !set,
        libc::SIG_SETMASK => set,
        _ => return None,
    };
    Some(after & !OURS)
}

/// Lets a call be made at an address of ours, on the program's stack: `sigaltstack`, which is refused to a handler that runs
/// on such a stack.
///
/// # Safety
/// The registers of a call that does not leave its stack.
unsafe fn make_from_here(registers: &mut [i64; 23]) {
    let back = registers[libc::REG_RIP as usize];
    let stack = registers[libc::REG_RSP as usize] - RED_ZONE - size_of::<i64>() as i64;
    // SAFETY: the caller's promise: a stack goes on below its red zone.
    unsafe { (stack as *mut i64).write_unaligned(back) };
    registers[libc::REG_RSP as usize] = stack;
    registers[libc::REG_RIP as usize] = call_and_return as *const () as i64;
}

/// Bytes below the stack pointer that are the program's.
const RED_ZONE: i64 = 128;

#[unsafe(naked)]
unsafe extern "C" fn call_and_return() {
    naked_asm!("syscall", "ret {red_zone}", red_zone = const RED_ZONE)
}

/// Lets a child be made at an address of ours, so that this thread stays watched. Parent and child come back to the program by
/// words that are put on the stack of each, with the register that was changed for it:
///
/// ```text
///   parent's stack          child's stack
///   [register][back]        [register][back] | where the child begins
///   [clone3's arguments]
///   [its red zone] |
/// ```
///
/// # Safety
/// The registers of a call that makes a child on a stack of its own.
unsafe fn make_child_from_here(registers: &mut [i64; 23], number: i64, child: Child) {
    if !child.is_thread() {
        sharing::begins();
    }
    let register = |r: c_int| registers[r as usize] as usize;
    let (back, stack) = (register(libc::REG_RIP), register(libc::REG_RSP) - RED_ZONE as usize);
    let copy = (stack - sharing::ARGUMENTS_MAX) as *mut usize;
    // SAFETY: the caller's promise: stacks go on below what is used; the arguments are as long as they say.
    unsafe {
        let (changed, value) = if number == libc::SYS_clone3 {
            const STACK_SIZE: usize = 6;
            std::ptr::copy_nonoverlapping(
                register(libc::REG_RDI) as *const u8,
                copy.cast(),
                register(libc::REG_RSI),
            );
            let [stack, size] = [STACK_SIZE - 1, STACK_SIZE].map(|word| copy.add(word).read_unaligned());
            put_words(stack + size, [register(libc::REG_RDI), back]);
            copy.add(STACK_SIZE).write_unaligned(size - WORDS);
            (libc::REG_RDI, copy as usize)
        } else {
            let stack = register(libc::REG_RSI);
            put_words(stack, [stack, back]);
            (libc::REG_RSI, stack - WORDS)
        };
        let before = register(changed);
        put_words(copy as usize, [before, back]);
        registers[changed as usize] = value as i64;
    }
    registers[libc::REG_RSP as usize] = (copy as usize - WORDS) as i64;
    let come_back = if number == libc::SYS_clone3 {
        clone3_and_return as *const ()
    } else {
        clone_and_return as *const ()
    };
    registers[libc::REG_RIP as usize] = come_back as i64;
}

const WORDS: usize = size_of::<[usize; 2]>();

/// # Safety
/// Memory for two words lies below `end`.
unsafe fn put_words(end: usize, words: [usize; 2]) {
    // SAFETY: the caller's promise.
    unsafe { ((end - WORDS) as *mut [usize; 2]).write_unaligned(words) };
}

/// What a call leaves in `rcx` is nobody's, and its look at it changes no flag.
macro_rules! child_and_return {
    ($name:ident, $changed:literal) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "syscall",
                concat!("pop ", $changed),
                "mov rcx, rax",
                "jrcxz 2f",
                "ret {above}",
                "2: ret",
                above = const RED_ZONE as usize + sharing::ARGUMENTS_MAX,
            )
        }
    };
}
child_and_return!(clone_and_return, "rsi");
child_and_return!(clone3_and_return, "rdi");

fn lies_on(stack: &libc::stack_t, at: usize) -> bool {
    stack.ss_flags & libc::SS_DISABLE == 0 && (at.wrapping_sub(stack.ss_sp as usize)) < stack.ss_size
}

/// Does a call with the program's mask. Where the handler runs on a stack for signals, which may be small, work on the pool gets one
/// of its own.
///
/// # Safety
/// The arguments of the call.
unsafe fn perform(number: i64, a: [usize; 6], context: *mut ucontext_t) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        let mask = *(&raw const (*context).uc_sigmask).cast::<u64>();
        let call = || {
            set_mask(mask);
            numbers::call(number, a)
        };
        let here = (&raw const mask) as usize;
        if number != libc::SYS_exit && numbers::is_known(number) && lies_on(&(*context).uc_stack, here) {
            return with_room(&(*context).uc_stack, call);
        }
        call()
    }
}

/// # Safety
/// Signals that come are let through by `set`.
unsafe fn set_mask(set: u64) {
    // SAFETY: as long as the kernel's.
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const set, 0, SET_BYTES) };
}

/// Works on a stack of our own. The thread's stack for signals holds the frame that we return to, and the kernel would take it
/// for free meanwhile: handlers that come get the lower part of ours.
///
/// # Safety
/// `signals` is this thread's stack for signals; all signals but ours are held back.
unsafe fn with_room(signals: &libc::stack_t, call: impl Fn() -> isize) -> isize {
    const BYTES: usize = 512 << 10;
    const FOR_SIGNALS: usize = 64 << 10;
    let Ok(layout) = Layout::from_size_align(BYTES, 4096) else { return err(libc::ENOMEM) };
    // SAFETY: the layout is not empty; the block is ours until it is given back. Signals are held back while the kernel is
    // told of one stack and we are on the other.
    unsafe {
        let block = std::alloc::alloc(layout);
        if block.is_null() {
            return err(libc::ENOMEM);
        }
        let mut result = 0;
        stack::on(block.add(FOR_SIGNALS) as usize, block.add(BYTES) as usize, &mut || {
            let ours = libc::stack_t { ss_sp: block.cast(), ss_flags: 0, ss_size: FOR_SIGNALS };
            sys!(libc::SYS_sigaltstack, &raw const ours, 0);
            result = call();
            set_mask(!OURS);
            sys!(libc::SYS_sigaltstack, std::ptr::from_ref(signals), 0);
        });
        std::alloc::dealloc(block, layout);
        result
    }
}

/// A SIGSYS that is none of ours: what the program does with it.
///
/// # Safety
/// As for `trapped`.
unsafe fn pass_on(signal: c_int, info: *const Info, context: *mut ucontext_t) {
    let action = *ACTION.lock();
    // SAFETY: the caller's promise; the program's handler has the type that its flags tell.
    unsafe {
        match action.handler {
            libc::SIG_IGN => {}
            libc::SIG_DFL => {
                set_action(libc::SIG_DFL);
                sys!(libc::SYS_tgkill, raw::getpid(), sys!(libc::SYS_gettid), signal);
            }
            handler => {
                let mask = *(&raw const (*context).uc_sigmask).cast::<u64>();
                set_mask((mask | action.mask) & !OURS);
                if action.flags & libc::SA_SIGINFO as u64 == 0 {
                    std::mem::transmute::<usize, extern "C-unwind" fn(c_int)>(handler)(signal);
                } else {
                    type Handler = unsafe extern "C-unwind" fn(c_int, *const Info, *mut ucontext_t);
                    std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
                }
            }
        }
    }
}

/// What the program does with SIGSYS from now on, where that is not the kernel's; what it did before.
pub fn replace_action(new: Option<Action>) -> Action {
    let mut action = ACTION.lock();
    // A handler of SIGSYS that comes in between would wait for this lock.
    inside::hold_signals();
    let before = *action;
    if let Some(new) = new {
        *action = new;
    }
    before
}

/// A set of the program's without what must come through.
pub fn allowed(set: u64) -> u64 {
    if is_on() { set & !OURS } else { set }
}

/// `pthread_sigmask`, and what rests on it; the error is negative.
///
/// # Safety
/// The arguments of the call.
pub unsafe fn sigmask(how: c_int, new: *const u64, old: *mut u64) -> isize {
    let given = |set: usize| set == 0 || raw::is_memory(set, SET_BYTES);
    if !given(new as usize) || !given(old as usize) {
        return err(libc::EFAULT);
    }
    // SAFETY: the caller's promise: sets of libc begin with the kernel's.
    unsafe {
        let set = if new.is_null() { 0 } else { new.read_unaligned() };
        let set = if how == libc::SIG_UNBLOCK { set } else { allowed(set) & !LIBCS };
        let given = if new.is_null() { std::ptr::null() } else { &raw const set };
        sys!(libc::SYS_rt_sigprocmask, how, given, old, SET_BYTES)
    }
}

/// A copy of a mask that a call waits with.
///
/// # Safety
/// Null or a set.
pub unsafe fn waiting_mask(set: *const libc::sigset_t) -> Option<libc::sigset_t> {
    // SAFETY: the caller's promise; the first word is the kernel's set.
    unsafe {
        let mut copy = *set.as_ref()?;
        let word = (&raw mut copy).cast::<u64>();
        *word = allowed(*word);
        Some(copy)
    }
}

/// What a thread begins with.
struct Begin {
    function: usize,
    argument: usize,
}

/// `pthread_create`: the new thread is watched, too.
///
/// # Safety
/// The arguments of the call.
pub unsafe fn create(thread: usize, attributes: usize, function: usize, argument: usize) -> isize {
    type A = usize;
    // SAFETY: the caller's arguments.
    let real = |function, argument| unsafe {
        real!(PTHREAD_CREATE(thread, attributes, function, argument) as fn(A, A, A, A) -> c_int)
    };
    if !is_on() || inside::inside() {
        return real(function, argument);
    }
    let begin = Box::into_raw(Box::new(Begin { function, argument }));
    let failed = real(first as *const () as usize, begin as usize);
    if failed != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(begin) });
    }
    failed
}

/// Leaves no frame of ours on the new thread's stack.
#[unsafe(naked)]
unsafe extern "C-unwind" fn first() {
    naked_asm!(
        "sub rsp, 24",
        "mov rsi, rsp",
        "call {prepare}",
        "mov rax, qword ptr [rsp]",
        "mov rdi, qword ptr [rsp + 8]",
        "add rsp, 24",
        "jmp rax",
        prepare = sym prepare,
    )
}

/// # Safety
/// What `create` made; two words to fill in.
unsafe extern "C-unwind" fn prepare(begin: *mut Begin, out: *mut [usize; 2]) {
    // SAFETY: the caller's promise; this thread alone has it now.
    unsafe {
        let begin = Box::from_raw(begin);
        *out = [begin.function, begin.argument];
    }
    watch();
}

pub fn lock_for_fork() {
    ACTION.acquire();
}

pub fn unlock_after_fork() {
    ACTION.force_open();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_never_hold_our_signal_back() {
        assert_eq!(masked(libc::SIG_BLOCK, 1, !0), Some(!OURS));
        assert_eq!(masked(libc::SIG_SETMASK, 1, OURS | 4), Some(4));
        assert_eq!(masked(libc::SIG_UNBLOCK, 7, 2), Some(5));
        assert_eq!(masked(9, 7, 2), None);
    }

    #[test]
    fn the_range_has_libc_and_this_code_and_not_the_program() {
        let (start, len) = range().unwrap();
        let libcs = libc::getppid as *const () as usize;
        assert!((start..start + len).contains(&libcs), "{start:x} {len:x} {libcs:x}");
    }

    #[test]
    fn the_kernels_structs_are_as_long_as_the_kernels() {
        assert_eq!((size_of::<Action>(), std::mem::offset_of!(Info, number)), (32, 24));
    }
}
