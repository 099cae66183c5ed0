//! The systems that are compared: their processes at the source and at the subscribers.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::Bench;
use crate::process::{cpu_clock, peak_bytes, process_tree, reaped_cpu, reset_peak, resident_bytes, show, wait_until};
use crate::servers::free_port;

/// How long a daemon may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);
/// How long a process may take to end when asked to.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Systems that keep directories alike.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum System {
    Tow,
    Lsyncd,
    Syncthing,
    Script,
}

/// The places of a run.
pub struct Places {
    pub source: PathBuf,
    pub destinations: Vec<PathBuf>,
    /// Directory of a system's state between two starts.
    pub state: PathBuf,
}

/// A process that is ended when dropped.
pub struct Process(Child);

/// The processes of a system.
#[derive(Default)]
pub struct Processes {
    pub source: Vec<Process>,
    pub subscribers: Vec<Process>,
    /// The port of our server.
    pub port: u16,
}

const SCRIPT: &str = r#"
tow=$1; source=$2; url=$3; shift 3
get() { pids=(); for to; do "$tow" get "$url" "$to" --quiet & pids+=($!); done; wait "${pids[@]}"; }
coproc EVENTS { exec inotifywait -m -r -q -e close_write -e moved_to -e create --format x "$source"; }
trap "kill $EVENTS_PID" EXIT; trap 'exit 0' TERM
get "$@"
while read -r -u "${EVENTS[0]}" _; do
  while read -r -t 0.01 -u "${EVENTS[0]}" _; do :; done
  get "$@"
done
"#;

impl System {
    pub const ALL: [Self; 4] = [Self::Tow, Self::Lsyncd, Self::Syncthing, Self::Script];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Tow => "tow serve --watch, tow follow",
            Self::Lsyncd => "lsyncd, rsync daemon",
            Self::Syncthing => "Syncthing",
            Self::Script => "inotifywait, tow get",
        }
    }

    pub fn how(self) -> &'static str {
        match self {
            Self::Tow => {
                "tow serve SOURCE --watch --state STATE --bind tcp://127.0.0.1:0 ; tow follow tcp://127.0.0.1:PORT/ DESTINATION --mirror"
            }
            Self::Lsyncd => {
                "lsyncd -nodaemon CONFIG (default.rsync, delay = 1, archive, --sockopts=TCP_NODELAY) ; rsync --daemon (TCP_NODELAY)"
            }
            Self::Syncthing => "syncthing serve --no-restart (fsWatcherDelayS 1, rescanIntervalS 3600), twice",
            Self::Script => {
                "inotifywait -m -r -e close_write -e moved_to -e create SOURCE ; tow serve SOURCE ; tow get tcp://127.0.0.1:PORT/ DESTINATION"
            }
        }
    }

    /// Starts it. Nothing says yet that it works.
    pub fn start(self, bench: &Bench, places: &Places) -> Result<Processes> {
        fs::create_dir_all(&places.state)?;
        match self {
            Self::Tow => tow(bench, places),
            Self::Lsyncd => lsyncd(bench, places),
            Self::Syncthing => syncthing(bench, places),
            Self::Script => script(bench, places),
        }
    }
}

fn serve(bench: &Bench, places: &Places, options: &[&str]) -> Result<Processes> {
    let port = free_port()?;
    let mut command = bench.programs.command("tow")?;
    command.arg("serve").arg(&places.source).args(["--bind", &format!("tcp://127.0.0.1:{port}")]).args(options);
    Ok(Processes { source: vec![Process::start(command, bench)?], subscribers: Vec::new(), port })
}

fn tow(bench: &Bench, places: &Places) -> Result<Processes> {
    let state = places.state.to_string_lossy();
    let mut processes = serve(bench, places, &["--watch", "--state", &state])?;
    for destination in &places.destinations {
        let mut command = bench.programs.command("tow")?;
        command.args(["follow", &format!("tcp://127.0.0.1:{}/", processes.port)]).arg(destination).arg("--mirror");
        processes.subscribers.push(Process::start(command, bench)?);
    }
    Ok(processes)
}

