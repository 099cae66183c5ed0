//! Lists in pages: filtered, searched and sorted over all entries, which the event loop gives a few at a time.

use super::api::Reply;
use super::things::Who;
use super::view::Refusal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use towpath_blocking::CancelToken;
use towpath_broker::add_name;
use towpath_sockets::{PAGE_MAX, Page};

/// Entries of a list in one reply, by default and at most.
const LIMIT_DEFAULT: usize = 200;
const LIMIT_MAX: usize = 1000;

/// Entries that are looked at for one reply: a rare service may be behind many others.
const ENTRIES_MAX: usize = 100_000;
const PAGES_MAX: usize = ENTRIES_MAX.div_ceil(PAGE_MAX);

/// Entries of a sorted list before a page of it. They are in memory with it while it is made.
const SORTED_MAX: u32 = 5000;

/// Bytes of a text that is searched for.
const SEARCH_BYTES_MAX: usize = 400;

/// Parameters of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Query {
    limit: usize,
    pub after: u32,
    /// Where a part of a body begins.
    pub offset: u64,
    pub wanted: Wanted,
    sort: Option<Sort>,
    pub per_service: bool,
    /// Of whom the history is, by name.
    pub follower: Option<String>,
    /// A person or peer.
    pub who: Option<Who>,
    /// Of a version.
    pub path: Option<String>,
}

/// Entries that are wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// As the entries have it.
    service: Option<Value>,
    /// In lower case; empty if everything is wanted.
    search: String,
}

/// An order by a member.
#[derive(Debug, PartialEq, Eq)]
struct Sort {
    member: String,
    is_descending: bool,
}

impl Query {
    pub fn parse(query: &str) -> Result<Query, String> {
        let mut parsed = Query { limit: LIMIT_DEFAULT, ..Query::default() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("limit", _) => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    parsed.limit = limit.ok_or_else(|| format!("limit: use a number from 1 to {LIMIT_MAX}"))?;
                }
                ("after", _) => {
                    parsed.after = value.parse().map_err(|_| "after: use `next` of the previous reply".to_owned())?;
                }
                ("offset", _) => {
                    parsed.offset = value.parse().map_err(|_| "offset: use `next` of the previous part".to_owned())?;
                }
                ("service", _) => parsed.wanted.service = Some(named(value.as_bytes())),
                ("service_b64", _) => {
                    let name =
                        STANDARD.decode(&*value).map_err(|_| "service_b64: use base64 with padding".to_owned())?;
                    parsed.wanted.service = Some(named(&name));
                }
                ("search", _) if value.len() > SEARCH_BYTES_MAX => {
                    return Err(format!("search: use {SEARCH_BYTES_MAX} bytes at most"));
                }
                ("search", _) => parsed.wanted.search = value.to_lowercase(),
                ("sort", _) => parsed.sort = Some(Sort::parse(&value)),
                ("per", "service") => parsed.per_service = true,
                ("path", _) => parsed.path = Some(value.into_owned()),
                ("follower", _) => parsed.follower = Some(value.into_owned()),
                ("user" | "key" | "address" | "peer", _) => parsed.who = Who::of(&name, &value),
                _ => return Err(format!("there is no parameter {name}={value}")),
            }
        }
        if parsed.sort.is_some() && parsed.after > SORTED_MAX {
            return Err(format!("after: a sorted list ends {SORTED_MAX} entries after its beginning; use search"));
        }
        Ok(parsed)
    }
}

fn named(service: &[u8]) -> Value {
    let mut entry = json!({});
    add_name(&mut entry, "service", service);
    entry
}

impl Wanted {
    /// The service, as entries have it.
    pub fn service(&self) -> Option<&Value> {
        self.service.as_ref()
    }

    fn is(&self, entry: &Value) -> bool {
        let of_service = |name: &Value| ["service", "service_b64"].iter().all(|of| entry[of] == name[of]);
        self.service.as_ref().is_none_or(of_service) && self.is_found(entry)
    }

    /// Whether a member of text has the text that is searched for.
    fn is_found(&self, entry: &Value) -> bool {
        let has = |value: &Value| value.as_str().is_some_and(|text| text.to_lowercase().contains(&self.search));
        self.search.is_empty() || entry.as_object().is_some_and(|members| members.values().any(has))
    }
}

