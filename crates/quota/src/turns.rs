use slab::Slab;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

/// No entry.
const NONE: u32 = u32::MAX;

/// Lines that take turns: tenants do, and so do the lines of one tenant.
///
/// A line `L` belongs to a key, and a value `V` to each tenant that has lines. There may be several queues, each with an [`Order`] of its
/// own: then keys and tenants have the queue in their names. Every method takes the same time however many lines and tenants there are.
/// [`FairQueue`](crate::FairQueue) is one queue, whose lines hold items.
#[derive(Debug)]
pub struct Turns<T, K, L, V = (), S = RandomState> {
    lines: Slab<Linked<Line<K, L>>>,
    tenants: Slab<Linked<Tenant<T, V>>>,
    by_key: HashMap<K, u32, S>,
    by_tenant: HashMap<T, u32, S>,
}

#[derive(Debug)]
struct Line<K, L> {
    key: K,
    tenant: u32,
    line: L,
}

/// A tenant with at least one line.
#[derive(Debug)]
struct Tenant<T, V> {
    name: T,
    value: V,
    lines: Order,
}

impl<T, K, L, V, S: Default> Default for Turns<T, K, L, V, S> {
    fn default() -> Turns<T, K, L, V, S> {
        Turns::with_hashers(S::default(), S::default())
    }
}

impl<T, K, L, V, S> Turns<T, K, L, V, S> {
    /// No lines. The hashers are for keys and for tenants.
    pub fn with_hashers(keys: S, tenants: S) -> Turns<T, K, L, V, S> {
        Turns {
            lines: Slab::new(),
            tenants: Slab::new(),
            by_key: HashMap::with_hasher(keys),
            by_tenant: HashMap::with_hasher(tenants),
        }
    }
}

impl<T, K, L, V, S> Turns<T, K, L, V, S>
where
    T: Clone + Eq + Hash,
    K: Copy + Eq + Hash,
    L: Default,
    V: Default,
    S: BuildHasher,
{
    /// The line of a key, and its tenant's value. The line is added if need be: after the other lines of its tenant, and a new tenant after
    /// all others. It stays with the tenant that it was added for.
    #[inline]
    pub fn line(&mut self, order: &mut Order, tenant: &T, key: K) -> (&mut L, &mut V) {
        let at = match self.by_key.get(&key) {
            Some(&at) => at,
            None => self.add(order, tenant, key),
        };
        self.values(at)
    }

    fn add(&mut self, order: &mut Order, name: &T, key: K) -> u32 {
        let tenant = self.by_tenant.get(name).copied().unwrap_or_else(|| {
            let lines = Order::default();
            let tenant = Linked::insert(&mut self.tenants, Tenant { name: name.clone(), value: V::default(), lines });
            order.push_back(&mut self.tenants, tenant);
            self.by_tenant.insert(name.clone(), tenant);
            tenant
        });
        let at = Linked::insert(&mut self.lines, Line { key, tenant, line: L::default() });
        self.tenants[tenant as usize].value.lines.push_back(&mut self.lines, at);
        self.by_key.insert(key, at);
        at
    }

    #[inline]
    fn values(&mut self, at: u32) -> (&mut L, &mut V) {
        let line = &mut self.lines[at as usize].value;
        (&mut line.line, &mut self.tenants[line.tenant as usize].value.value)
    }

    /// The line whose turn it is.
    #[inline]
    pub fn first(&self, order: &Order) -> Option<(K, &L)> {
        let tenant = self.tenants.get(order.first as usize)?;
        let line = &self.lines.get(tenant.value.lines.first as usize)?.value;
        Some((line.key, &line.line))
    }

    /// The line of a key.
    #[inline]
    pub fn get(&self, key: K) -> Option<&L> {
        Some(&self.lines[*self.by_key.get(&key)? as usize].value.line)
    }

    /// The line of a key, and its tenant's value.
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<(&mut L, &mut V)> {
        let at = *self.by_key.get(&key)?;
        Some(self.values(at))
    }

    /// The value of a tenant that has lines.
    #[inline]
    pub fn tenant(&self, tenant: &T) -> Option<&V> {
        Some(&self.tenants[*self.by_tenant.get(tenant)? as usize].value.value)
    }

    /// All lines of a queue: those of the tenant whose turn it is, in the order of their turns, then those of the next tenant.
    pub fn iter(&self, order: &Order) -> impl Iterator<Item = (K, &L)> {
        let tenants = order.iter(&self.tenants);
        let lines = tenants.flat_map(move |tenant| self.tenants[tenant as usize].value.lines.iter(&self.lines));
        lines.map(move |at| (self.lines[at as usize].value.key, &self.lines[at as usize].value.line))
    }

    /// Ends the turn of a line: its next one comes after those of its tenant's other lines, and its tenant's after those of all others.
    #[inline]
    pub fn end_turn(&mut self, order: &mut Order, key: K) {
        let Some(&at) = self.by_key.get(&key) else { return };
        let tenant = self.lines[at as usize].value.tenant;
        order.move_to_back(&mut self.tenants, tenant);
        self.tenants[tenant as usize].value.lines.move_to_back(&mut self.lines, at);
    }

    /// Gives a line and its tenant the next turn.
    pub fn move_to_front(&mut self, order: &mut Order, key: K) {
        let Some(&at) = self.by_key.get(&key) else { return };
        let tenant = self.lines[at as usize].value.tenant;
        order.move_to_front(&mut self.tenants, tenant);
        self.tenants[tenant as usize].value.lines.move_to_front(&mut self.lines, at);
    }

    /// Removes a line. Its tenant's turn stays where it is.
    #[inline]
    pub fn remove(&mut self, order: &mut Order, key: K) -> Option<L> {
        let at = self.by_key.remove(&key)?;
        let tenant = self.lines[at as usize].value.tenant;
        let lines = &mut self.tenants[tenant as usize].value.lines;
        lines.unlink(&mut self.lines, at);
        if lines.first == NONE {
            order.unlink(&mut self.tenants, tenant);
            self.by_tenant.remove(&self.tenants.remove(tenant as usize).value.name);
        }
        Some(self.lines.remove(at as usize).value.line)
    }
}

