//! Services: their queues of requests, and the workers that may be given one.

use super::dead_letter::canonical_name;
use super::reply_budget::ServiceReplies;
use super::requests::{List, Request, Requests, State};
use super::{ServiceKey, WorkerKey};
use bytes::Bytes;
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::{HashMap, VecDeque};

/// Requests that wait for a worker of one service, first in, first out.
#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    list: List,
    bytes: usize,
    large_bytes: u64,
}

impl WaitingQueue {
    pub fn len(&self) -> usize {
        self.list.len
    }

    #[inline]
    pub fn first(&self) -> Option<u32> {
        self.list.first()
    }

    /// Bytes of memory of their bodies.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of their bodies that aren't in memory.
    pub fn large_bytes(&self) -> u64 {
        self.large_bytes
    }

    #[inline]
    pub fn push_back(&mut self, requests: &mut Requests, slot: u32) {
        self.count(requests.at_mut(slot));
        requests.push_back(&mut self.list, slot);
    }

    #[inline]
    pub fn push_front(&mut self, requests: &mut Requests, slot: u32) {
        self.count(requests.at_mut(slot));
        requests.push_front(&mut self.list, slot);
    }

    /// Removes a request from anywhere in the queue. The caller sets its state.
    #[inline]
    pub fn remove(&mut self, requests: &mut Requests, slot: u32) {
        let body = &requests.at(slot).body;
        self.bytes -= body.memory_bytes();
        self.large_bytes -= body.large_bytes();
        requests.unlink(&mut self.list, slot);
    }

    fn check(&self, requests: &Requests) {
        let (mut len, mut bytes, mut large_bytes) = (0, 0, 0);
        for slot in requests.listed(&self.list) {
            let request = requests.at(slot);
            assert_eq!(request.state, State::Waiting);
            (len, bytes) = (len + 1, bytes + request.body.memory_bytes());
            large_bytes += request.body.large_bytes();
        }
        assert_eq!((len, bytes, large_bytes), (self.list.len, self.bytes, self.large_bytes), "a service's queue");
    }

    #[inline]
    fn count(&mut self, request: &mut Request) {
        request.state = State::Waiting;
        self.bytes += request.body.memory_bytes();
        self.large_bytes += request.body.large_bytes();
    }
}

/// A named service.
#[derive(Debug)]
pub(super) struct Service {
    pub name: Bytes,
    pub waiting: WaitingQueue,
    /// Requests for it, in whatever state.
    pub live: usize,
    pub workers: usize,
    /// Workers that are given nothing, whatever credit they have: see [`Worker::is_out`](super::worker::Worker::is_out).
    pub workers_out: usize,
    pub replies: ServiceReplies,
    /// Workers with credit, the least recently used first.
    pub available: VecDeque<WorkerKey>,
}

/// All services that have workers or requests.
#[derive(Debug)]
pub(super) struct Services {
    slab: Slab<Service>,
    by_name: HashMap<Bytes, ServiceKey, FixedState>,
    /// The service that was looked up last: most requests of a block are for the same one.
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
        let (name, &key) = self.by_name.get_key_value(&*canonical_name(name))?;
        self.last = Some((name.clone(), key));
        Some(key)
    }

    pub fn find_or_add(&mut self, name: &[u8]) -> ServiceKey {
        self.find(name).unwrap_or_else(|| {
            let name = Bytes::copy_from_slice(&canonical_name(name));
            let key = self.slab.insert(Service {
                name: name.clone(),
                waiting: WaitingQueue::default(),
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

    /// Removes a service without workers and requests.
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

    pub fn iter(&self) -> impl Iterator<Item = (ServiceKey, &Service)> {
        self.slab.iter().map(|(key, service)| (key as ServiceKey, service))
    }

    pub fn by_name(&self, name: &[u8]) -> Option<&Service> {
        self.by_name.get(&*canonical_name(name)).map(|&key| self.at(key))
    }

    pub fn get_mut(&mut self, key: ServiceKey) -> Option<&mut Service> {
        self.slab.get_mut(key as usize)
    }

    /// Panics if a queue's sums aren't those of its requests, or a name leads to another service.
    pub fn check(&self, requests: &Requests) {
        assert_eq!(self.slab.len(), self.by_name.len());
        for (key, service) in self.iter() {
            assert_eq!(self.by_name.get(&service.name), Some(&key));
            service.waiting.check(requests);
        }
    }

    pub fn get(&self, key: ServiceKey) -> Option<&Service> {
        self.slab.get(key as usize)
    }
}
