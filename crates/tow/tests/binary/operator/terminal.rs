//! `tow top` on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::operator::problems::problems;
use crate::operator::status::Place;
use crate::support::broker::{call, work};
use crate::support::process::{Process, tow};
use crate::support::wait_until;

const END: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";

/// A terminal, and what was written to it.
struct Terminal {
    keys: File,
    device: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new(columns: u16, rows: u16) -> Terminal {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&main).and_then(|()| unlockpt(&main)).expect("unlock");
        let name = ptsname(&main, Vec::new()).expect("a name");
        let device = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("open");
        let keys = File::from(main);
        let terminal = Terminal { keys, device: device.into(), shown: Arc::default() };
        terminal.resize(columns, rows);
        let (mut output, shown) = (terminal.keys.try_clone().expect("clone"), Arc::clone(&terminal.shown));
        // Until the test and the program have closed it.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..count]);
            }
        });
        terminal
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.device, size).expect("a size");
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("press");
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic holds it")).into_owned()
    }

    /// Lines of the last whole picture.
    fn picture(&self) -> Vec<String> {
        let text = self.text();
        let whole = text.rsplit_once("\u{1b}[J").map_or("", |(before, _)| before);
        let (_, picture) = whole.rsplit_once("\u{1b}[H").unwrap_or_default();
        picture.split('\n').map(|line| line.replace(['\r'], "").replace("\u{1b}[K", "")).collect()
    }

    #[track_caller]
    fn await_picture(&self, what: &str, is_it: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        let is_found = catch_unwind(AssertUnwindSafe(|| {
            wait_until(what, || {
                found = self.picture();
                is_it(&found)
            });
        }));
        assert!(is_found.is_ok(), "{what}: {found:#?}");
        found
    }

    fn top(&self, place: &Place) -> Process {
        let stdio = || Stdio::from(self.device.try_clone().expect("clone"));
        let mut command = tow(["top", "--watch=200ms"]);
        command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY");
        Process::with_output(command.stdin(stdio()), stdio())
    }

    fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.device).expect("its modes").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG) && self.text().ends_with(END)
    }
}

#[test]
fn top_keeps_problems_in_view_scrolls_and_gives_the_terminal_back() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let _workers = ["a", "b", "c", "d", "e", "f"].map(|name| work(&[&broker], &[name, "--echo"]));
    let _call = Process::start(&mut call(&[&broker], &["reports", "1"]));
    wait_until("there is a problem", || !problems(&place, "no_worker").is_empty());
    let mut terminal = Terminal::new(80, 24);
    let top = terminal.top(&place);
    terminal.await_picture("it is there", |lines| lines.len() == 24);
    let has_problem = |lines: &[String]| lines.iter().any(|line| line.starts_with("CRITICAL    reports: no worker"));
    for (columns, rows) in [(80, 24), (40, 15)] {
        terminal.resize(columns, rows);
        let fits = |lines: &[String]| {
            lines.len() == rows as usize && lines.iter().all(|line| line.chars().count() <= columns as usize)
        };
        let is_first = |lines: &[String]| lines.last().is_some_and(|line| line.contains(" lines 1-"));
        terminal.press("g");
        let begin = terminal.await_picture("it fits", |lines| fits(lines) && has_problem(lines) && is_first(lines));
        terminal.press("\u{1b}[6~");
        let next = terminal.await_picture("a page further", |lines| fits(lines) && !is_first(lines));
        assert!(has_problem(&next) && next[0] == begin[0] && next[rows as usize - 3] != begin[rows as usize - 3]);
        terminal.press("kkkkkkkkkkkkkkkkkkkkkkkk\u{1b}[A");
        terminal.await_picture("back", |lines| fits(lines) && is_first(lines));
        terminal.press("j\u{1b}[B");
        terminal.await_picture("two lines", |lines| lines.last().is_some_and(|line| line.contains(" lines 3-")));
    }
    terminal.press("q");
    top.finish().expect_code(0);
    wait_until("the terminal is as it was", || terminal.is_as_before());
    // All of it was on the other screen.
    let text = terminal.text();
    assert!(text.starts_with("\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l") && text.matches("?1049l").count() == 1);
}

#[test]
fn top_gives_the_terminal_back_when_a_signal_ends_it_and_when_the_server_does() {
    let place = Place::new();
    let broker = place.broker(&[]);
    for (keys, signal, expected) in [("\u{3}", None, Signal::INT), ("", Some(Signal::TERM), Signal::TERM)] {
        let mut terminal = Terminal::new(80, 24);
        let top = terminal.top(&place);
        terminal.await_picture("it is there", |lines| lines.len() == 24);
        terminal.press(keys);
        signal.into_iter().for_each(|signal| top.signal(signal));
        top.finish().expect_signal(expected);
        wait_until("the terminal is as it was", || terminal.is_as_before());
    }
    let terminal = Terminal::new(80, 24);
    let top = terminal.top(&place);
    terminal.await_picture("it is there", |lines| lines.len() == 24);
    drop(broker);
    let outcome = top.finish();
    assert!(!outcome.stderr.is_empty(), "it says why it ends");
    wait_until("the terminal is as it was", || terminal.is_as_before());
}
