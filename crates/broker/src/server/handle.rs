//! Controlling a broker from other threads.

use super::sockets::Sockets;
use crate::dispatch::Dispatch;
use crate::stats::Stats;
use crate::store::JournalStore;
use std::sync::mpsc::Receiver;
use towpath_sockets::{Command, Waker};

/// Controls a broker from any thread.
pub type Handle = towpath_sockets::Handle<Stats>;

/// The event loop's end of handles.
#[derive(Debug)]
pub(super) struct Control {
    handle: Handle,
    commands: Receiver<Command<Stats>>,
    /// The broker is to end.
    pub is_shutdown: bool,
    /// End without a grace time.
    pub at_once: bool,
}

impl Control {
    pub fn new(waker: Waker) -> Control {
        let (handle, commands) = Handle::new(waker);
        Control { handle, commands, is_shutdown: false, at_once: false }
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Carries out what handles want. Called in each turn of the event loop.
    pub fn turn(&mut self, dispatch: &mut Dispatch<Sockets, JournalStore>) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Shutdown { now } => {
                    self.is_shutdown = true;
                    self.at_once |= now;
                }
                Command::Snapshot(reply) => {
                    let _ = reply.send(dispatch.stats());
                }
                Command::Disconnect { peer, reason, was_there } => {
                    let _ = was_there.send(dispatch.disconnect(peer, &reason));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::server::{Broker, BrokerOptions};
    use bytes::Bytes;
    use std::time::{Duration, Instant};
    use towpath_sockets::{Event, Frame, Hub, HubOptions, SocketType};

    #[test]
    fn handle_shows_disconnects_and_ends() {
        let broker = Broker::bind(BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()])).unwrap();
        let (handle, endpoint) = (broker.handle(), broker.endpoints()[0].clone());
        let running = std::thread::spawn(move || broker.run());
        let mut worker = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        worker.connect_once(&endpoint);
        let (start, mut is_gone) = (Instant::now(), false);
        let stats = loop {
            assert!(start.elapsed() < Duration::from_secs(60), "the worker isn't listed");
            worker.poll(Some(Duration::from_millis(5))).unwrap();
            while let Some(event) = worker.next_event() {
                if let Event::Ready { peer } = event {
                    let ready = [&b""[..], b"MDPW01", &[1], b"work"].map(Bytes::from_static);
                    worker.send(peer, ready.into_iter().map(Frame::Bytes).collect()).unwrap();
                }
            }
            let stats = handle.snapshot().unwrap();
            if !stats.workers.is_empty() {
                break stats;
            }
        };
        assert_eq!((stats.connections.len(), stats.services.len()), (1, 1));
        let json = stats.to_json();
        assert_eq!((&json["services"][0]["service"], &json["workers"][0]["held"]), (&"work".into(), &0.into()));
        assert!(json["connections"][0]["address"].is_string(), "{json}");
        assert!(handle.disconnect(stats.connections[0].id, "for a test"));
        while !is_gone {
            assert!(start.elapsed() < Duration::from_secs(60), "the worker is still connected");
            worker.poll(Some(Duration::from_millis(5))).unwrap();
            is_gone = std::iter::from_fn(|| worker.next_event()).any(|event| matches!(event, Event::Gone { .. }));
        }
        assert!(!handle.disconnect(stats.connections[0].id, "once more"));
        assert!(handle.snapshot().unwrap().workers.is_empty());
        handle.shutdown();
        running.join().unwrap().unwrap();
        assert!(handle.snapshot().is_none());
    }
}
