//! Transfers over a far link, where round trips are what small files cost.

use std::fs;
use std::time::{Duration, Instant};

use tempfile::{TempDir, tempdir};
use towpath_far_link::{End, FAR, FarLink, Link};

use crate::support::process::{Outcome, Process, Server, run};
use crate::support::random::Random;
use crate::support::tree::{assert_same, write};
use crate::support::wait_until;

const FILES: usize = 2000;
const FILE_BYTES: usize = 4096;
/// Bytes of a file's metadata, on the way.
const METADATA_BYTES: usize = 400;
/// Round trips of a tree beside those that TCP needs for its bytes, the connection among them.
const TREE_ROUNDS: u32 = 6;
/// Time on this machine, which may be busy.
const SLACK: Duration = Duration::from_millis(1500);
const ATTEMPTS: usize = 3;

const SEND: &str = "import socket,sys\ns=socket.create_server((sys.argv[1],0))\nprint('x on :%d'%s.getsockname()[1],flush=True)\n\
    c,_=s.accept()\nc.sendall(bytes(int(sys.argv[2])))\nc.close()";
const RECEIVE: &str = "import socket,sys\nwith socket.create_connection((sys.argv[1],int(sys.argv[2]))) as s:\n while s.recv(1<<20): pass";

/// A server at the far end of a link, and what it serves.
struct World {
    link: FarLink,
    round_trip: Duration,
    folder: TempDir,
    server: Server,
}

impl World {
    /// `None` where no link can be made.
    fn start(round_trip: Duration) -> Option<World> {
        let link = Link { round_trip, bits_per_second: 1_000_000_000, ..Link::default() };
        let link = match FarLink::start(link) {
            Ok(link) => link,
            Err(error) => {
                println!("skipped: no far link can be made here: {error}");
                return None;
            }
        };
        let folder = tempdir().expect("a folder");
        let mut random = Random::new(5);
        for number in 0..FILES {
            let path = folder.path().join(format!("served/tree/{}/{number}", number % 20));
            write(&path, &random.bytes(FILE_BYTES));
        }
        fs::create_dir(folder.path().join("served/in")).expect("mkdir");
        let mut command = link.command(End::Far, env!("CARGO_BIN_EXE_tow"));
        command.args(["serve", "--bind", &format!("tcp://{FAR}:0"), "--open-to-all", "--watch", "--accept-push", "in"]);
        let server = Server::from_command(command.arg(folder.path().join("served")));
        let world = World { link, round_trip, folder, server };
        // Until everything was looked at and hashed.
        world.tow_at(End::Far, &["follow", "--once", &world.server.url("tree")], "near").expect_code(0);
        Some(world)
    }

    /// Runs `tow` with a path of the folder as its last argument.
    fn tow_at(&self, end: End, arguments: &[&str], last: &str) -> Outcome {
        let mut command = self.link.command(end, env!("CARGO_BIN_EXE_tow"));
        run(command.args(arguments).arg(self.folder.path().join(last)))
    }

    /// The time of a command of the near end.
    fn time(&self, arguments: &[&str], last: &str) -> Duration {
        let begun = Instant::now();
        self.tow_at(End::Near, arguments, last).expect_code(0);
        begun.elapsed()
    }

    /// The time of one TCP connection with this many bytes.
    fn time_of_tcp(&self, bytes: usize) -> Duration {
        let mut command = self.link.command(End::Far, "python3");
        let sender = Process::start(command.args(["-c", SEND, FAR, &bytes.to_string()]));
        wait_until("it listens", || sender.output().contains('\n'));
        let port = sender.output().trim().rsplit(':').next().unwrap_or_default().to_owned();
        let begun = Instant::now();
        run(self.link.command(End::Near, "python3").args(["-c", RECEIVE, FAR, &port])).expect_code(0);
        begun.elapsed()
    }

    /// Checks that one of a few attempts, which are given their number, takes at most so long: whatever else this machine does only adds time.
    fn check(&self, what: &str, most: Duration, attempt: impl Fn(usize) -> Duration) {
        let rounds = |time: Duration| time.as_secs_f64() / self.round_trip.as_secs_f64();
        let is_within = (0..ATTEMPTS).any(|number| {
            let time = attempt(number);
            println!("{what}: {:.1} round trips of at most {:.1}", rounds(time), rounds(most));
            time < most
        });
        assert!(is_within, "{what}: {ATTEMPTS} times more than {:.1} round trips", rounds(most));
    }
}

#[test]
fn a_small_file_takes_four_round_trips() {
    // Longer than the slack.
    let Some(world) = World::start(Duration::from_secs(2)) else { return };
    fs::write(world.folder.path().join("served/one"), b"one").expect("write");
    world.check("get", world.round_trip * 4 + SLACK, |number| {
        world.time(&["get", &world.server.url("one")], &format!("one{number}"))
    });
}

#[test]
fn a_tree_of_small_files_takes_few_round_trips_more_than_its_bytes() {
    let Some(world) = World::start(Duration::from_millis(800)) else { return };
    let of_bytes = world.time_of_tcp(FILES * (FILE_BYTES + METADATA_BYTES));
    let most = of_bytes + world.round_trip * TREE_ROUNDS + SLACK;
    let path = |name: &str| world.folder.path().join(name);
    let source = path("served/tree");
    world.check("get", most, |number| {
        let copy = format!("got{number}");
        let time = world.time(&["get", &world.server.url("tree/")], &copy);
        assert_same(&source, &path(&copy));
        time
    });
    world.check("follow", most, |number| {
        let copy = format!("followed{number}");
        let time = world.time(&["follow", "--once", &world.server.url("tree")], &copy);
        // What it knows of its copy.
        let entries = fs::read_dir(path(&copy)).expect("read a folder").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.is_file()).for_each(|path| fs::remove_file(path).expect("remove"));
        assert_same(&source, &path(&copy));
        time
    });
    world.check("push", most, |number| {
        let mut push = world.link.command(End::Near, env!("CARGO_BIN_EXE_tow"));
        let begun = Instant::now();
        run(push.arg("push").arg(path("got0/")).arg(world.server.url(&format!("in/{number}/")))).expect_code(0);
        let time = begun.elapsed();
        assert_same(&source, &path(&format!("served/in/{number}/got0")));
        time
    });
}
