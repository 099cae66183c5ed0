//! The easy interface: all four kinds of sockets, over every transport, and what becomes of a turn whose peer goes.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;
use towpath_sockets::{Endpoint, HubOptions, Message, PeerId, Socket, SocketError, SocketType};

const PATIENCE: Duration = Duration::from_secs(20);

/// What doesn't happen at once doesn't for so long.
const A_MOMENT: Duration = Duration::from_millis(200);

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("what was waited for did not happen") })
}

fn socket(kind: SocketType) -> Socket {
    Socket::new(HubOptions::new(kind)).unwrap()
}

fn connected(kind: SocketType, endpoint: &Endpoint) -> Socket {
    let socket = socket(kind);
    socket.connect(endpoint).unwrap();
    socket
}

fn bound(kind: SocketType) -> (Socket, Endpoint) {
    let socket = socket(kind);
    let endpoint = socket.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
    (socket, endpoint)
}

fn message(frames: &[&str]) -> Message {
    frames.iter().fold(Message::new(), |message, frame| message.with(frame.as_bytes().to_vec()))
}

async fn heard(socket: &Socket) -> (PeerId, Vec<String>) {
    let received = socket.recv().await.unwrap();
    (received.peer, received.frames.iter().map(|frame| String::from_utf8(frame.to_vec()).unwrap()).collect())
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn each_kind_talks_to_those_that_it_may_over_every_transport() {
    use SocketType::{Dealer, Rep, Req, Router};
    let folder = tempfile::tempdir().unwrap();
    for transport in ["tcp://127.0.0.1:0", &format!("ipc://{}/here", folder.path().display()), "inproc://easy"] {
        // The frames that either side sees of a question and its answer of two frames each.
        for (asking, asked, envelope) in [
            (Req, Rep, &[][..]),
            (Req, Router, &[""][..]),
            (Dealer, Rep, &[]),
            (Dealer, Router, &[""]),
            (Dealer, Dealer, &[""]),
        ] {
            run(async {
                let server = socket(asked);
                let endpoint = server.bind(&transport.parse().unwrap()).unwrap();
                let client = connected(asking, &endpoint);
                let (own, theirs): (&[&str], _) = if asking == Dealer { (&[""], envelope) } else { (&[], envelope) };
                client.send(message(&[own, &["how", "far?"]].concat())).await.unwrap();
                let (peer, question) = heard(&server).await;
                assert_eq!(question, [theirs, &["how", "far?"]].concat(), "{asking:?} {asked:?} {transport}");
                let answer = message(&[theirs, &["ten", "miles"]].concat());
                if asked == Router {
                    server.send_to(peer, answer).await.unwrap();
                } else {
                    server.send(answer).await.unwrap();
                }
                assert_eq!(heard(&client).await.1, [own, &["ten", "miles"]].concat(), "{asking:?} {asked:?}");
            });
        }
    }
}

#[test]
fn a_rep_answers_whoever_asked() {
    run(async {
        let (server, endpoint) = bound(SocketType::Rep);
        let clients: Vec<Socket> = (0..5).map(|_| connected(SocketType::Req, &endpoint)).collect();
        for (index, client) in clients.iter().enumerate() {
            client.send(message(&[&format!("question {index}")])).await.unwrap();
        }
        for _ in &clients {
            let question = heard(&server).await.1.concat();
            server.send(message(&[&question.replace("question", "answer")])).await.unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            assert_eq!(heard(client).await.1, [format!("answer {index}")]);
        }
    });
}

#[test]
fn a_dealer_takes_its_peers_in_turn() {
    run(async {
        let (dealer, endpoint) = bound(SocketType::Dealer);
        let peers: Vec<Socket> = (0..3).map(|_| connected(SocketType::Dealer, &endpoint)).collect();
        until(|| dealer.peers().len() == peers.len()).await;
        for number in 0..9 {
            dealer.send(message(&[&number.to_string()])).await.unwrap();
        }
        let mut first = Vec::new();
        for peer in &peers {
            let mut of_it: Vec<u32> = Vec::new();
            for _ in 0..3 {
                of_it.push(heard(peer).await.1.concat().parse().unwrap());
            }
            assert_eq!(of_it, [of_it[0], of_it[0] + 3, of_it[0] + 6]);
            first.push(of_it[0]);
        }
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
    });
}

#[test]
fn what_is_sent_before_anybody_is_there_waits_for_somebody() {
    run(async {
        let client = connected(SocketType::Req, &"inproc://later".parse().unwrap());
        // Given up, it was not sent.
        assert!(timeout(A_MOMENT, client.send(message(&["given up"]))).await.is_err());
        let server = socket(SocketType::Rep);
        let asked = async {
            server.bind(&"inproc://later".parse().unwrap()).unwrap();
            heard(&server).await.1
        };
        let (sent, asked) = tokio::join!(client.send(message(&["sent"])), asked);
        sent.unwrap();
        assert_eq!(asked, ["sent"]);
    });
}

#[test]
fn a_peer_that_does_not_read_holds_its_sender_back_and_loses_nothing() {
    run(async {
        let (router, endpoint) = bound(SocketType::Router);
        let dealer = connected(SocketType::Dealer, &endpoint);
        let filler = "x".repeat(60_000);
        let mut sent = 0_u32;
        // Until the queues on both sides and those of the kernel are full.
        while timeout(A_MOMENT, dealer.send(message(&[&sent.to_string(), &filler])))
            .await
            .is_ok_and(|sent| sent.is_ok())
        {
            sent += 1;
        }
        assert!(sent > 100 && dealer.queued(dealer.peers()[0].id).memory_bytes > 0, "{sent}");
        let count = sent + 50;
        let rest = async {
            for number in sent..count {
                dealer.send(message(&[&number.to_string(), &filler])).await.unwrap();
            }
        };
        let all = async {
            for number in 0..count {
                assert_eq!(heard(&router).await.1[0], number.to_string());
            }
        };
        tokio::join!(rest, all);
    });
}

#[test]
fn turns_are_kept() {
    run(async {
        let (server, endpoint) = bound(SocketType::Rep);
        let client = connected(SocketType::Req, &endpoint);
        let out_of_turn = |result: Result<(), SocketError>| matches!(result, Err(SocketError::OutOfTurn(_)));
        assert!(out_of_turn(client.recv().await.map(drop)));
        assert!(out_of_turn(server.send(message(&["unasked"])).await));
        client.send(message(&["one"])).await.unwrap();
        assert!(out_of_turn(client.send(message(&["two"])).await));
        heard(&server).await;
        assert!(out_of_turn(server.recv().await.map(drop)));
        server.send(message(&["reply"])).await.unwrap();
        assert!(out_of_turn(server.send(message(&["again"])).await));
        assert_eq!(heard(&client).await.1, ["reply"]);
        let (router, _) = bound(SocketType::Router);
        assert!(out_of_turn(router.send(message(&["to whom?"])).await));
    });
}

#[test]
fn a_req_whose_peer_goes_may_ask_the_next_one() {
    run(async {
        let (first, endpoint) = bound(SocketType::Rep);
        let client = connected(SocketType::Req, &endpoint);
        client.send(message(&["one"])).await.unwrap();
        let (peer, _) = heard(&first).await;
        first.disconnect(peer, "enough");
        assert!(matches!(client.recv().await, Err(SocketError::PeerGone(_))));
        // The first one still owes a reply to somebody who isn't there any more.
        assert!(matches!(first.send(message(&["late"])).await, Err(SocketError::PeerGone(_))));
        client.send(message(&["two"])).await.unwrap();
        assert_eq!(heard(&first).await.1, ["two"]);
        first.send(message(&["reply"])).await.unwrap();
        assert_eq!(heard(&client).await.1, ["reply"]);
    });
}

#[test]
fn a_reply_counts_though_its_sender_has_gone_since() {
    run(async {
        let (server, endpoint) = bound(SocketType::Rep);
        let client = connected(SocketType::Req, &endpoint);
        client.send(message(&["question"])).await.unwrap();
        heard(&server).await;
        server.send(message(&["last words"])).await.unwrap();
        drop(server);
        until(|| client.peers().is_empty()).await;
        assert_eq!(heard(&client).await.1, ["last words"]);
    });
}

#[test]
fn messages_of_many_peers_come_all_and_in_the_order_of_each() {
    run(async {
        let (router, endpoint) = bound(SocketType::Router);
        let dealers: Vec<Socket> = (0..4).map(|_| connected(SocketType::Dealer, &endpoint)).collect();
        for number in 0..100 {
            for dealer in &dealers {
                dealer.send(message(&[&number.to_string()])).await.unwrap();
            }
        }
        let mut next: BTreeMap<PeerId, u32> = BTreeMap::new();
        for _ in 0..400 {
            let (peer, frames) = heard(&router).await;
            let next = next.entry(peer).or_default();
            assert_eq!(frames, [next.to_string()]);
            *next += 1;
        }
        assert_eq!(next.into_values().collect::<Vec<_>>(), [100; 4]);
    });
}
