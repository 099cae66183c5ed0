//! Closing a socket: messages leave, or are counted.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::time::Duration;
use support::socket::*;
use support::{anywhere, options, until};
use tempfile::TempDir;
use towpath_sockets::SocketType::{Dealer, Rep, Req, Router};
use towpath_sockets::{Endpoint, Event, Hub, Message, Socket, SocketError};

const MESSAGES: usize = 8;
const BODY_BYTES: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(3600);

/// Not tcp, for which the kernel's buffers may be as large as it likes.
fn nearby() -> (TempDir, Endpoint) {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Ipc(folder.path().join("socket"));
    (folder, endpoint)
}

/// A hub that reads nothing unless it is asked to.
fn server(endpoint: &Endpoint) -> (Hub, Endpoint) {
    let mut hub = Hub::new(options(Router)).unwrap();
    let endpoint = hub.bind(endpoint).unwrap();
    (hub, endpoint)
}

fn poll(hub: &mut Hub) -> impl Iterator<Item = Event> {
    hub.poll(Some(Duration::from_millis(1))).unwrap();
    std::iter::from_fn(|| hub.next_event())
}

/// A socket whose peer has taken nothing yet of what was sent, which is more than the kernel does.
async fn with_a_full_queue(hub: &mut Hub, endpoint: &Endpoint) -> Socket {
    let socket = socket(Dealer);
    socket.connect(endpoint).unwrap();
    eventually("a peer is ready", || {
        poll(hub).for_each(drop);
        socket.peers().len() == 1
    })
    .await;
    for _ in 0..MESSAGES {
        let message = Message::new().with(vec![7; BODY_BYTES]);
        within("a message is taken", socket.send(message)).await.unwrap();
    }
    socket
}

#[tokio::test]
async fn closing_waits_until_queues_are_empty() {
    let (_folder, endpoint) = nearby();
    let (mut hub, endpoint) = server(&endpoint);
    let socket = with_a_full_queue(&mut hub, &endpoint).await;
    let mut closing = Box::pin(socket.close(Duration::MAX));
    assert!(at_once(&mut closing).await.is_none(), "the peer has not read");
    let (mut came, mut unsent) = (0, None);
    within("all comes", async {
        while came < MESSAGES || unsent.is_none() {
            came += poll(&mut hub).filter(|event| matches!(event, Event::Message { .. })).count();
            if unsent.is_none() {
                unsent = at_once(&mut closing).await;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(unsent.unwrap().is_empty());
    assert_eq!(within("it is closed", socket.close(LONG)).await, unsent.unwrap());
}

#[tokio::test]
async fn messages_not_sent_within_linger_are_counted() {
    let (_folder, endpoint) = nearby();
    let (mut hub, endpoint) = server(&endpoint);
    let socket = with_a_full_queue(&mut hub, &endpoint).await;
    let mut sending = Box::pin(async { while socket.send(Message::new().with(vec![7; BODY_BYTES])).await.is_ok() {} });
    assert!(at_once(&mut sending).await.is_none(), "there is space without end");
    let (unsent, ()) = within("it is closed", async { tokio::join!(socket.close(Duration::ZERO), sending) }).await;
    assert_eq!(unsent.peers, 1);
    assert!(unsent.messages > 0, "{unsent:?}");
    assert!(matches!(socket.recv().await, Err(SocketError::Closed)));
    assert!(matches!(socket.send(message(&["late"])).await, Err(SocketError::Closed)));
    assert!(matches!(socket.connect(&endpoint), Err(SocketError::Closed)));
}

#[tokio::test]
async fn messages_lost_with_their_peer_are_counted() {
    let (_folder, endpoint) = nearby();
    let (mut hub, endpoint) = server(&endpoint);
    let socket = with_a_full_queue(&mut hub, &endpoint).await;
    let mut closing = Box::pin(socket.close(LONG));
    assert!(at_once(&mut closing).await.is_none(), "the peer has not read");
    drop(hub);
    let unsent = within("it is closed", closing).await;
    assert_eq!(unsent.peers, 1);
    assert!(unsent.messages > 0);
}

#[tokio::test]
async fn closing_again_takes_the_earlier_end() {
    let (_folder, endpoint) = nearby();
    let (mut hub, endpoint) = server(&endpoint);
    let socket = with_a_full_queue(&mut hub, &endpoint).await;
    let mut closing = Box::pin(socket.close(LONG));
    assert!(at_once(&mut closing).await.is_none(), "the peer has not read");
    let unsent = within("it is closed", socket.close(Duration::from_millis(1))).await;
    assert!(!unsent.is_empty());
    assert_eq!(within("it is closed", closing).await, unsent);
}

#[tokio::test]
async fn messages_can_be_received_after_closing() {
    let (one, other) = (socket(Dealer), socket(Dealer));
    join(&one, &other, &anywhere());
    send(&one, &["first"]).await;
    arrived(&other, 1).await;
    assert!(within("it is closed", other.close(LONG)).await.is_empty());
    assert_eq!(texts(&recv(&other).await.frames), ["first"]);
    assert!(matches!(other.recv().await, Err(SocketError::Closed)));
}

#[test]
fn dropped_sockets_send_what_the_kernel_takes() {
    for of_socket in [true, false] {
        let (mut hub, endpoint) = server(&anywhere());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = runtime.block_on(async {
            let socket = socket(Req);
            socket.connect(&endpoint).unwrap();
            eventually("a peer is ready", || {
                poll(&mut hub).for_each(drop);
                socket.peers().len() == 1
            })
            .await;
            send(&socket, &["the last words"]).await;
            socket
        });
        // Its task has no turn any more: this test has the only thread.
        let (mut socket, mut runtime) = (Some(socket), Some(runtime));
        if of_socket {
            drop(socket.take())
        } else {
            drop(runtime.take())
        }
        let frames = until(&mut [&mut hub], |_, event| match event {
            Event::Message { frames, .. } => Some(frames),
            _ => None,
        });
        assert_eq!(texts(&frames), ["", "the last words"]);
        drop((socket, runtime));
    }
}

#[tokio::test]
async fn last_failure_says_why_there_is_no_connection() {
    let (_folder, endpoint) = nearby();
    let (rep, req) = (socket(Rep), socket(Req));
    assert_eq!(req.last_failure(), None);
    req.connect(&endpoint).unwrap();
    let why = || req.last_failure().unwrap_or_default();
    eventually("nobody is there", || why().contains("connecting failed") && why().contains(&endpoint.to_string()))
        .await;
    rep.bind(&endpoint).unwrap();
    rep.disconnect(only_peer(&rep).await, "a test");
    eventually("the connection was ended", || why().contains("a test")).await;
}

#[test]
fn closing_a_hub_counts_unsent_messages() {
    let (_folder, endpoint) = nearby();
    for (linger, is_sent) in [(Duration::MAX, true), (Duration::ZERO, false)] {
        let mut pair = support::pair_at(&endpoint, options(Router), options(Dealer));
        let bytes = if is_sent { 1 } else { MESSAGES * BODY_BYTES };
        pair.client.send(pair.at_client, Message::new().with(vec![7; bytes])).unwrap();
        let unsent = pair.client.close(linger).unwrap();
        assert_eq!((unsent.messages, unsent.peers), if is_sent { (0, 0) } else { (1, 1) });
    }
}
