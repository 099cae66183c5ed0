use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: usize = 1 << 20;

fn copies() -> (Copies<usize>, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&woken);
    let wake = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    (Copies::new(wake), woken)
}

fn all(copies: &mut Copies<usize>) -> Vec<(usize, Share)> {
    std::iter::from_fn(|| copies.next()).collect()
}

fn wanted(client: u64, device: u64, bytes: usize, may_be_cut: bool, what: usize) -> Wanted<usize> {
    // Here each device has a request of its own, and two clients are one tenant.
    Wanted {
        tenant: client / 2,
        client,
        request: device,
        device,
        bytes,
        cut: if may_be_cut { Cut::May } else { Cut::Never },
        what,
    }
}

fn is_empty<W>(copies: &Copies<W>) -> bool {
    let held = copies.counts.lock();
    held.bytes == 0 && held.sure.is_empty() && held.clients.is_empty() && held.ahead.is_empty()
}

/// As a worker does: from then on the device has no part in it.
fn read(shares: Vec<(usize, Share)>) -> Vec<Bytes> {
    shares.into_iter().map(|(_, share)| share.hold(PageBuffer::default())).collect()
}

#[test]
fn slow_clients_and_hung_devices_leave_memory_for_others() {
    let (mut copies, woken) = copies();
    for number in 0..100 {
        copies.push(wanted(1, 7, 4 * MIB, true, number));
    }
    // What is asked of a device and not read: the rest waits though there is space.
    let hang = all(&mut copies);
    assert_eq!(hang.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1]);
    // Of another device the same client gets more, and other clients do.
    copies.push(wanted(1, 8, MIB, false, 200));
    copies.push(wanted(2, 8, MIB, false, 201));
    assert_eq!(read(all(&mut copies)).len(), 2);
    // What is read and not taken.
    woken.store(0, Ordering::Relaxed);
    let mut unread = read(hang);
    assert!(woken.load(Ordering::Relaxed) > 0);
    loop {
        let more = read(all(&mut copies));
        if more.is_empty() {
            break;
        }
        unread.extend(more);
    }
    assert_eq!(unread.len(), CLIENT_COPIES_BYTES_MAX / (4 * MIB));
    copies.push(wanted(2, 7, 16 * MIB, false, 300));
    assert_eq!(read(all(&mut copies)).len(), 1);
    drop(unread);
    copies.forget(1, None);
    assert!(copies.next().is_none());
    assert!(is_empty(&copies));
}

#[test]
fn every_client_gets_its_guaranteed_minimum() {
    let (mut copies, woken) = copies();
    let mut hogs = Vec::new();
    for client in 1..=2 {
        for _ in 0..4 {
            copies.push(wanted(client, 7, 4 * MIB, true, 0));
            hogs.extend(read(all(&mut copies)));
        }
    }
    assert_eq!(hogs.len(), 8);
    copies.push(wanted(3, 7, 4 * MIB, true, 3));
    copies.push(wanted(3, 7, 4 * MIB, true, 4));
    copies.push(wanted(4, 7, 250_000, false, 5));
    // Only as a whole: it waits.
    copies.push(wanted(5, 7, MIB, false, 6));
    let little = all(&mut copies);
    let bytes: Vec<_> = little.iter().map(|(number, share)| (*number, share.bytes())).collect();
    assert_eq!(bytes, [(3, CLIENT_COPIES_BYTES_SURE), (5, 250_000)]);
    // A client that has its little waits for it to be gone.
    drop(little);
    let next = all(&mut copies);
    assert_eq!(next.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [4]);
    // The space that comes free is kept for what has waited longest, however many small ones come.
    woken.store(0, Ordering::Relaxed);
    copies.push(wanted(6, 8, 16 * MIB, false, 7));
    hogs.pop();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(all(&mut copies).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [6]);
    hogs.pop();
    copies.push(wanted(9, 7, MIB, false, 9));
    assert!(copies.next().is_none());
    hogs.truncate(4);
    assert_eq!(all(&mut copies).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [7]);
    drop(next);
    drop(hogs);
    assert_eq!(all(&mut copies).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [9]);
    assert!(is_empty(&copies));
}

#[test]
fn tenants_take_turns_then_their_clients_then_requests() {
    let (mut copies, _) = copies();
    let push = |copies: &mut Copies<usize>, tenant, client, request, what| {
        copies.push(Wanted { tenant, client, request, device: 7, bytes: 1, cut: Cut::Never, what });
    };
    // Tenant 1 has clients 1, of three requests, and 2; tenant 2 has client 3.
    for (what, (tenant, client, request)) in
        (0..).zip([(1, 1, 1), (1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 4), (2, 3, 5), (2, 3, 5), (2, 3, 5)])
    {
        push(&mut copies, tenant, client, request, what);
    }
    assert_eq!(all(&mut copies).iter().map(|(what, _)| *what).collect::<Vec<_>>(), [0, 5, 4, 6, 2, 7, 3, 1]);
}

