//! Servers whose keys this user knows: a file with an endpoint, a key and a name on each line (docs/formats/servers.md).

use crate::cli::auth_args::is_own;
use crate::cli::certificate::{config_folder, is_plain};
use crate::cli::exit::Failure;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use towpath_sockets::{Endpoint, PublicKey};

/// Maximum bytes of the file.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

const HEAD: &str = "# Keys of servers, for CURVE: ENDPOINT KEY [NAME]. Written by `tow trust`.\n";

/// A server and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownServer {
    /// Its endpoint, in canonical form.
    pub endpoint: Endpoint,
    /// Its public key.
    pub key: PublicKey,
    /// The user's name for it, or empty.
    pub name: String,
}

/// The file's contents.
#[derive(Debug)]
pub struct KnownServers {
    path: PathBuf,
    servers: Vec<KnownServer>,
}

/// The one form of endpoints that mean the same. Names are not looked up.
fn canonical(endpoint: &Endpoint) -> Endpoint {
    match endpoint {
        Endpoint::Tcp { host, port } => {
            let address = host.parse::<IpAddr>().map(|address| address.to_canonical().to_string());
            let name = || host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
            Endpoint::Tcp { host: address.unwrap_or_else(|_| name()), port: *port }
        }
        endpoint => endpoint.clone(),
    }
}

/// The port, if an endpoint in canonical form is on this machine by TCP.
fn loopback_port(endpoint: &Endpoint) -> Option<u16> {
    let Endpoint::Tcp { host, port } = endpoint else { return None };
    let is_name = host == "localhost" || host.ends_with(".localhost") || host == "ip6-localhost";
    // Linux connects to the unspecified address as to the loopback one.
    let is_address = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    (is_name || host.parse().is_ok_and(is_address)).then_some(*port)
}

impl KnownServers {
    /// Reads the user's file. One that isn't there, or can't be since the user has no directory, is empty.
    pub fn read() -> Result<KnownServers, Failure> {
        match config_folder() {
            Ok(folder) => KnownServers::read_file(folder.join("servers")),
            Err(_) => Ok(KnownServers { path: PathBuf::new(), servers: Vec::new() }),
        }
    }

    fn read_file(path: PathBuf) -> Result<KnownServers, Failure> {
        let named = |error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(KnownServers { path, servers: Vec::new() });
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(named(&format!("{error}; set HOME or XDG_CONFIG_HOME to a directory of this user")));
            }
            Err(error) => return Err(named(&error)),
        };
        let metadata = file.metadata().map_err(|error| named(&error))?;
        // Anyone who can write it says which servers are the right ones.
        if !is_own(&metadata) {
            let (owner, mode, path) = (metadata.uid(), metadata.mode() & 0o7777, path.display());
            return Err(named(&format!(
                "others can write it (user {owner}, mode {mode:04o}); check its keys, then chown it to this user, and chmod 600 {path}"
            )));
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| named(&error))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(named(&"it has over 4 MiB"));
        }
        let servers = parse(&text).map_err(|error| named(&error))?;
        Ok(KnownServers { path, servers })
    }

    /// Keeps other processes from changing the file, until it is dropped. `None`: the user has no directory.
    pub fn lock() -> Result<Option<File>, Failure> {
        let Ok(folder) = config_folder() else { return Ok(None) };
        let path = folder.join("servers.lock");
        let named = |error: io::Error| Failure::failed(format!("{}: {error}", path.display()));
        make_folder(&folder).map_err(named)?;
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(named)?;
        file.lock().map_err(named)?;
        Ok(Some(file))
    }

    /// All servers, in the order of the file.
    pub fn all(&self) -> &[KnownServer] {
        &self.servers
    }

    /// The server at an endpoint. All names of this machine's loopback addresses are names of one server, unless several are known.
    pub fn find(&self, endpoint: &Endpoint) -> Option<&KnownServer> {
        let endpoint = canonical(endpoint);
        let find = |is_it: &dyn Fn(&Endpoint) -> bool| self.servers.iter().find(|server| is_it(&server.endpoint));
        let port = loopback_port(&endpoint);
        find(&|known| *known == endpoint).or_else(|| find(&|known| port.is_some() && loopback_port(known) == port))
    }

    /// Adds a server, or names one that is known by this key. Another key is never replaced.
    pub fn add(&mut self, endpoint: &Endpoint, key: PublicKey, name: Option<&str>) -> Result<(), Failure> {
        if let Some(name) = name.filter(|name| !is_plain(name)) {
            return Err(Failure::usage(format!("{name:?} is not a name: it has spaces or quotes")));
        }
        let endpoint = canonical(endpoint);
        if let Some(text) = Some(endpoint.to_string()).filter(|text| text.contains(char::is_whitespace)) {
            return Err(Failure::usage(format!("{text}: an endpoint with spaces can't be kept")));
        }
        match self.servers.iter_mut().find(|server| server.endpoint == endpoint) {
            Some(server) if server.key != key => {
                return Err(Failure::failed(format!(
                    "{endpoint} is known by another key, {}; if its operator has changed it, `tow trust remove {endpoint}` first",
                    server.key
                )));
            }
            Some(server) => name.unwrap_or(&server.name.clone()).clone_into(&mut server.name),
            None => self.servers.push(KnownServer { endpoint, key, name: name.unwrap_or_default().to_owned() }),
        }
        self.write()
    }

    /// Removes the server at an endpoint.
    pub fn remove(&mut self, endpoint: &Endpoint) -> Result<bool, Failure> {
        let (endpoint, before) = (canonical(endpoint), self.servers.len());
        self.servers.retain(|server| server.endpoint != endpoint);
        if self.servers.len() == before {
            return Ok(false);
        }
        self.write().map(|()| true)
    }

    /// Replaces the file. Readers see all of the old or of the new one.
    fn write(&self) -> Result<(), Failure> {
        let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
            return Err(Failure::failed(config_folder().err().unwrap_or_default()));
        };
        let mut text = HEAD.to_owned();
        for KnownServer { endpoint, key, name } in &self.servers {
            let line = format!("{endpoint} {key} {name}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        replace(folder, &self.path, &text).map_err(|error| Failure::failed(format!("{}: {error}", self.path.display())))
    }
}

