//! Interned names of services: each is stored once, and requests hold a small index.

use std::collections::HashMap;
use std::sync::Arc;

/// The names by index, with reference counts.
#[derive(Debug, Default)]
pub(super) struct Services {
    names: Vec<Name>,
    numbers: HashMap<Arc<[u8]>, u32>,
    free: Vec<u32>,
    /// The last one used, probably the next one too. It is never dropped.
    last: u32,
}

#[derive(Debug)]
struct Name {
    name: Arc<[u8]>,
    references: usize,
}

impl Services {
    /// Index of a service, with one more reference.
    #[inline]
    pub fn refer(&mut self, service: &[u8]) -> u32 {
        if let Some(last) = self.names.get_mut(self.last as usize).filter(|last| *last.name == *service) {
            last.references += 1;
            return self.last;
        }
        self.change(service)
    }

    fn change(&mut self, service: &[u8]) -> u32 {
        let before = self.last;
        if let Some(&number) = self.numbers.get(service) {
            self.names[number as usize].references += 1;
            self.last = number;
        } else {
            let name: Arc<[u8]> = Arc::from(service);
            let entry = Name { name: Arc::clone(&name), references: 1 };
            if let Some(number) = self.free.pop() {
                self.names[number as usize] = entry;
                self.last = number;
            } else {
                self.names.push(entry);
                self.last = (self.names.len() - 1) as u32;
            }
            self.numbers.insert(name, self.last);
        }
        if before != self.last {
            self.tidy(before);
        }
        self.last
    }

    /// Name of a service.
    #[inline]
    pub fn name(&self, number: u32) -> &[u8] {
        self.names.get(number as usize).map_or(&[], |name| &name.name)
    }

    /// Releases a reference.
    #[inline]
    pub fn release(&mut self, number: u32) {
        if let Some(name) = self.names.get_mut(number as usize) {
            name.references = name.references.saturating_sub(1);
            if name.references == 0 && number != self.last {
                self.tidy(number);
            }
        }
    }

    fn tidy(&mut self, number: u32) {
        if let Some(name) = self.names.get_mut(number as usize)
            && name.references == 0
            && self.numbers.remove(&name.name).is_some()
        {
            name.name = Arc::from(&b""[..]);
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_live_as_long_as_their_references() {
        let mut services = Services::default();
        let numbers: Vec<u32> = (0..1000).map(|n| services.refer(format!("service {n}").as_bytes())).collect();
        assert_eq!(services.refer(b"service 7"), numbers[7]);
        for (n, number) in numbers.iter().enumerate() {
            assert_eq!(services.name(*number), format!("service {n}").as_bytes());
            services.release(*number);
        }
        assert_eq!(services.name(numbers[7]), b"service 7");
        assert_eq!(services.numbers.len(), 1);
        for n in 0..10_000 {
            let number = services.refer(format!("another {n}").as_bytes());
            services.release(number);
        }
        assert_eq!(services.names.len(), 1000);
        assert!(services.numbers.len() <= 2);
    }
}
