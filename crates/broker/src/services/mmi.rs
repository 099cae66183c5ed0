//! Majordomo's management interface (RFC 8), and our extensions.

use super::{Broker, coded};
use crate::core::WorkerInfo;
use crate::stats::{LISTED_MAX, WorkerStats, listed_name, queue_json, spool_json, worker_json};
use crate::store::Store;
use crate::transport::Transport;
use bytes::Bytes;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;
use towpath_requests::body::Body;

/// A list that took this long to make, or longer, may be given again later on.
const LIST_TAKES_LONG: Duration = Duration::from_millis(2);

/// Pause between lists as a multiple of their cost: a peer that asks without end gets a tenth of the broker's time.
const LIST_RESTS: u32 = 9;

/// Lists that have been made: concurrent requests share one, and long lists are made only now and then.
#[derive(Default)]
pub(super) struct Lists {
    replies: HashMap<Asked, Made<Body>>,
    /// Workers by service, so that asking for one service after another doesn't scan all workers each time.
    workers: Option<Made<HashMap<Bytes, Vec<WorkerInfo>>>>,
}

/// The built-in service, its argument, and a number for what the peer may see.
type Asked = (Bytes, Bytes, u128);

struct Made<T> {
    what: T,
    /// Until then it is used again; else only in the round that made it.
    until: Option<Duration>,
}

impl<T> Made<T> {
    fn timed(transport: &impl Transport, make: impl FnOnce() -> T) -> Made<T> {
        let begin = transport.now();
        let what = make();
        let took = transport.now().saturating_sub(begin);
        Made { what, until: (took >= LIST_TAKES_LONG).then(|| begin + took * (LIST_RESTS + 1)) }
    }