fn replace(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    make_folder(folder)?;
    // Made with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn make_folder(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn parse(text: &str) -> Result<Vec<KnownServer>, String> {
    let mut servers: Vec<KnownServer> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<_> = line.split_whitespace().collect();
        let (endpoint, key, name) = match fields[..] {
            [endpoint, key] => (endpoint, key, ""),
            [endpoint, key, name] => (endpoint, key, name),
            _ => return Err(format!("line {number} is not ENDPOINT KEY [NAME]")),
        };
        let endpoint: Endpoint = endpoint.parse().map_err(|error| format!("line {number}: {error}"))?;
        let endpoint = canonical(&endpoint);
        let key: PublicKey = key.parse().map_err(|error| format!("line {number}: {error}"))?;
        if servers.iter().any(|server| server.endpoint == endpoint) {
            return Err(format!("line {number} repeats {endpoint}"));
        }
        servers.push(KnownServer { endpoint, key, name: name.to_owned() });
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn servers_are_found_in_every_spelling_and_keys_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/servers");
        let (one, other) = (PublicKey::from([1; 32]), PublicKey::from([2; 32]));
        let mut servers = KnownServers::read_file(path.clone()).unwrap();
        servers.add(&endpoint("tcp://Files.Example:5571"), one, Some("lab")).unwrap();
        servers.add(&endpoint("tcp://[::0:1]:5571"), other, None).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut servers = KnownServers::read_file(path.clone()).unwrap();
        let found = |servers: &KnownServers, text: &str| servers.find(&endpoint(text)).map(|server| server.key);
        for (text, key) in [
            ("tcp://files.example:5571", Some(one)),
            ("tcp://files.example:5572", None),
            ("tcp://[::1]:5571", Some(other)),
            ("tcp://files.example.:5571", Some(one)),
            ("tcp://127.0.0.1:5571", Some(other)),
            ("tcp://LOCALHOST:5571", Some(other)),
            ("tcp://127.0.0.2:5571", Some(other)),
            ("tcp://0.0.0.0:5571", Some(other)),
            ("tcp://localhost:5572", None),
            ("tcp://192.0.2.1:5571", None),
        ] {
            assert_eq!(found(&servers, text), key, "{text}");
        }
        let refused = servers.add(&endpoint("tcp://FILES.example:5571"), other, None).unwrap_err().to_string();
        assert!(refused.contains(&one.to_string()) && refused.contains("tow trust remove"), "{refused}");
        // The same again keeps its name, or changes it.
        servers.add(&endpoint("tcp://files.example:5571"), one, None).unwrap();
        assert_eq!(servers.all()[0].name, "lab");
        servers.add(&endpoint("tcp://files.example:5571"), one, Some("attic")).unwrap();
        assert!(servers.remove(&endpoint("tcp://[::1]:5571")).unwrap());
        assert!(!servers.remove(&endpoint("tcp://[::1]:5571")).unwrap());
        let servers = KnownServers::read_file(path).unwrap();
        assert_eq!((servers.all().len(), &*servers.all()[0].name), (1, "attic"));
    }

    #[test]
    fn what_is_wrong_with_the_file_is_said() {
        let key = PublicKey::from([1; 32]);
        for (text, why) in [
            ("tcp://a:1\n".to_owned(), "line 1 is not ENDPOINT"),
            (format!("# x\n\na:1 {key}\n"), "line 3"),
            ("tcp://a:1 1234\n".to_owned(), "a key has 40"),
            (format!("tcp://a:1 {key}\ntcp://A:1 {key} x\n"), "line 2 repeats"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o620)).unwrap();
        let refused = KnownServers::read_file(file.path().to_owned()).unwrap_err().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
    }
}