fn script(bench: &Bench, places: &Places) -> Result<Processes> {
    // So that there is a reason if it is missing.
    bench.programs.command("inotifywait")?;
    let mut processes = serve(bench, places, &[])?;
    let tow = bench.programs.command("tow")?;
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "script"]).arg(tow.get_program()).arg(&places.source);
    command.arg(format!("tcp://127.0.0.1:{}/", processes.port)).args(&places.destinations);
    processes.subscribers.push(Process::start(command, bench)?);
    Ok(processes)
}

fn lsyncd(bench: &Bench, places: &Places) -> Result<Processes> {
    let port = free_port()?;
    let (config, daemon) = (places.state.join("lsyncd.conf"), places.state.join("rsyncd.conf"));
    let mut modules = format!(
        "use chroot = no\nreverse lookup = no\naddress = 127.0.0.1\nlog file = /dev/null\nsocket options = TCP_NODELAY\nuid = {}\ngid = {}\n",
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    let mut syncs = format!(
        "settings {{ nodaemon = true, logfile = \"{0}/lsyncd.log\", statusFile = \"{0}/lsyncd.status\" }}\n",
        places.state.display()
    );
    for (index, destination) in places.destinations.iter().enumerate() {
        fs::create_dir_all(destination)?;
        modules += &format!("[d{index}]\npath = {}\nread only = no\n", destination.display());
        syncs += &format!(
            "sync {{ default.rsync, source = \"{}\", target = \"rsync://127.0.0.1:{port}/d{index}/\", delay = 1, \
             rsync = {{ archive = true, compress = false, _extra = {{ \"--sockopts=TCP_NODELAY\" }} }} }}\n",
            places.source.display()
        );
    }
    fs::write(&config, syncs)?;
    fs::write(&daemon, modules)?;
    let mut rsync = bench.programs.command("rsync")?;
    rsync.args(["--daemon", "--no-detach", "--port", &port.to_string(), "--config"]).arg(&daemon);
    let subscribers = vec![Process::start(rsync, bench)?];
    // lsyncd ends at once if nothing listens.
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(began.elapsed() < LISTEN_LIMIT, "the rsync daemon doesn't listen");
        thread::sleep(Duration::from_millis(1));
    }
    let mut command = bench.programs.command("lsyncd")?;
    command.arg("-nodaemon").arg(&config);
    Ok(Processes { source: vec![Process::start(command, bench)?], subscribers, port })
}

fn syncthing(bench: &Bench, places: &Places) -> Result<Processes> {
    let [destination] = places.destinations.as_slice() else {
        bail!("one Syncthing for each subscriber is too many here")
    };
    let homes = ["first", "second"].map(|name| places.state.join(name));
    let (mut ids, mut ports) = (Vec::new(), Vec::new());
    for home in &homes {
        if !home.join("cert.pem").exists() {
            let mut generate = bench.programs.command("syncthing")?;
            generate.args(["generate", "--no-default-folder", "--skip-port-probing", "--home"]).arg(home);
            finish(generate)?;
        }
        let mut ask = bench.programs.command("syncthing")?;
        ask.args(["serve", "--device-id", "--home"]).arg(home);
        ids.push(finish(ask)?.trim().to_owned());
        ports.push(free_port()?);
    }
    let mut processes = Processes::default();
    for (index, (home, folder)) in homes.iter().zip([&places.source, destination]).enumerate() {
        // It refuses a folder without it, which might be an empty mount point.
        fs::create_dir_all(folder.join(".stfolder"))?;
        fs::write(home.join("config.xml"), syncthing_config(folder, &ids, &ports, index))?;
        let mut command = bench.programs.command("syncthing")?;
        command.args(["serve", "--no-restart", "--no-browser", "--no-upgrade", "--logfile=-", "--home"]).arg(home);
        let process = Process::start(command, bench)?;
        if index == 0 { processes.source.push(process) } else { processes.subscribers.push(process) }
    }
    Ok(processes)
}

