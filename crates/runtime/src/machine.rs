//! How much memory is available to this process.

use std::fs;
use std::path::Path;

/// Bytes of address space that are kept free for memory that no limit counts, such as stacks and code.
const UNCOUNTED: u64 = 8 << 20;

/// Bytes of memory that this process can still allocate: the minimum of the machine's available memory, of the memory
/// left in its control groups (containers), and of the address space left under `ulimit -v` (minus a small reserve).
/// `None` if the system does not report any of these; only Linux does.
pub fn free_memory() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let memory = read("/proc/meminfo").unwrap_or_default();
    let machine = bytes_of_line(&memory, "MemAvailable:");
    let installed = bytes_of_line(&memory, "MemTotal:").unwrap_or(u64::MAX);
    let groups = read("/proc/self/cgroup").and_then(|text| {
        let file = |path: &str| fs::read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok();
        control_group_memory(&text, Machine { available: machine.unwrap_or(u64::MAX), installed }, &file)
    });
    let space = read("/proc/self/limits")
        .zip(read("/proc/self/status"))
        .and_then(|(limits, status)| free_address_space(&limits, &status))
        .map(|left| left.saturating_sub(UNCOUNTED));
    [machine, groups, space].into_iter().flatten().min()
}

/// `MemAvailable` and `MemTotal` of `/proc/meminfo` in bytes; `u64::MAX` if they are unknown.
#[derive(Clone, Copy)]
struct Machine {
    available: u64,
    installed: u64,
}

/// The number in the line that starts with `label`, converted from kilobytes to bytes; `None` if there is no such line.
fn bytes_of_line(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least memory left in any control group of `/proc/self/cgroup` or its ancestors, for cgroup v1 and v2. `file`
/// reads a file by its path below `/sys/fs/cgroup`. Reading these files takes a good part of the start of a process, so
/// only the files of groups that can leave less than the machine has available are read. `None` if no group can.
fn control_group_memory(
    cgroup: &str,
    machine: Machine,
    file: &dyn Fn(&str) -> Option<String>,
) -> Option<u64> {
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
                    free = most.saturating_sub(used.saturating_sub(reclaimable_bytes(&stat, prefix)));
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

/// Bytes of a control group that the kernel reclaims under memory pressure: the page cache (active and inactive) and
/// reclaimable slabs, but not `shmem`. `prefix` is that of the field names: empty for cgroup v2, `total_` for v1.
fn reclaimable_bytes(stat: &str, prefix: &str) -> u64 {
    let fields = stat.lines().filter_map(|line| line.strip_prefix(prefix)?.split_once(' '));
    let given_up =
        fields.filter(|(name, _)| matches!(*name, "inactive_file" | "active_file" | "slab_reclaimable"));
    given_up.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// The address space left: the limit in `/proc/self/limits` minus `VmSize` in `/proc/self/status`. `None` if there is no
/// limit, or if it is not known.
fn free_address_space(limits: &str, status: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let most = line.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(most.saturating_sub(bytes_of_line(status, "VmSize:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        assert_eq!(
            bytes_of_line("MemTotal:  100 kB\nMemAvailable:     64 kB\n", "MemAvailable:"),
            Some(65536)
        );
        assert_eq!(bytes_of_line("MemTotal:  100 kB\n", "MemAvailable:"), None);
        assert_eq!(free_memory().is_some(), cfg!(target_os = "linux"));
    }

    #[test]
    fn control_groups_are_bounded_by_their_ancestors() {
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
            control_group_memory(cgroup, Machine { available: u64::MAX, installed: u64::MAX }, file)
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
        assert_eq!(control_group_memory("0::/\n", machine, &of("150")), None);
        assert_eq!(seen.take(), ["memory.max"]);
        assert_eq!(control_group_memory("0::/\n", machine, &of("120")), Some(50));
        assert_eq!(seen.take(), ["memory.max", "memory.current"]);
        assert_eq!(control_group_memory("0::/\n", machine, &of("119")), Some(49));
        assert_eq!(seen.take(), ["memory.max", "memory.current", "memory.stat"]);
    }

    #[test]
    fn address_space_left_is_limit_minus_used() {
        let status = "VmPeak:  9 kB\nVmSize:\t 1 kB\n";
        assert_eq!(
            free_address_space("Max address space         4096      unlimited   bytes", status),
            Some(3072)
        );
        assert_eq!(free_address_space("Max address space      unlimited   unlimited  bytes", status), None);
    }
}
