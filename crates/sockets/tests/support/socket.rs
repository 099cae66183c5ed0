//! Sockets, and waits with a timeout.

use super::options;
use std::time::Duration;
use tempfile::TempDir;
use towpath_sockets::{Endpoint, Frames, Message, PeerId, Received, Socket, SocketType};

/// Long for any machine, and still an end.
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn socket(socket_type: SocketType) -> Socket {
    Socket::new(options(socket_type)).unwrap()
}

/// An endpoint of each transport, and the folder of the one that has a name there.
pub fn everywhere(name: &str) -> (TempDir, Vec<Endpoint>) {
    let folder = tempfile::tempdir().unwrap();
    let ipc = Endpoint::Ipc(folder.path().join("socket"));
    (folder, vec!["tcp://127.0.0.1:0".parse().unwrap(), ipc, Endpoint::Inproc(name.to_owned())])
}

/// Binds one and connects the other, without waiting for anything.
pub fn join(bound: &Socket, connecting: &Socket, endpoint: &Endpoint) -> Endpoint {
    let endpoint = bound.bind(endpoint).unwrap();
    connecting.connect(&endpoint).unwrap();
    endpoint
}

pub fn message(frames: &[&str]) -> Message {
    frames.iter().map(|frame| frame.as_bytes().to_vec()).collect()
}

pub fn texts(frames: &Frames) -> Vec<&str> {
    frames.iter().map(|frame| std::str::from_utf8(frame).unwrap()).collect()
}

/// The output of a future, with a timeout.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let outcome = tokio::time::timeout(TIMEOUT, future).await;
    outcome.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Waits until a condition holds of which there is no event.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let looking = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(what, looking).await;
}

/// The output of a future, if it is ready at once.
pub async fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    tokio::select! {
        biased;
        outcome = future => Some(outcome),
        () = std::future::ready(()) => None,
    }
}

/// Its only peer, when it has one.
pub async fn only_peer(socket: &Socket) -> PeerId {
    eventually("a peer is ready", || socket.peers().len() == 1).await;
    socket.peers()[0].id
}

/// Waits until this many messages have come in, over all peers, whether they have been taken or not.
pub async fn arrived(socket: &Socket, messages: u64) {
    let count = || socket.peers().iter().map(|peer| peer.messages_in).sum::<u64>();
    eventually("messages have arrived", || count() >= messages).await;
}

pub async fn recv(socket: &Socket) -> Received {
    within("a message comes", socket.recv()).await.unwrap()
}

pub async fn send(socket: &Socket, frames: &[&str]) {
    within("a message is taken", socket.send(message(frames))).await.unwrap();
}
