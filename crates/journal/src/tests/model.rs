//! A simple model of a journal.

use super::*;
use crate::faulty_disk::Random;
use crate::spool::Spool;
use std::collections::BTreeMap;

/// By id: the request's body, and the outcome.
pub(super) type Model = BTreeMap<u64, (Vec<u8>, Option<(u16, Vec<u8>)>)>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Accept,
    Finish,
    Forget,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) id: u64,
    pub(super) large: bool,
    length: usize,
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
        Some((id, (_, outcome))) if !random.chance(3) && id % 16 != 0 => {
            let kind = if outcome.is_none() && random.chance(2) { Kind::Finish } else { Kind::Forget };
            Op { kind, id: *id, large, length }
        }
        _ => {
            *next_id += 1;
            Op { kind: Kind::Accept, id: *next_id - 1, large, length }
        }
    }
}

pub(super) fn apply(model: &mut Model, op: &Op) {
    match op.kind {
        Kind::Accept => {
            model.insert(op.id, (op.bytes(), None));
        }
        Kind::Finish => {
            let request = model.get_mut(&op.id).unwrap();
            *request = (Vec::new(), Some((op.length as u16, op.bytes())));
        }
        Kind::Forget => {
            model.remove(&op.id);
        }
    }
}

pub(super) fn entry_of<'a>(op: &Op, body: &'a Body) -> Entry<'a> {
    match op.kind {
        Kind::Accept => accepted(op.id, body),
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
        assert_eq!((&request.service[..], request.expires_unix_ms), (&b"echo"[..], id * 7));
        assert!(id < recovered.next_id);
        let outcome = request.outcome.as_ref().map(|(status, body)| (*status, bytes_of(body)));
        (id, (bytes_of(&request.body), outcome))
    };
    recovered.requests.iter().map(entry).collect()
}
