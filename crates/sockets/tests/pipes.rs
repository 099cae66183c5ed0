//! Bodies that stay in the kernel: from the socket into a pipe, and into a file.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use support::*;
use towpath_sockets::{Event, FileRange, HubOptions, Message, Piped, SocketType};

fn contents(file: &File) -> Vec<u8> {
    let mut octets = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut octets, 0).unwrap();
    octets
}

fn piping() -> HubOptions {
    HubOptions { stream_over_bytes: Some(1000), pipe_over_bytes: Some(100_000), ..options(SocketType::Dealer) }
}

/// What came of one pair's messages.
#[derive(Default)]
struct Arrived {
    octets: Vec<u8>,
    piped_bytes: usize,
    frames: Vec<u64>,
}

impl Arrived {
    /// Takes an event; true at the end of the stream of test messages.
    fn take(&mut self, event: Event, into: &File) -> bool {
        match event {
            Event::BodyStart { head, length, .. } => {
                self.frames.extend(head.iter().map(|frame| frame.len() as u64));
                self.frames.push(length);
            }
            Event::BodyData { data, .. } => {
                into.write_all_at(&data, self.octets.len() as u64).unwrap();
                self.octets.extend_from_slice(&data);
            }
            Event::BodyPiped { piped, .. } => {
                let (at, length) = (self.octets.len() as u64, piped.len());
                piped.write_to(into, at).unwrap();
                self.piped_bytes += length;
                let mut octets = vec![0; length];
                into.read_exact_at(&mut octets, at).unwrap();
                self.octets.extend_from_slice(&octets);
            }
            Event::Message { frames, .. } => {
                self.frames.extend(frames.iter().map(|frame| frame.len() as u64));
                return frames.last().is_some_and(|frame| &frame[..] == b"end");
            }
            _ => {}
        }
        false
    }
}

#[test]
fn large_bodies_go_through_pipes_and_all_others_do_not() {
    let octets = noise(3_000_000);
    let file = file_of(&octets);
    for endpoint in ["tcp://127.0.0.1:0", "inproc://pipes"] {
        let mut pair = pair_at(&endpoint.parse().unwrap(), options(SocketType::Router), piping());
        // Short frames between long ones, whole messages between streamed ones, bodies from files and from memory.
        let sizes = [1_048_576, 200_000, 5000, 10, 2_000_001, 100_001, 100_000];
        let mut expected = (Vec::new(), Vec::new());
        for (index, &size) in sizes.iter().enumerate() {
            let head = vec![b'h'; index * 90];
            let message = Message::new().with(head.clone());
            let message = match index % 2 {
                0 => message.with(FileRange::new(file.clone(), index as u64, size as u64)),
                _ => message.with(octets[index..index + size].to_vec()),
            };
            pair.server.send(pair.at_server, message).unwrap();
            expected.0.extend([head.len() as u64, size as u64]);
            if size > 1000 {
                expected.1.extend_from_slice(&octets[index..index + size]);
            }
        }
        pair.server.send(pair.at_server, text("end")).unwrap();
        expected.0.push(3);
        let (into, mut arrived) = (tempfile::tempfile().unwrap(), Arrived::default());
        until(&mut [&mut pair.server, &mut pair.client], |_, event| arrived.take(event, &into).then_some(()));
        assert_eq!(arrived.frames, expected.0);
        assert!(arrived.octets == expected.1);
        assert!(contents(&into) == expected.1);
        let over: usize = sizes.iter().filter(|&&size| size > 100_000).sum();
        assert!(arrived.piped_bytes <= over, "{} octets came in pipes", arrived.piped_bytes);
        assert!(arrived.piped_bytes > over / 2, "only {} octets came in pipes", arrived.piped_bytes);
    }
}

