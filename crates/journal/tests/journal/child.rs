//! The processes of these tests: this very program, which an environment variable makes one of them.

use super::{State, options, recovered, state_of};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use towpath_journal::{Entry, Expiry, Journal, JournalError, Lsn, Status};
use towpath_requests::Body;

const MODE: &str = "TOW_JOURNAL_MODE";
const DIR: &str = "TOW_JOURNAL_DIR";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Appends as fast as it can, and says what has become durable.
    Append,
    /// Has the journal open.
    Hold,
    /// Appends until that fails, and goes on when it can.
    Fill,
    /// The same, making space itself.
    FillAndFree,
}

pub struct Child {
    process: Mutex<std::process::Child>,
    lines: Receiver<String>,
}

impl Child {
    /// Starts it, by the words of a command in front of it if there are any.
    pub fn start(mode: Mode, dir: &Path, by: &[&str]) -> Child {
        let program = std::env::current_exe().expect("this program");
        let mut words: Vec<&std::ffi::OsStr> = by.iter().map(std::ffi::OsStr::new).collect();
        words.push(program.as_os_str());
        let mut process = Command::new(words[0])
            .args(&words[1..])
            .args(["--exact", "child::a_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(MODE, format!("{mode:?}"))
            .env(DIR, dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a process");
        let output = process.stdout.take().expect("its output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Skips the output of the test harness.
                if let Some(said) = line.split("> ").nth(1) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Child { process: Mutex::new(process), lines }
    }

    pub fn id(&self) -> u32 {
        self.process.lock().expect("a process").id()
    }

    pub fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("a line of the process")
    }

    /// Lets it run for some time after its first word, and kills it as hard as can be. Returns the last number that it printed.
    pub fn kill_after(&self, wait: Duration) -> u64 {
        let mut last = if wait.is_zero() { 0 } else { self.line().parse().unwrap_or(0) };
        std::thread::sleep(wait);
        let mut process = self.process.lock().expect("a process");
        process.kill().expect("to kill it");
        process.wait().expect("its end");
        loop {
            match self.lines.recv_timeout(Duration::from_secs(30)) {
                // The last line may be cut off.
                Ok(line) => last = line.strip_suffix('.').and_then(|line| line.parse().ok()).unwrap_or(last),
                Err(RecvTimeoutError::Disconnected) => return last,
                Err(RecvTimeoutError::Timeout) => panic!("its output does not end"),
            }
        }
    }

    pub fn lift_file_limit(&self) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let pid = Pid::from_raw(self.id() as i32).expect("its id");
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: Some(1 << 30), maximum: None }).expect("another limit");
    }

    pub fn wait(&self) {
        let status = self.process.lock().expect("a process").wait().expect("its end");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Ok(process) = self.process.get_mut() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Operation number `index`, with ids from `first` on.
enum Operation {
    Accept(u64),
    Finish(u64),
    Forget(u64),
}

fn operation(first: u64, index: u64) -> Option<Operation> {
    let id = first + index / 3;
    let earlier = |by: u64| id.checked_sub(by).filter(|id| *id >= first);
    match index % 3 {
        0 => Some(Operation::Accept(id)),
        1 => earlier(10).map(Operation::Finish),
        // Some stay.
        _ => earlier(20).filter(|id| id % 64 != 0).map(Operation::Forget),
    }
}

fn body(id: u64) -> Vec<u8> {
    vec![id as u8; 30 + (id % 220) as usize]
}

/// Entries that are appended before operation `end`.
pub fn entries_before(first: u64, end: u64) -> u64 {
    (0..end).filter(|index| operation(first, *index).is_some()).count() as u64
}

/// State of a journal that held `before`, after all operations before `end`.
pub fn state_after(before: &State, first: u64, end: u64) -> State {
    let mut state = before.clone();
    for index in 0..end {
        match operation(first, index) {
            Some(Operation::Accept(id)) => drop(state.insert(id, (body(id), None))),
            Some(Operation::Finish(id)) => drop(state.insert(id, (Vec::new(), Some((200, body(id + 1)))))),
            Some(Operation::Forget(id)) => drop(state.remove(&id)),
            None => {}
        }
    }
    state
}

fn say(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("\n> {text}\n").as_bytes()).and_then(|()| out.flush());
}

#[test]
#[ignore = "only as a process of the other tests"]
fn a_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    match std::env::var(MODE).as_deref() {
        Ok("Append") => append_for_ever(dir),
        Ok("Hold") => {
            let _journal = Journal::open(dir, options(), || {}).expect("a journal");
            say("open");
            std::thread::sleep(Duration::from_secs(60));
        }
        Ok("Fill") => {
            let (journal, _) = fill(dir, 200_000, || {});
            journal.close().expect("a journal that is closed well");
            say("closed");
        }
        Ok("FillAndFree") => {
            std::fs::write(dir.join("ballast"), vec![1; 300_000]).expect("space at first");
            let free = || std::fs::remove_file(dir.join("ballast")).expect("to remove it");
            let (journal, count) = fill(dir, 5_000, free);
            journal.close().expect("a journal that is closed well");
            let recovered = recovered(dir);
            assert!(recovered.cut.is_none());
            assert_eq!(state_of(&recovered).into_keys().collect::<Vec<_>>(), (1..=count).collect::<Vec<_>>());
            say("all there");
        }
        _ => {}
    }
}