impl Sort {
    fn parse(value: &str) -> Sort {
        let (member, is_descending) = value.strip_prefix('-').map_or((value, false), |member| (member, true));
        Sort { member: member.to_owned(), is_descending }
    }
}

/// Gives the pages of a list, until there are no more or `take` wants none. The number where it goes on, if it may.
pub fn pages(
    from: u32,
    next_page: impl Fn(u32) -> Result<Page<Value>, Refusal>,
    cancel: &CancelToken,
    mut take: impl FnMut(Vec<(u32, Value)>) -> bool,
) -> Result<Option<u32>, Reply> {
    let mut next = Some(from);
    for _ in 0..PAGES_MAX {
        let Some(from) = next else { break };
        if cancel.is_cancelled() {
            return Err(Reply::error(503, "its client is gone"));
        }
        let page = next_page(from)?;
        next = page.next;
        if !take(page.entries) {
            break;
        }
    }
    Ok(next)
}

/// A page of a list, as the query wants it.
pub fn listed(
    name: &str,
    next_page: impl Fn(u32) -> Result<Page<Value>, Refusal>,
    query: &Query,
    cancel: &CancelToken,
) -> Result<Reply, Reply> {
    listed_with(name, Map::new(), next_page, query, cancel)
}

/// The same with more members beside it.
pub fn listed_with(
    name: &str,
    more: Map<String, Value>,
    next_page: impl Fn(u32) -> Result<Page<Value>, Refusal>,
    query: &Query,
    cancel: &CancelToken,
) -> Result<Reply, Reply> {
    if let Some(sort) = &query.sort {
        return sorted(name, more, next_page, query, sort, cancel);
    }
    let (mut entries, mut last, mut stop) = (Vec::new(), None, None);
    let next = pages(query.after, next_page, cancel, |page| {
        for (number, entry) in page.into_iter().filter(|(_, entry)| query.wanted.is(entry)) {
            // Those of one number stay together.
            if entries.len() >= query.limit && last != Some(number) {
                stop = Some(number);
                return false;
            }
            entries.push(entry);
            last = Some(number);
        }
        entries.len() < query.limit
    })?;
    Ok(reply(name, entries, stop.or(next), more))
}

fn reply(name: &str, entries: Vec<Value>, next: Option<u32>, mut more: Map<String, Value>) -> Reply {
    more.insert(name.to_owned(), entries.into());
    more.insert("next".to_owned(), next.into());
    Reply::json(&more.into())
}

/// A page of the sorted list. Only as many entries as come before its end are kept.
fn sorted(
    name: &str,
    mut more: Map<String, Value>,
    next_page: impl Fn(u32) -> Result<Page<Value>, Refusal>,
    query: &Query,
    sort: &Sort,
    cancel: &CancelToken,
) -> Result<Reply, Reply> {
    let kept = query.after as usize + query.limit;
    let (mut best, mut found, mut has_member) = (BinaryHeap::with_capacity(kept + 1), 0, false);
    pages(0, next_page, cancel, |page| {
        for (_, entry) in page.into_iter().filter(|(_, entry)| query.wanted.is(entry)) {
            has_member |= entry.get(&sort.member).is_some();
            best.push(Ranked { key: Key::of(&entry[&sort.member]), order: found, sort, entry });
            found += 1;
            if best.len() > kept {
                best.pop();
            }
        }
        true
    })?;
    if found > 0 && !has_member {
        return Err(Reply::error(400, format_args!("sort: no entry has a member {}", sort.member)));
    }
    let entries: Vec<_> = best.into_sorted_vec().into_iter().skip(query.after as usize).map(|one| one.entry).collect();
    let end = query.after + entries.len() as u32;
    let next = Some(end).filter(|end| (*end as usize) < found && *end <= SORTED_MAX);
    more.insert("found".to_owned(), found.into());
    Ok(reply(name, entries, next, more))
}

/// Value of the member by which a list is sorted.
#[derive(Debug, PartialEq)]
enum Key {
    Number(f64),
    Text(String),
    Missing,
}

