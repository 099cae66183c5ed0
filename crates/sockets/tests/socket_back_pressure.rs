//! A socket whose peer doesn't keep up: it waits, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::socket::*;
use support::{anywhere, options};
use towpath_sockets::SocketType::{Dealer, Router};
use towpath_sockets::{Endpoint, Message, Socket, SocketType};

const MIB: u64 = 1 << 20;
const BODY_BYTES: u64 = 64 << 10;
/// Bytes received and not taken from which on a socket reads no more.
const RECEIVED_BYTES: u64 = 16 * MIB;
/// All that is sent, far more than there is space for.
const MESSAGES: u64 = 48 * MIB / BODY_BYTES;

/// A socket that has little space for what waits to leave.
fn narrow(socket_type: SocketType) -> Socket {
    Socket::new(options(socket_type).with(|options| options.send_queue_bytes = MIB as usize)).unwrap()
}

fn numbered(number: u64, body: &Bytes) -> Message {
    Message::new().with(number.to_be_bytes().to_vec()).with(body.clone())
}

fn body() -> Bytes {
    vec![7; BODY_BYTES as usize].into()
}

/// Takes all messages, each in its turn; those that were sent are never more than `most_ahead` of those taken, in bytes.
async fn take_all(receiver: &Socket, sent: &AtomicU64, most_ahead: u64, over: &Endpoint) {
    for number in 0..MESSAGES {
        let ahead = sent.load(Ordering::SeqCst).saturating_sub(number);
        assert!(ahead * BODY_BYTES <= most_ahead, "{ahead} messages are in flight over {over}");
        let frames = recv(receiver).await.frames;
        assert_eq!(frames[0][..], number.to_be_bytes(), "none lost, in order");
        assert_eq!(frames[1].len() as u64, BODY_BYTES);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sender_waits_for_a_slow_consumer() {
    for kind in [Dealer, Router] {
        let (_folder, endpoints) = everywhere(&format!("pressure {kind:?}"));
        for endpoint in endpoints {
            let (sender, receiver) = (Arc::new(narrow(kind)), socket(Dealer));
            join(&receiver, &sender, &endpoint);
            let peer = only_peer(&sender).await;
            let sent = Arc::new(AtomicU64::new(0));
            let sending = tokio::spawn({
                let (sender, sent, body) = (sender.clone(), sent.clone(), body());
                async move {
                    for number in 0..MESSAGES {
                        match kind {
                            Router => sender.send_to(peer, numbered(number, &body)).await.unwrap(),
                            _ => sender.send(numbered(number, &body)).await.unwrap(),
                        }
                        sent.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            // So much is taken from a sender whose messages nobody takes.
            let most_sent = || sent.load(Ordering::SeqCst) * BODY_BYTES > RECEIVED_BYTES;
            eventually("what there is space for is sent", most_sent).await;
            let most_ahead = match endpoint {
                // The kernel's buffers are as large as the machine's settings have them.
                Endpoint::Tcp { .. } => u64::MAX,
                _ => RECEIVED_BYTES + 4 * MIB,
            };
            take_all(&receiver, &sent, most_ahead, &endpoint).await;
            within("all is sent", sending).await.unwrap();
        }
    }
}

#[tokio::test]
async fn cancelled_send_was_not_sent() {
    let (dealer, server) = (narrow(Dealer), socket(Dealer));
    join(&server, &dealer, &anywhere());
    let peer = only_peer(&dealer).await;
    // Nothing leaves meanwhile: this test has the only thread.
    let mut taken = 0;
    while at_once(&mut Box::pin(dealer.send(numbered(taken, &body())))).await.is_some() {
        taken += 1;
    }
    assert!(dealer.queued(peer).memory_bytes as u64 >= MIB);
    assert!((MIB / BODY_BYTES - 1..=MIB / BODY_BYTES + 1).contains(&taken), "{taken} messages");
    within("it is taken", dealer.send(numbered(taken, &body()))).await.unwrap();
    for number in 0..=taken {
        assert_eq!(recv(&server).await.frames[0][..], number.to_be_bytes());
    }
}

#[tokio::test]
async fn smallest_queue_holds_one_message() {
    let dealer = Socket::new(options(Dealer).with(|options| options.send_queue_bytes = 1)).unwrap();
    let server = socket(Dealer);
    join(&server, &dealer, &anywhere());
    for number in 0..20 {
        within("it is taken", dealer.send(numbered(number, &body()))).await.unwrap();
    }
    for number in 0..20u64 {
        assert_eq!(recv(&server).await.frames[0][..], number.to_be_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_consumer_does_not_delay_other_peers() {
    let folder = tempfile::tempdir().unwrap();
    let dealer = narrow(Dealer);
    // Not over tcp, for which the kernel's buffers may be as large as it likes.
    let endpoint = dealer.bind(&Endpoint::Ipc(folder.path().join("socket"))).unwrap();
    let (idle, busy) = (socket(Dealer), Arc::new(socket(Dealer)));
    for server in [&idle, &busy] {
        server.connect(&endpoint).unwrap();
    }
    eventually("both are ready", || dealer.peers().len() == 2).await;
    let reading = tokio::spawn({
        let busy = busy.clone();
        async move {
            let mut taken = 0;
            while !recv(&busy).await.frames[0].is_empty() {
                taken += 1;
            }
            taken
        }
    });
    // The one gets what there is space for, the other one all the rest.
    for number in 0..2 * MESSAGES {
        within("a peer has space", dealer.send(numbered(number, &body()))).await.unwrap();
    }
    let busy_peer = dealer.peers().into_iter().max_by_key(|peer| peer.messages_out).unwrap().id;
    within("it has space", dealer.send_to(busy_peer, Message::new().with(Bytes::new()))).await.unwrap();
    let taken: u64 = within("all is read", reading).await.unwrap();
    for _ in taken..2 * MESSAGES {
        recv(&idle).await;
    }
    assert!(taken > MESSAGES, "the busy one got {taken} of {}", 2 * MESSAGES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flooding_peer_does_not_starve_others() {
    for kind in [Dealer, Router] {
        let server = socket(kind);
        let endpoint = server.bind(&anywhere()).unwrap();
        let (flooding, modest) = (narrow(Dealer), socket(Dealer));
        flooding.connect(&endpoint).unwrap();
        modest.connect(&endpoint).unwrap();
        eventually("both are ready", || server.peers().len() == 2).await;
        let flood = tokio::spawn(async move {
            for number in 0..MESSAGES {
                within("the flood goes on", flooding.send(numbered(number, &body()))).await.unwrap();
            }
            flooding
        });
        // Until the server takes in no more of that one.
        let held = || server.peers().iter().map(|peer| peer.messages_in).max().unwrap() * BODY_BYTES;
        eventually("the server holds what it can", || held() >= RECEIVED_BYTES).await;
        send(&modest, &["may I?"]).await;
        eventually("it has arrived", || server.peers().iter().all(|peer| peer.messages_in > 0)).await;
        let first_received = async {
            for before in 0..MESSAGES {
                if recv(&server).await.frames[0] == "may I?" {
                    return before;
                }
            }
            MESSAGES
        };
        // It waits for no more of the flood than had arrived already.
        let before = within("the modest one is read", first_received).await;
        assert!(before * BODY_BYTES <= RECEIVED_BYTES + 2 * MIB, "{kind:?}: {before} messages came first");
        for _ in before..MESSAGES {
            recv(&server).await;
        }
        within("the flood is over", flood).await.unwrap();
    }
}
