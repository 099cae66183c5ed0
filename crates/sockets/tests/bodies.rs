//! Bodies from files, on either side.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use support::*;
use towpath_buffers::PAGE_BYTES;
use towpath_sockets::{Event, FileRange, Hub, HubOptions, Message, PeerId, SocketType};

fn streaming() -> HubOptions {
    options(SocketType::Dealer).with(|options| options.stream_over_bytes = Some(1000))
}

#[test]
fn a_file_leaves_by_sendfile_and_arrives_as_a_stream() {
    let bytes = noise(5_000_000);
    let file = file_of(&bytes);
    for endpoint in ["tcp://127.0.0.1:0", "inproc://bodies"] {
        let mut pair = pair_at(&endpoint.parse().unwrap(), options(SocketType::Router), streaming());
        let message = Message::new()
            .with(&b"head"[..])
            .with(FileRange::new(file.clone(), 1, 4_999_999).tagged(9))
            .with(&b"between"[..])
            .with(FileRange::new(file.clone(), 0, 2000))
            .with(&b"tail"[..]);
        pair.server.send(pair.at_server, message).unwrap();
        let mut heads = Vec::new();
        let mut body = Vec::new();
        let mut sent = false;
        until(&mut [&mut pair.server, &mut pair.client], |_, event| {
            match event {
                Event::FileSent { tag: 9, whole: true, .. } => sent = true,
                Event::BodyStart { head, length, .. } => {
                    heads.push((head, length));
                }
                Event::BodyData { data, .. } => body.extend_from_slice(&data),
                Event::Message { frames, continued, .. } => {
                    assert!(continued);
                    heads.push((frames, 0));
                    return Some(());
                }
                _ => {}
            }
            None
        });
        assert!(sent);
        assert_eq!(body, [&bytes[1..], &bytes[..2000]].concat());
        let heads: Vec<_> = heads.iter().map(|(frames, length)| (&frames[0][..], *length)).collect();
        assert_eq!(heads, [(&b"head"[..], 4_999_999), (b"between", 2000), (b"tail", 0)]);
        let info = pair.server.peer(pair.at_server).unwrap();
        assert!(info.sendfile_bytes >= 4_999_999 || endpoint.starts_with("inproc"));
    }
}

#[test]
fn streamed_bodies_are_read_into_page_aligned_buffers() {
    let file = file_of(&noise(5_000_000));
    let mut pair = pair(options(SocketType::Router), streaming());
    pair.server
        .send(pair.at_server, Message::new().with(&b"head"[..]).with(FileRange::new(file, 0, 5_000_000)))
        .unwrap();
    let mut large = 0;
    until(&mut [&mut pair.server, &mut pair.client], |_, event| {
        match event {
            // More than is read ahead, which comes through another buffer.
            Event::BodyData { data, .. } if data.len() > 64 << 10 => {
                assert_eq!(data.as_ptr() as usize % PAGE_BYTES, 0);
                large += 1;
            }
            Event::BodyEnd { .. } => return Some(()),
            _ => {}
        }
        None
    });
    assert!(large > 0);
}

#[test]
fn short_file_is_padded_with_zeros_and_reported() {
    let file = file_of(&[1; 1_000_000]);
    let mut pair = pair(options(SocketType::Router), streaming());
    pair.server.send(pair.at_server, Message::new().with(FileRange::new(file, 0, 1_500_000).tagged(3))).unwrap();
    let mut body = Vec::new();
    let mut whole = true;
    until(&mut [&mut pair.server, &mut pair.client], |_, event| {
        match event {
            Event::FileSent { tag: 3, whole: is_whole, .. } => whole = is_whole,
            Event::BodyData { data, .. } => body.extend_from_slice(&data),
            Event::BodyEnd { more: false, .. } => return Some(()),
            _ => {}
        }
        None
    });
    assert!(!whole);
    assert_eq!(body.len(), 1_500_000);
    assert!(body[..1_000_000].iter().all(|byte| *byte == 1) && body[1_000_000..].iter().all(|byte| *byte == 0));
}

