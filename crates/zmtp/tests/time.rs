//! Deadlines, heartbeats and TTLs, in virtual time.

mod harness;

use harness::{End, at, command, config, converse, frame, greeting, handshake, heartbeat, ready};
use std::time::Duration;
use towpath_zmtp::{Config, Error, MechanismConfig, SocketType};

fn beating(interval: u64, timeout: u64, ttl: u64) -> Config {
    Config { heartbeat: heartbeat(interval, timeout, ttl), ..config(SocketType::Router) }
}

#[test]
fn handshake_has_one_deadline() {
    let mut end = End::new(config(SocketType::Router));
    let bytes = handshake(SocketType::Dealer);
    for (index, byte) in bytes.iter().enumerate().take(99) {
        assert_eq!(end.connection.deadline(), Some(at(10_000)), "no byte moves it");
        let now = at(index as u64 * 101);
        end.receive(&[*byte], now).unwrap();
        assert_eq!(end.connection.on_timeout(now), Ok(()));
    }
    assert_eq!(end.connection.on_timeout(at(9_999)), Ok(()));
    assert_eq!(end.connection.on_timeout(at(10_000)), Err(Error::HandshakeTimeout));
}

#[test]
fn slow_authentication_counts_against_the_handshake() {
    let mut end = End::new(Config { mechanism: MechanismConfig::PlainServer, ..config(SocketType::Router) });
    end.receive(&[&greeting(b"PLAIN", 1)[..], &command(b"HELLO", b"\x01a\x01b")].concat(), at(1)).unwrap();
    assert_eq!(end.connection.on_timeout(at(10_000)), Err(Error::HandshakeTimeout));
}

#[test]
fn a_finished_handshake_has_no_deadline() {
    let mut end = End::ready(config(SocketType::Router), SocketType::Dealer);
    assert_eq!(end.connection.deadline(), None);
    assert_eq!(end.connection.on_timeout(at(1_000_000_000)), Ok(()));
    assert!(end.write_all().is_empty());
}

#[test]
fn deadlines_beyond_the_clock_never_come() {
    let never = Duration::MAX;
    let mut far = beating(1000, 1000, 1000);
    far.handshake_timeout = never;
    let heartbeat = far.heartbeat.as_mut().unwrap();
    (heartbeat.interval, heartbeat.timeout, heartbeat.ttl) = (never, never, never);
    let mut end = End::new(far.clone());
    assert_eq!(end.connection.deadline(), None);
    end.receive(&handshake(SocketType::Dealer), at(0)).unwrap();
    assert_eq!(end.connection.deadline(), None);
    assert_eq!(end.connection.on_timeout(at(u64::from(u32::MAX))), Ok(()));

    far.heartbeat.as_mut().unwrap().interval = Duration::from_secs(1);
    let mut end = End::ready(far, SocketType::Dealer);
    end.connection.on_timeout(at(1000)).unwrap();
    assert_eq!(end.write_all(), command(b"PING", &655_u16.to_be_bytes()), "libzmq overflows above 655");
    assert_eq!(end.connection.deadline(), Some(at(2000)), "an answer may take for ever");
}

#[test]
fn a_ping_goes_out_each_interval_and_any_byte_answers_it() {
    let mut end = End::ready(beating(1000, 400, 250), SocketType::Dealer);
    assert_eq!(end.connection.deadline(), Some(at(1000)));
    end.connection.on_timeout(at(999)).unwrap();
    assert!(end.write_all().is_empty());
    end.connection.on_timeout(at(1000)).unwrap();
    // 250 ms are rounded up to tenths of a second.
    assert_eq!(end.write_all(), command(b"PING", b"\0\x03"));
    assert_eq!(
        end.connection.deadline(),
        Some(at(1200)),
        "half of the time, for a look at what the peer's system has taken"
    );
    end.connection.on_timeout(at(1200)).unwrap();
    assert_eq!(end.connection.deadline(), Some(at(1400)));
    // Not the PONG (go-zeromq leaves its context out), not even a whole frame: one byte is life.
    end.receive(&[0], at(1399)).unwrap();
    assert_eq!(end.connection.deadline(), Some(at(2000)));
    assert_eq!(end.connection.on_timeout(at(1400)), Ok(()));
    assert!(end.write_all().is_empty());
    end.connection.on_timeout(at(2000)).unwrap();
    assert_eq!(end.write_all(), command(b"PING", b"\0\x03"));
    assert_eq!(end.connection.on_timeout(at(2399)), Ok(()));
    assert_eq!(end.connection.on_timeout(at(2400)), Err(Error::HeartbeatTimeout));
}

