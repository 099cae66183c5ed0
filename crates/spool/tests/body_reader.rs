//! A body is read the same wherever it is: in memory, in frames, in a file.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use std::io::{self, Read};
use std::sync::Arc;
use towpath_requests::{Body, LargeBody};
use towpath_spool::Spool;

/// In steps of every size, and at once.
fn assert_reads(body: &Body, bytes: &[u8]) {
    assert_eq!(body.length(), bytes.len() as u64);
    for step in [1, 7, 4096, 1 << 20] {
        let (mut reader, mut piece, mut came) = (body.reader(), vec![0; step], Vec::new());
        loop {
            match reader.read(&mut piece).unwrap() {
                0 => break,
                bytes => came.extend_from_slice(&piece[..bytes]),
            }
        }
        assert!(came == bytes, "{body:?} in steps of {step}");
    }
    assert!(body.to_vec_limited(bytes.len()).unwrap() == bytes);
    if let Some(most) = bytes.len().checked_sub(1) {
        assert_eq!(body.to_vec_limited(most).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}

fn in_a_file(folder: &tempfile::TempDir, bytes: &[u8]) -> Body {
    let mut writer = Spool::new(folder.path()).unwrap().create().unwrap();
    writer.write(bytes).unwrap();
    Body::large(writer.finish())
}

#[test]
fn bodies_are_read_from_memory_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..9000_u32).map(|n| (n / 7) as u8).collect();
    for length in [0, 1, 46, 47, 1024, 1025, 9000] {
        let bytes = &bytes[..length];
        for body in [Body::copied(bytes), Body::from(bytes.to_vec()), in_a_file(&folder, bytes)] {
            assert_reads(&body, bytes);
        }
    }
    let frames = [&bytes[..0], &bytes[..5000], b"", b"", &bytes[5000..], b""];
    let many = Body::of_frames(frames.iter().map(|frame| Bytes::copy_from_slice(frame)));
    assert_reads(&many, &bytes);
    let joined = Body::joined([many.clone(), in_a_file(&folder, b""), in_a_file(&folder, &bytes), "end".into()]);
    assert_eq!(joined.pieces().len(), 4);
    assert_reads(&joined, &[&bytes[..], &bytes[..], b"end"].concat());
}

#[test]
fn unreadable_bodies_are_errors() {
    #[derive(Debug)]
    struct Elsewhere;
    impl LargeBody for Elsewhere {
        fn length(&self) -> u64 {
            3
        }
    }
    let error = Body::large(Arc::new(Elsewhere)).to_vec_limited(3).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Spool::new(folder.path()).unwrap().create().unwrap();
    writer.write(b"whole").unwrap();
    let body = writer.finish();
    body.file().set_len(2).unwrap();
    let error = Body::large(body).to_vec_limited(5).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}
