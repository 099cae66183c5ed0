//! Services: a queue of requests, and the workers that can take one.

use super::reply_budget::ServiceReplies;
use super::requests::List;
use super::{ServiceKey, WorkerKey};
use bytes::Bytes;
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::{HashMap, VecDeque};

/// A named service.
#[derive(Debug)]
pub(super) struct Service {
    pub name: Bytes,
    pub waiting: List,
    /// Bytes of what waits.
    pub waiting_bytes: usize,
    /// Bytes of it that aren't in memory.
    pub waiting_large_bytes: u64,
    /// Requests that name it, in whatever state.
    pub live: usize,
    pub workers: usize,
    /// Those of them that are given nothing, whatever they have: see [`Worker::is_out`](super::worker::Worker::is_out).
    pub workers_out: usize,
    pub replies: ServiceReplies,
    /// Workers with credit to spare, the least recently used first.
    pub available: VecDeque<WorkerKey>,
}

/// All services that somebody works for or waits for.
#[derive(Debug)]
pub(super) struct Services {
    slab: Slab<Service>,
    by_name: HashMap<Bytes, ServiceKey, FixedState>,
    /// The one that was asked for last: most requests of a block are for the same.
    last: Option<(Bytes, ServiceKey)>,
}

impl Services {
    pub fn new(seed: u64) -> Services {
        let by_name = HashMap::with_hasher(FixedState::with_seed(seed));
        Services { slab: Slab::new(), by_name, last: None }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    #[inline]
    pub fn find(&mut self, name: &[u8]) -> Option<ServiceKey> {
        if let Some((last, key)) = &self.last
            && last == name
        {
            return Some(*key);
        }
        let (name, &key) = self.by_name.get_key_value(name)?;
        self.last = Some((name.clone(), key));
        Some(key)
    }

    pub fn find_or_add(&mut self, name: &[u8]) -> ServiceKey {
        self.find(name).unwrap_or_else(|| {
            let name = Bytes::copy_from_slice(name);
            let key = self.slab.insert(Service {
                name: name.clone(),
                waiting: List::default(),
                waiting_bytes: 0,
                waiting_large_bytes: 0,
                live: 0,
                workers: 0,
                workers_out: 0,
                replies: ServiceReplies::default(),
                available: VecDeque::new(),
            }) as ServiceKey;
            self.by_name.insert(name, key);
            key
        })
    }

    /// Forgets a service that nobody works for and nobody waits for.
    pub fn remove_if_unused(&mut self, key: ServiceKey) {
        if self.slab.get(key as usize).is_some_and(|service| service.live == 0 && service.workers == 0) {
            let service = self.slab.remove(key as usize);
            self.by_name.remove(&service.name);
            self.last = None;
        }
    }

    #[inline]
    pub fn at(&self, key: ServiceKey) -> &Service {
        &self.slab[key as usize]
    }

    #[inline]
    pub fn at_mut(&mut self, key: ServiceKey) -> &mut Service {
        &mut self.slab[key as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = &Service> {
        self.slab.iter().map(|(_, service)| service)
    }

    pub fn iter_by_key(&self) -> impl Iterator<Item = (ServiceKey, &Service)> {
        self.slab.iter().map(|(key, service)| (key as ServiceKey, service))
    }

    pub fn by_name(&self, name: &[u8]) -> Option<&Service> {
        self.by_name.get(name).map(|&key| self.at(key))
    }

    pub fn get_mut(&mut self, key: ServiceKey) -> Option<&mut Service> {
        self.slab.get_mut(key as usize)
    }

    pub fn get(&self, key: ServiceKey) -> Option<&Service> {
        self.slab.get(key as usize)
    }
}
