//! The order of sending and receiving at REQ and REP: wrong calls are refused, and a peer that is gone delays nobody.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod support;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use support::socket::*;
use support::{anywhere, options, raw_greeting, raw_ready};
use towpath_sockets::SocketType::{self, Dealer, Rep, Req, Router};
use towpath_sockets::{Endpoint, Message, Socket, SocketError};

fn is_out_of_turn<T>(outcome: Result<T, SocketError>) -> bool {
    matches!(outcome, Err(SocketError::OutOfTurn(_)))
}

#[tokio::test]
async fn calls_in_the_wrong_order_are_refused() {
    let (rep, req) = (socket(Rep), socket(Req));
    join(&rep, &req, &anywhere());
    assert!(is_out_of_turn(within("an answer comes at once", req.recv()).await));
    assert!(is_out_of_turn(within("an answer comes at once", rep.send(message(&["to what?"]))).await));
    send(&req, &["first"]).await;
    assert!(is_out_of_turn(within("an answer comes at once", req.send(message(&["second"]))).await));
    assert_eq!(texts(&recv(&rep).await.frames), ["first"]);
    assert!(is_out_of_turn(within("an answer comes at once", rep.recv()).await));
    send(&rep, &["answer"]).await;
    assert!(is_out_of_turn(within("an answer comes at once", rep.send(message(&["another"]))).await));
    assert_eq!(texts(&recv(&req).await.frames), ["answer"]);
    assert!(is_out_of_turn(within("an answer comes at once", req.recv()).await));
}

#[tokio::test]
async fn messages_without_frames_are_refused_and_change_nothing() {
    let (router, req, rep) = (socket(Router), socket(Req), socket(Rep));
    join(&rep, &req, &anywhere());
    let nothing = || Message::new();
    assert!(matches!(within("it is refused", req.send(nothing())).await, Err(SocketError::NoFrames)));
    let peer = only_peer(&req).await;
    assert!(matches!(within("it is refused", router.send_to(peer, nothing())).await, Err(SocketError::NoFrames)));
    send(&req, &[""]).await;
    assert_eq!(texts(&recv(&rep).await.frames), [""]);
    assert!(matches!(within("it is refused", rep.send(nothing())).await, Err(SocketError::NoFrames)));
    send(&rep, &["!"]).await;
    assert_eq!(texts(&recv(&req).await.frames), ["!"]);
}

#[tokio::test]
async fn empty_envelope_is_neither_request_nor_reply() {
    let (rep, req, dealer) = (socket(Rep), socket(Req), socket(Dealer));
    join(&rep, &dealer, &anywhere());
    send(&dealer, &[""]).await;
    send(&dealer, &["id", ""]).await;
    send(&dealer, &["", "?"]).await;
    assert_eq!(texts(&recv(&rep).await.frames), ["?"]);
    drop(rep);

    let router = socket(Router);
    join(&router, &req, &anywhere());
    send(&req, &["?"]).await;
    let asked = recv(&router).await;
    assert_eq!(texts(&asked.frames), ["", "?"]);
    for reply in [&[""][..], &["", "!"]] {
        within("a reply is taken", router.send_to(asked.peer, message(reply))).await.unwrap();
    }
    assert_eq!(texts(&recv(&req).await.frames), ["!"]);
}

#[tokio::test]
async fn req_sends_one_of_two_concurrent_requests() {
    let (rep, req) = (socket(Rep), socket(Req));
    let (mut one, mut other) = (Box::pin(req.send(message(&["one"]))), Box::pin(req.send(message(&["other"]))));
    assert!(at_once(&mut one).await.is_none() && at_once(&mut other).await.is_none(), "both wait for a peer");
    join(&rep, &req, &anywhere());
    let [one, other] = within("both are answered", async { [one.await, other.await] }).await;
    assert!(one.is_ok() && is_out_of_turn(other));
    assert_eq!(texts(&recv(&rep).await.frames), ["one"]);
    send(&rep, &["answer"]).await;
    assert_eq!(texts(&recv(&req).await.frames), ["answer"]);
}

