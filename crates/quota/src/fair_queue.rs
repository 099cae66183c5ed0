use crate::{Order, Turns};
use std::collections::VecDeque;
use std::hash::Hash;

/// Items in a line for each key: lines are first in, first out. Tenants take turns, and so do the keys of one tenant.
///
/// A key is unique among all tenants. Every method takes the same time however many keys and tenants there are.
///
/// ```
/// use towpath_quota::FairQueue;
///
/// let mut queue = FairQueue::default();
/// for (tenant, client, request) in [("ann", 1, "a"), ("ann", 1, "b"), ("ann", 2, "c"), ("bob", 3, "d")] {
///     queue.push(&tenant, client, request);
/// }
/// let order: Vec<_> = std::iter::from_fn(|| queue.pop_next()).collect();
/// assert_eq!(order, [(1, "a"), (3, "d"), (2, "c"), (1, "b")]);
/// ```
#[derive(Debug)]
pub struct FairQueue<T, K, I> {
    /// None is empty.
    turns: Turns<T, K, VecDeque<I>>,
    order: Order,
}

impl<T, K, I> Default for FairQueue<T, K, I> {
    fn default() -> FairQueue<T, K, I> {
        FairQueue { turns: Turns::default(), order: Order::default() }
    }
}

impl<T: Clone + Eq + Hash, K: Copy + Eq + Hash, I> FairQueue<T, K, I> {
    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Appends an item to a key's line. The turn of a new key comes after those of its tenant's other keys, that of a new tenant after
    /// those of all others.
    pub fn push(&mut self, tenant: &T, key: K, item: I) {
        self.line(tenant, key).push_back(item);
    }

    /// Puts an item before all others of its key.
    pub fn push_front(&mut self, tenant: &T, key: K, item: I) {
        self.line(tenant, key).push_front(item);
    }

    fn line(&mut self, tenant: &T, key: K) -> &mut VecDeque<I> {
        self.turns.line(&mut self.order, tenant, key).0
    }

    /// The first item of each line, in the order of turns: the keys of the tenant whose turn it is, then those of the next.
    pub fn firsts(&self) -> impl Iterator<Item = (K, &I)> {
        self.turns.iter(&self.order).filter_map(|(key, line)| Some((key, line.front()?)))
    }

    /// The first item of a key's line.
    pub fn first(&self, key: K) -> Option<&I> {
        self.turns.get(key)?.front()
    }

    /// Whether an item of this key waits.
    pub fn contains(&self, key: K) -> bool {
        self.turns.get(key).is_some()
    }

    /// Removes the first item of the key whose turn it is.
    pub fn pop_next(&mut self) -> Option<(K, I)> {
        let (key, _) = self.turns.first(&self.order)?;
        Some((key, self.pop(key)?))
    }

    /// Removes the first item of a key's line. The key's next turn comes after those of its tenant's other keys, and its tenant's after
    /// those of all others.
    pub fn pop(&mut self, key: K) -> Option<I> {
        let (line, ()) = self.turns.get_mut(key)?;
        let item = line.pop_front();
        let is_over = line.is_empty();
        self.turns.end_turn(&mut self.order, key);
        if is_over {
            self.turns.remove(&mut self.order, key);
        }
        item
    }

    /// Removes a key with all its items.
    pub fn remove(&mut self, key: K) {
        self.turns.remove(&mut self.order, key);
    }
}