fn append_for_ever(dir: &Path) {
    let (mut journal, recovered) = Journal::open(dir, options(), || {}).expect("a journal");
    let first = recovered.next_id;
    let mut said = u64::MAX;
    for index in 0.. {
        let durable = journal.durable().0;
        if durable != said {
            // With an end, so that a number that is cut off isn't taken for another.
            say(format_args!("{durable}."));
            said = durable;
        }
        let (request, outcome);
        let entry = match operation(first, index) {
            Some(Operation::Accept(id)) => {
                request = Body::from(body(id));
                let (client, number) = ([1; 16], id);
                Entry::Accepted {
                    id,
                    client,
                    number,
                    service: b"service",
                    expires: Expiry::NEVER,
                    checksum: 0,
                    letter: None,
                    body: &request,
                }
            }
            Some(Operation::Finish(id)) => {
                outcome = Body::from(body(id + 1));
                Entry::Finished { id, status: 200, body: &outcome }
            }
            Some(Operation::Forget(id)) => Entry::Forgotten { id },
            None => continue,
        };
        while let Err(error) = journal.append(&entry) {
            assert!(matches!(error, JournalError::Full), "{error}");
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Appends until it fails, calls `free`, and appends once more when that works. The last body is of `large` bytes, of which one does
/// not fit where files may not grow.
fn fill(dir: &Path, large: usize, free: impl Fn()) -> (Journal, u64) {
    let (mut journal, _) = Journal::open(dir, options(), || {}).expect("a journal");
    let (small, large) = (Body::from(vec![1; 2000]), Body::from(vec![2; large]));
    let mut count = 0;
    let why = loop {
        let body = if count < 20 { &small } else { &large };
        let id = count + 1;
        let entry = Entry::Accepted {
            id,
            client: [1; 16],
            number: id,
            service: b"s",
            expires: Expiry::NEVER,
            checksum: 0,
            letter: None,
            body,
        };
        match journal.append(&entry) {
            Ok(lsn) => {
                count += 1;
                settle(&journal, lsn);
            }
            Err(JournalError::Failing(why)) => break why,
            Err(error) => panic!("{error}"),
        }
    };
    say(format_args!("failing: {why}"));
    free();
    settle_well(&journal, Lsn(count - 1));
    say("working");
    count += 1;
    let entry = Entry::Accepted {
        id: count,
        client: [1; 16],
        number: 1,
        service: b"s",
        expires: Expiry::NEVER,
        checksum: 0,
        letter: None,
        body: &small,
    };
    let lsn = journal.append(&entry).expect("space");
    settle_well(&journal, lsn);
    (journal, count)
}

/// Until it is durable, or the journal fails.
fn settle(journal: &Journal, lsn: Lsn) {
    while journal.durable() <= lsn && journal.status() == Status::Working {
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn settle_well(journal: &Journal, lsn: Lsn) {
    let start = Instant::now();
    while journal.durable() <= lsn {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", journal.status());
        std::thread::sleep(Duration::from_millis(1));
    }
}