#[tokio::test]
async fn cancelled_recv_takes_nothing() {
    let (rep, req) = (socket(Rep), socket(Req));
    join(&rep, &req, &anywhere());
    assert!(at_once(&mut Box::pin(rep.recv())).await.is_none());
    send(&req, &["?"]).await;
    assert!(at_once(&mut Box::pin(req.recv())).await.is_none());
    assert_eq!(texts(&recv(&rep).await.frames), ["?"]);
    send(&rep, &["!"]).await;
    assert_eq!(texts(&recv(&req).await.frames), ["!"]);
}

#[tokio::test]
async fn req_learns_that_its_peer_is_gone_and_asks_the_next() {
    let (_folder, endpoints) = everywhere("the peer goes");
    for endpoint in endpoints {
        let (rep, req) = (socket(Rep), socket(Req));
        let endpoint = join(&rep, &req, &endpoint);
        send(&req, &["will you?"]).await;
        let asked = only_peer(&req).await;
        let mut waiting = Box::pin(req.recv());
        assert!(at_once(&mut waiting).await.is_none());
        recv(&rep).await;
        drop(rep);
        let outcome = within("it fails", waiting).await;
        assert!(matches!(outcome, Err(SocketError::PeerGone(peer)) if peer == asked), "{outcome:?}");
        assert!(is_out_of_turn(within("an answer comes at once", req.recv()).await), "it has been reported");

        let mut sending = Box::pin(req.send(message(&["and you?"])));
        assert!(at_once(&mut sending).await.is_none(), "nobody is there");
        let rep = socket(Rep);
        // The former one lets go of the name when it has closed.
        eventually("the name is free", || rep.bind(&endpoint).is_ok()).await;
        within("a peer comes", sending).await.unwrap();
        assert_eq!(texts(&recv(&rep).await.frames), ["and you?"]);
        send(&rep, &["yes"]).await;
        assert_eq!(texts(&recv(&req).await.frames), ["yes"], "over {endpoint}");
    }
}

#[tokio::test]
async fn req_whose_peer_is_gone_may_ask_the_next_at_once() {
    let req = socket(Req);
    let reps = [socket(Rep), socket(Rep)];
    for rep in &reps {
        join(rep, &req, &anywhere());
    }
    eventually("both are ready", || req.peers().len() == 2).await;
    send(&req, &["lost"]).await;
    let [first, second] = reps;
    let asked = within("one is asked", async {
        tokio::select! {
            _ = first.recv() => 0,
            _ = second.recv() => 1,
        }
    });
    let (asked, other) = if asked.await == 0 { (first, second) } else { (second, first) };
    drop(asked);
    eventually("it is gone", || req.peers().len() == 1).await;
    send(&req, &["again"]).await;
    assert_eq!(texts(&recv(&other).await.frames), ["again"]);
    send(&other, &["here"]).await;
    assert_eq!(texts(&recv(&req).await.frames), ["here"]);
}

#[tokio::test]
async fn reply_of_a_peer_that_is_gone_is_kept() {
    let (_folder, endpoints) = everywhere("the last answer");
    for endpoint in endpoints {
        let (rep, req) = (socket(Rep), socket(Req));
        join(&rep, &req, &endpoint);
        send(&req, &["?"]).await;
        recv(&rep).await;
        send(&rep, &["!"]).await;
        drop(rep);
        eventually("it is gone", || req.peers().is_empty()).await;
        let next = at_once(&mut Box::pin(req.send(message(&["next"])))).await;
        assert!(next.is_some_and(is_out_of_turn), "first the answer");
        assert_eq!(texts(&recv(&req).await.frames), ["!"], "over {endpoint}");
    }
}

#[tokio::test]
async fn rep_learns_that_its_peer_is_gone_and_serves_the_next() {
    let rep = socket(Rep);
    let endpoint = rep.bind(&anywhere()).unwrap();
    let (gone, next) = (socket(Req), socket(Req));
    gone.connect(&endpoint).unwrap();
    send(&gone, &["first"]).await;
    let peer = recv(&rep).await.peer;
    drop(gone);
    eventually("it is gone", || rep.peers().is_empty()).await;
    let outcome = within("it fails", rep.send(message(&["too late"]))).await;
    assert!(matches!(outcome, Err(SocketError::PeerGone(which)) if which == peer), "{outcome:?}");
    next.connect(&endpoint).unwrap();
    send(&next, &["second"]).await;
    assert_eq!(texts(&recv(&rep).await.frames), ["second"]);
    send(&rep, &["in time"]).await;
    assert_eq!(texts(&recv(&next).await.frames), ["in time"]);
}

