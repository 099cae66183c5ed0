//! Options of clients, workers and brokers: impossible values, limits, and client ids.

use super::*;
use std::str::FromStr;
use towpath_broker::server::Heartbeats;
use towpath_client::worker::WorkerStatus;
use towpath_sockets::MechanismConfig;

#[test]
fn options_that_can_not_work_are_refused_by_name() {
    let plain = |bytes| MechanismConfig::PlainClient { user: "u".repeat(bytes), password: String::new() };
    let zero = Duration::ZERO;
    let here = ["tcp://127.0.0.1:1".parse().unwrap()];
    on_one(async {
        let good = LinkOptions::default;
        for (option, link) in [
            ("spool_over_bytes", LinkOptions { spool_over_bytes: 64 * 1024, ..good() }),
            ("spool_over_bytes", LinkOptions { spool_over_bytes: 64 * 1024 * 1024 + 1, ..good() }),
            ("heartbeat_timeout", LinkOptions { heartbeat_timeout: zero, ..good() }),
            ("connect_timeout", LinkOptions { connect_timeout: zero, ..good() }),
            ("backoff_first", LinkOptions { backoff_first: zero, ..good() }),
            ("backoff_most", LinkOptions { backoff_most: zero, ..good() }),
            ("mechanism", LinkOptions { mechanism: MechanismConfig::PlainServer, ..good() }),
            ("mechanism", LinkOptions { mechanism: plain(256), ..good() }),
        ] {
            let is_it = |error: &SocketError| matches!(error, SocketError::Option { option: it, .. } if *it == option);
            let client = Client::connect(&here, ClientOptions { link: link.clone(), ..ClientOptions::default() });
            assert!(client.as_ref().is_err_and(is_it), "{option}: {client:?}");
            let worker = Worker::connect(&here, "echo", WorkerOptions { link, ..WorkerOptions::default() });
            let Err(WorkerError::Socket(error)) = worker else { panic!("{option} is taken") };
            assert!(is_it(&error), "{option}: {error}");
        }
    });
    type Wrong = (&'static str, fn(&mut BrokerOptions));
    let wrong: [Wrong; 3] = [
        ("heartbeat.timeout", |options| options.heartbeats.timeout = Duration::ZERO),
        ("settings.heartbeat_ms", |options| options.settings.heartbeat_ms = 0),
        ("settings.liveness", |options| options.settings.liveness = 0),
    ];
    for (option, set) in wrong {
        let mut options = BrokerOptions::new(here.to_vec());
        set(&mut options);
        let Err(BrokerError::Socket(error)) = Broker::bind(options) else { panic!("{option} is taken") };
        assert!(error.to_string().starts_with(&format!("option {option}: ")), "{error}");
    }
}

#[test]
fn broker_listens_for_other_machines_only_by_a_decision() {
    let bind = |change: fn(&mut BrokerOptions)| {
        let mut options = BrokerOptions::new(vec!["tcp://0.0.0.0:0".parse().unwrap()]);
        change(&mut options);
        Broker::bind(options).err()
    };
    let refused = bind(|_| {});
    assert!(matches!(refused, Some(BrokerError::Socket(SocketError::Open { .. }))), "{refused:?}");
    assert!(bind(|options| options.open_to_all = true).is_none());
    assert!(bind(|options| options.mechanism = MechanismConfig::PlainServer).is_none());
}

#[test]
fn bounds_as_narrow_as_can_be_hold_nobody_up() {
    on_one(async {
        let broker = Running::start(|_| ());
        let _worker = echo(&[&broker.endpoint], 10);
        for received_bytes_max in [0, 1] {
            let link = LinkOptions { spool_over_bytes: 128 * 1024, ..LinkOptions::default() };
            let options = ClientOptions { received_bytes_max, link, ..ClientOptions::default() };
            let client = Client::connect(std::slice::from_ref(&broker.endpoint), options).unwrap();
            // Small ones fill blocks, and large ones are streamed.
            for (count, length) in [(1000, 4000), (3, 200_000)] {
                for _ in 0..count {
                    client.send("echo", vec![7; length], CallOptions::default()).await.unwrap();
                }
                for _ in 0..count {
                    assert_eq!(client.receive().await.unwrap().body.length(), length as u64);
                }
                assert_eq!(client.call("echo", vec![7; length]).await.unwrap().body.length(), length as u64);
            }
            client.close().await;
        }
    });
}

#[test]
fn times_that_no_clock_counts_to_never_come() {
    on_both(|| async {
        let most = Duration::MAX;
        let broker = Running::start(|options| {
            options.heartbeats = Heartbeats { interval: most, timeout: most };
            (options.grace, options.busy_poll) = (most, most);
            let settings = &mut options.settings;
            (settings.heartbeat_ms, settings.liveness, settings.ttl_ms) = (u64::MAX, u32::MAX, u64::MAX);
            (settings.absent_client_ms, settings.journal_retention_ms) = (u64::MAX, u64::MAX);
            settings.busy_timeout_ms = Some(u64::MAX);
        });
        let here = std::slice::from_ref(&broker.endpoint);
        let far = Duration::from_secs(1 << 62);
        for (dialect, most) in [(Dialect::Auto, most), (Dialect::Auto, far), (Dialect::Mdp01, most)] {
            let link = LinkOptions {
                dialect,
                heartbeat_interval: most,
                heartbeat_timeout: most,
                connect_timeout: most,
                backoff_first: most,
                backoff_most: most,
                ..LinkOptions::default()
            };
            let options = WorkerOptions { credit: 1, link: link.clone() };
            let worker = Worker::at_once(here, "echo", options, std::convert::identity).unwrap();
            let client = Client::connect(here, ClientOptions { link, ..ClientOptions::default() }).unwrap();
            let waiting = CallOptions { ttl: Some(most), ..CallOptions::default() };
            for _ in 0..10 {
                assert_eq!(client.call_with("echo", "x", waiting).await.unwrap().body, Body::from("x"));
            }
            worker.leave();
            worker.closed().await;
            client.close().await;
        }
        // Its end finds nobody here, and waits for nobody.
        drop(broker);
    });
}

#[test]
fn a_worker_reports_why_it_has_no_connection() {
    on_one(async {
        let folder = tempfile::tempdir().unwrap();
        let broker = Running::start(|_| ());
        let nobody = Endpoint::from_str(&format!("ipc://{}/nobody", folder.path().display())).unwrap();
        let endpoints = [broker.endpoint.clone(), nobody.clone()];
        let worker = Worker::connect(&endpoints, "echo", WorkerOptions::default()).unwrap();
        let until = async |is_so: &dyn Fn(&WorkerStatus) -> bool| {
            while !is_so(&worker.status()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let fails = |status: &WorkerStatus, endpoint: &Endpoint, why: &str| {
            status.failures.iter().any(|(failed, reason)| failed == endpoint && reason.contains(why))
        };
        until(&|status| status.connected == [broker.endpoint.clone()] && fails(status, &nobody, "connecting failed"))
            .await;
        assert_eq!(worker.status().failures.len(), 1);
        let former = broker.endpoint.clone();
        drop(broker);
        until(&|status| status.connected.is_empty() && fails(status, &former, "")).await;
        worker.leave();
        worker.closed().await;
        assert_eq!(worker.status().failures.len(), 2);
    });
}

#[test]
fn a_reused_client_id_gets_the_earlier_outcomes() {
    on_one(async {
        let broker = Running::start(|_| ());
        let worker = echo(&[&broker.endpoint], 2);
        let here = std::slice::from_ref(&broker.endpoint);
        let name = ClientId([9; 16]);
        // One that is killed before it receives its outcomes.
        let mut block = Block::default();
        FromClient::hello(&mut block, name, 1);
        FromClient::request(&mut block, 1, 0, false, b"echo", &"former".into());
        FromClient::request(&mut block, 2, 0, false, b"echo", &"other".into());
        let killed = dealer(&broker);
        let message = block.drain().next().unwrap().block;
        killed.send([CLIENT_HEADER.into(), message].into_iter().map(Frame::Bytes).collect()).await.unwrap();
        while worker.status().counters.requests < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(killed);
        let second = Client::connect_as(name, here, ClientOptions::default()).unwrap();
        assert_eq!(second.call("echo", "former").await.unwrap().body, Body::from("former"));
        second.close().await;
        // One that asks for what was received, and something else.
        let third = Client::connect_as(name, here, ClientOptions::default()).unwrap();
        for body in ["former", "something else"] {
            assert_eq!(third.call("echo", body).await.unwrap_err().status(), Some(Status::CONFLICT), "{body}");
        }
        third.close().await;
        let fourth = Client::connect_as(name, here, ClientOptions::default()).unwrap();
        assert_eq!(fourth.call("echo", "former").await.unwrap_err().status(), Some(Status::CONFLICT));
        assert_eq!(fourth.call("echo", "other").await.unwrap().body, Body::from("other"));
        assert_eq!(worker.status().counters.requests, 2);
    });
}
