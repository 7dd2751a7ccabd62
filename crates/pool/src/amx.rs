//! Detection of AMX-INT8, written out here because `is_x86_feature_detected!` of stable Rust does not know it. The
//! state of the tiles belongs to a thread, and the system saves it only for processes that have requested permission.

#[cfg(target_os = "linux")]
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Whether the machine has AMX-INT8 and the system lets this process use it. Checked once.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && request_permission())
}

/// Whether the processor has AMX-INT8 and the system saves its state.
fn has_instructions() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATE: u64 = 3 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: OSXSAVE says that the instruction exists.
    let state = unsafe { xgetbv() };
    __cpuid_count(7, 0).edx & (TILE | INT8) == TILE | INT8 && state & TILE_STATE == TILE_STATE
}

/// # Safety
/// The processor must have XSAVE, and the operating system must have enabled it.
#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: as the caller promises.
    unsafe { _xgetbv(0) }
}

/// Requests this process's permission to use the AMX tile registers. Returns whether the system grants it.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: this system call changes nothing but what the process may use.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}
