#![allow(clippy::unwrap_used)]

use super::*;
use std::sync::mpsc;

const LIMITS: PoolLimits = PoolLimits { name: "test", threads_max: 2, hung_max: 0, per_group_max: 1 };

/// Has a thread of the pool run a job of this group and client until what is given is dropped.
fn occupy(pool: &BlockingPool, group: u64, client: u64) -> mpsc::Sender<()> {
    let (gate, closed) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    pool.submit(group, client, move || {
        begun.send(()).unwrap();
        closed.recv().unwrap_or(());
    })
    .unwrap();
    has_begun.recv().unwrap();
    gate
}

#[test]
fn hung_group_occupies_only_its_share() {
    let pool = BlockingPool::new(LIMITS);
    let (gate, closed) = mpsc::channel::<()>();
    let closed = Arc::new(Mutex::new(closed));
    let (done, finished) = mpsc::channel();
    for number in 0..3 {
        let (closed, done) = (Arc::clone(&closed), done.clone());
        pool.submit(7, 0, move || {
            let _ = closed.lock().unwrap().recv();
            done.send(number).unwrap();
        })
        .unwrap();
    }
    for number in 10..20 {
        let done = done.clone();
        pool.submit(8, 0, move || done.send(number).unwrap()).unwrap();
    }
    // All of the other group's jobs end, in order, while the first group hangs.
    assert_eq!(finished.iter().take(10).collect::<Vec<_>>(), (10..20).collect::<Vec<_>>());
    drop(gate);
    assert_eq!(finished.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn hung_threads_are_replaced_up_to_a_limit() {
    let pool = BlockingPool::new(PoolLimits { hung_max: 3, ..LIMITS });
    let (gate, closed) = mpsc::channel::<()>();
    let closed = Arc::new(Mutex::new(closed));
    let (done, finished) = mpsc::channel();
    // Four groups hang, of which two are more than the pool has threads.
    for group in 0..4 {
        let (closed, done) = (Arc::clone(&closed), done.clone());
        pool.submit(group, 0, move || {
            let _ = closed.lock().unwrap().recv();
            done.send(group).unwrap();
        })
        .unwrap();
    }
    for number in 10..20 {
        let done = done.clone();
        pool.submit(9, 0, move || done.send(number).unwrap()).unwrap();
    }
    assert_eq!(finished.iter().take(10).collect::<Vec<_>>(), (10..20).collect::<Vec<_>>());
    assert_eq!(pool.shared.lock().threads, 5);
    drop(gate);
    assert_eq!(finished.iter().take(4).count(), 4);
    // Of five threads there are two again, as soon as one more job has woken those that are too many.
    let (done, finished) = mpsc::channel();
    while pool.shared.lock().threads > 2 {
        let done = done.clone();
        pool.submit(9, 0, move || done.send(()).unwrap()).unwrap();
        finished.recv().unwrap();
    }
}

#[test]
fn groups_and_clients_take_turns() {
    for asker_of in [|number: u64| (number, 0), |number: u64| (0, number)] {
        let pool = BlockingPool::new(PoolLimits { threads_max: 1, ..LIMITS });
        let gate = occupy(&pool, 0, 0);
        let (done, finished) = mpsc::channel();
        for number in [1, 1, 1, 2, 2, 3] {
            let done = done.clone();
            let (group, client) = asker_of(number);
            pool.submit(group, client, move || done.send(number).unwrap()).unwrap();
        }
        drop(gate);
        assert_eq!(finished.iter().take(6).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 1]);
    }
}

#[test]
fn tenants_take_turns_however_many_clients_and_groups_they_have() {
    for group_of in [|_: u64| 0, |client: u64| client] {
        let pool = BlockingPool::new(PoolLimits { threads_max: 1, ..LIMITS });
        let gate = occupy(&pool, 100, 100);
        let (done, finished) = mpsc::channel();
        for (tenant, client) in [(1, 1), (1, 2), (1, 3), (1, 1), (2, 4), (2, 4), (3, 5)] {
            let done = done.clone();
            let owner = JobOwner { tenant, client, request: 0 };
            let job = move || {
                done.send(client).unwrap();
                JobStep::Done
            };
            pool.submit_steps(owner, group_of(client), job).unwrap();
        }
        drop((gate, done));
        assert_eq!(finished.iter().collect::<Vec<_>>(), [1, 4, 5, 2, 4, 3, 1]);
        wait_for_no_groups(&pool);
    }
}

#[test]
fn jobs_of_a_group_run_in_parallel_up_to_its_limit() {
    for _ in 0..100 {
        let pool = BlockingPool::new(PoolLimits { threads_max: 3, per_group_max: 2, ..LIMITS });
        // Each of the two waits for the other: one after the other, they would never end.
        let barrier = Arc::new(std::sync::Barrier::new(2));
        let (done, finished) = mpsc::channel();
        // The thread of this job soon waits for more. Then just one is woken for the two that come at once.
        let primed = done.clone();
        pool.submit(1, 0, move || primed.send(()).unwrap()).unwrap();
        finished.recv().unwrap();
        for _ in 0..2 {
            let (barrier, done) = (Arc::clone(&barrier), done.clone());
            pool.submit(1, 0, move || {
                barrier.wait();
                done.send(()).unwrap();
            })
            .unwrap();
        }
        assert_eq!(finished.iter().take(2).count(), 2);
    }
}

#[test]
fn jobs_of_a_client_that_is_gone_are_dropped() {
    let pool = BlockingPool::new(PoolLimits { threads_max: 1, ..LIMITS });
    let gate = occupy(&pool, 1, 1);
    let (done, finished) = mpsc::channel();
    for (group, client) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)] {
        let done = done.clone();
        pool.submit(group, client, move || done.send((group, client)).unwrap()).unwrap();
    }
    drop(done);
    pool.cancel(1, None, None);
    drop(gate);
    pool.cancel(2, None, Some(9));
    let mut left: Vec<_> = finished.iter().collect();
    left.sort_unstable();
    assert_eq!(left, [(1, 2), (2, 2)]);
    wait_for_no_groups(&pool);
}

