//! Clients: their sessions, and the jobs that run for them.

use super::access_log::{self, ClientName, shown};
use super::failures::{Failures, LOST};
use super::jobs::{Done, Job, Pool, RequestState, Requester};
use super::open_file::OpenFile;
use super::operations::publishers::Publishers;
use super::progress::Progress;
use super::quota::Quotas;
use super::rate::chunk_bytes;
use super::session::{Action, LogEvent, Outgoing, Session, Ticket};
use super::stats::has;
use super::stats::{Counters, FailureStats, FollowerStats, PeerStats, RequestKind, Stats, TransferStats, Wait};
use super::{Failure, holding};
use crate::limits::{ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX};
use crate::protocol::control::{FetchesFor, Holder, Request};
use crate::protocol::data::DataHeader;
use crate::protocol::envelope::{Opening, is_too_large, opening};
use crate::protocol::follow::CopyId;
use crate::protocol::plain::PlainMessage;
use crate::protocol::{Dialect, WireError};
use crate::relay::{HolderStats, Holders, Reporter, Via};
use crate::transfer::tcp::BufferWatch;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use towpath_quota::FairQueue;
use towpath_rules::{Permissions, Verb};
use towpath_sockets::{Page, PeerId, PeerInfo, Principal, TcpInfo, Tenant};

/// A connected client.
struct Client {
    session: Session<OpenFile>,
    name: ClientName,
    tenant: Tenant,
    /// Its user, or the name of its key.
    user: Option<Arc<str>>,
    /// The same for the fair queues of the pool.
    tenant_number: u64,
    /// Id for the fair queues of the pool.
    key: u64,
    /// State of its requests that have started jobs.
    requests: HashMap<Ticket, Arc<RequestState>>,
    quotas: Quotas,
    /// Its last report of what it has.
    said: Option<HolderStats>,
    /// The follower that it fetches for, which reports on another connection.
    fetches_for: Option<FetchesFor>,
    progress: Progress,
    buffers: BufferWatch,
}

/// Clients by peer.
pub(super) struct Clients {
    clients: HashMap<PeerId, Client>,
    pool: Pool,
    quotas: Quotas,
    /// Clients that wait for an open file of others to be closed.
    awaiting_files: FairQueue<Tenant, PeerId, ()>,
    next_key: u64,
    tenant_numbers: RandomState,
    counters: Counters,
    failures: Failures,
    /// Clients that follow, by slot.
    followers: BTreeSet<PeerId>,
    /// The connections by which followers fetch beside the one on which they report, by tenant, name and copy: the last of each.
    fetch_for: BTreeMap<(u64, String, Option<CopyId>), PeerId>,
    publishers: Publishers,
    /// Rate of all clients together: pieces of files aren't larger than it allows.
    bytes_per_second: Option<u64>,
    via: Arc<Via>,
    holders: Arc<Mutex<Holders>>,
}

impl Client {
    /// Notes its report, and those that it passes on.
    fn have(&mut self, peer: PeerId, said: Vec<Holder>, pool: &Pool, holders: &Mutex<Holders>) {
        let published = pool.context().published.clone();
        let salt = self.session.permissions().fingerprint(Verb::Follow);
        let Client { tenant, tenant_number, user, .. } = &*self;
        let reporter = Reporter { whose: tenant, tenant: *tenant_number, user: user.as_ref(), peer, via: None };
        let own = holding::note(&self.name.address, reporter, (said, salt), published.as_deref(), holders);
        self.said = own.or(self.said.take());
    }

    /// The name of the follower that it is, or fetches for.
    fn follower(&self) -> Option<String> {
        match (&self.said, &self.fetches_for) {
            (Some(said), _) => Some(said.name.clone()),
            (None, of) => of.as_ref().map(|of| of.name.as_str().to_owned()),
        }
    }

