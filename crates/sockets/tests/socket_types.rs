//! Sockets of all types that may talk to each other, over each transport.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use bytes::Bytes;
use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use support::noise;
use support::socket::*;
use towpath_sockets::SocketType::{self, Dealer, Rep, Req, Router};
use towpath_sockets::{Endpoint, Message, PeerId, Socket, SocketError};

/// Messages of one side as the other receives them, and the replies.
struct Talk {
    kinds: [SocketType; 2],
    asked: [&'static [&'static str]; 2],
    answered: [&'static [&'static str]; 2],
}

/// Empty frames and all: what is behind an envelope is the application's.
const BODY: &[&str] = &["a", "", "b"];

const TALKS: [Talk; 6] = [
    Talk { kinds: [Req, Rep], asked: [BODY, BODY], answered: [BODY, BODY] },
    Talk { kinds: [Req, Router], asked: [BODY, &["", "a", "", "b"]], answered: [&["", "yes", ""], &["yes", ""]] },
    Talk {
        kinds: [Dealer, Rep],
        asked: [&["via", "", "a", ""], &["a", ""]],
        answered: [BODY, &["via", "", "a", "", "b"]],
    },
    Talk { kinds: [Dealer, Router], asked: [BODY, BODY], answered: [&["", "yes"], &["", "yes"]] },
    Talk { kinds: [Dealer, Dealer], asked: [BODY, BODY], answered: [&["", "yes"], &["", "yes"]] },
    Talk { kinds: [Router, Router], asked: [BODY, BODY], answered: [&["", "yes"], &["", "yes"]] },
];

/// Sends as its kind does: a ROUTER to a peer, all others to whom it is for.
async fn say(socket: &Socket, kind: SocketType, peer: PeerId, message: Message) {
    let saying = async {
        match kind {
            Router => socket.send_to(peer, message).await,
            _ => socket.send(message).await,
        }
    };
    within("a message is taken", saying).await.unwrap();
}

#[tokio::test]
async fn all_compatible_socket_types_talk() {
    for Talk { kinds, asked, answered } in TALKS {
        for asker_binds in [false, true] {
            let (_folder, endpoints) = everywhere(&format!("{kinds:?} {asker_binds}"));
            for endpoint in endpoints {
                let [asker, answerer] = kinds.map(socket);
                let (bound, connecting) = if asker_binds { (&asker, &answerer) } else { (&answerer, &asker) };
                join(bound, connecting, &endpoint);
                let peer = only_peer(&asker).await;
                for _ in 0..3 {
                    say(&asker, kinds[0], peer, message(asked[0])).await;
                    let question = recv(&answerer).await;
                    assert_eq!(texts(&question.frames), asked[1], "{kinds:?} over {endpoint}");
                    say(&answerer, kinds[1], question.peer, message(answered[0])).await;
                    let answer = recv(&asker).await;
                    assert_eq!(texts(&answer.frames), answered[1], "{kinds:?} over {endpoint}");
                    assert_eq!(answer.peer, peer);
                }
            }
        }
    }
}

#[tokio::test]
async fn large_frames_arrive_as_they_were() {
    let frames = [noise(3_000_000), Vec::new(), noise(70_000), noise(1)];
    let (_folder, endpoints) = everywhere("large frames");
    for endpoint in endpoints {
        let (rep, req) = (socket(Rep), socket(Req));
        join(&rep, &req, &endpoint);
        within("it is taken", req.send(frames.iter().cloned().collect())).await.unwrap();
        let question = recv(&rep).await;
        assert!(question.frames.iter().eq(&frames), "over {endpoint}");
        within("it is taken", rep.send(question.frames.into_iter().collect())).await.unwrap();
        assert!(recv(&req).await.frames.iter().eq(&frames), "back over {endpoint}");
    }
}

#[tokio::test]
async fn sending_waits_for_the_first_peer() {
    let (_folder, endpoints) = everywhere("before any peer");
    for endpoint in endpoints {
        let (dealer, server) = (socket(Dealer), socket(Dealer));
        // Dropped before it was sent, it never is.
        assert!(at_once(&mut Box::pin(dealer.send(message(&["dropped"])))).await.is_none());
        let mut sending = Box::pin(dealer.send(message(&["first"])));
        assert!(at_once(&mut sending).await.is_none(), "nobody is there");
        join(&server, &dealer, &endpoint);
        within("a peer comes", sending).await.unwrap();
        assert_eq!(texts(&recv(&server).await.frames), ["first"], "over {endpoint}");
    }
}

#[tokio::test]
async fn connecting_may_come_before_binding() {
    let (_folder, endpoints) = everywhere("connects first");
    for endpoint in endpoints {
        let endpoint = match endpoint {
            // A port that was free a moment ago stands for one that is known.
            Endpoint::Tcp { host, .. } => {
                let port = TcpListener::bind((host.as_str(), 0)).unwrap().local_addr().unwrap().port();
                Endpoint::Tcp { host, port }
            }
            other => other,
        };
        let (rep, req) = (socket(Rep), socket(Req));
        req.connect(&endpoint).unwrap();
        let mut sending = Box::pin(req.send(message(&["anybody?"])));
        assert!(at_once(&mut sending).await.is_none());
        rep.bind(&endpoint).unwrap();
        within("a peer comes", sending).await.unwrap();
        recv(&rep).await;
        send(&rep, &["I"]).await;
        assert_eq!(texts(&recv(&req).await.frames), ["I"], "over {endpoint}");
    }
}

