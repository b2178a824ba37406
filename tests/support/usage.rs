//! What a process uses, by `/proc`; see proc(5).

use std::{fs, time::Duration};

/// Of the processors so far.
pub fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process that runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    let fields: Vec<&str> = fields.split(' ').collect();
    // utime and stime, in ticks of 10 ms.
    let ticks = fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().expect("a number"));
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// Of memory now, in KiB.
pub fn memory(pid: u32) -> u64 {
    of_memory(pid, "VmRSS:")
}

/// The most it ever had of memory, in KiB.
pub fn peak_memory(pid: u32) -> u64 {
    of_memory(pid, "VmHWM:")
}

fn of_memory(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that runs");
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let size = line.expect("a line of each kind").trim();
    size.trim_end_matches(" kB").parse().expect("a number")
}