#[test]
fn later_pings_do_not_delay_the_timeout() {
    let mut end = End::ready(beating(100, 1000, 0), SocketType::Dealer);
    let mut pings = 0;
    for now in (100..1100).step_by(100) {
        assert_eq!(end.connection.on_timeout(at(now)), Ok(()), "at {now}");
        pings += usize::from(end.write_all() == command(b"PING", b"\0\0"));
    }
    assert_eq!(pings, 10);
    assert_eq!(end.connection.on_timeout(at(1100)), Err(Error::HeartbeatTimeout));
}

#[test]
fn timeout_of_one_peer_may_be_extended_and_its_ping_sent_early() {
    let mut end = End::ready(beating(1000, 400, 0), SocketType::Dealer);
    end.connection.extend_pong_timeout(Duration::from_millis(100));
    end.connection.extend_pong_timeout(Duration::from_millis(5000));
    end.connection.ping_soon(at(10));
    assert_eq!(end.connection.deadline(), Some(at(10)));
    end.connection.on_timeout(at(10)).unwrap();
    assert_eq!(end.write_all(), command(b"PING", b"\0\0"));
    assert_eq!(end.connection.on_timeout(at(5009)), Ok(()));
    assert_eq!(end.connection.on_timeout(at(5010)), Err(Error::HeartbeatTimeout));
}

#[test]
fn a_late_call_sends_one_ping_and_not_a_burst() {
    let mut end = End::ready(beating(100, 5000, 0), SocketType::Dealer);
    end.connection.on_timeout(at(1000)).unwrap();
    assert_eq!(end.write_all(), command(b"PING", b"\0\0"));
    assert_eq!(end.connection.deadline(), Some(at(1100)));
}

#[test]
fn deadlines_always_move_on() {
    // Intervals of nothing must not keep a driver busy at one instant.
    let mut end = End::ready(beating(0, 50, 0), SocketType::Dealer);
    let mut now = 0;
    for _ in 0..100 {
        end.write_all();
        if end.connection.on_timeout(at(now)).is_err() {
            return assert!(now >= 50);
        }
        let next = end.connection.deadline().unwrap();
        assert!(next > at(now), "the deadline stands still at {now} ms");
        now = (next - at(0)).as_millis() as u64;
    }
    panic!("a silent peer was never given up");
}

#[test]
fn no_ping_behind_a_backlog() {
    let mut end = End::ready(beating(100, 100, 0), SocketType::Dealer);
    end.send(&[harness::Part::Inside(vec![1; 100_000].into())]);
    end.write(50_000);
    for now in (100..2000).step_by(100) {
        assert_eq!(end.connection.on_timeout(at(now)), Ok(()), "its timeout is not measured");
    }
    let rest = end.write_all();
    assert!(rest.iter().all(|byte| *byte == 1), "no PING among the bytes of the body");
    end.connection.on_timeout(at(2000)).unwrap();
    assert_eq!(end.write_all(), command(b"PING", b"\0\0"));
}

/// A connection to a peer that reads as long as it lives, for which much waits.
fn busy() -> End {
    let mut end = End::ready(beating(100, 400, 0), SocketType::Dealer);
    end.connection.detect_stalls(at(0));
    end.send(&[harness::Part::Inside(vec![1; 100_000].into())]);
    end.write(50_000);
    end
}