    /// The record of a refusal or failure.
    fn failure(
        &self,
        peer: PeerId,
        kind: RequestKind,
        path: &[u8],
        count: usize,
        why: (&'static str, &str),
    ) -> FailureStats {
        FailureStats {
            peer,
            address: self.name.address.clone(),
            user: self.user.as_deref().map(str::to_owned),
            follower: self.follower(),
            kind,
            path: path.to_vec(),
            count,
            at: Instant::now(),
            code: why.0,
            reason: why.1.to_owned(),
        }
    }

    /// The failure of an event, if it is one.
    fn failed(&self, peer: PeerId, event: &LogEvent) -> Option<FailureStats> {
        let (kind, count, path, failure) = match event {
            LogEvent::Refused { what, count, path, failure } => (*what, *count, path, failure),
            LogEvent::Void { path, failure } => (RequestKind::Fetch, 1, path, failure),
            LogEvent::Confirmed(_) | LogEvent::Ended { .. } | LogEvent::Pushed => return None,
        };
        Some(self.failure(peer, kind, path.as_bytes(), count, (failure.code.as_str(), &failure.message)))
    }

    fn log(&self, event: &LogEvent) {
        let age = |ticket: &Ticket| self.requests.get(ticket).map(|request| request.age());
        access_log::event(&self.name, event, age);
    }

    /// The state of an open request. Requests of one client that overlap see the same root; on a proxy's connection there are several clients.
    fn request(&mut self, ticket: Ticket) -> Arc<RequestState> {
        let Client { session, requests, quotas, .. } = self;
        if let Some(known) = requests.get(&ticket) {
            return Arc::clone(known);
        }
        let client = session.client(ticket);
        let of_client = |(other, _): &(&Ticket, _)| client.is_some() && session.client(**other) == client;
        let overlapping = requests.iter().find(of_client).map(|(_, other)| other.snapshot());
        let request = Arc::new(RequestState::new(
            overlapping.unwrap_or_default(),
            session.permissions().clone(),
            &quotas.list_names,
        ));
        requests.insert(ticket, Arc::clone(&request));
        request
    }
}

impl Clients {
    /// `via` has this server last; `open_files_max` as in [`ServerOptions`](super::ServerOptions).
    pub(super) fn new(pool: Pool, open_files_max: usize, via: Arc<Via>, publishers: Publishers) -> Clients {
        Clients {
            clients: HashMap::new(),
            pool,
            quotas: Quotas::new(open_files_max),
            awaiting_files: FairQueue::default(),
            next_key: 0,
            tenant_numbers: RandomState::new(),
            counters: Counters::default(),
            failures: Failures::default(),
            followers: BTreeSet::new(),
            fetch_for: BTreeMap::new(),
            publishers,
            bytes_per_second: None,
            via,
            holders: Arc::default(),
        }
    }

    /// Cuts files into pieces for this rate of all clients together.
    pub(super) fn limit_chunks(&mut self, bytes_per_second: Option<u64>) {
        self.bytes_per_second = bytes_per_second;
    }

    /// State that a relay shares with this server: the servers that files come through, and who has what.
    pub(super) fn shared_with_relay(&self) -> (Arc<Via>, Arc<Mutex<Holders>>) {
        (Arc::clone(&self.via), Arc::clone(&self.holders))
    }

    /// The number of a tenant here.
    pub(super) fn number_of(&self, tenant: &Tenant) -> u64 {
        self.tenant_numbers.hash_one(tenant)
    }

    /// A client is there, which may do this.
    pub(super) fn connected(&mut self, info: PeerInfo, permissions: Permissions) {
        let (tenant, may_publish) = (Tenant::of(&info), self.publishers.has(&info));
        let PeerInfo { id: peer, address, principal, .. } = info;
        let name = ClientName::new(address.to_string(), &principal);
        let ClientName { address, user, key_name } = &name;
        match &principal {
            Principal::Key { key, .. } => tracing::info!(%address, %key, name = shown(key_name), "connected"),
            _ => tracing::info!(%address, user = shown(user), "connected"),
        }
        self.next_key += 1;
        self.counters.connected += 1;
        let quotas = self.quotas.client();
        let user = match &principal {
            Principal::User(name) | Principal::Key { name, .. } => Some(String::from_utf8_lossy(name).into()),
            _ => None,
        };
        let client = Client {
            session: Session::new(principal, quotas.clone())
                .following(self.pool.context().published.is_some(), may_publish)
                .taking_pushes(self.pool.takes_pushes())
                .permitting(permissions),
            name,
            tenant_number: self.tenant_numbers.hash_one(&tenant),
            tenant,
            user,
            key: self.next_key,
            requests: HashMap::new(),
            quotas,
            said: None,
            fetches_for: None,
            progress: Progress::default(),
            buffers: BufferWatch::default(),
        };
        self.clients.insert(peer, client);
    }

    /// A client's permissions since they were last set.
    pub(super) fn permissions(&self, peer: PeerId) -> Option<&Permissions> {
        self.clients.get(&peer).map(|client| client.session.permissions())
    }

