//! Small versions that are fetched together.

#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use tempfile::TempDir;
use towpath_cache::{CACHE_BYTES_MIN, Cache, Content, Each, Version};

/// Counts what is asked for, and answers once it may.
#[derive(Debug, Default)]
struct Place {
    may_answer: Mutex<bool>,
    changed: Condvar,
    alone: AtomicUsize,
    together: AtomicUsize,
}

impl Place {
    fn wait(&self) {
        let may_answer = self.may_answer.lock().unwrap();
        drop(self.changed.wait_while(may_answer, |may_answer| !*may_answer).unwrap());
    }
}

#[derive(Clone, Debug)]
struct Small(u64, Arc<Place>);

impl Small {
    fn bytes(&self) -> Vec<u8> {
        format!("content of {}", self.0).into_bytes()
    }
}

impl Version for Small {
    type Error = String;

    fn size(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn id(&self) -> [u8; 32] {
        *blake3::hash(&self.bytes()).as_bytes()
    }

    fn read(&self, range: Range<u64>, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), String> {
        self.1.alone.fetch_add(1, Ordering::SeqCst);
        self.1.wait();
        take(&self.bytes()[range.start as usize..range.end as usize]);
        Ok(())
    }

    const TOGETHER_MAX: usize = 10;

    fn read_together(versions: &[&Small], each: &mut Each<'_, String>) {
        versions[0].1.together.fetch_add(versions.len(), Ordering::SeqCst);
        assert!(versions.len() <= Small::TOGETHER_MAX);
        versions[0].1.wait();
        for (at, version) in versions.iter().enumerate() {
            match version.0 % 10 {
                8 => {}
                9 => each(at, Err(format!("{} can't be read", version.0))),
                _ => each(at, Ok(&version.bytes())),
            }
        }
    }
}

#[test]
fn what_is_wanted_soon_is_fetched_together_and_once() {
    const COUNT: u64 = 200;
    let (folder, place) = (TempDir::new().unwrap(), Arc::new(Place::default()));
    let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    let content = |number| Content::new(Some(cache.clone()), Small(number, Arc::clone(&place)));
    (0..COUNT).for_each(|number| content(number).begin());
    *place.may_answer.lock().unwrap() = true;
    place.changed.notify_all();
    let read = |number| {
        let mut buffer = vec![0; 100];
        content(number).read_at(&mut buffer, 0).map(|count| buffer[..count].to_vec())
    };
    let mut failed = 0;
    for number in 0..COUNT {
        match read(number) {
            Ok(bytes) => assert_eq!(bytes, Small(number, Arc::clone(&place)).bytes()),
            Err(error) => {
                assert_eq!(error, format!("{number} can't be read"));
                failed += 1;
            }
        }
    }
    // Some may have been asked for alone: the first ones, and what was left out or failed and was wanted after that.
    let (alone, together) = (place.alone.load(Ordering::SeqCst), place.together.load(Ordering::SeqCst));
    assert!(together > 100 && alone <= 8 + 40, "{together} together, {alone} alone, {failed} failed");
    let fetched = cache.figures().fetched;
    assert!((COUNT * 8 / 10..=COUNT).contains(&fetched), "{fetched}");
    // All that was kept is there.
    let before = place.alone.load(Ordering::SeqCst);
    (0..COUNT).filter(|number| number % 10 < 8).for_each(|number| assert!(read(number).is_ok()));
    assert_eq!(place.alone.load(Ordering::SeqCst), before);
}

/// One of two places that have the same content, of which one is gone.
#[derive(Clone, Debug)]
struct Twin {
    content: u64,
    is_gone: bool,
    place: Arc<Place>,
}

impl Version for Twin {
    type Error = String;

    fn size(&self) -> u64 {
        8
    }

    fn id(&self) -> [u8; 32] {
        *blake3::hash(&self.content.to_le_bytes()).as_bytes()
    }

    fn read(&self, range: Range<u64>, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), String> {
        if self.is_gone {
            self.place.alone.fetch_add(1, Ordering::SeqCst);
            self.place.wait();
            return Err("it is gone".to_owned());
        }
        take(&self.content.to_le_bytes()[range.start as usize..range.end as usize]);
        Ok(())
    }
}

#[test]
fn what_one_place_fails_for_is_not_said_of_another() {
    let folder = TempDir::new().unwrap();
    let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    // Fifty times, so that some readers wait for the request that fails.
    for content in 0..50u64 {
        let place = Arc::new(Place::default());
        let twin = |is_gone| Content::new(Some(cache.clone()), Twin { content, is_gone, place: Arc::clone(&place) });
        twin(true).begin();
        let there = twin(false);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 8];
            there.read_at(&mut buffer, 0).map(|count| (count, buffer))
        });
        while place.alone.load(Ordering::SeqCst) == 0 && !reader.is_finished() {
            std::thread::yield_now();
        }
        *place.may_answer.lock().unwrap() = true;
        place.changed.notify_all();
        assert_eq!(reader.join().unwrap(), Ok((8, content.to_le_bytes())));
    }
}
