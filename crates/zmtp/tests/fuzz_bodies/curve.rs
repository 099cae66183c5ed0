//! A peer with the right keys sends anything: what it seals is up to the fuzzer, and so are bytes outside of the seal.

use super::harness::curve::{client_key, server_key};
use super::harness::{End, at, config};
use bytes::Bytes;
use std::sync::Arc;
use towpath_zmtp::{Body, Config, Event, MechanismConfig, Random, SocketType};

/// The same bytes for the same length, so that every connection has the same keys.
fn constant() -> Random {
    Random::new(|bytes| {
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        Ok(())
    })
}

pub fn server(aes: bool) -> MechanismConfig {
    MechanismConfig::CurveServer { keys: Arc::from([server_key()]), random: constant(), aes }
}

pub fn client(aes: bool) -> MechanismConfig {
    MechanismConfig::CurveClient { key: client_key(), server: server_key().public_key(), random: constant(), aes }
}

/// The bytes that a peer of `mechanism` sends in its handshake, and behind it: by turns a length and as many bytes, of which the first says how
/// they are sent.
pub fn conversation(mechanism: &MechanismConfig, socket_type: SocketType, data: &[u8]) -> Vec<u8> {
    // Agreed on, if this side has it.
    let theirs = if matches!(mechanism, MechanismConfig::CurveServer { .. }) { client(true) } else { server(true) };
    let end = |mechanism: MechanismConfig, socket_type| End::new(Config { mechanism, ..config(socket_type) });
    let their_type = if socket_type == SocketType::Dealer { SocketType::Router } else { SocketType::Dealer };
    let (mut peer, mut this) = (end(theirs, their_type), end(mechanism.clone(), socket_type));
    let mut wire = Vec::new();
    while !peer.connection.is_ready() || !this.connection.is_ready() {
        let there = peer.write_all();
        receive(&mut this, &there);
        wire.extend(there);
        receive(&mut peer, &this.write_all());
    }
    let mut rest = data;
    while let [length, kind, more @ ..] = rest {
        let (bytes, later) = more.split_at(more.len().min(usize::from(*length) * usize::from(*length)));
        rest = later;
        let text = Bytes::copy_from_slice(bytes);
        match kind % 4 {
            0 => peer.connection.send([Body::Bytes(text)], 0),
            1 => peer.connection.send([Body::Bytes(text.clone()), Body::Bytes(text)], 0),
            2 => peer.connection.outbox().push_command(command_frame(bytes)),
            _ => wire.extend_from_slice(bytes),
        }
        wire.extend(peer.write_all());
    }
    wire
}

fn receive(end: &mut End, bytes: &[u8]) {
    end.receive(bytes, at(0)).expect("the handshake is right");
    if matches!(end.events.last(), Some(Event::Authenticate(_))) {
        end.connection.accept();
        end.receive(b"", at(0)).expect("the handshake is right");
    }
}

fn command_frame(body: &[u8]) -> Bytes {
    super::harness::frame(4, body).into()
}