    /// Notifies followers of a change.
    pub(super) fn published(&mut self, touched: &mut BTreeSet<PeerId>) {
        let follows = |client: &mut Client| client.session.published() || client.said.is_some();
        self.followers.retain(|peer| self.clients.get_mut(peer).is_some_and(follows));
        touched.extend(&self.followers);
    }

    /// Removes a client and releases all that it had.
    pub(super) fn gone(&mut self, peer: PeerId, reason: &str) {
        let Some(mut client) = self.clients.remove(&peer) else { return };
        self.followers.remove(&peer);
        forget_fetches_for(&mut self.fetch_for, &client, peer);
        // What came just before.
        while let Some(action) = client.session.next_action() {
            match action {
                Action::Log(event) => {
                    self.counters.add_event(&event);
                    client.log(&event);
                    self.failures.extend(client.tenant_number, client.failed(peer, &event));
                }
                Action::Have(said) => client.have(peer, said, &self.pool, &self.holders),
                _ => {}
            }
        }
        client.session.lost().for_each(|event| client.log(&event));
        let mut lost = client.session.transfers().map(|(_, transfer)| transfer);
        if let Some(first) = lost.next() {
            let left = |of: &TransferStats| of.files.saturating_sub(of.files_done);
            let count = (left(&first) + lost.map(|other| left(&other)).sum::<usize>()).max(1);
            let failed = client.failure(peer, first.kind, &first.path, count, (LOST, reason));
            self.failures.extend(client.tenant_number, [failed]);
        }
        if let Some(said) = &client.said {
            let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.left((&said.name, said.copy), client.tenant_number, peer, Instant::now());
        }
        tracing::info!(address = %client.name.address, %reason, "gone");
        client.requests.values().for_each(|request| request.cancel());
        self.awaiting_files.remove(peer);
        self.pool.cancel(client.key, None);
    }

    /// Handles a client's message.
    pub(super) fn message(&mut self, peer: PeerId, frames: &[Bytes]) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let Opening::Envelope(envelope) = opening(frames) else { return };
        let (envelope, frames) = frames.split_at_checked(envelope).unwrap_or((frames, &[]));
        // Copied, since a slice would keep the whole read buffer for as long as the request waits.
        let envelope: Vec<Bytes> = envelope.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
        if is_too_large(&envelope) {
            tracing::warn!(address = %client.name.address, "refused: an envelope over the limit");
            let limits = format!("an envelope has at most {ENVELOPE_FRAMES_MAX} frames and {ENVELOPE_BYTES_MAX} bytes");
            return client.session.request(envelope, Err(WireError::bad(limits)));
        }
        match frames.first().and_then(|first| Dialect::of(first)) {
            Some(Dialect::Plain) => {
                let message = PlainMessage::decode(frames);
                access_log::plain(&client.name, &message);
                self.counters.add_request(&message);
                match message {
                    Ok(PlainMessage::Fetch(request)) => client.session.plain_request(envelope, Ok(request)),
                    Err(error) => client.session.plain_request(envelope, Err(error)),
                    Ok(PlainMessage::Follow(request)) => {
                        self.followers.insert(peer);
                        client.session.plain_follow(envelope, request);
                    }
                    Ok(PlainMessage::Credit { bytes }) => client.session.plain_credit(&envelope, bytes),
                }
            }
            Some(Dialect::Control) => {
                let json = frames.get(1).ok_or_else(|| WireError::bad("a control message has a second frame, of JSON"));
                let mut request = json.and_then(|json| Request::decode(json));
                if let Ok(Request::Fetch(fetch)) = &mut request {
                    fetch.chunk_bytes = chunk_bytes(self.bytes_per_second, fetch.chunk_bytes);
                }
                if let Ok(Request::Push(push)) = &mut request {
                    // A slice would keep the whole read buffer.
                    push.content = frames.get(2).map(|content| Bytes::copy_from_slice(content));
                }
                access_log::request(&client.name, &request);
                self.counters.add_request(&request);
                match &request {
                    Ok(Request::Follow(_) | Request::Have(_)) => _ = self.followers.insert(peer),
                    Ok(_) => {}
                    Err(WireError { code, message, .. }) => {
                        let failed = client.failure(peer, RequestKind::Unknown, b"", 1, (code.as_str(), message));
                        self.failures.extend(client.tenant_number, [failed]);
                    }
                }
                client.session.request(envelope, request);
            }
            Some(Dialect::Data) => {
                let Some((header, bodies)) = frames.split_first() else { return };
                client.session.at(Instant::now());
                client.session.data(&envelope, DataHeader::decode(header), bodies);
            }
            None => {
                tracing::warn!(address = %client.name.address, "refused: a message of no known dialect");
                client
                    .session
                    .request(envelope, Err(WireError::bad("a message begins with TOW1, fetch, follow or credit")));
            }
        }
    }

