//! How much memory the machine has to give.

use std::fs;
use std::path::Path;

/// Address space that is left for what no limit counts, such as tables, stacks and code.
const UNCOUNTED: u64 = 8 << 20;

/// Bytes of memory that this process can still have: the least of what the machine has available, of what its
/// control groups (containers) leave, and of most of what is left of its address space under `ulimit -v`. `None`
/// where the system does not say, which is everywhere but on Linux.
pub fn free_memory() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let memory = read("/proc/meminfo").unwrap_or_default();
    let machine = kilobytes(&memory, "MemAvailable:");
    let installed = kilobytes(&memory, "MemTotal:").unwrap_or(u64::MAX);
    let groups = read("/proc/self/cgroup").and_then(|text| {
        let file = |path: &str| fs::read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok();
        groups(&text, Machine { available: machine.unwrap_or(u64::MAX), installed }, &file)
    });
    let space = read("/proc/self/limits")
        .zip(read("/proc/self/status"))
        .and_then(|(limits, status)| address_space(&limits, &status))
        .map(|left| left.saturating_sub(UNCOUNTED));
    [machine, groups, space].into_iter().flatten().min()
}

/// Bytes of `/proc/meminfo`: `MemAvailable` and `MemTotal`, the largest number where it does not say.
#[derive(Clone, Copy)]
struct Machine {
    available: u64,
    installed: u64,
}

/// The number behind a label, in bytes.
fn kilobytes(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least memory that the groups of `/proc/self/cgroup` and their ancestors leave, of either cgroup version. `file`
/// reads a file below the mount of the control groups. Every file costs a system call or several at the start of a
/// process, so those of groups that cannot leave less than the machine has available are not read.
fn groups(cgroup: &str, machine: Machine, file: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let mut least = None;
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, most, used, prefix) = match controllers {
            "" => ("", "memory.max", "memory.current", ""),
            c if c.split(',').any(|c| c == "memory") => {
                ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            }
            _ => continue,
        };
        let mut group = path.trim_matches('/');
        loop {
            let slash = if group.is_empty() { "" } else { "/" };
            let number =
                |name: &str| file(&format!("{root}{group}{slash}{name}"))?.trim().parse::<u64>().ok();
            // No group uses more than is installed.
            let enough = least.unwrap_or(machine.available);
            let binds = |&most: &u64| most < machine.installed.saturating_add(enough);
            if let Some(most) = number(most).filter(binds)
                && let Some(used) = number(used)
            {
                let mut free = most.saturating_sub(used);
                if free < enough {
                    let stat = file(&format!("{root}{group}{slash}memory.stat")).unwrap_or_default();
                    free = most.saturating_sub(used.saturating_sub(reclaimable(&stat, prefix)));
                }
                least = Some(least.map_or(free, |l: u64| l.min(free)));
            }
            match group.rsplit_once('/') {
                Some((outer, _)) => group = outer,
                None if group.is_empty() => break,
                None => group = "",
            }
        }
    }
    least
}

/// Bytes of a control group that are given up when memory is asked for: pages of files, whether or not somebody has used
/// them lately, and caches of the system. Files in memory (`shmem`) are not among them.
fn reclaimable(stat: &str, prefix: &str) -> u64 {
    let fields = stat.lines().filter_map(|line| line.strip_prefix(prefix)?.split_once(' '));
    let given_up =
        fields.filter(|(name, _)| matches!(*name, "inactive_file" | "active_file" | "slab_reclaimable"));
    given_up.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// What `/proc/self/limits` leaves of the address space that `/proc/self/status` says is used.
fn address_space(limits: &str, status: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let most = line.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(most.saturating_sub(kilobytes(status, "VmSize:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_machine_says_what_is_available() {
        assert_eq!(kilobytes("MemTotal:  100 kB\nMemAvailable:     64 kB\n", "MemAvailable:"), Some(65536));
        assert_eq!(kilobytes("MemTotal:  100 kB\n", "MemAvailable:"), None);
        assert_eq!(free_memory().is_some(), cfg!(target_os = "linux"));
    }

    #[test]
    fn groups_are_bounded_by_those_around_them() {
        let file = |path: &str| {
            let text = match path {
                "a/b/memory.max" => "1000\n",
                "a/b/memory.current" => "300\n",
                "a/memory.max" => "900\n",
                "a/memory.current" => "700\n",
                "a/memory.stat" => "anon 1\ninactive_file 90\nactive_file 50\nslab_reclaimable 10\nslab 30\n",
                "memory/c/memory.stat" => "active_file 90\ntotal_active_file 30\n",
                "memory.max" => "max\n",
                "memory/c/memory.limit_in_bytes" => "500\n",
                "memory/c/memory.usage_in_bytes" => "100\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let least = |cgroup, file: &dyn Fn(&str) -> Option<String>| {
            groups(cgroup, Machine { available: u64::MAX, installed: u64::MAX }, file)
        };
        assert_eq!(least("0::/a/b\n", &file), Some(350));
        assert_eq!(least("0::/a/b\n", &|path| file(path).filter(|_| !path.starts_with("a/m"))), Some(700));
        assert_eq!(least("5:cpu,memory:/c\n4:pids:/c\n", &file), Some(430));
        assert_eq!(least("0::/\n", &file), None);
    }

    #[test]
    fn groups_that_do_not_bind_are_not_looked_into() {
        let seen = RefCell::new(Vec::new());
        let of = |most: &'static str| {
            let seen = &seen;
            move |path: &str| {
                seen.borrow_mut().push(path.to_owned());
                Some(if path.ends_with("max") { most } else { "70" }.to_owned())
            }
        };
        let machine = Machine { available: 50, installed: 100 };
        assert_eq!(groups("0::/\n", machine, &of("150")), None);
        assert_eq!(seen.take(), ["memory.max"]);
        assert_eq!(groups("0::/\n", machine, &of("120")), Some(50));
        assert_eq!(seen.take(), ["memory.max", "memory.current"]);
        assert_eq!(groups("0::/\n", machine, &of("119")), Some(49));
        assert_eq!(seen.take(), ["memory.max", "memory.current", "memory.stat"]);
    }

    #[test]
    fn an_address_space_has_room_left() {
        let status = "VmPeak:  9 kB\nVmSize:\t 1 kB\n";
        assert_eq!(
            address_space("Max address space         4096      unlimited   bytes", status),
            Some(3072)
        );
        assert_eq!(address_space("Max address space      unlimited   unlimited  bytes", status), None);
    }
}
