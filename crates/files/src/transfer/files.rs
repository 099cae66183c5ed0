//! The files of a transfer that aren't over, and which of them a content belongs to.
//!
//! Invariant: `contents` has the contents that the disk knows of, each of one file in the table.

use std::collections::HashMap;

use super::command::{ContentKey, ContentSpec, FileKey};
use super::file::{Content, FileTask};
use super::keys::Counted;

#[derive(Debug, Default)]
pub(super) struct FileTable {
    files: HashMap<FileKey, FileTask, Counted>,
    contents: HashMap<ContentKey, FileKey, Counted>,
    /// The last key that was given out, to a file or a content.
    last_key: u64,
}

impl FileTable {
    pub(super) fn insert(&mut self, task: FileTask) -> FileKey {
        let key = FileKey(self.next_key());
        self.files.insert(key, task);
        key
    }

    pub(super) fn get(&self, key: FileKey) -> Option<&FileTask> {
        self.files.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: FileKey) -> Option<&mut FileTask> {
        self.files.get_mut(&key)
    }

    /// The file if it was last asked for with this fetch.
    pub(super) fn requested_with(&mut self, key: FileKey, id: u32) -> Option<&mut FileTask> {
        self.get_mut(key).filter(|task| task.last_request.0 == id)
    }

    /// Takes a file out. Nothing is written of it any more.
    pub(super) fn remove(&mut self, key: FileKey) -> Option<FileTask> {
        let task = self.files.remove(&key)?;
        if let Some(content) = &task.content {
            self.contents.remove(&content.key);
        }
        Some(task)
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &FileTask> {
        self.files.values()
    }

    /// All keys, in the order in which the files came.
    pub(super) fn keys(&self) -> Vec<FileKey> {
        let mut keys: Vec<FileKey> = self.files.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    /// The key of a content that begins now.
    pub(super) fn new_content(&mut self) -> ContentKey {
        ContentKey(self.next_key())
    }

    /// The file whose content this is. `None` if that was given up.
    pub(super) fn of_content(&self, content: ContentKey) -> Option<FileKey> {
        self.contents.get(&content).copied()
    }

    /// Takes a file's content out. Nothing is written of it any more.
    pub(super) fn take_content(&mut self, key: FileKey) -> Option<Content> {
        let content = self.get_mut(key)?.content.take()?;
        self.contents.remove(&content.key);
        Some(content)
    }

    /// Makes sure that a file has a content.
    pub(super) fn ensure_content(&mut self, key: FileKey) {
        let fresh = self.new_content();
        if let Some(task) = self.get_mut(key) {
            task.content.get_or_insert_with(|| Content::new(fresh));
        }
    }

    /// The content of a file, and the specification that the disk needs before anything is written of it: once.
    pub(super) fn begin(&mut self, key: FileKey, verify: bool) -> Option<(ContentKey, Option<ContentSpec>)> {
        let task = self.files.get_mut(&key)?;
        let content = task.content.as_mut()?;
        if std::mem::replace(&mut content.begun, true) {
            return Some((content.key, None));
        }
        self.contents.insert(content.key, key);
        let spec = ContentSpec {
            content: content.key,
            local: task.local.clone(),
            version: task.version,
            leaves: task.leaves,
            verify,
            digest: task.digest,
            values: task.values.clone(),
            resume: content.resumes,
            reuse: content.reuses,
        };
        Some((content.key, Some(spec)))
    }

    fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelPath;
    use crate::transfer::Version;
    use crate::transfer::file::Phase;

    #[test]
    fn contents_are_found_from_their_beginning_until_they_are_taken() {
        let mut files = FileTable::default();
        let version = Version { size: 5, modified: Default::default(), mode: 0o644, sparse: false };
        let task = || FileTask::new(RelPath::root(), RelPath::root(), version, 5, Phase::Waiting);
        let (one, two) = (files.insert(task()), files.insert(task()));
        assert_eq!(files.keys(), [one, two]);
        assert!(files.begin(one, true).is_none(), "it has no content");
        for file in [one, two] {
            files.ensure_content(file);
        }
        let (content, spec) = files.begin(one, true).unwrap();
        assert_eq!(spec.map(|spec| spec.content), Some(content));
        assert!(matches!(files.begin(one, true), Some((again, None)) if again == content));
        assert_eq!(files.of_content(content), Some(one));
        assert_eq!(files.take_content(one).map(|content| content.key), Some(content));
        assert_eq!(files.of_content(content), None);
        files.ensure_content(one);
        let (content, _) = files.begin(one, true).unwrap();
        assert!(files.remove(one).is_some() && files.of_content(content).is_none());
        assert_eq!(files.len(), 1);
    }
}
