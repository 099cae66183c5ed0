//! A simple model of a journal.

use super::*;
use crate::faulty_disk::Random;
use std::collections::BTreeMap;
use towpath_spool::Spool;

/// By id: the request's body, the outcome, and how often it was moved.
pub(super) type Model = BTreeMap<u64, (Vec<u8>, Option<(u16, Vec<u8>)>, u32)>;

/// The service of a dead letter, by the number of its moves.
fn service_of(moves: u32) -> &'static [u8] {
    if moves.is_multiple_of(2) { b"echo" } else { b"dlq.echo" }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Accept,
    Move,
    Finish,
    Forget,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) id: u64,
    pub(super) large: bool,
    length: usize,
    moves: u32,
}

impl Op {
    fn bytes(&self) -> Vec<u8> {
        vec![(self.id as u8) ^ (self.kind as u8 * 64); self.length]
    }

    pub(super) fn body(&self, spool: &Spool) -> Body {
        if !self.large {
            return Body::from(self.bytes());
        }
        let mut writer = spool.create().unwrap();
        writer.write(&self.bytes()).unwrap();
        Body::large(writer.finish())
    }
}

/// Something that can happen to what there is. `next_id` is taken for a new request.
pub(super) fn random_op(random: &mut u64, model: &Model, next_id: &mut u64) -> Op {
    let length = if random.chance(20) { random.below(3000) } else { random.below(200) } as usize;
    let large = random.chance(25);
    let some = random.below(model.len().max(1) as u64) as usize;
    match model.iter().nth(some) {
        // Few are left to live long.
        Some((id, (_, outcome, moves))) if !random.chance(3) && id % 16 != 0 => {
            let kind = match outcome {
                None if is_letter(*id) && !random.chance(4) => Kind::Move,
                None if random.chance(2) => Kind::Finish,
                _ => Kind::Forget,
            };
            Op { kind, id: *id, large, length, moves: moves + 1 }
        }
        _ => {
            *next_id += 1;
            Op { kind: Kind::Accept, id: *next_id - 1, large, length, moves: 0 }
        }
    }
}

pub(super) fn apply(model: &mut Model, op: &Op) {
    match op.kind {
        Kind::Accept => {
            model.insert(op.id, (op.bytes(), None, 0));
        }
        Kind::Move => model.get_mut(&op.id).unwrap().2 = op.moves,
        Kind::Finish => {
            let request = model.get_mut(&op.id).unwrap();
            *request = (Vec::new(), Some((op.length as u16, op.bytes())), request.2);
        }
        Kind::Forget => {
            model.remove(&op.id);
        }
    }
}

pub(super) fn entry_of<'a>(op: &Op, body: &'a Body) -> Entry<'a> {
    match op.kind {
        Kind::Accept => accepted(op.id, body),
        Kind::Move => {
            let (moves, attempts) = (op.moves, op.moves as u16 + 10);
            Entry::Moved { id: op.id, moves, letter: letter(attempts), service: service_of(moves) }
        }
        Kind::Finish => Entry::Finished { id: op.id, status: op.length as u16, body },
        Kind::Forget => Entry::Forgotten { id: op.id },
    }
}

fn bytes_of(body: &Body) -> Vec<u8> {
    match body.as_large() {
        None => body.frames().unwrap().flatten().copied().collect(),
        Some(large) => {
            let any: &dyn Any = &**large;
            let spooled = any.downcast_ref::<SpooledBody>().unwrap();
            let mut bytes = vec![0; large.length() as usize];
            std::os::unix::fs::FileExt::read_exact_at(spooled.file(), &mut bytes, 0).unwrap();
            bytes
        }
    }
}

/// Compares recovered requests with the model.
pub(super) fn model_of(recovered: &Recovered) -> Model {
    let entry = |request: &RecoveredRequest| {
        let id = request.id;
        assert_eq!((request.client, request.number), ([id as u8; 16], id + 1000));
        let moves = request.letter.as_ref().map_or(0, |letter| letter.moves);
        let attempts = if moves == 0 { 9 } else { moves as u16 + 10 };
        assert_eq!(request.letter, is_letter(id).then(|| RecoveredLetter::new(letter(attempts), moves)));
        assert_eq!((&request.service[..], request.checksum), (service_of(moves), id as u32 * 3));
        assert_eq!(request.expires.unix_ms, if is_letter(id) { 0 } else { id * 7 });
        assert!(id < recovered.next_id);
        let outcome = request.outcome.as_ref().map(|(status, body)| (*status, bytes_of(body)));
        (id, (bytes_of(&request.body), outcome, moves))
    };
    recovered.requests.iter().map(entry).collect()
}
