//! Authentication.

use super::*;
use crate::client::{ConnectOptions, Error, FileClient, ListOptions, Source};
use crate::path::RelPath;
use crate::server::Authenticator;
use towpath_sockets::{Credentials, MechanismConfig};

#[test]
fn a_panicking_authenticator_refuses_that_client_only() {
    let temp = root_with(&[("file", b"content")]);
    let mut options = ServerOptions::new(temp.path());
    options.hub.mechanism = MechanismConfig::PlainServer;
    options.authenticator = Some(Authenticator::new(|credentials| {
        let Credentials::Plain { user, password } = credentials else { return None };
        (password[user.len()] == b'!').then(|| credentials.principal())
    }));
    let server = TestServer::start_as(options, Box::new(PageCache));
    let listed = |password: &str| {
        let mut connect = ConnectOptions::new(server.endpoint.clone());
        connect.connect_timeout = DEADLINE;
        connect.mechanism = MechanismConfig::PlainClient { user: "ada".to_owned(), password: password.to_owned() };
        let client = FileClient::connect(connect)?;
        let entries = client.list(ListOptions::new(Source::Path(RelPath::root())))?;
        entries.collect::<Result<Vec<_>, _>>().map(|entries| entries.len())
    };
    for (password, welcome) in [("!", false), ("123!", true), ("1234", false), ("", false), ("123!", true)] {
        match listed(password) {
            Ok(1) if welcome => {}
            Err(Error::Rejected { .. }) if !welcome => {}
            other => panic!("{password:?}: {other:?}"),
        }
    }
}
