//! Many connections of one address don't keep another address waiting.

use std::fs::{self, File};
use std::net::{Ipv6Addr, TcpStream};

use serde_json::json;
use tempfile::tempdir;

use crate::support::process::{Server, tow};
use crate::support::skip;
use crate::support::wire::Wire;

const CONNECTIONS: usize = 100;

#[test]
fn a_listing_is_answered_while_another_address_searches_on_many_connections() {
    let folder = tempdir().expect("a folder");
    for directory in 0..100 {
        let directory = folder.path().join(format!("many/{directory}"));
        fs::create_dir_all(&directory).expect("make a folder");
        for file in 0..100 {
            File::create(directory.join(file.to_string())).expect("make a file");
        }
    }
    if TcpStream::connect((Ipv6Addr::LOCALHOST, 1))
        .is_err_and(|error| error.kind() != std::io::ErrorKind::ConnectionRefused)
    {
        return skip("no IPv6");
    }
    let mut command = tow(["serve".as_ref(), folder.path().as_os_str()]);
    let server = Server::from_command(command.args(["--bind", "tcp://[::]:0", "--open-to-all"]));
    let mut searching: Vec<Wire> = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut wire = Wire::on(TcpStream::connect((Ipv6Addr::LOCALHOST, server.port())).expect("connect"));
        wire.handshake("DEALER").expect("handshake");
        searching.push(wire);
    }
    let mut good = Wire::dealer(server.port());
    for wire in &mut searching {
        for id in 0..4 {
            wire.request(&json!({"op": "list", "id": id, "glob": "**/zzz"})).expect("send");
        }
    }
    let page = good.ask(&json!({"op": "list", "id": 1, "path": "many"}));
    assert_eq!(page["entries"].as_array().map(Vec::len), Some(100), "{page}");
    let answered = searching.iter().filter(|wire| wire.has_bytes()).count();
    assert!(answered < CONNECTIONS / 4, "{answered} of {CONNECTIONS} were answered before");
}
