//! Controlling a broker from other threads.

use super::ServedDispatch;
use crate::core::{LetterAction, LetterInfo, LetterRun, LookAt, Millis, NotDone, NotEnded, Purge, RequestKey};
use crate::stats::{Concerns, PeerStats, RequestStats, ServiceStats, Stats};
use bytes::Bytes;
use std::sync::mpsc::{Receiver, SyncSender};
use towpath_requests::body::Body;
use towpath_sockets::{Command, Page, Waker, Wanted};

/// Controls a broker from any thread.
pub type Handle = towpath_sockets::Handle<Stats, OperatorAction>;

/// Commands of an operator: [`Operator`](super::Operator).
#[derive(Debug)]
#[non_exhaustive]
pub enum OperatorAction {
    /// Pause a service, or resume it.
    Pause {
        /// Its name.
        service: Bytes,
        /// Pause, rather than resume.
        paused: bool,
        /// Receives whether it is done: not too many are paused.
        done: SyncSender<bool>,
    },
    /// Begin a purge of a service if this many of its requests wait, or go on with it.
    Purge {
        /// Its name.
        service: Bytes,
        /// Requests that are expected to wait, if any number is, or the purge that has begun.
        from: Result<Purge, Option<usize>>,
        /// Receives the purge and how many requests it has ended, or how many wait.
        done: SyncSender<Result<(Purge, usize), usize>>,
    },
    /// List some requests of a service.
    ListRequests {
        /// Its name.
        service: Bytes,
        /// The number from which on.
        from: u32,
        /// Receives the list, and the moment in the core's time.
        done: SyncSender<(Page<RequestStats>, Millis)>,
    },
    /// End a request of a service.
    EndRequest {
        /// The service's name.
        service: Bytes,
        /// The request.
        request: RequestKey,
        /// Receives whether it is done.
        done: SyncSender<Result<(), NotEnded>>,
    },
    /// Drop outcomes of absent clients, some at a time.
    DropOutcomes(
        /// Receives how many; 0 when there are no more.
        SyncSender<usize>,
    ),
    /// Begin something with the dead letters of a service if there are this many, or go on with it.
    Letters {
        /// Name of the service.
        service: Bytes,
        /// The run that has begun, or an action to begin and how many letters are expected.
        from: Result<LetterRun, (LetterAction, usize)>,
        /// Receives how far it is, or how many there are.
        done: SyncSender<Result<LetterRun, usize>>,
    },
    /// Do something with one dead letter of a service.
    Letter {
        /// Name of the service.
        service: Bytes,
        /// Its id in the journal.
        id: u64,
        /// The action.
        action: LetterAction,
        /// Receives whether it is done.
        done: SyncSender<Result<(), NotDone>>,
    },
    /// Give the body of a dead letter of a service.
    LetterBody {
        /// Name of the service.
        service: Bytes,
        /// Its id in the journal.
        id: u64,
        /// Receives the body.
        done: SyncSender<Option<Body>>,
    },
    /// List the dead letters of a service, from this number on.
    ListLetters {
        /// Name of the service.
        service: Bytes,
        /// The number.
        from: u32,
        /// Receives the list, and the moment in the core's time.
        done: SyncSender<(Page<LetterInfo>, Millis)>,
    },
    /// Look up a service.
    Service {
        /// Its name.
        service: Bytes,
        /// Receives it, if it is there.
        done: SyncSender<Option<ServiceStats>>,
    },
    /// Look at services and workers, some at a time.
    Look {
        /// From where on.
        at: LookAt,
        /// Receives what is of concern there, and where to go on.
        done: SyncSender<(Concerns, Option<LookAt>)>,
    },
    /// Wait until all that has been done so far is on the disk.
    Sync(SyncSender<()>),
    /// Take no more requests, or take them again.
    Drain {
        /// Take no more.
        on: bool,
        /// Receives the answer.
        done: SyncSender<()>,
    },
}

/// Requests that a purge ends between two polls, and dead letters that are handled.
const PURGED_PER_TURN: usize = 1_000;

/// Clients in a queue that are counted.
const CLIENTS_MAX: usize = 1_000;

/// The event loop's end of handles.
#[derive(Debug)]
pub(super) struct Control {
    handle: Handle,
    commands: Receiver<Command<Stats, OperatorAction>>,
    /// Commands that wait until this many entries of an epoch are durable.
    syncs: Vec<(u64, u64, SyncSender<()>)>,
    /// The broker is to end.
    pub is_shutdown: bool,
    /// End without a grace time.
    pub at_once: bool,
}