#[tokio::test]
async fn rep_waiting_to_send_learns_that_its_peer_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let rep = Socket::new(options(Rep).with(|options| options.send_queue_bytes = 1000)).unwrap();
    rep.bind(&Endpoint::Ipc(path.clone())).unwrap();
    // The client asks twice and reads nothing.
    let mut peer = UnixStream::connect(path).unwrap();
    peer.write_all(&[&raw_greeting()[..], &raw_ready(), b"\x01\x00\x00\x011\x01\x00\x00\x012"].concat()).unwrap();
    recv(&rep).await;
    // More than the kernel has space for.
    within("it is taken", rep.send(Message::new().with(vec![0; 16 << 20]))).await.unwrap();
    let peer_id = recv(&rep).await.peer;
    let mut waiting = Box::pin(rep.send(message(&["never"])));
    assert!(at_once(&mut waiting).await.is_none(), "the queue is full");
    drop(peer);
    let outcome = within("it fails", waiting).await;
    assert!(matches!(outcome, Err(SocketError::PeerGone(which)) if which == peer_id), "{outcome:?}");
    assert!(is_out_of_turn(within("an answer comes at once", rep.send(message(&["again"]))).await));
}

/// A REP of which one reply fills the queue, a DEALER that has asked it twice, and its second request taken while the first reply
/// waits. Nothing leaves in between: these tests have the only thread.
async fn replying_behind_a_full_queue() -> (Socket, Socket) {
    let rep = Socket::new(options(Rep).with(|options| options.send_queue_bytes = 1000)).unwrap();
    let dealer = socket(Dealer);
    join(&rep, &dealer, &anywhere());
    send(&dealer, &["", "first"]).await;
    send(&dealer, &["via", "", "second"]).await;
    arrived(&rep, 2).await;
    recv(&rep).await;
    within("it is taken", rep.send(Message::new().with(vec![b'1'; 2000]))).await.unwrap();
    recv(&rep).await;
    (rep, dealer)
}

#[tokio::test]
async fn cancelled_reply_is_still_due() {
    let (rep, dealer) = replying_behind_a_full_queue().await;
    let mut waiting = Box::pin(rep.send(message(&["given up"])));
    assert!(at_once(&mut waiting).await.is_none(), "the queue is full");
    drop(waiting);
    send(&rep, &["the answer"]).await;
    assert_eq!(recv(&dealer).await.frames[1].len(), 2000);
    assert_eq!(texts(&recv(&dealer).await.frames), ["via", "", "the answer"]);
}

#[tokio::test]
async fn rep_sends_one_of_two_concurrent_replies() {
    let (rep, dealer) = replying_behind_a_full_queue().await;
    let (mut one, mut other) = (Box::pin(rep.send(message(&["one"]))), Box::pin(rep.send(message(&["other"]))));
    assert!(at_once(&mut one).await.is_none() && at_once(&mut other).await.is_none(), "both wait for space");
    assert_eq!(recv(&dealer).await.frames[1].len(), 2000);
    let [one, other] = within("both are answered", async { [one.await, other.await] }).await;
    assert!(one.is_ok() && is_out_of_turn(other));
    assert_eq!(texts(&recv(&dealer).await.frames), ["via", "", "one"]);
}

#[tokio::test]
async fn delayed_reply_never_answers_the_next_request() {
    let (rep, dealer) = replying_behind_a_full_queue().await;
    let (mut one, mut other) = (Box::pin(rep.send(message(&["one"]))), Box::pin(rep.send(message(&["other"]))));
    assert!(at_once(&mut one).await.is_none() && at_once(&mut other).await.is_none(), "both wait for space");
    send(&dealer, &["next", "", "third"]).await;
    within("it is taken", one).await.unwrap();
    arrived(&rep, 3).await;
    assert_eq!(texts(&recv(&rep).await.frames), ["third"]);
    assert!(is_out_of_turn(within("an answer comes at once", other).await));
    send(&rep, &["its own"]).await;
    assert_eq!(recv(&dealer).await.frames[1].len(), 2000);
    assert_eq!(texts(&recv(&dealer).await.frames), ["via", "", "one"]);
    assert_eq!(texts(&recv(&dealer).await.frames), ["next", "", "its own"]);
}