#[test]
fn short_file_closes_the_connection_on_request() {
    let file = file_of(&[1; 1000]);
    let mut pair = pair(options(SocketType::Router), options(SocketType::Dealer));
    let range = FileRange::new(file, 0, 2000).close_if_short();
    pair.server.send(pair.at_server, Message::new().with(range)).unwrap();
    let reason = until(&mut [&mut pair.server, &mut pair.client], |index, event| match event {
        Event::Gone { reason, .. } if index == 0 => Some(reason),
        Event::Message { .. } => panic!("a frame that was not whole arrived"),
        _ => None,
    });
    assert!(reason.contains("shorter"), "{reason}");
}

#[test]
fn reading_waits_for_a_free_buffer() {
    let bytes = noise(3_000_000);
    let file = file_of(&bytes);
    let client = streaming().with(|options| options.body_buffer_bytes = 1024 * 1024);
    let mut pair = pair(options(SocketType::Router), client);
    pair.server.send(pair.at_server, Message::new().with(FileRange::new(file, 0, 3_000_000))).unwrap();
    let mut held = std::collections::VecDeque::new();
    let mut most_held = 0;
    let mut body = Vec::new();
    let turns = |hub: &mut Hub| hub.poll(Some(Duration::from_millis(1))).unwrap();
    for _ in 0..20_000 {
        turns(&mut pair.server);
        turns(&mut pair.client);
        let mut arrived = false;
        while let Some(event) = pair.client.next_event() {
            if let Event::BodyData { data, .. } = event {
                held.push_back(data);
                arrived = true;
            }
        }
        most_held = most_held.max(held.iter().map(|data| data.len()).sum::<usize>());
        if !arrived && let Some(data) = held.pop_front() {
            body.extend_from_slice(&data);
        }
        if body.len() == bytes.len() {
            break;
        }
    }
    assert!(body == bytes);
    assert!(most_held <= 2 * 512 * 1024 + 64 * 1024, "{most_held} bytes were held");
}

#[test]
fn waiting_peers_take_turns_with_buffers() {
    let body = bytes::Bytes::from(vec![7; 64 * 1024 * 1024]);
    let server = options(SocketType::Router).with(|options| {
        options.body_buffer_bytes = 1024 * 1024;
        options.stream_over_bytes = Some(1000);
    });
    let mut server = Hub::new(server).unwrap();
    let endpoint = server.bind(&anywhere()).unwrap();
    let mut clients = (0..4).map(|_| Hub::new(options(SocketType::Dealer)).unwrap()).collect::<Vec<_>>();
    let mut counts = HashMap::new();
    for client in &mut clients {
        client.connect(&endpoint).unwrap();
        let peers = ready(&mut [&mut server, client]);
        counts.insert(peers[0], 0);
        client.send(peers[1], Message::new().with(body.clone())).unwrap();
    }
    // The application takes bytes more slowly than they arrive: it returns one buffer at a time.
    let mut held = std::collections::VecDeque::new();
    let mut hubs = clients.iter_mut().chain([&mut server]).collect::<Vec<_>>();
    let total = until(&mut hubs, |_, event| {
        if let Event::BodyData { peer, data } = event {
            *counts.get_mut(&peer).unwrap() += data.len();
            held.push_back(data);
        }
        if held.len() > 1 {
            held.pop_front();
        }
        let total = counts.values().sum::<usize>();
        (total > 32 * 1024 * 1024).then_some(total)
    });
    assert!(counts.values().all(|bytes| *bytes > total / 16), "{counts:?}");
}

#[test]
fn queued_messages_can_be_removed_until_they_begin_to_leave() {
    let file = file_of(&noise(50_000_000));
    let mut pair = pair(options(SocketType::Router), streaming());
    for tag in [1, 2, 1, 2] {
        let range = FileRange::new(file.clone(), 0, 50_000_000);
        pair.server.send(pair.at_server, Message::new().with(range).tagged(tag)).unwrap();
    }
    pair.server.poll(Some(Duration::ZERO)).unwrap();
    assert_eq!(pair.server.remove_queued(pair.at_server, 1), 1, "the first of them has begun");
    assert_eq!(pair.server.queued(pair.at_server).messages, 2);
    let cleared = pair.server.clear_queue(pair.at_server);
    assert_eq!((cleared.messages, cleared.external_bytes), (2, 100_000_000));
    pair.server.send(pair.at_server, text("end")).unwrap();
    let mut bodies = 0;
    until(&mut [&mut pair.server, &mut pair.client], |_, event| match event {
        Event::BodyEnd { .. } => {
            bodies += 1;
            None
        }
        Event::Message { frames, .. } => (&frames[0][..] == b"end").then_some(()),
        _ => None,
    });
    assert_eq!(bodies, 1);
}

