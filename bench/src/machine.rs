//! The machine, as far as a reader needs it to make sense of the figures.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::programs::Programs;

/// The machine, its system and the versions of the programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    pub disk: String,
    pub congestion: String,
    pub versions: Vec<(String, String)>,
}

impl Machine {
    pub fn look(programs: &Programs, folder: &std::path::Path) -> Self {
        let uname = rustix::system::uname();
        Self {
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: value_of("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib.div_ceil(1 << 20)),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            disk: filesystem(folder).unwrap_or_default(),
            congestion: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            versions: programs.versions(),
        }
    }

    /// The properties that distinguish machines, in short.
    pub fn system(&self) -> String {
        format!("{}, {} cores, {} GiB, kernel {}", self.processor, self.cores, self.memory_gib, self.kernel)
    }
}

/// The one-minute load before the series began: other work spoils a measurement.
pub fn load() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The date and time in UTC.
pub fn now() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Its name, and its family and model: a hypervisor's name for it may be that of several kinds.
fn processor() -> String {
    let value = |name| value_of("/proc/cpuinfo", name);
    let name = value("model name").unwrap_or_default();
    match (value("cpu family"), value("model\t")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn value_of(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn filesystem(folder: &std::path::Path) -> Option<String> {
    let output = Command::new("df").arg("--output=fstype").arg(folder).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().to_owned())
}