/// The time at which a deadline gives the peer up, where something happens to it at each of them.
fn given_up(end: &mut End, mut happens: impl FnMut(&mut End, u64)) -> Option<u64> {
    for now in (100..10_000).step_by(100) {
        happens(end, now);
        if let Err(error) = end.connection.on_timeout(at(now)) {
            assert_eq!(error, Error::Stalled);
            return Some(now);
        }
    }
    None
}

#[test]
fn stalled_peer_is_given_up_if_stalls_are_detected() {
    // Its progress was seen at the first deadline.
    assert_eq!(given_up(&mut busy(), |_, _| {}), Some(1_100));
    let mut other = End::ready(Config { heartbeat: None, ..config(SocketType::Router) }, SocketType::Dealer);
    other.connection.detect_stalls(at(0));
    other.send(&[harness::Part::Inside(vec![1; 100_000].into())]);
    assert_eq!(given_up(&mut other, |_, _| {}), None, "without heartbeats");
}

#[test]
fn signs_of_life_restart_stall_detection() {
    type Sign = fn(&mut End, u64);
    let signs: [(&str, Sign); 3] = [
        ("it took a byte", |end, _| assert_eq!(end.write(1).len(), 1)),
        ("it sent something", |end, now| end.receive(&command(b"PING", b"\0\0"), at(now)).unwrap()),
        ("this side was slow", |end, now| end.connection.on_local_delay(at(now))),
    ];
    for (what, sign) in signs {
        let found = given_up(&mut busy(), |end, now| {
            if now % 900 == 0 && now <= 4_500 {
                sign(end, now);
            }
        });
        assert_eq!(found, Some(5_500), "{what}");
    }
}

/// The same, where the driver looks at what the peer's system has taken whenever that would show something.
fn given_up_after_looks(end: &mut End, mut unacknowledged: impl FnMut(u64) -> u64) -> (Option<(u64, Error)>, Vec<u64>) {
    let mut looks = Vec::new();
    for now in (50..10_000).step_by(50) {
        if end.connection.wants_unacked_bytes(at(now)) {
            looks.push(now);
            end.connection.on_unacked_bytes(unacknowledged(now), at(now));
        }
        let is_idle = end.connection.outbox_ref().is_idle();
        if end.connection.deadline().is_some_and(|deadline| deadline <= at(now))
            && let Err(error) = end.connection.on_timeout(at(now))
        {
            return (Some((now, error)), looks);
        }
        if is_idle {
            end.write_all();
        }
    }
    (None, looks)
}

/// A PING has been written behind 100,000 bytes, at 100 ms; the PONG is awaited for 400.
fn asked() -> End {
    let mut end = End::ready(beating(100, 400, 0), SocketType::Dealer);
    end.send(&[harness::Part::Inside(vec![1; 100_000].into())]);
    end.write_all();
    assert_eq!(end.connection.on_timeout(at(100)), Ok(()));
    end.write_all();
    end
}

#[test]
fn progress_in_delivery_is_a_sign_of_life() {
    // PINGs that follow stay behind it.
    let on_its_way = |now: u64| 60_000 + now - 10 * now.min(4_000);
    let (end, looks) = given_up_after_looks(&mut asked(), on_its_way);
    assert_eq!(looks[..4], [300, 500, 900, 1_300], "it looks when half of the time is over, and at its end");
    assert_eq!(end, Some((4_500, Error::HeartbeatTimeout)), "the last progress is seen at 4,100");
    let mut end = busy();
    assert_eq!(end.connection.on_timeout(at(100)), Ok(()));
    let (end, _) = given_up_after_looks(&mut end, on_its_way);
    assert_eq!(end, Some((5_100, Error::Stalled)), "and so where bytes wait, behind which no PING goes");
}

