//! Services: their queues of requests, and the workers that may be given one.

use super::dead_letter::{LetterNumber, canonical_name};
use super::operator::PausedServices;
use super::reply_budget::ServiceReplies;
use super::requests::{List, Request, Requests, State};
use super::session::Sessions;
use super::settings::Millis;
use super::stats::ServiceCounters;
use super::usual::UsualTime;
use super::{Core, ServiceKey, SessionKey, TenantKey, WorkerKey};
use bytes::Bytes;
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::{BTreeSet, HashMap, VecDeque};
use towpath_quota::{Order, Turns};
use towpath_requests::body::Body;

/// Clients among whose first requests the oldest is looked for.
const LINES_FOR_AGE: usize = 64;

/// Requests that wait for a worker of one service. Tenants take turns, and so do the clients of one; the requests of a client are first
/// in, first out.
#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    order: Order,
    sums: WaitingSums,
}

/// Waiting requests of a service, or of one tenant for it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitingSums {
    pub requests: usize,
    /// Bytes of memory of their bodies.
    pub bytes: usize,
    /// Bytes of their bodies that aren't in memory.
    pub large_bytes: u64,
}

/// Place of a request in its service's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Behind its client's others.
    Back,
    /// Before its client's others.
    Front,
    /// Before all others: its client has the next turn.
    Next,
}

impl WaitingQueue {
    pub fn sums(&self) -> WaitingSums {
        self.sums
    }
}

impl WaitingSums {
    #[inline]
    fn add(&mut self, body: &Body) {
        self.requests += 1;
        self.bytes += body.memory_bytes();
        self.large_bytes += body.large_bytes();
    }

    #[inline]
    fn remove(&mut self, body: &Body) {
        self.requests -= 1;
        self.bytes -= body.memory_bytes();
        self.large_bytes -= body.large_bytes();
    }
}

/// A named service.
#[derive(Debug)]
pub(super) struct Service {
    pub name: Bytes,
    /// Whose request has added it; nobody's if it was a worker.
    pub owner: TenantKey,
    pub waiting: WaitingQueue,
    /// Requests for it, in whatever state.
    pub live: usize,
    /// Bytes of memory of all these, and of their outcomes.
    pub bytes: usize,
    /// Its requests aren't given to workers.
    pub is_paused: bool,
    /// Dead letters for it, by their numbers.
    pub letters: BTreeSet<LetterNumber>,
    /// Purges that have begun, wrapping around.
    pub purges: u8,
    pub workers: usize,
    pub replies: ServiceReplies,
    pub usual: UsualTime,
    pub counters: ServiceCounters,
    /// Its requests that workers have.
    pub in_flight: usize,
    /// Workers with credit, the least recently used first.
    pub available: VecDeque<WorkerKey>,
}

impl Service {
    /// Updates the sum of bytes: something of it had `before`, and has `after`.
    #[inline]
    pub fn change_bytes(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
    }
}

/// All services that have workers or requests.
#[derive(Debug)]
pub(super) struct Services {
    slab: Slab<Service>,
    by_name: HashMap<Bytes, ServiceKey, FixedState>,
    pub paused: PausedServices,
    /// Waiting requests of all services.
    pub waiting_count: usize,
    /// Waiting requests of all services: a line for each client of each.
    lines: Turns<(ServiceKey, TenantKey), (ServiceKey, SessionKey), List, WaitingSums, FixedState>,
    /// The service that was looked up last: most requests of a block are for the same one.
    last: Option<(Bytes, ServiceKey)>,
}