    fn is_good(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

fn by_service(workers: impl Iterator<Item = WorkerInfo>) -> HashMap<Bytes, Vec<WorkerInfo>> {
    let mut all: HashMap<Bytes, Vec<WorkerInfo>> = HashMap::new();
    workers.for_each(|worker| all.entry(worker.service.clone()).or_default().push(worker));
    all
}

impl Lists {
    pub fn end_round(&mut self, now: Duration) {
        if !self.replies.is_empty() || self.workers.is_some() {
            self.replies.retain(|_, reply| reply.is_good(now));
            self.workers.take_if(|workers| !workers.is_good(now));
        }
    }

    /// The answer to a request, if there is such a service.
    pub fn mmi<T: Transport, S: Store>(
        &mut self,
        broker: &Broker<'_, T, S>,
        service: &[u8],
        argument: &[u8],
    ) -> Option<Body> {
        let of_one = || broker.core.service(argument).filter(|service| broker.access.may_see(&service.name));
        let has_workers = || of_one().is_some_and(|service| service.workers > 0);
        let may_list_workers = || argument.is_empty() || (has_workers() && broker.access.may_see_workers(argument));
        Some(match service {
            b"mmi.service" => coded(if has_workers() { "200" } else { "404" }, []),
            b"mmi.queue" if !argument.is_empty() => {
                let queue: Vec<_> = of_one().iter().map(|service| queue_json(service, broker.now())).collect();
                coded("200", [json!(queue).to_string().into()])
            }
            b"mmi.workers" if !may_list_workers() => coded("200", ["[]".into()]),
            b"mmi.workers" => {
                // The argument may be an alias.
                let name = of_one().map_or_else(Bytes::new, |service| service.name);
                self.list(broker, service, &name)
            }
            b"mmi.services" | b"mmi.queue" => self.list(broker, service, b""),
            b"mmi.spool" if broker.access.may_administer(service) => {
                coded("200", [spool_json(&broker.store.spool_usage()).to_string().into()])
            }
            _ => return None,
        })
    }

    /// A list of everything, or of what belongs to one service.
    fn list<T: Transport, S: Store>(&mut self, broker: &Broker<'_, T, S>, service: &[u8], of: &[u8]) -> Body {
        let asked = (Bytes::copy_from_slice(service), Bytes::copy_from_slice(of), broker.access.fingerprint());
        if let Some(made) = self.replies.get(&asked) {
            return made.what.clone();
        }
        let made = Made::timed(broker.transport, || {
            let listed = match service {
                b"mmi.workers" => self.workers(broker, of),
                b"mmi.queue" => {
                    let queues = broker.core.services().filter(|service| !service.name.starts_with(b"mmi."));
                    let queues = queues.filter(|service| broker.access.may_see(&service.name));
                    queues.take(LISTED_MAX).map(|service| queue_json(&service, broker.now())).collect()
                }
                _ => {
                    let services = broker.core.services().filter(|service| service.workers > 0);
                    let services = services.filter(|service| broker.access.may_see(&service.name)).take(LISTED_MAX);
                    services.map(|service| listed_name(&service.name)).collect()
                }
            };
            coded("200", [listed.to_string().into()])
        });
        let reply = made.what.clone();
        self.replies.insert(asked, made);
        reply
    }

    /// The real address and the load of each worker.
    fn workers<T: Transport, S: Store>(&mut self, broker: &Broker<'_, T, S>, service: &[u8]) -> serde_json::Value {
        let workers: Vec<_> = match service {
            b"" => {
                let workers = broker.core.workers().filter(|worker| broker.access.may_see_workers(&worker.service));
                workers.take(LISTED_MAX).collect()
            }
            of => {
                let make = || Made::timed(broker.transport, || by_service(broker.core.workers()));
                let all = self.workers.get_or_insert_with(make);
                all.what.get(of).map_or(&[][..], |all| all).iter().take(LISTED_MAX).cloned().collect()
            }
        };
        // Some that are listed by their services may have gone since.
        let there = workers.into_iter().filter(|worker| broker.core.is_worker(worker.peer));
        there.map(|worker| worker_json(&broker.worker_stats(worker), broker.now())).collect()
    }
}

impl<T: Transport, S> Broker<'_, T, S> {
    /// A worker, and where it is.
    pub fn worker_stats(&self, worker: WorkerInfo) -> WorkerStats {
        let id = (self.peer_id)(worker.peer);
        let principal = id.map(|id| self.transport.principal(id)).unwrap_or_default();
        WorkerStats { worker, id, address: id.and_then(|id| self.transport.address(id)), principal, silent_for: None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::access::Access;
    use crate::core::{Action, Kind};
    use crate::dispatch::Dispatch;
    use crate::server::{Broker, BrokerOptions};
    use towpath_requests::numbered::ClientId;

    /// Asks for one of the broker's own services, on the connection 0.
    fn ask(broker: &mut Broker, number: u64, service: &str, argument: &[u8]) -> serde_json::Value {
        let mut actions = Vec::new();
        broker.dispatch.core.request(0, 0, number, 0, false, service.as_bytes(), Body::copied(argument));
        broker.dispatch.core.take_actions(&mut actions);
        let Some(Action::BuiltIn { token, service, body }) = actions.pop() else { panic!("{actions:?}") };
        let Dispatch { services, core, store, transport, .. } = &mut broker.dispatch;
        services.answer(
            super::super::Broker { core, store, transport, access: Access::default(), peer_id: &|_| None },
            &token,
            &service,
            &body,
        );
        broker.dispatch.core.take_actions(&mut actions);
        let Some(Action::Reply { body, .. }) = actions.pop() else { panic!("{actions:?}") };
        let frames: Vec<_> = body.frames().unwrap().collect();
        assert_eq!(frames[0], b"200");
        serde_json::from_slice(frames[1]).unwrap()
    }

    #[test]
    fn lists_are_bounded_and_one_service_is_found_beyond_the_bound() {
        let mut broker = Broker::bind(BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()])).unwrap();
        broker.dispatch.core.client_hello(0, 0, ClientId([1; 16]), 1);
        for worker in 1..LISTED_MAX as u32 + 10 {
            broker.dispatch.core.worker_ready(0, worker, Kind::Numbered, format!("service {worker}").as_bytes(), 1);
        }
        broker.dispatch.core.take_actions(&mut Vec::new());
        let last = format!("service {}", LISTED_MAX + 9);
        for (number, service) in (1..).step_by(2).zip(["mmi.services", "mmi.queue", "mmi.workers"]) {
            let all = ask(&mut broker, number, service, b"");
            let all = all.as_array().unwrap();
            assert_eq!(all.len(), LISTED_MAX, "{service}");
            assert!(!all.iter().any(|listed| listed == &last || listed["service"] == last), "{service}");
            if service != "mmi.services" {
                let one = ask(&mut broker, number + 1, service, last.as_bytes());
                assert_eq!((one.as_array().unwrap().len(), &one[0]["service"]), (1, &json!(last)));
            }
        }
    }

    #[test]
    fn names_that_are_not_utf8_are_distinct() {
        let mut broker = Broker::bind(BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()])).unwrap();
        broker.dispatch.core.client_hello(0, 0, ClientId([1; 16]), 1);
        let names: [&[u8]; 3] = [b"\xff\xfe", b"\xfe\xff", b"echo"];
        for (worker, name) in (1..).zip(names) {
            broker.dispatch.core.worker_ready(0, worker, Kind::Numbered, name, 1);
        }
        broker.dispatch.core.take_actions(&mut Vec::new());
        let services = ask(&mut broker, 1, "mmi.services", b"");
        let encoded = |encoded: &str| json!({ "service": "\u{fffd}\u{fffd}", "service_b64": encoded });
        for expected in [encoded("//4="), encoded("/v8="), json!("echo")] {
            assert!(services.as_array().unwrap().contains(&expected), "{services}");
        }
        for (number, service) in [(2, "mmi.queue"), (3, "mmi.workers")] {
            let one = ask(&mut broker, number, service, b"\xfe\xff");
            assert_eq!((one.as_array().unwrap().len(), &one[0]["service_b64"]), (1, &json!("/v8=")));
        }
    }
}