#[test]
fn no_progress_in_delivery_does_not_delay_the_timeout() {
    assert_eq!(
        given_up_after_looks(&mut asked(), |now| 50_000 + now),
        (Some((500, Error::HeartbeatTimeout)), vec![300, 500])
    );
    assert_eq!(
        given_up_after_looks(&mut asked(), |_| 0).0,
        Some((500, Error::HeartbeatTimeout)),
        "it takes each PING, and answers none"
    );
    let (end, looks) = given_up_after_looks(&mut busy(), |_| 50_000);
    assert_eq!((end, looks), (Some((1_100, Error::Stalled)), vec![600, 1_100]));
}

#[test]
fn late_first_check_is_followed_by_another() {
    let mut end = asked();
    end.connection.on_unacked_bytes(50_000, at(5_000));
    end.connection.on_timeout(at(5_000)).unwrap();
    assert!(!end.connection.wants_unacked_bytes(at(5_150)));
    end.connection.on_unacked_bytes(50_000, at(5_200));
    assert_eq!(end.connection.on_timeout(at(5_200)), Err(Error::HeartbeatTimeout));
}

#[test]
fn paused_peer_is_not_asked_for_delivered_bytes() {
    let mut end = busy();
    end.connection.set_reading(false, at(0));
    let found = given_up(&mut end, |end, now| {
        if now == 4_500 {
            end.connection.set_reading(true, at(now));
        }
    });
    assert_eq!(found, Some(5_500));
}

#[test]
fn idle_peer_gets_pings() {
    let mut end = busy();
    end.write_all();
    for now in (100..3_000).step_by(100) {
        end.connection.on_timeout(at(now)).unwrap();
        assert!(!end.write_all().is_empty(), "no PING at {now}");
        end.receive(&command(b"PONG", b""), at(now)).unwrap();
    }
    end.send(&[harness::Part::Inside(vec![1; 100].into())]);
    assert_eq!(end.connection.on_timeout(at(3_000)), Ok(()), "what waits has only come");
}

#[test]
fn a_peer_of_zmtp_3_0_gets_no_ping_but_an_answer() {
    let mut bytes = handshake(SocketType::Dealer);
    bytes[11] = 0;
    let mut end = End::new(beating(100, 100, 100));
    end.receive(&bytes, at(0)).unwrap();
    end.write_all();
    assert_eq!(end.connection.deadline(), None);
    end.connection.on_timeout(at(5000)).unwrap();
    assert!(end.write_all().is_empty());
    end.receive(&command(b"PING", b"\0\0ctx"), at(5000)).unwrap();
    assert_eq!(end.write_all(), command(b"PONG", b"ctx"));
}

#[test]
fn a_pong_repeats_at_most_16_bytes() {
    let mut end = End::ready(config(SocketType::Router), SocketType::Dealer);
    for length in [0, 1, 15, 16, 17, 300] {
        let context = vec![b'c'; length];
        end.receive(&command(b"PING", &[b"\0\0", &context[..]].concat()), at(0)).unwrap();
        assert_eq!(end.write_all(), command(b"PONG", &context[..length.min(16)]));
    }
}

#[test]
fn ttl_of_the_peer_is_enforced() {
    let mut end = End::ready(config(SocketType::Router), SocketType::Dealer);
    end.receive(&command(b"PING", b"\0\x05"), at(100)).unwrap();
    assert_eq!(end.connection.deadline(), Some(at(600)));
    end.receive(&frame(0, b"x"), at(400)).unwrap();
    assert_eq!(end.connection.deadline(), Some(at(900)), "any byte counts");
    assert_eq!(end.connection.on_timeout(at(899)), Ok(()));
    assert_eq!(end.connection.on_timeout(at(900)), Err(Error::TtlExpired));

    // The last PING says what holds; 0 takes the promise back. The longest is nearly two hours.
    let mut end = End::ready(config(SocketType::Router), SocketType::Dealer);
    end.receive(&command(b"PING", b"\xff\xff"), at(0)).unwrap();
    assert_eq!(end.connection.deadline(), Some(at(6_553_500)));
    end.receive(&command(b"PING", b"\0\0"), at(0)).unwrap();
    assert_eq!(end.connection.deadline(), None);
}

