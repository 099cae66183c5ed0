//! A page of a listing, written entry by entry, so that its size is known while it grows.

use super::entry::ListEntry;
use super::reply::{Base, DirStat};
use crate::limits::LIST_PAGE_BYTES_MAX;

/// Largest end of a page after its entries.
const END: &[u8] = b"],\"more\":false}";

/// The JSON of an incomplete [`super::ListPage`].
#[derive(Debug)]
pub struct PageWriter {
    json: Vec<u8>,
    entries: usize,
}

impl PageWriter {
    /// An empty page. `dir` as in [`super::ListPage`].
    pub fn new(id: u32, base: Base, dir: Option<DirStat>) -> PageWriter {
        let mut json = format!("{{\"re\":\"list\",\"id\":{id},\"base\":").into_bytes();
        write(&mut json, &base);
        if let Some(dir) = dir {
            json.extend_from_slice(b",\"dir\":");
            write(&mut json, &dir);
        }
        json.extend_from_slice(b",\"entries\":[");
        PageWriter { json, entries: 0 }
    }

    /// Appends an entry. Returns false, and changes nothing, if the page has others and would exceed its limit.
    pub fn push(&mut self, entry: &ListEntry) -> bool {
        let before = self.json.len();
        if self.entries > 0 {
            self.json.push(b',');
        }
        write(&mut self.json, entry);
        if self.entries > 0 && self.json.len() + END.len() > LIST_PAGE_BYTES_MAX {
            self.json.truncate(before);
            return false;
        }
        self.entries += 1;
        true
    }

    /// Entries so far.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// The whole JSON object.
    pub fn finish(mut self, more: bool) -> Vec<u8> {
        self.json.extend_from_slice(if more { b"],\"more\":true}" } else { END });
        self.json
    }
}

fn write(json: &mut Vec<u8>, value: &impl serde::Serialize) {
    // Numbers and texts, into memory: nothing that serde_json can refuse.
    let _ = serde_json::to_writer(json, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{EntryKind, ListPage, Reply};

    fn entry(name: &str) -> ListEntry {
        ListEntry {
            path: name.as_bytes().to_vec().into(),
            kind: EntryKind::File,
            size: 7,
            mtime: Default::default(),
            mode: 0o644,
            allocated: None,
            hard_link: None,
            target: None,
            digest: None,
            message: None,
        }
    }

    #[test]
    fn a_page_written_by_entries_equals_the_whole_page() {
        let some = Some(DirStat { mode: 0o1750, mtime: Default::default() });
        for (names, more, dir) in
            [(&["a", "\"", "ü"][..], true, some), (&["a"], false, None), (&[], false, None), (&[], false, some)]
        {
            let entries: Vec<ListEntry> = names.iter().map(|name| entry(name)).collect();
            let mut page = PageWriter::new(5, Base::Dir, dir);
            assert!(entries.iter().all(|entry| page.push(entry)));
            assert_eq!(page.entries(), entries.len());
            let whole = Reply::List(ListPage { id: 5, base: Base::Dir, dir, entries, more });
            assert_eq!(String::from_utf8(page.finish(more)), String::from_utf8(whole.encode()));
        }
    }

    #[test]
    fn a_full_page_stays_below_its_limit() {
        let mut page = PageWriter::new(5, Base::Glob, None);
        let mut pushed = 0;
        while page.push(&entry(&"n".repeat(1000))) {
            pushed += 1;
        }
        assert_eq!(page.entries(), pushed);
        let json = page.finish(true);
        assert!(json.len() <= LIST_PAGE_BYTES_MAX && json.len() > LIST_PAGE_BYTES_MAX - 2000);
        assert!(matches!(Reply::decode(&json), Ok(Reply::List(page)) if page.entries.len() == pushed));
    }
}