/// An entry of a slab that is in a list.
#[derive(Debug)]
struct Linked<E> {
    previous: u32,
    next: u32,
    value: E,
}

impl<E> Linked<E> {
    fn insert(slab: &mut Slab<Linked<E>>, value: E) -> u32 {
        slab.insert(Linked { previous: NONE, next: NONE, value }) as u32
    }
}

/// The order of turns in one queue, or of one tenant: a doubly linked list of entries of a slab.
#[derive(Debug)]
pub struct Order {
    first: u32,
    last: u32,
}

impl Default for Order {
    fn default() -> Order {
        Order { first: NONE, last: NONE }
    }
}

impl Order {
    /// Whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }

    fn iter<E>(&self, slab: &Slab<Linked<E>>) -> impl Iterator<Item = u32> {
        let some = |at: u32| (at != NONE).then_some(at);
        std::iter::successors(some(self.first), move |&at| some(slab[at as usize].next))
    }

    #[inline]
    fn push_back<E>(&mut self, slab: &mut Slab<Linked<E>>, at: u32) {
        let entry = &mut slab[at as usize];
        (entry.previous, entry.next) = (self.last, NONE);
        match self.last {
            NONE => self.first = at,
            last => slab[last as usize].next = at,
        }
        self.last = at;
    }

    fn push_front<E>(&mut self, slab: &mut Slab<Linked<E>>, at: u32) {
        let entry = &mut slab[at as usize];
        (entry.previous, entry.next) = (NONE, self.first);
        match self.first {
            NONE => self.last = at,
            first => slab[first as usize].previous = at,
        }
        self.first = at;
    }

    #[inline]
    fn unlink<E>(&mut self, slab: &mut Slab<Linked<E>>, at: u32) {
        let Linked { previous, next, .. } = slab[at as usize];
        match previous {
            NONE => self.first = next,
            previous => slab[previous as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => slab[next as usize].previous = previous,
        }
    }

    #[inline]
    fn move_to_back<E>(&mut self, slab: &mut Slab<Linked<E>>, at: u32) {
        if self.last != at {
            self.unlink(slab, at);
            self.push_back(slab, at);
        }
    }

    fn move_to_front<E>(&mut self, slab: &mut Slab<Linked<E>>, at: u32) {
        if self.first != at {
            self.unlink(slab, at);
            self.push_front(slab, at);
        }
    }
}