#[test]
fn reading_waits_for_whoever_holds_the_pipes() {
    let octets = noise(4_000_000);
    let client = HubOptions { body_pipes: 2, ..piping() };
    let mut pair = pair(options(SocketType::Router), client);
    let range = FileRange::new(file_of(&octets), 0, 4_000_000);
    pair.server.send(pair.at_server, Message::new().with(range)).unwrap();
    let (into, mut at) = (tempfile::tempfile().unwrap(), 0);
    let mut held: VecDeque<Piped> = VecDeque::new();
    let (mut most_held, mut over) = (0, false);
    for _ in 0..20_000 {
        pair.server.turn(Some(Duration::from_millis(1))).unwrap();
        pair.client.turn(Some(Duration::from_millis(1))).unwrap();
        let mut arrived = false;
        while let Some(event) = pair.client.next_event() {
            match event {
                Event::BodyPiped { piped, .. } => {
                    held.push_back(piped);
                    arrived = true;
                }
                // The beginning and the end, which are not worth a pipe: the rest has been written by then.
                Event::BodyData { data, .. } => {
                    for piped in held.drain(..) {
                        let length = piped.len() as u64;
                        piped.write_to(&into, at).unwrap();
                        at += length;
                    }
                    into.write_all_at(&data, at).unwrap();
                    at += data.len() as u64;
                }
                Event::BodyEnd { .. } => over = true,
                _ => {}
            }
        }
        most_held = most_held.max(held.len());
        if (!arrived || over)
            && let Some(piped) = held.pop_front()
        {
            let length = piped.len() as u64;
            piped.write_to(&into, at).unwrap();
            at += length;
        }
        if over && held.is_empty() {
            break;
        }
    }
    assert!(most_held <= 2, "{most_held} pipes were held");
    assert!(contents(&into) == octets);
}

/// One body of 400,000 octets, in the pipes that it came in.
fn piped(octets: &[u8]) -> (Pair, Vec<(usize, Piped)>) {
    let mut pair = pair(options(SocketType::Router), piping());
    pair.server.send(pair.at_server, Message::new().with(octets.to_vec())).unwrap();
    let (mut pieces, mut at) = (Vec::new(), 0);
    until(&mut [&mut pair.server, &mut pair.client], |_, event| match event {
        Event::BodyData { data, .. } => {
            at += data.len();
            None
        }
        Event::BodyPiped { piped, .. } => {
            let length = piped.len();
            pieces.push((at, piped));
            at += length;
            None
        }
        Event::BodyEnd { .. } => Some(()),
        _ => None,
    });
    assert!(!pieces.is_empty());
    (pair, pieces)
}

#[test]
fn what_is_in_a_pipe_is_read_or_dropped_and_the_pipe_comes_back() {
    let octets = noise(400_000);
    let (mut pair, pieces) = piped(&octets);
    for (at, mut piece) in pieces {
        let length = piece.len();
        assert!(piece.read(10_001).unwrap() == octets[at..at + 10_001]);
        assert_eq!(piece.len(), length - 10_001);
        assert!(piece.read(usize::MAX).unwrap() == octets[at + 10_001..at + length]);
        assert!(piece.is_empty() && piece.read(1).unwrap().is_empty());
    }
    // Pipes that are dropped full don't come back, but others in their place.
    for _ in 0..40 {
        pair.server.send(pair.at_server, Message::new().with(octets.clone())).unwrap();
        until(&mut [&mut pair.server, &mut pair.client], |_, event| {
            matches!(event, Event::BodyEnd { .. }).then_some(())
        });
    }
}

#[test]
fn a_file_that_takes_nothing_from_pipes_gets_copies() {
    let octets = noise(400_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("appended");
    // splice(2) refuses files that are open for appending.
    let file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (_pair, pieces) = piped(&octets);
    let begin = pieces[0].0;
    let mut length = 0;
    for (at, piece) in pieces {
        length += piece.len();
        piece.write_to(&file, (at - begin) as u64).unwrap();
    }
    assert!(fs::read(&path).unwrap() == octets[begin..begin + length]);
}

#[test]
fn errors_of_the_file_are_told() {
    let (_pair, pieces) = piped(&noise(400_000));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, b"").unwrap();
    let read_only = File::open(&path).unwrap();
    for (_, piece) in pieces {
        assert!(piece.write_to(&read_only, 0).is_err());
    }
}

#[test]
fn a_peer_that_goes_in_the_middle_leaves_what_came() {
    let octets = noise(2_000_000);
    let mut pair = pair(options(SocketType::Router), piping());
    pair.server.send(pair.at_server, Message::new().with(FileRange::new(file_of(&octets), 0, 2_000_000))).unwrap();
    let mut arrived = Arrived::default();
    let into = tempfile::tempfile().unwrap();
    until(&mut [&mut pair.server, &mut pair.client], |_, event| {
        arrived.take(event, &into);
        (arrived.piped_bytes > 0).then_some(())
    });
    pair.server.disconnect(pair.at_server, "enough");
    drop(pair.server);
    until(&mut [&mut pair.client], |_, event| {
        let gone = matches!(event, Event::Gone { .. });
        arrived.take(event, &into);
        gone.then_some(())
    });
    assert!(octets.starts_with(&arrived.octets));
}
