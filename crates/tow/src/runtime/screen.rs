//! A terminal that a command has for itself: keys come as they are pressed, pictures are drawn in place, and in the end it is as it was.

use crate::cli::exit::Failure;
use crate::cli::output::print_bytes;
use crate::runtime::signals::{end_by_signal, on_stop_signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal, stdin, stdout};
use std::time::{Duration, Instant};

/// The other screen, without cursor and wrapped lines.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const END: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Time within which another size of the terminal is noticed.
const SIZE_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes of keys that are read at a time.
const KEYS_BYTES: usize = 64;
/// The longest key's bytes; what is longer is none.
const KEY_BYTES_MAX: usize = 8;

/// A key with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// `q`.
    Quit,
    /// Ctrl-C.
    Interrupt,
    /// A line up.
    Up,
    /// A line down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the beginning.
    Home,
    /// To the end.
    End,
}

/// Something to react to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A key.
    Key(Key),
    /// The terminal has another size.
    Resized,
}

/// The terminal. As it was once this is dropped.
pub struct Screen {
    before: Termios,
    /// Bytes of a key that isn't complete.
    pending: Vec<u8>,
    size: (usize, usize),
}

impl Screen {
    /// Takes the terminal, if standard input and output are one.
    pub fn open() -> Result<Option<Screen>, Failure> {
        let Some(before) = tcgetattr(stdin()).ok().filter(|_| stdout().is_terminal()) else { return Ok(None) };
        let ending = before.clone();
        on_stop_signal(move || {
            restore(&ending);
            // Even while the other thread waits for the server.
            end_by_signal();
        })?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(stdin(), OptionalActions::Flush, &raw)
            .map_err(|error| Failure::failed(format!("cannot set the terminal: {error}")))?;
        // From here on it is restored.
        let screen = Screen { before, pending: Vec::new(), size: size() };
        print_bytes(BEGIN.as_bytes())?;
        Ok(Some(screen))
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Shows lines, at most as many as there are rows.
    pub fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let lines: Vec<_> = lines.iter().take(self.size.1).map(|line| format!("{line}\x1b[K")).collect();
        print_bytes(format!("\x1b[H{}\x1b[J", lines.join("\n")).as_bytes())
    }

    /// Waits for input until this time; `None`: there was none.
    pub fn input(&mut self, until: Instant) -> Option<Input> {
        loop {
            if let Some((key, used)) = key(&self.pending) {
                self.pending.drain(..used);
                match key {
                    Some(key) => return Some(Input::Key(key)),
                    None => continue,
                }
            }
            if std::mem::replace(&mut self.size, size()) != self.size {
                return Some(Input::Resized);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if !is_readable(left.min(SIZE_INTERVAL)) {
                continue;
            }
            let mut bytes = [0; KEYS_BYTES];
            match rustix::io::read(stdin(), &mut bytes) {
                Ok(count @ 1..) => self.pending.extend_from_slice(bytes.get(..count).unwrap_or_default()),
                Err(rustix::io::Errno::INTR) => {}
                // The terminal is gone.
                Ok(0) | Err(_) => return Some(Input::Key(Key::Quit)),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

fn restore(before: &Termios) {
    let _ = print_bytes(END.as_bytes());
    let _ = tcsetattr(stdin(), OptionalActions::Now, before);
}

fn is_readable(wait: Duration) -> bool {
    let wait = Timespec { tv_sec: wait.as_secs().try_into().unwrap_or(1), tv_nsec: wait.subsec_nanos().into() };
    let input = stdin();
    poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
}

/// Columns and rows of standard output; 80 and 24 if they are unknown.
pub fn size() -> (usize, usize) {
    let known = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    known.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

/// The first key of what was read, `None` if it has no meaning, and the number of its bytes. `None`: it isn't complete.
fn key(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let simple = |key| Some((Some(key), 1));
    match bytes {
        [] => None,
        [b'q' | b'Q', ..] => simple(Key::Quit),
        [0x03, ..] => simple(Key::Interrupt),
        [b'k', ..] => simple(Key::Up),
        [b'j' | b'\r' | b'\n', ..] => simple(Key::Down),
        [b'b', ..] => simple(Key::PageUp),
        [b' ', ..] => simple(Key::PageDown),
        [b'g', ..] => simple(Key::Home),
        [b'G', ..] => simple(Key::End),
        [0x1b, b'[' | b'O', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
                return (bytes.len() >= KEY_BYTES_MAX).then_some((None, bytes.len()));
            };
            let key = match rest.get(..=end).unwrap_or_default() {
                b"A" => Some(Key::Up),
                b"B" => Some(Key::Down),
                b"5~" => Some(Key::PageUp),
                b"6~" => Some(Key::PageDown),
                b"H" | b"1~" | b"7~" => Some(Key::Home),
                b"F" | b"4~" | b"8~" => Some(Key::End),
                _ => None,
            };
            Some((key, end + 3))
        }
        [0x1b] => None,
        _ => Some((None, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_one_piece_or_in_several() {
        let all = |mut bytes: &[u8]| {
            let mut keys = Vec::new();
            while let Some((key, used)) = key(bytes) {
                keys.extend(key);
                bytes = &bytes[used..];
            }
            (keys, bytes.len())
        };
        use Key::*;
        let pressed = b"jk\x1b[A\x1bOB\x1b[5~\x1b[6~ bgG\x1b[H\x1b[4~q";
        let keys = vec![Down, Up, Up, Down, PageUp, PageDown, PageDown, PageUp, Home, End, Home, End, Quit];
        assert_eq!(all(pressed), (keys, 0));
        // Others mean nothing, and swallow nothing.
        assert_eq!(all(b"x\x1b[1;5Cq\x1b[200~\xff\x00\x03"), (vec![Quit, Interrupt], 0));
        for incomplete in [&b"\x1b"[..], b"\x1b[", b"\x1b[5", b"\x1bO"] {
            assert_eq!(all(incomplete), (vec![], incomplete.len()));
        }
        assert_eq!(all(b"\x1b[111111111111"), (vec![], 0));
    }
}
