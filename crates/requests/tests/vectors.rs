//! Vectors of the numbered protocol for clients and workers in other languages: `testing/vectors/numbered.txt`. This test checks that the
//! committed file is what this crate says; with `TOWPATH_WRITE_VECTORS=1` it writes the file.
//!
//! One vector a line: a kind, the block in hex (`78*5000` is 5000 bytes 78), the attached frame in hex or `-`, and after ` = ` what it says, records joined by `; `, or
//! `malformed`. Kinds: `to-client` and `to-worker` are decoded by others; `from-client` and `from-worker` are made by others, and what they
//! say is how.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

use bytes::Bytes;
use towpath_requests::body::Body;
use towpath_requests::numbered::{
    Block, ClientId, Content, FromClient, FromWorker, RequestId, Sent, Status, ToClient, ToWorker, Token, WireError,
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testing/vectors/numbered.txt");

/// Changed copies of each block that is decoded.
const MUTATIONS: usize = 12;

/// Bytes in hex; many that are the same as one of them, `*` and their number.
fn hex(bytes: &[u8]) -> String {
    if let [first, rest @ ..] = bytes
        && bytes.len() > 100
        && rest.iter().all(|byte| byte == first)
    {
        return format!("{first:02x}*{}", bytes.len());
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Frames in hex, joined by commas.
fn frames(body: &Body) -> String {
    let frames = body.to_frames().unwrap_or_default();
    frames.iter().map(|frame| hex(frame)).collect::<Vec<_>>().join(",")
}

fn part_of(part: Option<u32>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| part.to_string())
}

/// A message to decode, and its attached frame.
type Input = (Bytes, Option<Bytes>);

/// Records of a block, as lines of a vector; the attached frame must belong to one of them.
fn decoded(
    (block, attached): &Input,
    record: impl Fn(&mut &[u8], &dyn Fn(Content<'_>) -> Result<String, WireError>) -> Result<String, WireError>,
) -> Result<String, WireError> {
    let is_taken = std::cell::Cell::new(attached.is_none());
    let body = |content: Content<'_>| {
        let frame = attached.as_ref().filter(|_| content.is_attached() && !is_taken.get());
        is_taken.set(is_taken.get() || frame.is_some());
        content.to_body(block, frame.cloned().map(Body::from)).map(|body| frames(&body))
    };
    let (mut rest, mut records) = (&block[..], Vec::new());
    while !rest.is_empty() {
        records.push(record(&mut rest, &body)?);
    }
    if is_taken.get() { Ok(records.join("; ")) } else { Err(WireError::Attachment) }
}

fn to_client(input: &Input) -> Result<String, WireError> {
    decoded(input, |rest, frames| {
        Ok(match ToClient::decode(rest)? {
            ToClient::Welcome { epoch, requests_max, bytes_max, journal } => {
                format!("welcome {epoch} {requests_max} {bytes_max} {}", u8::from(journal))
            }
            ToClient::Reply { number, status, part, content } => {
                format!("reply {number} {} {} {}", status.0, part_of(part), frames(content)?)
            }
            ToClient::Accepted { first, count } => format!("accepted {first} {count}"),
            ToClient::Refused { number, status, retry_ms, reason } => {
                let reason = String::from_utf8_lossy(reason);
                format!("refused {number} {} {retry_ms} {}", status.0, hex(reason.as_bytes()))
            }
        })
    })
}

fn to_worker(input: &Input) -> Result<String, WireError> {
    decoded(input, |rest, frames| {
        Ok(match ToWorker::decode(rest)? {
            ToWorker::Welcome { epoch } => format!("welcome {epoch}"),
            ToWorker::Request { token, attempt, ttl_ms, content } => {
                format!("request {} {attempt} {ttl_ms} {}", hex(&token.0), frames(content)?)
            }
            ToWorker::Cancel { token } => format!("cancel {}", hex(&token.0)),
            ToWorker::Leave => "leave".to_owned(),
            ToWorker::Identity { token, id } => format!("identity {} {}", hex(&token.0), hex(&id.0)),
        })
    })
}

/// A small generator of numbers, the same everywhere.
struct Generator(u64);

impl Generator {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// A copy with one byte changed, or cut short, or without its attached frame.
fn mutated((block, attached): &Input, numbers: &mut Generator) -> Input {
    let mut bytes = block.to_vec();
    match numbers.below(4) {
        0 => bytes.truncate(numbers.below(bytes.len())),
        1 if attached.is_some() => return (block.clone(), None),
        _ => {
            // Mostly near the beginning, where kinds, flags and lengths are.
            let at = numbers.below(bytes.len().min(32));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << numbers.below(8);
            }
        }
    }
    (bytes.into(), attached.clone())
}

fn inputs(write: impl FnOnce(&mut Block)) -> Vec<Input> {
    let mut block = Block::default();
    write(&mut block);
    let messages = block
        .drain()
        .map(|message| (message.block, message.attached.and_then(|body| body.single().map(Bytes::copy_from_slice))));
    messages.collect()
}

fn line(text: &mut String, kind: &str, (block, attached): &Input, says: &str) {
    let attached = attached.as_ref().map_or_else(|| "-".to_owned(), |frame| hex(frame));
    let _ = writeln!(text, "{kind} {} {attached} = {says}", if block.is_empty() { "-".to_owned() } else { hex(block) });
}

fn bodies() -> [Body; 4] {
    let several = Body::of_frames([Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")]);
    [Body::default(), Body::from("hello"), several, Body::from("x".repeat(5000))]
}

fn text() -> String {
    let mut text = String::new();
    let (token, id) = (Token(*b"token of request"), RequestId(*b"id of a request."));
    let mut clients: Vec<Vec<Input>> = vec![
        inputs(|block| ToClient::welcome(block, 7, 1000, 1 << 27, true)),
        inputs(|block| {
            ToClient::welcome(block, 7, 1000, 1 << 27, false);
            ToClient::accepted(block, 1, 3);
            ToClient::refused(block, 4, Status::UNAVAILABLE, 250, "a queue is full: ü");
            ToClient::reply(block, 2, Status::IN_PARTS, None, &Body::default());
        }),
    ];
    let mut workers: Vec<Vec<Input>> = vec![
        inputs(|block| ToWorker::welcome(block, 7)),
        inputs(|block| {
            ToWorker::identity(block, token, id);
            ToWorker::request(block, token, 1, 30_000, &Body::from("hello"));
            ToWorker::cancel(block, token);
            ToWorker::leave(block);
        }),
    ];
    for body in bodies() {
        for part in [None, Some(0), Some(7)] {
            clients.push(inputs(|block| ToClient::reply(block, 5, Status::OK, part, &body)));
            clients.push(inputs(|block| {
                ToClient::reply(block, 6, Status::FAILED, part, &Body::from("first"));
                ToClient::reply(block, 5, Status::OK, part, &body);
            }));
        }
        workers.push(inputs(|block| ToWorker::request(block, token, 2, 0, &body)));
    }
    let mut numbers = Generator(0x2545_F491_4F6C_DD1D);
    for (kind, all, decode) in [("to-client", clients, to_client as fn(&Input) -> _), ("to-worker", workers, to_worker)]
    {
        for input in all.into_iter().flatten() {
            let says: Result<String, WireError> = decode(&input);
            line(&mut text, kind, &input, &says.unwrap_or_else(|_| "malformed".to_owned()));
            for _ in 0..MUTATIONS {
                let changed = mutated(&input, &mut numbers);
                line(&mut text, kind, &changed, &decode(&changed).unwrap_or_else(|_| "malformed".to_owned()));
            }
        }
    }
    made(&mut text, token);
    text
}

/// Records that others make.
fn made(text: &mut String, token: Token) {
    let mut add = |kind: &str, says: String, write: &dyn Fn(&mut Block)| {
        for input in inputs(write) {
            line(text, kind, &input, &says);
        }
    };
    let client = ClientId(*b"id of the client");
    add("from-client", format!("hello {} 5", hex(&client.0)), &|block| FromClient::hello(block, client, 5));
    add("from-client", "confirm 3 4".to_owned(), &|block| FromClient::confirm(block, 3, 4));
    add("from-client", "cancel 3".to_owned(), &|block| FromClient::cancel(block, 3));
    for body in bodies() {
        for (volatile, resent) in [(false, false), (true, false), (true, true)] {
            let says = format!(
                "request 1 30000 {} {} {} {}",
                u8::from(volatile),
                u8::from(resent),
                hex(b"echo"),
                frames(&body)
            );
            add("from-client", says, &|block| {
                FromClient::request(block, 1, 30_000, Sent { volatile, resent }, b"echo", &body);
            });
        }
        for part in [None, Some(2)] {
            let says = format!("reply {} 200 {} {}", hex(&token.0), part_of(part), frames(&body));
            add("from-worker", says, &|block| FromWorker::reply(block, token, Status::OK, part, &body));
        }
    }
    add("from-worker", format!("ready 10 {}", hex(b"echo")), &|block| FromWorker::ready(block, 10, b"echo"));
    add("from-worker", "credit 3".to_owned(), &|block| FromWorker::credit(block, 3));
    add("from-worker", "leaving".to_owned(), &|block| FromWorker::leaving(block));
    add("from-worker", format!("return {} {}", hex(&token.0), hex(b"no disk")), &|block| {
        FromWorker::give_back(block, token, "no disk");
    });
}

#[test]
fn committed_vectors_are_what_this_crate_says() {
    let text = text();
    if std::env::var_os("TOWPATH_WRITE_VECTORS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let committed = std::fs::read_to_string(FILE).unwrap();
    assert!(committed == text, "{FILE} is out of date: run this test with TOWPATH_WRITE_VECTORS=1");
    assert!(text.matches("= malformed").count() > 50 && text.lines().count() > 300);
}