fn syncthing_config(folder: &Path, ids: &[String], ports: &[u16], own: usize) -> String {
    let devices: String = ids
        .iter()
        .zip(ports)
        .map(|(id, port)| {
            format!("<device id=\"{id}\" name=\"{port}\"><address>tcp://127.0.0.1:{port}</address></device>\n")
        })
        .collect();
    let shared: String = ids.iter().map(|id| format!("<device id=\"{id}\"/>")).collect();
    let port = ports.get(own).copied().unwrap_or_default();
    format!(
        "<configuration version=\"35\">\n<folder id=\"bench\" path=\"{}\" type=\"sendreceive\" rescanIntervalS=\"3600\" \
         fsWatcherEnabled=\"true\" fsWatcherDelayS=\"1\" ignorePerms=\"false\"><filesystemType>basic</filesystemType>{shared}\
         <minDiskFree unit=\"%\">0</minDiskFree></folder>\n{devices}<gui enabled=\"false\"></gui>\n<options>\
         <listenAddress>tcp://127.0.0.1:{port}</listenAddress><globalAnnounceEnabled>false</globalAnnounceEnabled>\
         <localAnnounceEnabled>false</localAnnounceEnabled><relaysEnabled>false</relaysEnabled><natEnabled>false</natEnabled>\
         <reconnectionIntervalS>1</reconnectionIntervalS><startBrowser>false</startBrowser><urAccepted>-1</urAccepted>\
         <autoUpgradeIntervalH>0</autoUpgradeIntervalH><crashReportingEnabled>false</crashReportingEnabled>\
         <setLowPriority>false</setLowPriority><minHomeDiskFree unit=\"%\">0</minHomeDiskFree></options>\n</configuration>\n",
        folder.display()
    )
}

/// Runs a program that ends at once, and returns its output.
fn finish(mut command: Command) -> Result<String> {
    let shown = show(&command);
    let output = command.stdin(Stdio::null()).output().with_context(|| shown.clone())?;
    if !output.status.success() {
        bail!("{shown} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

impl Process {
    fn start(mut command: Command, bench: &Bench) -> Result<Process> {
        let shown = show(&command);
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = File::create(bench.folder.join(&format!("{name}.log")))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(Process(command.spawn().with_context(|| format!("{shown} can't be started"))?))
    }

    /// This process and its running descendants.
    fn tree(&self) -> Vec<u32> {
        process_tree(self.0.id())
    }

    fn signal_tree(&self, signal: Signal) {
        for pid in self.tree() {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid.into_iter().for_each(|pid| _ = kill_process(pid, signal));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One with children of its own ends them when it is asked to.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        if !matches!(wait_until(&mut self.0, STOP_LIMIT), Ok(Some(_))) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Resources that processes used.
#[derive(Clone, Copy)]
pub struct Used {
    pub cpu_seconds: f64,
    pub peak_bytes: u64,
}

/// Resources that processes have used, with their ended descendants.
pub fn used(processes: &[Process]) -> Used {
    let pids: Vec<u32> = processes.iter().flat_map(Process::tree).collect();
    Used {
        cpu_seconds: pids.iter().map(|pid| cpu_clock(*pid) + reaped_cpu(*pid)).sum(),
        peak_bytes: pids.iter().map(|pid| peak_bytes(*pid)).sum(),
    }
}

/// Memory that processes have now.
pub fn resident(processes: &[Process]) -> u64 {
    processes.iter().flat_map(Process::tree).map(resident_bytes).sum()
}

/// From now on peaks are those of what comes.
pub fn reset_peaks(processes: &[Process]) {
    processes.iter().flat_map(Process::tree).for_each(reset_peak);
}

impl Processes {
    /// An error if one has ended.
    pub fn check(&mut self) -> Result<()> {
        for process in self.source.iter_mut().chain(&mut self.subscribers) {
            if let Some(status) = process.0.try_wait()? {
                bail!("a process ended early with {status}");
            }
        }
        Ok(())
    }

    /// Stops the source, or lets it go on.
    pub fn freeze_source(&self, is_frozen: bool) {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        self.source.iter().for_each(|process| process.signal_tree(signal));
    }
}