impl Control {
    pub fn new(waker: Waker) -> Control {
        let (handle, commands) = Handle::new(waker);
        Control { handle, commands, syncs: Vec::new(), is_shutdown: false, at_once: false }
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Carries out a command of handles. Called in each turn of the event loop.
    pub fn turn(&mut self, dispatch: &mut ServedDispatch) {
        let Ok(command) = self.commands.try_recv() else { return };
        match command {
            Command::Shutdown { now } => {
                self.is_shutdown = true;
                self.at_once |= now;
            }
            Command::Snapshot { wanted, reply } => {
                let _ = reply.send(stats(dispatch, wanted));
            }
            Command::Action(OperatorAction::Pause { service, paused, done }) => {
                let _ = done.send(dispatch.pause_service(&service, paused));
            }
            Command::Action(OperatorAction::Purge { service, from, done }) => {
                let waiting = || dispatch.core.service(&service).map_or(0, |service| service.waiting);
                let purge = match from {
                    Ok(purge) => Ok(purge),
                    Err(expected) if expected.is_none_or(|expected| expected == waiting()) => {
                        Ok(dispatch.core.begin_purge(&service))
                    }
                    Err(_) => Err(waiting()),
                };
                let _ = done.send(purge.map(|purge| (purge, dispatch.purge(&service, purge, PURGED_PER_TURN))));
            }
            Command::Action(OperatorAction::ListRequests { service, from, done }) => {
                let _ = done.send((dispatch.list_requests(&service, from), dispatch.now()));
            }
            Command::Action(OperatorAction::EndRequest { service, request, done }) => {
                let _ = done.send(dispatch.end_request(&service, request));
            }
            Command::Action(OperatorAction::DropOutcomes(done)) => {
                let _ = done.send(dispatch.drop_absent_outcomes());
            }
            Command::Action(OperatorAction::Letters { service, from, done }) => {
                let there = dispatch.core.letters(&service);
                let run = match from {
                    Ok(run) => Ok(run),
                    Err((action, expected)) if expected == there => Ok(dispatch.core.begin_letters(action)),
                    Err(_) => Err(there),
                };
                let _ = done.send(run.map(|run| dispatch.go_on_with_letters(&service, run, PURGED_PER_TURN)));
            }
            Command::Action(OperatorAction::Letter { service, id, action, done }) => {
                let _ = done.send(dispatch.act_on_letter(&service, id, action));
            }
            Command::Action(OperatorAction::LetterBody { service, id, done }) => {
                let _ = done.send(dispatch.core.letter_body(&service, id));
            }
            Command::Action(OperatorAction::ListLetters { service, from, done }) => {
                let _ = done.send((Page::of(dispatch.core.letters_from(&service, from)), dispatch.now()));
            }
            Command::Action(OperatorAction::Service { service, done }) => {
                let clients = dispatch.core.waiting_clients(&service, CLIENTS_MAX);
                let stats = |info| ServiceStats { info, clients, now: dispatch.now() };
                let _ = done.send(dispatch.core.service(&service).map(stats));
            }
            Command::Action(OperatorAction::Look { at, done }) => {
                let (mut concerns, next) = dispatch.look(at);
                for worker in &mut concerns.workers {
                    let info = worker.id.and_then(|id| dispatch.transport.hub.peer(id));
                    worker.silent_for = info.map(|info| info.last_received.elapsed());
                }
                let _ = done.send((concerns, next));
            }
            Command::Action(OperatorAction::Sync(done)) => {
                self.syncs.push((dispatch.core.settings().epoch, dispatch.core.entries().0, done));
            }
            Command::Action(OperatorAction::Drain { on, done }) => {
                dispatch.core.drain(on);
                let _ = done.send(());
            }
            Command::Disconnect { peer, reason, was_there } => {
                let _ = was_there.send(dispatch.disconnect(peer, &reason));
            }
            Command::EndBlocked(reply) => {
                let _ = reply.send(dispatch.transport.hub.end_blocked());
            }
            Command::Reauthorize(reply) => {
                dispatch.transport.hub.end_logins();
                let _ = reply.send(dispatch.judge_again());
            }
        }
        // One a turn: others may wait.
        self.handle.wake();
    }

    /// Answers commands that wait for the disk.
    pub fn answer_syncs(&mut self, dispatch: &ServedDispatch) {
        if !self.syncs.is_empty() {
            let (now, (_, durable)) = (dispatch.core.settings().epoch, dispatch.core.entries());
            // If leadership was lost, nobody knows: there is no answer.
            self.syncs.retain(|(epoch, ..)| *epoch == now);
            for (.., done) in self.syncs.extract_if(.., |(_, entries, _)| *entries <= durable) {
                // The caller may have given up.
                let _ = done.send(());
            }
        }
    }
}

fn stats(dispatch: &ServedDispatch, wanted: Wanted) -> Stats {
    let hub = &dispatch.transport.hub;
    let store = &dispatch.store;
    let mut stats = Stats { hub: hub.stats(), journal: store.figures(), cell: store.cell(), ..dispatch.stats(wanted) };
    match wanted {
        Wanted::Peers(from) => {
            let peer =
                |id| Some(PeerStats { info: hub.peer(id)?, activity: dispatch.activity(id).unwrap_or_default() });
            stats.peers = Page::of(hub.peers_from(from).map(|id| (id.slot(), peer(id))));
        }
        Wanted::Gone(from) => stats.gone = hub.gone_from(from),
        _ => {}
    }
    stats
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::server::{Broker, BrokerOptions};
    use bytes::Bytes;
    use std::time::{Duration, Instant};
    use towpath_sockets::{Event, Frame, Hub, HubOptions, SocketType, Wanted};

    #[test]
    fn handle_shows_disconnects_and_ends() {
        let broker = Broker::bind(BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()])).unwrap();
        let (handle, endpoint) = (broker.handle(), broker.endpoints()[0].clone());
        let running = std::thread::spawn(move || broker.run());
        let mut worker = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        worker.connect_once(&endpoint);
        let (start, mut is_gone) = (Instant::now(), false);
        let stats = loop {
            assert!(start.elapsed() < Duration::from_secs(60), "the worker isn't listed");
            worker.poll(Some(Duration::from_millis(5))).unwrap();
            while let Some(event) = worker.next_event() {
                if let Event::Ready { peer } = event {
                    let ready = [&b""[..], b"MDPW01", &[1], b"work"].map(Bytes::from_static);
                    worker.send(peer, ready.into_iter().map(Frame::Bytes).collect()).unwrap();
                }
            }
            let stats = handle.snapshot(Wanted::Peers(0)).unwrap();
            if stats.peers.entries.first().is_some_and(|(_, peer)| peer.activity.worker.is_some()) {
                break stats;
            }
        };
        assert_eq!((stats.hub.peers, stats.service_count, stats.worker_count), (1, 1, 1));
        let (info, activity) = (&stats.peers.entries[0].1.info, &stats.peers.entries[0].1.activity);
        assert_eq!((activity.protocol.as_deref(), activity.has_role, activity.requests), (Some("MDP/0.1"), true, 0));
        let services = handle.snapshot(Wanted::Services(0)).unwrap().services;
        assert_eq!(
            (&services.entries[0].1.name[..], services.entries[0].1.workers, services.next),
            (&b"work"[..], 1, None)
        );
        let workers = handle.snapshot(Wanted::Workers(0)).unwrap().workers;
        assert_eq!((workers.entries[0].1.worker.held, workers.entries[0].1.address.as_ref()), (0, Some(&info.address)));
        assert!(handle.disconnect(info.id, "for a test"));
        while !is_gone {
            assert!(start.elapsed() < Duration::from_secs(60), "the worker is still connected");
            worker.poll(Some(Duration::from_millis(5))).unwrap();
            is_gone = std::iter::from_fn(|| worker.next_event()).any(|event| matches!(event, Event::Gone { .. }));
        }
        assert!(!handle.disconnect(info.id, "once more"));
        let stats = handle.snapshot(Wanted::Gone(0)).unwrap();
        assert_eq!((stats.worker_count, stats.gone.entries[0].1.id), (0, Some(info.id)));
        assert!(stats.gone.entries[0].1.reason.contains("for a test"), "{stats:?}");
        handle.shutdown();
        running.join().unwrap().unwrap();
        assert!(handle.snapshot(Wanted::Sums).is_none());
    }
}