#[tokio::test]
async fn router_sends_to_its_peer_until_it_is_gone() {
    let router = socket(Router);
    let endpoint = router.bind(&support::anywhere()).unwrap();
    let dealers: Vec<Socket> = (0..4).map(|_| socket(Dealer)).collect();
    let mut peers = HashMap::new();
    for (index, dealer) in dealers.iter().enumerate() {
        dealer.connect(&endpoint).unwrap();
        send(dealer, &[&index.to_string()]).await;
        let hello = recv(&router).await;
        peers.insert(texts(&hello.frames)[0].parse::<usize>().unwrap(), hello.peer);
    }
    for (index, dealer) in dealers.iter().enumerate().rev() {
        router.send_to(peers[&index], message(&["you are", &index.to_string()])).await.unwrap();
        assert_eq!(texts(&recv(dealer).await.frames), ["you are", &index.to_string()]);
    }
    drop(dealers);
    eventually("they are gone", || router.peers().is_empty()).await;
    let gone = router.send_to(peers[&0], message(&["?"])).await;
    assert!(matches!(gone, Err(SocketError::PeerGone(peer)) if peer == peers[&0]), "{gone:?}");
    assert!(matches!(router.send(message(&["to whom?"])).await, Err(SocketError::OutOfTurn(_))));
}

#[tokio::test]
async fn messages_of_each_peer_arrive_in_order() {
    let router = socket(Router);
    let endpoint = router.bind(&support::anywhere()).unwrap();
    let dealers: Vec<Socket> = (0..4).map(|_| socket(Dealer)).collect();
    dealers.iter().for_each(|dealer| dealer.connect(&endpoint).unwrap());
    for number in 0..100 {
        for dealer in &dealers {
            send(dealer, &[&number.to_string()]).await;
        }
    }
    let mut next = HashMap::<PeerId, u32>::new();
    for _ in 0..400 {
        let received = recv(&router).await;
        let next = next.entry(received.peer).or_default();
        assert_eq!(texts(&received.frames), [next.to_string()]);
        *next += 1;
    }
    assert_eq!(next.into_values().collect::<Vec<_>>(), [100; 4]);
}

/// Answers this many requests with their own frames.
async fn echo(rep: &Socket, requests: usize) {
    for _ in 0..requests {
        let question = recv(rep).await;
        within("it is taken", rep.send(question.frames.into_iter().collect())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rep_replies_to_the_peer_that_asked() {
    const ROUNDS: usize = 50;
    let rep = socket(Rep);
    let endpoint = rep.bind(&support::anywhere()).unwrap();
    let asking = (0..8).map(|asker| {
        let endpoint = endpoint.clone();
        tokio::spawn(async move {
            let req = socket(Req);
            req.connect(&endpoint).unwrap();
            for round in 0..ROUNDS {
                let (asker, round) = (asker.to_string(), round.to_string());
                send(&req, &[&asker, &round]).await;
                assert_eq!(texts(&recv(&req).await.frames), [asker, round]);
            }
        })
    });
    let asking: Vec<_> = asking.collect();
    echo(&rep, asking.len() * ROUNDS).await;
    for asker in asking {
        within("all is answered", asker).await.unwrap();
    }
}

#[tokio::test]
async fn dealer_has_many_requests_in_flight_at_a_rep() {
    let (rep, dealer) = (socket(Rep), socket(Dealer));
    join(&rep, &dealer, &support::anywhere());
    for number in 0..100 {
        send(&dealer, &["", &number.to_string()]).await;
    }
    echo(&rep, 100).await;
    for number in 0..100 {
        assert_eq!(texts(&recv(&dealer).await.frames), ["", &number.to_string()]);
    }
}

#[tokio::test]
async fn dealer_and_req_send_to_peers_in_turn() {
    for kind in [Dealer, Req] {
        let client = socket(kind);
        let reps: Vec<Arc<Socket>> = (0..3).map(|_| Arc::new(socket(Rep))).collect();
        for rep in &reps {
            join(rep, &client, &support::anywhere());
        }
        eventually("all are ready", || client.peers().len() == 3).await;
        let serving: Vec<_> = reps
            .iter()
            .map(|rep| {
                let rep = rep.clone();
                tokio::spawn(async move { echo(&rep, 4).await })
            })
            .collect();
        let delimiter: &[&str] = if kind == Dealer { &[""] } else { &[] };
        let mut answers = HashMap::<PeerId, usize>::new();
        for _ in 0..12 {
            send(&client, &[delimiter, &["?"]].concat()).await;
            *answers.entry(recv(&client).await.peer).or_default() += 1;
        }
        assert_eq!(answers.into_values().collect::<Vec<_>>(), [4, 4, 4], "{kind:?}");
        for rep in serving {
            within("all is served", rep).await.unwrap();
        }
    }
}

#[tokio::test]
async fn dropped_socket_sends_its_queue() {
    let (_folder, endpoints) = everywhere("dropped");
    for endpoint in endpoints {
        let (dealer, server) = (socket(Dealer), socket(Dealer));
        join(&server, &dealer, &endpoint);
        let body = Bytes::from(noise(100_000));
        for number in 0..100u8 {
            let message = Message::new().with(vec![number]).with(body.clone());
            within("it is taken", dealer.send(message)).await.unwrap();
        }
        drop(dealer);
        for number in 0..100u8 {
            let frames = recv(&server).await.frames;
            assert!(frames[0][..] == [number] && frames[1] == body, "message {number} over {endpoint}");
        }
    }
}