    /// Handles a piece of a file that has left the socket.
    pub(super) fn sent(&mut self, peer: PeerId, slot: u64, whole: bool) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let result = match client.session.file_in_socket(slot) {
            Some(_) if !whole => Err(Failure::changed("the file shrank while it was sent")),
            // sendfile is used for local file systems only, so this doesn't block.
            Some(source) => source.check(),
            None => Ok(()),
        };
        client.session.sent(slot, result);
    }

    /// Hands the result of a job to its sessions, and adds their peers to those to be served.
    pub(super) fn done(&mut self, done: Done, touched: &mut BTreeSet<PeerId>) {
        let Clients { clients, pool, .. } = self;
        pool.finish(done, |Requester { peer, ticket, .. }, answer| {
            if let Some(client) = clients.get_mut(&peer) {
                client.session.at(Instant::now());
                client.session.finish(ticket, answer);
                touched.insert(peer);
            }
        });
    }

    /// Carries out all actions of a session. `take_back` takes a request's messages back from the socket.
    pub(super) fn act(&mut self, peer: PeerId, mut take_back: impl FnMut(Ticket) -> usize) {
        let Clients { clients, pool, counters, failures, via, holders, followers, fetch_for, .. } = self;
        let Some(client) = clients.get_mut(&peer) else { return };
        let mut asked = Vec::new();
        while let Some(action) = client.session.next_action() {
            match action {
                Action::Start(ticket, job) => {
                    let requester = Requester { peer, ticket, tenant: client.tenant_number, key: client.key };
                    let request = client.request(ticket);
                    if let Job::Operation(operation) = &job {
                        operation.log(&client.name);
                    }
                    if let Some(answer) = job.start(pool, requester, &request) {
                        client.session.finish(ticket, answer);
                    }
                }
                Action::Log(event) => {
                    counters.add_event(&event);
                    client.log(&event);
                    failures.extend(client.tenant_number, client.failed(peer, &event));
                }
                Action::Hello(envelope) => client.session.hello(&envelope, via.all()),
                Action::Have(said) => client.have(peer, said, pool, holders),
                Action::FetchesFor(follower) => {
                    forget_fetches_for(fetch_for, client, peer);
                    fetch_for.insert(key_of(client.tenant_number, &follower), peer);
                    client.fetches_for = Some(follower);
                }
                Action::Holders(envelope, request) => asked.push((envelope, request)),
                Action::Release { ticket, take_back: wants_back } => {
                    if let Some(request) = client.requests.remove(&ticket) {
                        request.cancel();
                    }
                    if wants_back {
                        pool.cancel(client.key, Some(ticket));
                        client.session.taken_back(ticket, take_back(ticket));
                    } else {
                        pool.cancel_hashing(client.key, Some(ticket));
                    }
                }
            }
        }
        if asked.is_empty() {
            return;
        }
        reached(clients, followers, holders);
        let Some(client) = clients.get_mut(&peer) else { return };
        for (envelope, request) in asked {
            let reply = match client.session.is_congested() {
                true => holding::busy(request.id),
                false => {
                    let published = pool.context().published.clone();
                    holding::answer(&request, client.session.permissions(), published.as_deref(), holders)
                }
            };
            client.session.reply(&envelope, &reply);
        }
    }

    /// The server's statistics, without its connections.
    pub(super) fn stats(&self) -> Stats {
        let (pools, quotas) = (self.pool.load(), self.quotas.stats().into());
        let source = self.pool.context().served.source();
        let (cache, outage) =
            (source.as_ref().and_then(|source| source.cache()), source.and_then(|source| source.outage()));
        Stats { counters: self.counters, pools, quotas, cache, outage, ..Stats::default() }
    }

    /// How many follows there are, and up to which number the last of them has everything.
    pub(super) fn follow_sums(&self) -> (usize, Option<u64>) {
        let clients = self.followers.iter().filter_map(|peer| self.clients.get(peer));
        let has = clients.flat_map(|client| client.session.follows_sent().map(|sent| has(sent, client.said.as_ref())));
        has.fold((0, None), |(count, least), has| (count + 1, Some(least.map_or(has, |least: u64| least.min(has)))))
    }

    /// Fetches and pushes in progress.
    pub(super) fn transfer_count(&self) -> usize {
        self.clients.values().map(|client| client.session.transfers().count()).sum()
    }

    /// A page of follows, by slots of their clients. All those of a client are in one page.
    pub(super) fn follower_page(&self, from: u32, info: impl Fn(PeerId) -> Option<PeerInfo>) -> Page<FollowerStats> {
        let peers = self.followers.range(PeerId::new(from, 0)..);
        let clients = peers.map(|peer| (peer.slot(), self.clients.get(peer).zip(info(*peer))));
        Page::of(clients).flat_map(|(client, info)| {
            let said = &client.said;
            let follows: Vec<_> = client.session.follows().map(Some).collect();
            let follows = if follows.is_empty() && said.is_some() { vec![None] } else { follows };
            follows.into_iter().map(move |follow| FollowerStats {
                info: info.clone(),
                follow,
                said: said.clone(),
                transfer: None,
            })
        })
    }

    /// The connections by which a follower fetches: the one on which it reports, and another one if it has one.
    pub(super) fn fetch_for(&self, peer: PeerId) -> impl Iterator<Item = PeerId> + use<> {
        let client = self.clients.get(&peer).and_then(|client| Some((client.tenant_number, client.said.as_ref()?)));
        let other = client.and_then(|(tenant, said)| self.fetch_for.get(&(tenant, said.name.clone(), said.copy)));
        std::iter::once(peer).chain(other.copied())
    }

    /// The follows that lack most, so many of them at most, the last one first.
    pub(super) fn last_follows(&self, most: usize, info: impl Fn(PeerId) -> Option<PeerInfo>) -> Vec<FollowerStats> {
        // First whose they are: a follow's description takes memory.
        let mut last: Vec<(u64, PeerId)> = Vec::new();
        for (peer, client) in self.followers.iter().filter_map(|peer| Some((*peer, self.clients.get(peer)?))) {
            for has in client.session.follows_sent().map(|sent| has(sent, client.said.as_ref())) {
                let place = last.partition_point(|(other, _)| *other <= has);
                if place < most {
                    last.insert(place, (has, peer));
                    last.truncate(most);
                }
            }
        }
        let peers: BTreeSet<PeerId> = last.into_iter().map(|(_, peer)| peer).collect();
        let clients = peers.into_iter().filter_map(|peer| self.clients.get(&peer).zip(info(peer)));
        let follows = clients.flat_map(|(client, info)| {
            let said = &client.said;
            client.session.follows().map(move |follow| FollowerStats {
                info: info.clone(),
                follow: Some(follow),
                said: said.clone(),
                transfer: None,
            })
        });
        let mut follows: Vec<_> = follows.collect();
        follows.sort_by_key(FollowerStats::has);
        follows.truncate(most);
        follows
    }

    /// A page of what was refused, or failed.
    pub(super) fn failure_page(&self, from: u32) -> Page<FailureStats> {
        self.failures.page(from)
    }

    /// The statistics of a peer that is connected. `tcp` asks the kernel about its connection.
    pub(super) fn peer_stats(
        &mut self,
        info: PeerInfo,
        tcp: impl FnOnce() -> Option<(TcpInfo, u64)>,
        now: Instant,
    ) -> Option<PeerStats> {
        let client = self.clients.get_mut(&info.id)?;
        let follower = client.follower();
        let Client { session, key, progress, .. } = client;
        let mut transfers: Vec<_> = session.transfers().collect();
        if !transfers.is_empty() {
            progress.explain(&mut transfers, &info, tcp(), now);
        }
        let transfer = |(ticket, mut transfer): (Ticket, TransferStats)| {
            if matches!(transfer.wait, Some(Wait::Disk | Wait::Hash)) && self.pool.keeps_waiting(*key, ticket) {
                transfer.wait = Some(Wait::Pool);
            }
            transfer
        };
        Some(PeerStats {
            info,
            principal: session.principal().clone(),
            credit_bytes: session.credit(),
            transfers: transfers.into_iter().map(transfer).collect(),
            queries: session.queries(),
            follower,
        })
    }

    /// Looks now and then whether a TCP buffer limits what a client is sent, and lets it know.
    pub(super) fn watch_buffers(&mut self, peer: PeerId, tcp: impl FnOnce() -> Option<(TcpInfo, u64)>) {
        let Some(client) = self.clients.get_mut(&peer).filter(|client| client.session.is_fetching()) else { return };
        let now = Instant::now();
        if client.buffers.is_due(now)
            && let Some(tcp) = tcp()
            && let Some(buffer) = client.buffers.look(tcp, now)
        {
            client.session.is_limited_by(buffer);
        }
    }

    /// Whether a client has requests that aren't over, but for those that follow.
    pub(super) fn is_busy(&self, peer: PeerId) -> bool {
        let session = self.clients.get(&peer).map(|client| &client.session);
        session.is_some_and(|session| session.queries() > 0 || session.transfers().next().is_some())
    }

    /// See [`Pool::start_copies`].
    pub(super) fn start_copies(&mut self) {
        self.pool.start_copies();
    }

    /// Called after a client was served: notes what its transfers wait for, such as for an open file. `awaits_rate`: for its turn at the rate of this
    /// server.
    pub(super) fn served(&mut self, peer: PeerId, awaits_rate: bool) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        client.progress.note(client.session.waits(), awaits_rate);
        if client.session.take_waits_for_files() && !self.awaiting_files.contains(peer) {
            self.awaiting_files.push(&client.tenant, peer, ());
        }
    }

    /// Peers that have waited for an open file and may go on.
    pub(super) fn take_unblocked(&mut self) -> BTreeSet<PeerId> {
        // Called until empty, since each may take a file or need none any more.
        (0..self.quotas.open_files.available())
            .map_while(|_| self.awaiting_files.pop_next())
            .map(|(peer, ())| peer)
            .collect()
    }

    /// See [`Session::next_message`].
    pub(super) fn next_message(&mut self, peer: PeerId) -> Option<Outgoing<OpenFile>> {
        self.clients.get_mut(&peer)?.session.next_message()
    }

    /// See [`Session::has_actions`].
    pub(super) fn has_actions(&self, peer: PeerId) -> bool {
        self.clients.get(&peer).is_some_and(|client| client.session.has_actions())
    }

    /// See [`Session::still_queued`].
    pub(super) fn still_queued(&mut self, peer: PeerId, messages: usize) {
        if let Some(client) = self.clients.get_mut(&peer) {
            client.session.still_queued(messages);
        }
    }

    /// See [`Session::is_congested`].
    pub(super) fn is_congested(&self, peer: PeerId) -> bool {
        self.clients.get(&peer).is_some_and(|client| client.session.is_congested())
    }
}