impl Key {
    fn of(value: &Value) -> Key {
        match value {
            Value::Number(number) => number.as_f64().map_or(Key::Missing, Key::Number),
            Value::String(text) => Key::Text(text.to_lowercase()),
            Value::Bool(value) => Key::Number(f64::from(u8::from(*value))),
            Value::Null | Value::Array(_) | Value::Object(_) => Key::Missing,
        }
    }
}

/// An entry that is compared by its place in the sorted list.
struct Ranked<'a> {
    key: Key,
    order: usize,
    sort: &'a Sort,
    entry: Value,
}

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = match (&self.key, &other.key) {
            // Missing ones are the last in either direction.
            (Key::Missing, Key::Missing) => Ordering::Equal,
            (Key::Missing, _) => return Ordering::Greater,
            (_, Key::Missing) => return Ordering::Less,
            (Key::Number(a), Key::Number(b)) => a.total_cmp(b),
            (Key::Number(_), Key::Text(_)) => Ordering::Less,
            (Key::Text(_), Key::Number(_)) => Ordering::Greater,
            (Key::Text(a), Key::Text(b)) => natural(a, b),
        };
        let by_key = if self.sort.is_descending { by_key.reverse() } else { by_key };
        by_key.then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked<'_> {}

/// Compares text in which numbers count by their value: `peer 9` is before `peer 10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    while let (Some(one), Some(other)) = (a.first(), b.first()) {
        let order = if one.is_ascii_digit() && other.is_ascii_digit() {
            let [one, other] = [&mut a, &mut b].map(number);
            one.len().cmp(&other.len()).then_with(|| one.cmp(other))
        } else {
            (a, b) = (&a[1..], &b[1..]);
            one.cmp(other)
        };
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// Takes the digits at the beginning, and returns them without leading zeros.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(length);
    *text = rest;
    let zeros = digits.iter().take_while(|byte| **byte == b'0').count();
    &digits[zeros..]
}

/// The bytes of a name, as an entry has it.
pub fn bytes_of(entry: &Value, member: &str) -> Vec<u8> {
    let text = || entry[member].as_str().unwrap_or_default().as_bytes().to_vec();
    let encoded = entry[format!("{member}_b64")].as_str().and_then(|encoded| STANDARD.decode(encoded).ok());
    encoded.unwrap_or_else(text)
}

/// The service that an operator's action was about.
pub fn service_of(action: &Value) -> Option<Vec<u8>> {
    let is_of_service = ["pause", "resume", "purge", "requeue", "drop", "end"].contains(&action["action"].as_str()?);
    (is_of_service && !action["object"].is_null()).then(|| bytes_of(action, "object"))
}

/// A list that is known as a whole, as a page.
pub fn whole(entries: Vec<Value>) -> Page<Value> {
    Page { entries: (0..).zip(entries).collect(), next: None }
}

