//! A service's queue.

/// Tenants in the order of their turns, their clients in the order of theirs, and each client's requests.
#[derive(Debug, Default)]
pub struct Queue(Vec<(u8, Vec<Line>)>);

/// A client, and its requests.
type Line = (usize, Vec<usize>);

impl Queue {
    /// Index of a client's queue, which is added if need be.
    fn place(&mut self, tenant: u8, client: usize) -> (usize, usize) {
        let is_its = |line: &Line| line.0 == client;
        let found = self.0.iter().position(|(_, lines)| lines.iter().any(is_its));
        let at = found.or_else(|| self.0.iter().position(|(of, _)| *of == tenant)).unwrap_or_else(|| {
            self.0.push((tenant, Vec::new()));
            self.0.len() - 1
        });
        let lines = &mut self.0[at].1;
        let line = lines.iter().position(is_its).unwrap_or_else(|| {
            lines.push((client, Vec::new()));
            lines.len() - 1
        });
        (at, line)
    }

    /// Makes a client's requests another tenant's.
    pub fn move_to(&mut self, tenant: u8, client: usize) {
        let lines = self.0.iter().flat_map(|(_, lines)| lines);
        let moved: Vec<usize> =
            lines.filter(|(of, _)| *of == client).flat_map(|(_, requests)| requests).copied().collect();
        moved.iter().for_each(|request| self.remove(*request));
        moved.into_iter().for_each(|request| self.push_back(tenant, client, request));
    }

    pub fn push_back(&mut self, tenant: u8, client: usize, request: usize) {
        let (at, line) = self.place(tenant, client);
        self.0[at].1[line].1.push(request);
    }

    pub fn push_front(&mut self, tenant: u8, client: usize, request: usize) {
        let (at, line) = self.place(tenant, client);
        self.0[at].1[line].1.insert(0, request);
    }

    /// Its client has the next turn.
    pub fn push_next(&mut self, tenant: u8, client: usize, request: usize) {
        self.push_front(tenant, client, request);
        let (at, line) = self.place(tenant, client);
        let mut group = self.0.remove(at);
        let line = group.1.remove(line);
        group.1.insert(0, line);
        self.0.insert(0, group);
    }

    pub fn first(&self) -> Option<usize> {
        self.0.first().map(|(_, lines)| lines[0].1[0])
    }

    pub fn remove(&mut self, request: usize) {
        for (_, lines) in &mut self.0 {
            lines.iter_mut().for_each(|(_, requests)| requests.retain(|other| *other != request));
            lines.retain(|(_, requests)| !requests.is_empty());
        }
        self.0.retain(|(_, lines)| !lines.is_empty());
    }

    /// Removes the first request of a client. The client and its tenant have their next turns last.
    pub fn take(&mut self, request: usize) {
        let has_it = |(_, requests): &Line| requests.contains(&request);
        let Some(at) = self.0.iter().position(|(_, lines)| lines.iter().any(has_it)) else { return };
        let mut group = self.0.remove(at);
        let line = group.1.iter().position(has_it).map(|line| group.1.remove(line));
        group.1.extend(line);
        self.0.push(group);
        self.remove(request);
    }

    pub fn requests(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(|(_, lines)| lines).flat_map(|(_, requests)| requests).copied()
    }

    pub fn requests_of(&self, tenant: u8) -> impl Iterator<Item = usize> {
        let lines = self.0.iter().filter(move |(of, _)| *of == tenant).flat_map(|(_, lines)| lines);
        lines.flat_map(|(_, requests)| requests).copied()
    }
}
