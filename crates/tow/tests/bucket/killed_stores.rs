//! Real stores that are slow, and killed in the middle of a request.

use super::s3::{BUCKET, S3, credentials};
use super::support::process::{Process, Server, get, get_command, tow};
use super::support::proxy::Proxy;
use super::support::tree::random_file;
use super::support::wait_until;
use super::{PIECE, run};
use std::path::Path;
use tempfile::TempDir;

/// A server of the bucket's `tree`, which comes through a proxy.
fn serve(folder: &Path, proxy: &Proxy) -> Server {
    let mut command = tow(["serve", &format!("s3://{BUCKET}/tree"), "--bind", "tcp://127.0.0.1:0"]);
    command.args(["--accept-push", ".", "--cache"]).arg(folder.join("cache"));
    command.args(["--s3-endpoint", &proxy.url("").replace("tcp://", "http://")]);
    Server::from_command(credentials(&mut command))
}

#[test]
fn an_object_arrives_although_its_store_is_killed() {
    for mut s3 in S3::each() {
        let folder = TempDir::new().unwrap();
        let content = random_file(&folder.path().join("big"), 6 * PIECE + 77, 1);
        s3.put("tree/big", &content);
        let proxy = Proxy::start(s3.port());
        let server = serve(folder.path(), &proxy);
        proxy.hold_after(3 * PIECE as u64);
        let mut client = Process::start(&mut get_command(&server.url("big"), &folder.path().join("copy")));
        proxy.wait_held(&mut client);
        s3.kill();
        proxy.cut_now();
        proxy.release();
        s3.run();
        client.finish().expect_code(0);
        assert!(std::fs::read(folder.path().join("copy")).unwrap() == content);
    }
}

#[test]
fn a_pushed_file_becomes_an_object_although_the_store_is_killed() {
    for mut s3 in S3::each() {
        let folder = TempDir::new().unwrap();
        let content = random_file(&folder.path().join("big"), 6 * PIECE + 77, 1);
        let proxy = Proxy::start(s3.port());
        let server = serve(folder.path(), &proxy);
        // Slow, so that parts are on their way when it is killed.
        proxy.slow_down_senders(20 << 20);
        let mut push = Process::start(tow(["push"]).arg(folder.path().join("big")).arg(server.url("")));
        wait_until("some parts are there", || {
            assert!(!push.ended(), "{}", push.log());
            proxy.sent() > 2 * PIECE as u64
        });
        s3.kill();
        proxy.cut_now();
        s3.run();
        let outcome = push.finish();
        // A store that was away for long gives a failure with words, and the next push goes on.
        if !outcome.status.success() {
            assert!(outcome.stderr.contains("the store can't be reached"), "{}", outcome.stderr);
            run(tow(["push"]).arg(folder.path().join("big")).arg(server.url(""))).expect_code(0);
        }
        assert!(s3.content("tree/big") == content);
        get(&server.url("big"), &folder.path().join("copy")).expect_code(0);
        assert!(std::fs::read(folder.path().join("copy")).unwrap() == content);
    }
}