/// Sorts entries of whole lists as the server does, by `MEMBER` or `-MEMBER`.
pub fn sort(entries: Vec<Value>, by: &str) -> Vec<Value> {
    let sort = &Sort::parse(by);
    let rank = |(order, entry): (usize, Value)| Ranked { key: Key::of(&entry[&sort.member]), order, sort, entry };
    let mut ranked: Vec<_> = entries.into_iter().enumerate().map(rank).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|one| one.entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A list of as many entries as there are numbers below `count`, two of each.
    fn numbered(count: u32) -> impl Fn(u32) -> Result<Page<Value>, Refusal> {
        move |from| {
            let numbers = from..count.min(from + PAGE_MAX as u32);
            let next = Some(numbers.end).filter(|end| *end < count);
            let entry = |number: u32| {
                let name = format!("Peer {number}");
                let size = (!number.is_multiple_of(3)).then_some(number);
                [0, 1].map(|half| {
                    (number, json!({ "service": (number % 2).to_string(), "half": half, "name": name, "size": size }))
                })
            };
            Ok(Page { entries: numbers.flat_map(entry).collect(), next })
        }
    }

    fn asked(count: u32, query: &str) -> Result<Value, String> {
        let query = Query::parse(query).unwrap();
        let reply = listed("workers", numbered(count), &query, &CancelToken::new());
        reply.map(|reply| serde_json::from_str(&reply.body).unwrap()).map_err(|error| error.body)
    }

    fn list(query: &str) -> Value {
        asked(600, query).unwrap()
    }

    fn members(page: &Value, member: &str) -> Vec<Value> {
        page["workers"].as_array().unwrap().iter().map(|entry| entry[member].clone()).collect()
    }

    #[test]
    fn lists_come_in_pages_without_gaps() {
        let (seen, next) = (Cell::new(0), Cell::new(Some(0)));
        while let Some(after) = next.get() {
            let page = list(&format!("limit=300&after={after}"));
            let count = page["workers"].as_array().unwrap().len();
            assert!(count <= 301 && seen.get() <= 1200, "{count}");
            seen.set(seen.get() + count);
            next.set(page["next"].as_u64());
        }
        assert_eq!(seen.get(), 1200);
        assert_eq!(list("limit=1000&service=1")["workers"].as_array().unwrap().len(), 600);
    }

    #[test]
    fn a_search_looks_at_all_entries_and_at_text_alone() {
        assert_eq!(members(&list("search=PEER%20599"), "name"), ["Peer 599", "Peer 599"]);
        assert_eq!(members(&list("search=nobody"), "name"), Vec::<Value>::new());
        assert_eq!(members(&list("search=true"), "name"), Vec::<Value>::new());
        assert_eq!(list("search=eer%205&limit=1000")["workers"].as_array().unwrap().len(), 2 * 111);
    }

    #[test]
    fn sorted_lists_come_in_pages_without_gaps_with_missing_values_last() {
        for (order, first, last) in [("size", json!(1), json!(599)), ("-size", json!(599), json!(1))] {
            let (mut seen, mut after) = (Vec::new(), Some(0));
            while let Some(from) = after {
                let page = list(&format!("sort={order}&limit=77&after={from}"));
                assert_eq!(page["found"], 1200);
                seen.extend(members(&page, "size"));
                after = page["next"].as_u64();
            }
            assert_eq!((seen.len(), &seen[0], &seen[799]), (1200, &first, &last));
            assert!(seen[800..].iter().all(Value::is_null));
        }
        assert_eq!(members(&list("sort=-name&limit=3"), "name"), ["Peer 599", "Peer 599", "Peer 598"]);
        assert_eq!(members(&list("sort=name&search=Peer%2059&limit=4&after=2"), "name")[0], "Peer 590");
        assert!(asked(600, "sort=colour").unwrap_err().contains("colour"));
    }

    #[test]
    fn a_sorted_list_keeps_a_bounded_number_of_entries() {
        let page = asked(60_000, &format!("sort=-size&limit=1000&after={SORTED_MAX}")).unwrap();
        assert_eq!((page["found"].clone(), page["next"].clone()), (json!(120_000), Value::Null));
        assert!(Query::parse(&format!("sort=size&after={}", SORTED_MAX + 1)).is_err());
        assert!(Query::parse(&format!("after={}", SORTED_MAX + 1)).is_ok());
    }

    #[test]
    fn nothing_is_asked_for_a_client_that_is_gone() {
        let (count, cancel) = (Cell::new(0), CancelToken::new());
        let next_page = |from| {
            count.set(count.get() + 1);
            cancel.cancel();
            numbered(600)(from)
        };
        assert!(listed("workers", next_page, &Query::parse("sort=name").unwrap(), &cancel).is_err());
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn numbers_in_text_count_by_their_value() {
        let mut names = ["b", "peer 10.0", "peer 9.1", "peer 9.0", "a2", "a02b", "a"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "a2", "a02b", "b", "peer 9.0", "peer 9.1", "peer 10.0"]);
        assert_eq!(natural("007", "7"), Ordering::Equal);
    }

    #[test]
    fn parameters_are_checked() {
        let long = format!("search={}", "x".repeat(SEARCH_BYTES_MAX + 1));
        for wrong in ["limit=0", "limit=1001", "limit=x", "after=-1", "per=peer", "color=red", &long] {
            assert!(Query::parse(wrong).is_err(), "{wrong}");
        }
        let parsed = Query::parse("service=a%20b&per=service&limit=7&after=9&search=Ab&sort=-c").unwrap();
        let wanted = Wanted { service: Some(named(b"a b")), search: "ab".to_owned() };
        let sort = Some(Sort { member: "c".to_owned(), is_descending: true });
        assert_eq!(parsed, Query { limit: 7, after: 9, wanted, sort, per_service: true, ..Query::default() });
    }
}
