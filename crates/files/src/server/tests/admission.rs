//! Authentication.

use super::*;
use crate::client::{CancelToken, ConnectOptions, Error, ListOptions, list};
use crate::protocol::control::{FollowLinks, ListTarget};
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
        let target = ListTarget::Path(WirePath::default());
        let options = ListOptions { connect, target, recursive: false, digest: false, follow: FollowLinks::None };
        let mut names = 0;
        let mut count = |_| {
            names += 1;
            Ok(())
        };
        list(&options, &mut count, &CancelToken::new()).map(|_| names)
    };
    for (password, welcome) in [("!", false), ("123!", true), ("1234", false), ("", false), ("123!", true)] {
        match listed(password) {
            Ok(1) if welcome => {}
            Err(Error::Rejected { .. }) if !welcome => {}
            other => panic!("{password:?}: {other:?}"),
        }
    }
}