impl Services {
    pub fn new(seed: u64) -> Services {
        let hasher = || FixedState::with_seed(seed);
        let by_name = HashMap::with_hasher(hasher());
        let lines = Turns::with_hashers(hasher(), hasher());
        Services { slab: Slab::new(), by_name, paused: PausedServices::new(), waiting_count: 0, lines, last: None }
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

    /// Adds a service. There is none of that name.
    fn add(&mut self, name: &[u8], owner: TenantKey) -> ServiceKey {
        let name = Bytes::copy_from_slice(&canonical_name(name));
        let key = self.slab.insert(Service {
            name: name.clone(),
            owner,
            waiting: WaitingQueue::default(),
            live: 0,
            bytes: 0,
            is_paused: self.paused.contains_key(&name),
            letters: BTreeSet::new(),
            purges: 0,
            workers: 0,
            replies: ServiceReplies::default(),
            usual: UsualTime::default(),
            counters: ServiceCounters::default(),
            in_flight: 0,
            available: VecDeque::new(),
        }) as ServiceKey;
        self.by_name.insert(name, key);
        key
    }

    /// Removes a service without workers and requests. Returns its owner.
    fn remove_if_unused(&mut self, key: ServiceKey) -> Option<TenantKey> {
        self.slab.get(key as usize).filter(|service| service.live == 0 && service.workers == 0)?;
        let service = self.slab.remove(key as usize);
        self.by_name.remove(&service.name);
        self.last = None;
        Some(service.owner)
    }

    /// Puts a request of this tenant that is in no list into its service's queue.
    #[inline]
    pub fn enqueue(&mut self, requests: &mut Requests, tenant: TenantKey, slot: u32, place: Place) {
        let request = requests.at_mut(slot);
        request.state = State::Waiting;
        let (service, session) = (request.service, request.session);
        let WaitingQueue { order, sums } = &mut self.slab[service as usize].waiting;
        let (line, of_tenant) = self.lines.line(order, &(service, tenant), (service, session));
        sums.add(&request.body);
        of_tenant.add(&request.body);
        self.waiting_count += 1;
        match place {
            Place::Back => requests.push_back(line, slot),
            Place::Front | Place::Next => requests.push_front(line, slot),
        }
        if place == Place::Next {
            self.lines.move_to_front(order, (service, session));
        }
    }

    /// Takes a request out of its service's queue. The caller sets its state.
    #[inline]
    pub fn dequeue(&mut self, requests: &mut Requests, slot: u32, ends_turn: bool) {
        let request = requests.at(slot);
        let key = (request.service, request.session);
        let WaitingQueue { order, sums } = &mut self.slab[request.service as usize].waiting;
        let Some((line, of_tenant)) = self.lines.get_mut(key) else { return };
        sums.remove(&request.body);
        of_tenant.remove(&request.body);
        self.waiting_count -= 1;
        requests.unlink(line, slot);
        let is_over = line.len == 0;
        if ends_turn {
            self.lines.end_turn(order, key);
        }
        if is_over {
            self.lines.remove(order, key);
        }
    }

    /// Makes a session's waiting requests for these services another tenant's. Their next turn is behind the tenant's others.
    pub fn move_lines(&mut self, requests: &Requests, session: SessionKey, to: TenantKey, of: BTreeSet<ServiceKey>) {
        for service in of {
            let key = (service, session);
            let order = &mut self.slab[service as usize].waiting.order;
            let Some((line, of_former)) = self.lines.get_mut(key) else { continue };
            let line = std::mem::take(line);
            requests.listed(&line).for_each(|slot| of_former.remove(&requests.at(slot).body));
            self.lines.remove(order, key);
            let (its, of_tenant) = self.lines.line(order, &(service, to), key);
            requests.listed(&line).for_each(|slot| of_tenant.add(&requests.at(slot).body));
            *its = line;
        }
    }

    /// The request whose turn it is.
    #[inline]
    pub fn first_waiting(&self, key: ServiceKey) -> Option<u32> {
        self.lines.first(&self.at(key).waiting.order)?.1.first()
    }

    /// At most this many of the first requests in a service's queue that are wanted. Of each client only those before the first unwanted one.
    pub fn waiting(
        &self,
        requests: &Requests,
        key: ServiceKey,
        wanted: impl Fn(&Request) -> bool,
        most: usize,
    ) -> Vec<u32> {
        let lines = self.lines.iter(&self.at(key).waiting.order);
        let slots = lines.flat_map(|(_, line)| requests.listed(line).take_while(|slot| wanted(requests.at(*slot))));
        slots.take(most).collect()
    }

    /// When the first request in a service's queue was taken or last given to a worker, among those first in the lines of some clients: the
    /// next ones in turn.
    pub fn oldest_since(&self, requests: &Requests, key: ServiceKey) -> Option<Millis> {
        let firsts =
            self.lines.iter(&self.at(key).waiting.order).take(LINES_FOR_AGE).filter_map(|(_, line)| line.first());
        firsts.map(|slot| requests.at(slot).since).min()
    }

    /// Clients with requests in a service's queue; `None` if they are more than `most`.
    pub fn waiting_clients(&self, key: ServiceKey, most: usize) -> Option<usize> {
        let count = self.lines.iter(&self.at(key).waiting.order).take(most + 1).count();
        (count <= most).then_some(count)
    }

    /// The waiting requests of a tenant for a service.
    pub fn waiting_of(&self, key: ServiceKey, tenant: TenantKey) -> WaitingSums {
        self.lines.tenant(&(key, tenant)).copied().unwrap_or_default()
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

    /// Services from this number on.
    pub fn iter_from(&self, number: ServiceKey) -> impl Iterator<Item = (ServiceKey, &Service)> {
        let numbers = number..self.slab.capacity() as ServiceKey;
        numbers.filter_map(|key| self.slab.get(key as usize).map(|service| (key, service)))
    }

    /// The same as [`Services::find`], without remembering the service.
    pub fn find_by_name(&self, name: &[u8]) -> Option<ServiceKey> {
        self.by_name.get(&*canonical_name(name)).copied()
    }

    pub fn get_mut(&mut self, key: ServiceKey) -> Option<&mut Service> {
        self.slab.get_mut(key as usize)
    }

    /// Panics if the sums of a queue or of a tenant in it aren't those of its requests, or a name leads to another service.
    pub fn check(&self, requests: &Requests, sessions: &Sessions) {
        assert_eq!(self.slab.len(), self.by_name.len());
        let waiting: usize = self.iter().map(|(_, service)| service.waiting.sums.requests).sum();
        assert_eq!(self.waiting_count, waiting, "the requests that wait");
        for (key, service) in self.iter() {
            assert_eq!(self.by_name.get(&service.name), Some(&key));
            assert_eq!(self.paused.contains_key(&service.name), service.is_paused);
            let mut sums = WaitingSums::default();
            let mut of_tenants: HashMap<TenantKey, WaitingSums> = HashMap::new();
            for ((of, session), line) in self.lines.iter(&service.waiting.order) {
                assert!(of == key && line.len > 0, "a line without requests, or of another service");
                for slot in requests.listed(line) {
                    let request = requests.at(slot);
                    assert_eq!((request.state, request.service, request.session), (State::Waiting, key, session));
                    sums.add(&request.body);
                    of_tenants.entry(sessions[session].tenant).or_default().add(&request.body);
                }
            }
            assert_eq!(sums, service.waiting.sums, "a service's queue");
            for (tenant, sums) in of_tenants {
                assert_eq!(sums, self.waiting_of(key, tenant), "a tenant's part of a service's queue");
            }
        }
    }

    pub fn get(&self, key: ServiceKey) -> Option<&Service> {
        self.slab.get(key as usize)
    }
}

impl Core {
    /// The service of that name, added if need be for this tenant.
    #[inline]
    pub(super) fn find_or_add_service(&mut self, tenant: TenantKey, name: &[u8]) -> ServiceKey {
        self.services.find(name).unwrap_or_else(|| {
            self.tenants.acquire(tenant);
            self.tenants.at_mut(tenant).services += 1;
            self.services.add(name, tenant)
        })
    }

    /// Removes a service without workers and requests.
    #[inline]
    pub(super) fn remove_service_if_unused(&mut self, key: ServiceKey) {
        if let Some(owner) = self.services.remove_if_unused(key) {
            self.tenants.at_mut(owner).services -= 1;
            self.tenants.release(owner);
        }
    }
}
