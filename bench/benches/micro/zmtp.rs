//! Messages through a ZMTP connection: frames written, frames read.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use divan::{Bencher, counter::ItemsCount};
use towpath_zmtp::{Body, Config, Connection, Event, SocketType, Transmit};

/// Messages an iteration.
const MESSAGES: usize = 1_000;

/// Bytes of a message's only frame: short header, long header, longer than what an outbox copies.
const SIZES: [usize; 3] = [50, 1_000, 20_000];

/// Messages written by one side.
#[divan::bench(args = SIZES)]
fn write(bencher: Bencher, size: usize) {
    let (mut sender, _) = connected();
    let body = Bytes::from(vec![7; size]);
    bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
        for tag in 0..MESSAGES {
            sender.send([Body::Bytes(body.clone())], tag as u64);
        }
        drain(&mut sender, |bytes| _ = divan::black_box(bytes))
    });
}

/// Messages read by the other side, as they come out of large reads.
#[divan::bench(args = SIZES)]
fn read(bencher: Bencher, size: usize) {
    let (mut sender, mut receiver) = connected();
    let body = Bytes::from(vec![7; size]);
    for tag in 0..MESSAGES {
        sender.send([Body::Bytes(body.clone())], tag as u64);
    }
    let mut wire = Vec::new();
    drain(&mut sender, |bytes| wire.extend_from_slice(bytes));
    let now = Instant::now();
    bencher.counter(ItemsCount::new(MESSAGES)).with_inputs(|| BytesMut::from(&wire[..])).bench_local_values(
        |mut input| {
            let mut messages = 0;
            while let Some(event) = receiver.input(&mut input, now).expect("valid frames") {
                messages += usize::from(matches!(divan::black_box(event), Event::Message { .. }));
            }
            assert_eq!(messages, MESSAGES);
        },
    );
}

type Peer = Connection<()>;

/// Two peers that are past their handshake.
fn connected() -> (Peer, Peer) {
    let config = |socket_type| Arc::new(Config::new(socket_type));
    let now = Instant::now();
    let (mut one, mut other) = (Peer::new(config(SocketType::Dealer), now), Peer::new(config(SocketType::Dealer), now));
    while !one.is_ready() || !other.is_ready() {
        for (from, to) in [(0, 1), (1, 0)] {
            let peers = [&mut one, &mut other];
            let mut input = BytesMut::new();
            drain(peers[from], |bytes| input.extend_from_slice(bytes));
            while peers[to].input(&mut input, now).expect("a handshake").is_some() {}
        }
    }
    (one, other)
}

/// Takes all that a peer has to write.
fn drain(peer: &mut Peer, mut write: impl FnMut(&[u8])) {
    while let Transmit::Bytes { slices, .. } = peer.outbox().transmit() {
        let mut length = 0;
        for slice in slices {
            write(slice);
            length += slice.len();
        }
        peer.outbox().advance(length);
    }
}
