#![allow(clippy::unwrap_used)]

use super::*;
use crate::body::Body;
use bytes::Bytes;
use proptest::prelude::*;

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200).prop_map(Body::from),
        prop::collection::vec(any::<u8>(), 4000..20_000).prop_map(Body::from),
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 2..5)
            .prop_map(|frames| Body::of_frames(frames.into_iter().map(Bytes::from))),
    ]
}

#[test]
fn a_description_does_not_repeat_the_status() {
    assert_eq!(Status::NOT_IMPLEMENTED.describe("501"), "501 no such built-in service");
    assert_eq!(Status::CANCELLED.describe("cancelled by its client"), "499 cancelled by its client");
    assert_eq!(Status::FAILED.describe("oops"), "500 the worker failed: oops");
    assert_eq!(Status::FAILED.describe(""), "500 the worker failed");
    assert_eq!((Status(599).describe("new"), Status(599).describe("599")), ("599: new".to_owned(), "599".to_owned()));
}

fn sent() -> impl Strategy<Value = Sent> {
    any::<(bool, bool)>().prop_map(|(volatile, resent)| Sent { volatile, resent })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Records round-trip in order, however they are divided into messages.
    #[test]
    fn requests_round_trip(
        requests in prop::collection::vec((1u64.., any::<u32>(), sent(), "[a-z.]{1,30}", body()), 1..20),
    ) {
        let mut block = Block::default();
        for (number, ttl_ms, sent, service, body) in &requests {
            FromClient::request(&mut block, *number, *ttl_ms, *sent, service.as_bytes(), body);
            FromClient::cancel(&mut block, *number);
        }
        let mut received = Vec::new();
        for message in block.drain() {
            let mut rest = &message.block[..];
            while !rest.is_empty() {
                match FromClient::decode(&mut rest).unwrap() {
                    FromClient::Request { number, ttl_ms, sent, service, content } => {
                        let body = content.to_body(&message.block, message.attached.clone()).unwrap();
                        received.push((number, ttl_ms, sent, String::from_utf8(service.to_vec()).unwrap(), body));
                    }
                    FromClient::Cancel { number } => prop_assert_eq!(number, received.last().unwrap().0),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        prop_assert_eq!(received, requests);
        prop_assert!(block.is_empty());
    }

    /// A block that ends early, or is damaged, is an error or something else: never a panic.
    #[test]
    fn damaged_blocks_are_errors(damage in any::<(usize, u8)>(), cut in any::<usize>(), parts in body()) {
        let mut block = Block::default();
        FromWorker::ready(&mut block, 7, b"echo");
        FromWorker::reply(&mut block, Token([3; 16]), Status::OK, Some(4), &parts);
        FromWorker::give_back(&mut block, Token([3; 16]), "no program");
        ToWorker::request(&mut block, Token([3; 16]), 1, 0, &parts);
        ToClient::refused(&mut block, 1, Status::UNAVAILABLE, 100, "full");
        FromClient::hello(&mut block, ClientId([9; 16]), 1);
        let bytes: Vec<u8> = block.drain().flat_map(|message| message.block.to_vec()).collect();
        let mut damaged = bytes.clone();
        let at = damage.0 % damaged.len();
        damaged[at] ^= damage.1;
        damaged.truncate(cut % (bytes.len() + 1));
        let damaged = Bytes::from(damaged);
        for start in 0..damaged.len().min(64) {
            let _ = ToWorker::decode(&mut &damaged[start..]);
            let _ = FromWorker::decode(&mut &damaged[start..]);
            let _ = ToClient::decode(&mut &damaged[start..]);
            if let Ok(FromClient::Request { content, .. }) = FromClient::decode(&mut &damaged[start..]) {
                let _ = content.to_body(&damaged, None);
            }
        }
    }
}

/// How many records the messages have for this many requests.
fn lengths(requests: usize, body_bytes: usize, limit: BatchLimit) -> Vec<usize> {
    let mut block = Block::default();
    block.set_limit(limit);
    let body = Body::from(vec![7; body_bytes]);
    for number in 1..=requests as u64 {
        FromClient::request(&mut block, number, 0, false, b"echo", &body);
    }
    let records = |message: Message| {
        let mut rest = &message.block[..];
        std::iter::from_fn(|| (!rest.is_empty()).then(|| FromClient::decode(&mut rest).unwrap())).count()
    };
    block.drain().map(records).collect()
}

#[test]
fn block_length_grows_with_outstanding_requests() {
    assert_eq!(lengths(100, 30, BatchLimit::among(100)), [50, 50]);
    assert_eq!(lengths(100, 250, BatchLimit::among(100)), [50, 50]);
    assert_eq!(lengths(10, 30, BatchLimit::among(10)), [10]);
    // Small ones to 15 KiB, larger ones by their number, and none goes on over 60 KiB.
    assert!(lengths(10_000, 30, BatchLimit::among(10_000))[0] > 192);
    assert_eq!(lengths(10_000, 250, BatchLimit::among(10_000))[0], 192);
    assert_eq!(lengths(10_000, 1000, BatchLimit::default())[0], 61);
}

/// The example of the documentation.
#[test]
fn the_bytes_of_a_request() {
    let mut block = Block::default();
    FromClient::request(&mut block, 1, 30_000, false, b"echo", &Body::from("hello"));
    let messages: Vec<_> = block.drain().collect();
    assert_eq!(
        messages[0].block[..],
        *b"\x02\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x75\x30\x04echo\x00\x00\x00\x05hello"
    );
}

#[test]
fn unknown_flags_and_the_number_0_are_errors() {
    let (one, body) = (Body::from(vec![7; 3]), [3; 16]);
    let first = |write: &dyn Fn(&mut Block)| {
        let mut block = Block::default();
        write(&mut block);
        block.drain().next().unwrap().block.to_vec()
    };
    let request = first(&|block| FromClient::request(block, 1, 0, true, b"echo", &one));
    let reply = first(&|block| ToClient::reply(block, 1, Status::OK, Some(4), &one));
    let worked = first(&|block| FromWorker::reply(block, Token(body), Status::OK, None, &one));
    let work = first(&|block| ToWorker::request(block, Token(body), 1, 0, &one));
    for flag in [4, 8, 16, 32, 64, 128_u8] {
        let with = |record: &[u8]| {
            let mut record = record.to_vec();
            record[1] |= flag;
            record
        };
        let unknown = |result: Result<(), WireError>| matches!(result, Err(WireError::UnknownFlags(_)));
        assert_eq!(unknown(FromClient::decode(&mut &with(&request)[..]).map(drop)), !matches!(flag, 8 | 16), "{flag}");
        assert_eq!(unknown(ToClient::decode(&mut &with(&reply)[..]).map(drop)), flag != 4, "{flag}");
        assert_eq!(unknown(FromWorker::decode(&mut &with(&worked)[..]).map(drop)), flag != 4, "{flag}");
        assert!(unknown(ToWorker::decode(&mut &with(&work)[..]).map(drop)), "{flag}");
    }
    let zero = first(&|block| FromClient::request(block, 0, 0, false, b"echo", &one));
    assert_eq!(FromClient::decode(&mut &zero[..]).err(), Some(WireError::NumberZero));
}

#[test]
fn bodies_without_an_encoding_are_not_attached() {
    #[derive(Debug)]
    struct Elsewhere;
    impl crate::body::LargeBody for Elsewhere {
        fn length(&self) -> u64 {
            7
        }
    }
    let large = Body::large(std::sync::Arc::new(Elsewhere));
    let mut block = Block::default();
    ToClient::reply(&mut block, 1, Status::OK, None, &large);
    ToClient::reply(&mut block, 2, Status::OK, None, &Body::joined([Body::from("200"), large]));
    let messages: Vec<_> = block.drain().collect();
    assert_eq!(messages.iter().map(|message| message.attached.is_some()).collect::<Vec<_>>(), [true, false]);
    let reply = ToClient::decode(&mut &messages[1].block[..]).unwrap();
    assert!(matches!(reply, ToClient::Reply { number: 2, content: Content::One(_), .. }), "{reply:?}");
}