proptest! {
    #[test]
    fn limits_hold_and_every_range_is_granted_in_the_end(
        tape in proptest::collection::vec((0u8..6, 0u64..5, 0u64..3, 1usize..20 * MIB, any::<bool>()), 0..200),
    ) {
        let (mut copies, _) = copies();
        let (mut shares, mut read) = (Vec::new(), Vec::new());
        let (mut waiting, mut gone) = (Vec::new(), 100);
        for (number, (what, client, device, bytes, may_be_cut)) in tape.into_iter().enumerate() {
            match what {
                0..=2 => {
                    copies.push(wanted(client, device, bytes, may_be_cut, number));
                    waiting.push((number, client, device, bytes, may_be_cut));
                }
                3 if !shares.is_empty() => {
                    let share: Share = shares.swap_remove(bytes % shares.len());
                    read.push(share.hold(PageBuffer::default()));
                }
                4 if !read.is_empty() => drop(read.swap_remove(bytes % read.len())),
                5 if gone > 0 => {
                    gone -= 1;
                    // Its requests are named by their devices here.
                    copies.forget(client, may_be_cut.then_some(device));
                    waiting.retain(|(_, of, on, ..)| *of != client || may_be_cut && *on != device);
                }
                _ => {}
            }
            while let Some((number, share)) = copies.next() {
                let at = waiting.iter().position(|(of, ..)| *of == number).unwrap();
                let (_, client, _, bytes, may_be_cut) = waiting.remove(at);
                prop_assert_eq!(share.client, client);
                prop_assert!(share.bytes == bytes || may_be_cut && share.bytes < bytes && share.bytes <= CLIENT_COPIES_BYTES_SURE);
                shares.push(share);
            }
            prop_assert!(copies.counts.lock().bytes <= COPIES_BYTES_MAX);
        }
        // When all that is held goes, all that waits comes.
        loop {
            shares.clear();
            read.clear();
            let more = all(&mut copies);
            if more.is_empty() {
                break;
            }
            for (number, _) in &more {
                waiting.retain(|(of, ..)| of != number);
            }
        }
        prop_assert!(waiting.is_empty());
        prop_assert!(is_empty(&copies));
    }

    /// Pieces are sent in the order of their request, whatever comes first; and clients that read nothing keep all that they get.
    #[test]
    fn clients_that_read_get_everything_whatever_others_hold(
        tape in proptest::collection::vec((0u64..6, 0u64..4, 1usize..8 * MIB), 0..100),
    ) {
        let (mut copies, _) = copies();
        let mut requests = HashMap::<_, VecDeque<(usize, usize, Option<Share>)>>::new();
        let mut numbers = 0..;
        for (client, request, bytes) in tape {
            let what = numbers.next().unwrap();
            requests.entry((client, request)).or_default().push_back((what, bytes, None));
            copies.push(Wanted { tenant: client / 2, client, request, device: request % 2, bytes, cut: Cut::May, what });
        }
        loop {
            let granted = all(&mut copies);
            let is_over = granted.is_empty();
            for (number, mut share) in granted {
                let is_it = |piece: &(usize, usize, Option<Share>)| piece.0 == number;
                let (line, pieces) = requests.iter_mut().find(|(_, pieces)| pieces.iter().any(is_it)).unwrap();
                let at = pieces.iter().position(is_it).unwrap();
                let left = pieces[at].1 - share.bytes();
                if left > 0 {
                    let what = numbers.next().unwrap();
                    pieces.insert(at + 1, (what, left, None));
                    let &(client, request) = line;
                    copies.push(Wanted { tenant: client / 2, client, request, device: request % 2, bytes: left, cut: Cut::Was, what });
                }
                if let Some(device) = share.ahead.take() {
                    share.counts.release(|held| subtract(&mut held.ahead, device, share.bytes));
                }
                pieces[at].2 = Some(share);
            }
            for (_, pieces) in requests.iter_mut().filter(|((client, _), _)| *client < 3) {
                while pieces.front().is_some_and(|(.., share)| share.is_some()) {
                    pieces.pop_front();
                }
            }
            if is_over {
                break;
            }
        }
        for ((client, request), pieces) in requests {
            prop_assert!(client >= 3 || pieces.is_empty(), "{client} waits in {request}");
        }
    }
}