#[test]
fn clearing_a_full_queue_makes_it_writable() {
    let emptied_by: [fn(&mut Hub, PeerId); 2] =
        [|hub, peer| assert!(hub.clear_queue(peer).messages > 1), |hub, peer| assert!(hub.remove_queued(peer, 5) > 1)];
    for (index, empty) in emptied_by.into_iter().enumerate() {
        // The kernel's queues have one size here, and this peer reads nothing: once full, they stay so.
        let endpoint = format!("inproc://emptied {index}").parse().unwrap();
        let server = options(SocketType::Router).with(|options| options.send_queue_bytes = 1024 * 1024);
        let mut pair = pair_at(&endpoint, server, options(SocketType::Dealer));
        let chunk = bytes::Bytes::from(vec![7; 64 * 1024]);
        loop {
            let mut taken = 0;
            while pair.server.send(pair.at_server, Message::new().with(chunk.clone()).tagged(5)).is_ok() {
                taken += 1;
            }
            if taken == 0 {
                break;
            }
            pair.server.poll(Some(Duration::ZERO)).unwrap();
            while pair.server.next_event().is_some() {}
        }
        empty(&mut pair.server, pair.at_server);
        until(&mut [&mut pair.server], |_, event| matches!(event, Event::Writable { .. }).then_some(()));
        assert!(pair.server.is_writable(pair.at_server));
    }
}

/// A file that only read(2) reads, as some filesystems have them all, and what it holds: more than is read at a time, and than a
/// socket has space for. It is the environment of a process that waits until it is let go. `None` where the kernel sends it itself.
fn unsendable() -> Option<(Child, Arc<File>, Vec<u8>)> {
    let mut command = Command::new("cat");
    command.env_clear().stdin(Stdio::piped());
    let mut bytes = Vec::new();
    for number in 0..12 {
        let (name, value) = (format!("NOISE_{number:02}"), format!("{number:x}").repeat(100_000));
        bytes.extend_from_slice(format!("{name}={value}\0").as_bytes());
        command.env(name, value);
    }
    let child = command.spawn().unwrap();
    let file = File::open(format!("/proc/{}/environ", child.id())).unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    match rustix::fs::sendfile(&socket, &file, Some(&mut 0), 100) {
        Err(Errno::INVAL) => Some((child, Arc::new(file), bytes)),
        other => {
            let in_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!in_ci, "sendfile says {other:?} of {file:?}, and in CI this test may not be skipped");
            println!("skipped: sendfile says {other:?} of {file:?}, so that there is nothing to be copied");
            None
        }
    }
}

#[test]
fn files_that_sendfile_refuses_are_copied() {
    let Some((mut child, file, bytes)) = unsendable() else { return };
    let length = bytes.len() as u64;
    for endpoint in ["tcp://127.0.0.1:0", "inproc://copied"] {
        let mut pair = pair_at(&endpoint.parse().unwrap(), options(SocketType::Router), streaming());
        let message = Message::new()
            .with(FileRange::new(file.clone(), 3, length - 3).tagged(1))
            .with(FileRange::new(file.clone(), 100_000, 150_000).tagged(2))
            // The file ends before its frame.
            .with(FileRange::new(file.clone(), length - 1000, 2000).tagged(3))
            .with(&b"tail"[..]);
        pair.server.send(pair.at_server, message).unwrap();
        let (mut body, mut sent) = (Vec::new(), Vec::new());
        until(&mut [&mut pair.server, &mut pair.client], |_, event| {
            match event {
                Event::FileSent { tag, whole, .. } => sent.push((tag, whole)),
                Event::BodyData { data, .. } => body.extend_from_slice(&data),
                Event::Message { frames, .. } => {
                    body.extend_from_slice(&frames[0]);
                    return Some(());
                }
                _ => {}
            }
            None
        });
        assert_eq!(sent, [(1, true), (2, true), (3, false)], "{endpoint}");
        let end = &bytes[bytes.len() - 1000..];
        assert!(body == [&bytes[3..], &bytes[100_000..250_000], end, &[0; 1000], b"tail"].concat(), "{endpoint}");
        let info = pair.server.peer(pair.at_server).unwrap();
        assert!(info.sendfile_bytes == 0 && info.bytes_out > length, "all of it was copied");
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}
