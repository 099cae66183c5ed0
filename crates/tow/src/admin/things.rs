//! One thing with everything about it: a service, or a person or peer.

use super::api::Reply;
use super::lists::{Query, bytes_of, listed_with, pages};
use super::sampler::seconds_now;
use super::view::{List, extend};
use super::{Running, Shared};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use towpath_blocking::CancelToken;

/// Entries of each list of a person or peer. All are counted.
const LISTED_MAX: usize = 100;

/// Peers of a person whose transfers and the like are found.
const PEERS_MAX: usize = 10_000;

/// Lists with entries of persons and peers.
const LISTS: [List; 6] = [List::Peers, List::Transfers, List::Followers, List::Workers, List::Failures, List::Gone];

/// A history, of everything or of one service or follower.
pub fn history(shared: &Shared, query: &Query) -> Reply {
    let history = shared.history();
    let after = query.after;
    Reply::json(&match (query.wanted.service(), &query.follower) {
        (Some(service), _) => history.thing(&bytes_of(service, "service"), after),
        (None, Some(follower)) => history.thing(follower.as_bytes(), after),
        (None, None) => history.totals(after),
    })
}

/// A service, with its rates and its problems.
pub fn service(shared: &Shared, running: &Running, name: &[u8]) -> Result<Reply, Reply> {
    let service = running.view.service(name)?;
    let service =
        service.ok_or_else(|| Reply::error(404, "there is no such service: it has neither workers nor requests"))?;
    let rates = shared.history().rates(name, seconds_now());
    let waiting = service["waiting"].as_f64().unwrap_or(0.0);
    let shrinks = rates.map(|rates| rates.replied + rates.failed - rates.accepted).filter(|shrinks| *shrinks > 0.0);
    let problems =
        problems(shared, running, |problem| bytes_of(problem, "service") == name && !problem["service"].is_null())?;
    let own = json!({
        "in_per_second": rates.map(|rates| rates.accepted),
        "out_per_second": rates.map(|rates| rates.replied),
        "failed_per_second": rates.map(|rates| rates.failed),
        "empty_in_seconds": shrinks.filter(|_| waiting > 0.0).map(|shrinks| (waiting / shrinks).round()),
        "problems": problems,
    });
    Ok(Reply::json(&extend(service, own)))
}

/// A version, and a page of its followers: those that lack it, then those that have it.
pub fn version(running: &Running, name: &str, query: &Query, cancel: &CancelToken) -> Result<Reply, Reply> {
    let view = &running.view;
    let version = view.version(name, query.path.as_deref())?;
    let version = version.ok_or_else(|| Reply::error(404, "there is no such version"))?;
    // The same version, though another one may get its label meanwhile.
    let digest = version["version"].as_str().unwrap_or_default().to_owned();
    let of = bytes_of(&version, "path");
    let more = [("version".to_owned(), version)].into_iter().collect();
    listed_with("followers", more, |from| view.version_followers(&digest, &of, from), query, cancel)
}

fn problems(shared: &Shared, running: &Running, is_wanted: impl Fn(&Value) -> bool) -> Result<Vec<Value>, Reply> {
    let (problems, now) = shared.problems(running)?;
    let mut all = problems.json(now, shared.figures().started);
    let listed = all["problems"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok(listed.into_iter().filter(is_wanted).collect())
}

/// A person or peer that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    User(String),
    Key(String),
    /// An IP address, or another address as a whole.
    Address(String),
    /// A connection.
    Peer(String),
}

impl Who {
    /// From a parameter.
    pub fn of(name: &str, value: &str) -> Option<Who> {
        let value = value.to_owned();
        match name {
            "user" => Some(Who::User(value)),
            "key" => Some(Who::Key(value)),
            "address" => Some(Who::Address(value.parse::<IpAddr>().map_or(value, |ip| ip.to_string()))),
            "peer" => Some(Who::Peer(value)),
            _ => None,
        }
    }

    fn is(&self, entry: &Value) -> bool {
        match self {
            Who::User(user) => entry["user"] == user.as_str(),
            Who::Key(key) => entry["key"] == key.as_str(),
            Who::Address(address) => entry["address"].as_str().is_some_and(|of| host_of(of) == *address),
            Who::Peer(peer) => id_of(entry) == Some(peer),
        }
    }
}

/// An address without its port.
fn host_of(address: &str) -> String {
    address.parse::<SocketAddr>().map_or_else(|_| address.to_owned(), |address| address.ip().to_string())
}

/// The id of an entry's connection.
fn id_of(entry: &Value) -> Option<&str> {
    entry["peer"].as_str().or_else(|| entry["id"].as_str())
}

/// A person or peer: connections, and what belongs to them.
pub fn who(shared: &Shared, running: &Running, who: &Who, cancel: &CancelToken) -> Result<Reply, Reply> {
    let (mut reply, mut found) = (Map::new(), Map::new());
    let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
    for list in LISTS {
        let (mut entries, mut count) = (Vec::new(), 0);
        let listed = pages(
            0,
            |from| running.view.page(list, from),
            cancel,
            |page| {
                for (_, entry) in page {
                    let is_its = id_of(&entry).is_some_and(|id| ids.contains(id)) || who.is(&entry);
                    if !is_its {
                        continue;
                    }
                    if list == List::Peers && ids.len() < PEERS_MAX {
                        ids.extend(id_of(&entry).map(str::to_owned));
                    }
                    if list == List::Followers && names.len() < PEERS_MAX {
                        names.extend(entry["name"].as_str().map(|name| format!("follower {name}")));
                    }
                    count += 1;
                    if entries.len() < LISTED_MAX {
                        entries.push(entry);
                    }
                }
                true
            },
        );
        match listed {
            Ok(_) => {}
            // This kind of server has no such list.
            Err(error) if error.status == 404 => continue,
            Err(error) => return Err(error),
        }
        reply.insert(list.name().to_owned(), entries.into());
        found.insert(list.name().to_owned(), count.into());
    }
    let name = match who {
        Who::User(user) => format!("user {user}"),
        Who::Key(text) | Who::Address(text) | Who::Peer(text) => text.clone(),
    };
    let is_its = |problem: &Value| {
        let subject = problem["subject"].as_str().unwrap_or_default();
        problem["peer"].as_str().is_some_and(|peer| ids.contains(peer)) || subject == name || names.contains(subject)
    };
    reply.insert("problems".to_owned(), problems(shared, running, is_its)?.into());
    reply.insert("found".to_owned(), found.into());
    Ok(Reply::json(&reply.into()))
}

/// No person or peer was named.
pub fn nobody() -> Reply {
    Reply::error(400, "name somebody: user, key, address or peer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_whose_they_are() {
        let entry = json!({ "id": "3.0", "address": "[2001:db8::7]:4711", "user": "alice", "key": null });
        for (name, value, is) in [
            ("user", "alice", true),
            ("user", "alic", false),
            ("key", "alice", false),
            ("address", "2001:db8:0:0::7", true),
            ("address", "2001:db8::8", false),
            ("peer", "3.0", true),
            ("peer", "3", false),
        ] {
            assert_eq!(Who::of(name, value).unwrap().is(&entry), is, "{name} {value}");
        }
        let transfer = json!({ "peer": "3.0", "id": 7, "address": "10.0.0.7:1" });
        assert!(Who::Peer("3.0".to_owned()).is(&transfer) && Who::Address("10.0.0.7".to_owned()).is(&transfer));
        let local = json!({ "id": "3.0", "address": "pid 7, uid 0" });
        assert!(Who::of("address", "pid 7, uid 0").unwrap().is(&local));
        assert_eq!(Who::of("color", "red"), None);
    }
}