fn key_of(tenant: u64, FetchesFor { name, copy }: &FetchesFor) -> (u64, String, Option<CopyId>) {
    (tenant, name.as_str().to_owned(), *copy)
}

/// This client doesn't fetch for a follower any more, if it did.
fn forget_fetches_for(fetch_for: &mut BTreeMap<(u64, String, Option<CopyId>), PeerId>, client: &Client, peer: PeerId) {
    let key = client.fetches_for.as_ref().map(|follower| key_of(client.tenant_number, follower));
    // Another connection may have taken its place.
    if let Some(key) = key.filter(|key| fetch_for.get(key) == Some(&peer)) {
        fetch_for.remove(&key);
    }
}

/// Notes the position of followers of a part, which don't receive changes that aren't for them.
fn reached(clients: &HashMap<PeerId, Client>, followers: &BTreeSet<PeerId>, holders: &Mutex<Holders>) {
    let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
    for (peer, client) in followers.iter().filter_map(|peer| Some((*peer, clients.get(peer)?))) {
        let Some(said) = &client.said else { continue };
        if let Some(seq) = client.session.follows_sent().map(|sent| has(sent, Some(said))).min() {
            holders.reach((&said.name, said.copy), client.tenant_number, peer, seq);
        }
    }
}

impl Counters {
    fn add_request<T>(&mut self, request: &Result<T, WireError>) {
        let counter = if request.is_ok() { &mut self.requests } else { &mut self.malformed };
        *counter += 1;
    }

    fn add_event(&mut self, event: &LogEvent) {
        match event {
            LogEvent::Confirmed(confirm) => self.files_confirmed += confirm.files.len() as u64,
            LogEvent::Void { .. } => self.files_void += 1,
            LogEvent::Refused { what: RequestKind::Push, .. } => self.pushes_failed += 1,
            LogEvent::Refused { what: RequestKind::Follow, .. } => {}
            LogEvent::Refused { count, .. } => self.files_refused += *count as u64,
            LogEvent::Pushed => self.pushed += 1,
            LogEvent::Ended { .. } => {}
        }
    }
}