#[test]
fn bytes_of_a_large_body_are_signs_of_life() {
    let mut settings = beating(1000, 500, 0);
    settings.limits.stream_over_bytes = Some(1000);
    let mut end = End::ready(settings, SocketType::Dealer);
    end.receive(&command(b"PING", b"\0\x03"), at(0)).unwrap();
    end.receive(&harness::long_header(0, 1 << 40), at(0)).unwrap();
    for now in (0..60_000).step_by(250) {
        // The driver takes the bytes past the decoder, and reports them.
        end.connection.on_received(1 << 20, at(now));
        end.connection.body_advance(1 << 20);
        assert_eq!(end.connection.on_timeout(at(now)), Ok(()));
        end.write_all();
    }
    assert_eq!(end.connection.on_timeout(at(60_100)), Err(Error::TtlExpired));
}

#[test]
fn silence_does_not_count_while_reading_is_paused() {
    let mut end = End::ready(beating(100, 300, 0), SocketType::Dealer);
    end.receive(&command(b"PING", b"\0\x05"), at(0)).unwrap();
    end.write_all();
    end.connection.set_reading(false, at(50));
    for now in (100..10_000).step_by(100) {
        assert_eq!(end.connection.on_timeout(at(now)), Ok(()));
        assert!(end.connection.deadline().unwrap() > at(now), "only PINGs are due");
        end.write_all();
    }
    // The count of its silence begins when reading does.
    end.connection.set_reading(true, at(10_000));
    assert_eq!(end.connection.on_timeout(at(10_299)), Ok(()));
    end.connection.set_reading(true, at(10_300));
    assert_eq!(end.connection.on_timeout(at(10_499)), Ok(()));
    assert_eq!(end.connection.on_timeout(at(10_500)), Err(Error::TtlExpired));
}

#[test]
fn heartbeats_keep_a_connection_and_notice_a_cut() {
    let mut server = End::new(beating(1000, 700, 1500));
    let mut client = End::new(Config { socket_type: SocketType::Dealer, ..beating(900, 600, 1400) });
    converse(&mut client, &mut server, &[7], at(0)).unwrap();
    for now in (0..100_000).step_by(50) {
        client.connection.on_timeout(at(now)).unwrap();
        server.connection.on_timeout(at(now)).unwrap();
        converse(&mut client, &mut server, &[usize::MAX], at(now)).unwrap();
    }
    // From here on nothing gets through.
    let given_up = |end: &mut End| {
        (100_000..110_000).step_by(50).find_map(|now| {
            end.write_all();
            end.connection.on_timeout(at(now)).err().map(|error| (now, error))
        })
    };
    let (client_gone, _) = given_up(&mut client).expect("the client notices");
    let (server_gone, _) = given_up(&mut server).expect("the server notices");
    assert!(client_gone < 102_000 && server_gone < 102_000, "{client_gone} {server_gone}");
}

#[test]
fn plain_client_has_the_same_deadline() {
    let mechanism = MechanismConfig::PlainClient { user: "a".into(), password: "b".into() };
    let mut end = End::new(Config { mechanism, ..config(SocketType::Dealer) });
    end.receive(&[&greeting(b"PLAIN", 1)[..], &command(b"WELCOME", b"")].concat(), at(9_000)).unwrap();
    assert_eq!(end.connection.on_timeout(at(9_999)), Ok(()));
    end.receive(&ready(&[(b"Socket-Type", b"ROUTER")]), at(9_999)).unwrap();
    assert_eq!(end.connection.on_timeout(at(10_000)), Ok(()), "it was in time");
}