#[test]
fn jobs_of_a_request_that_is_over_are_dropped() {
    let pool = BlockingPool::new(PoolLimits { threads_max: 1, ..LIMITS });
    let gate = occupy(&pool, 1, 1);
    let (done, finished) = mpsc::channel();
    for (request, group, client) in [(5, 1, 1), (6, 1, 1), (5, 1, 1), (7, 1, 1), (5, 1, 2), (5, 2, 1)] {
        let done = done.clone();
        pool.submit_steps(JobOwner { tenant: client, client, request }, group, move || {
            done.send((request, group, client)).unwrap();
            JobStep::Done
        })
        .unwrap();
    }
    drop(done);
    pool.cancel(1, Some(5), None);
    drop(gate);
    let mut left: Vec<_> = finished.iter().collect();
    left.sort_unstable();
    assert_eq!(left, [(5, 1, 2), (6, 1, 1), (7, 1, 1)]);
    wait_for_no_groups(&pool);
}

fn wait_for_no_groups(pool: &BlockingPool) {
    while !pool.shared.lock().groups.is_empty() {
        std::thread::yield_now();
    }
    assert!(pool.shared.lock().ready.is_empty());
}

#[test]
fn a_panic_ends_one_job_only() {
    let pool = BlockingPool::new(PoolLimits { threads_max: 1, ..LIMITS });
    let (done, finished) = mpsc::channel();
    pool.submit(1, 0, || std::panic::resume_unwind(Box::new(()))).unwrap();
    pool.submit(1, 0, move || done.send(()).unwrap()).unwrap();
    finished.recv().unwrap();
}

/// A thread that goes, because those that hung are back, leaves what is ready to others; these may hang as well.
#[test]
fn jobs_left_by_an_ending_thread_run_though_all_others_hang() {
    let pool = BlockingPool::new(PoolLimits { threads_max: 1, hung_max: 4, ..LIMITS });
    let (release_first, first) = mpsc::channel::<()>();
    let (done, finished) = mpsc::channel();
    pool.submit(1, 0, move || first.recv().unwrap_or(())).unwrap();
    let last = done.clone();
    // Of the same group: not ready before the first is through.
    pool.submit(1, 0, move || last.send(1).unwrap()).unwrap();
    // Another thread is started for it, as the first hangs.
    let _second = occupy(&pool, 2, 0);
    std::thread::sleep(HANGS_AFTER / 2);
    drop(release_first);
    assert_eq!(finished.recv_timeout(HANGS_AFTER * 5), Ok(1));
}

#[test]
fn long_jobs_give_way_between_steps() {
    let pool = BlockingPool::new(PoolLimits { threads_max: 1, ..LIMITS });
    let gate = occupy(&pool, 0, 0);
    let (done, finished) = mpsc::channel();
    for (name, request, client, mut steps) in [("a", 1, 1, 3), ("b", 1, 1, 1), ("c", 2, 1, 2), ("d", 1, 2, 1)] {
        let done = done.clone();
        pool.submit_steps(JobOwner { tenant: 0, client, request }, 0, move || {
            done.send(name).unwrap();
            steps -= 1;
            if steps == 0 { JobStep::Done } else { JobStep::Continue }
        })
        .unwrap();
    }
    drop((gate, done));
    // Clients take turns, and so do requests of one client; jobs of one request keep their order.
    assert_eq!(finished.iter().collect::<Vec<_>>(), ["a", "d", "c", "a", "c", "a", "b"]);
    wait_for_no_groups(&pool);
}

#[test]
fn started_pool_has_one_thread_and_starts_no_other_for_one_job() {
    let pool = BlockingPool::started(LIMITS).unwrap();
    assert_eq!(pool.shared.lock().threads, 1);
    let begun = Instant::now();
    while pool.shared.lock().idle == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "its thread waits for work");
        std::thread::yield_now();
    }
    let (done, finished) = mpsc::channel();
    pool.submit(1, 0, move || done.send(()).unwrap()).unwrap();
    finished.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(pool.shared.lock().threads, 1);
}

#[test]
fn a_request_waits_until_one_of_its_jobs_runs() {
    let pool = BlockingPool::new(LIMITS);
    let gate = occupy(&pool, 1, 7);
    let (done, finished) = mpsc::channel();
    pool.submit(1, 8, move || done.send(()).unwrap()).unwrap();
    let waits = |client, group| pool.keeps_waiting(client, 0, group);
    assert!(waits(8, None) && waits(8, Some(1)) && !waits(8, Some(2)) && !pool.keeps_waiting(8, 1, None));
    // One that runs, though another job of it is queued.
    pool.submit(1, 7, || {}).unwrap();
    assert!(!waits(7, None));
    drop(gate);
    finished.recv().unwrap();
    assert!(!waits(8, None));
}
