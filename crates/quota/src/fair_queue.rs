use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Items in a line for each key: lines are first in, first out, and keys take turns.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    /// None is empty.
    lines: HashMap<K, VecDeque<T>>,
    /// The keys of `lines`, each once.
    turns: VecDeque<K>,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> FairQueue<K, T> {
        FairQueue { lines: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, T> FairQueue<K, T> {
    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Appends an item to a key's line. A new key's turn comes last.
    pub fn push(&mut self, key: K, item: T) {
        self.line(key).push_back(item);
    }

    /// Puts an item before all others of its key.
    pub fn push_front(&mut self, key: K, item: T) {
        self.line(key).push_front(item);
    }

    fn line(&mut self, key: K) -> &mut VecDeque<T> {
        self.lines.entry(key).or_insert_with(|| {
            self.turns.push_back(key);
            VecDeque::new()
        })
    }

    /// The first item of each line, in the order of turns.
    pub fn firsts(&self) -> impl Iterator<Item = (K, &T)> {
        self.turns.iter().filter_map(|key| Some((*key, self.lines.get(key)?.front()?)))
    }

    /// Whether an item of this key waits.
    pub fn contains(&self, key: K) -> bool {
        self.lines.contains_key(&key)
    }

    /// Removes the first item of the key whose turn it is.
    pub fn pop_next(&mut self) -> Option<(K, T)> {
        let key = *self.turns.front()?;
        Some((key, self.pop(key)?))
    }

    /// Removes the first item of a key's line. The key's next turn comes after those of all others.
    pub fn pop(&mut self, key: K) -> Option<T> {
        let line = self.lines.get_mut(&key)?;
        let item = line.pop_front();
        let is_over = line.is_empty();
        if self.turns.front() == Some(&key) {
            self.turns.pop_front();
        } else {
            self.turns.retain(|other| *other != key);
        }
        if is_over {
            self.lines.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        item
    }

    /// Removes a key with all its items.
    pub fn remove(&mut self, key: K) {
        if self.lines.remove(&key).is_some() {
            self.turns.retain(|other| *other != key);
        }
    }
}
