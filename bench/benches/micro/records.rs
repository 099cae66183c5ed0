//! Blocks of numbered requests: records written, records read.

use bytes::Bytes;
use divan::{Bencher, counter::ItemsCount};
use towpath_requests::body::Body;
use towpath_requests::numbered::{Block, FromClient};

/// Records an iteration.
const RECORDS: u64 = 1_000;

const SIZES: [usize; 3] = [16, 250, 2_000];

/// Requests written to a block, and the block's messages taken.
#[divan::bench(args = SIZES)]
fn encode(bencher: Bencher, size: usize) {
    let body = Body::from(Bytes::from(vec![7; size]));
    let mut block = Block::default();
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| {
        append(&mut block, &body);
        block.drain().map(|message| divan::black_box(message.block).len()).sum::<usize>()
    });
}

/// Requests read from a block, each body as one of its own.
#[divan::bench(args = SIZES)]
fn decode(bencher: Bencher, size: usize) {
    let mut block = Block::default();
    append(&mut block, &Body::from(Bytes::from(vec![7; size])));
    let blocks: Vec<Bytes> = block.drain().map(|message| message.block).collect();
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| {
        let mut records = 0;
        for block in &blocks {
            let mut rest = &block[..];
            while !rest.is_empty() {
                let record = FromClient::decode(&mut rest).expect("a valid record");
                let FromClient::Request { content, .. } = record else { panic!("not a request") };
                divan::black_box(content.to_body(block, None).expect("a body"));
                records += 1;
            }
        }
        assert_eq!(records, RECORDS);
    });
}

fn append(block: &mut Block, body: &Body) {
    for number in 1..=RECORDS {
        FromClient::request(block, number, 0, true, b"echo", body);
    }
}