#[tokio::test]
async fn req_ignores_replies_to_earlier_requests() {
    let (router, req) = (socket(Router), socket(Req));
    join(&router, &req, &anywhere());
    for (before, round) in ["first", "second", "third"].into_iter().enumerate() {
        send(&req, &[round]).await;
        let question = recv(&router).await;
        assert_eq!(texts(&question.frames), ["", round]);
        for answer in [round, "and another one"] {
            router.send_to(question.peer, message(&["", answer])).await.unwrap();
        }
        // The one too many is there before the next request is made.
        arrived(&req, 2 * (before as u64 + 1)).await;
        assert_eq!(texts(&recv(&req).await.frames), [round]);
    }
}

/// As much as a socket holds before it reads no more, in messages that a REQ or REP leaves out.
const NONSENSE: u64 = 16;

fn nonsense() -> Message {
    Message::new().with(vec![7; 1 << 20])
}

/// Has no timer that would wake it up.
fn undisturbed(socket_type: SocketType) -> Socket {
    let handshake_timeout = Duration::from_secs(3600);
    Socket::new(options(socket_type).with(|options| options.handshake_timeout = handshake_timeout)).unwrap()
}

#[tokio::test]
async fn req_drops_malformed_replies() {
    let (_folder, endpoints) = everywhere("nonsense for a REQ");
    for endpoint in endpoints {
        let (router, req) = (socket(Router), undisturbed(Req));
        join(&router, &req, &endpoint);
        send(&req, &["?"]).await;
        let peer = recv(&router).await.peer;
        for _ in 0..NONSENSE {
            within("it is taken", router.send_to(peer, nonsense())).await.unwrap();
        }
        arrived(&req, NONSENSE).await;
        router.send_to(peer, message(&["", "!"])).await.unwrap();
        eventually("it is in the kernel", || router.queued(peer).messages == 0).await;
        assert_eq!(texts(&recv(&req).await.frames), ["!"], "over {endpoint}");
    }
}

#[tokio::test]
async fn rep_drops_malformed_requests() {
    let (_folder, endpoints) = everywhere("nonsense for a REP");
    for endpoint in endpoints {
        let (dealer, rep) = (socket(Dealer), undisturbed(Rep));
        join(&rep, &dealer, &endpoint);
        for _ in 0..NONSENSE {
            within("it is taken", dealer.send(nonsense())).await.unwrap();
        }
        arrived(&rep, NONSENSE).await;
        send(&dealer, &["", "?"]).await;
        let peer = only_peer(&dealer).await;
        eventually("it is in the kernel", || dealer.queued(peer).messages == 0).await;
        assert_eq!(texts(&recv(&rep).await.frames), ["?"], "over {endpoint}");
    }
}

#[test]
fn socket_is_closed_when_its_runtime_ends() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime();
    let (dealer, other) = ended.block_on(async {
        let (dealer, other) = (socket(Dealer), socket(Dealer));
        join(&other, &dealer, &anywhere());
        only_peer(&dealer).await;
        (dealer, other)
    });
    drop(ended);
    let received = runtime().block_on(within("it fails", other.recv()));
    assert!(matches!(received, Err(SocketError::Closed)), "{received:?}");
    let sent = runtime().block_on(within("it fails", dealer.send(message(&["to nobody"]))));
    assert!(matches!(sent, Err(SocketError::Closed)), "{sent:?}");
}

#[test]
fn recv_ends_with_the_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime();
    let dealer = ended.block_on(async { socket(Dealer) });
    let outcome = runtime().block_on(async {
        let mut waiting = Box::pin(dealer.recv());
        assert!(at_once(&mut waiting).await.is_none());
        // Where a runtime waits no other one may be dropped.
        std::thread::spawn(move || drop(ended)).join().unwrap();
        within("it fails", waiting).await
    });
    assert!(matches!(outcome, Err(SocketError::Closed)), "{outcome:?}");
}
