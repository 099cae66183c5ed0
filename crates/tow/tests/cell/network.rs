//! Hosts of a test: network namespaces on a bridge, each of which can be cut off. Only root can make them.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Namespaces that are deleted in the end.
pub struct Network {
    name: String,
    hosts: usize,
}

fn ip(words: &str) -> bool {
    let ran = Command::new("ip").args(words.split(' ')).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.is_ok_and(|status| status.success())
}

impl Network {
    /// So many hosts. `None`: this user or system can't have them.
    pub fn new(hosts: usize) -> Option<Network> {
        // At most 15 characters with what is behind it.
        let network = Network { name: format!("tow{}", std::process::id()), hosts };
        let name = &network.name;
        let bridge = network.address_part(254);
        let mut is_made = ip(&format!("link add {name} type bridge"))
            && ip(&format!("addr add {bridge}/24 dev {name}"))
            && ip(&format!("link set {name} up"));
        for host in 0..hosts {
            let (outside, inside) = (format!("{name}o{host}"), format!("{name}i{host}"));
            let address = network.address(host);
            is_made = is_made
                && ip(&format!("netns add {name}-{host}"))
                && ip(&format!("link add {outside} type veth peer name {inside}"))
                && ip(&format!("link set {outside} master {name} up"))
                && ip(&format!("link set {inside} netns {name}-{host}"))
                && ip(&format!("-n {name}-{host} addr add {address}/24 dev {inside}"))
                && ip(&format!("-n {name}-{host} link set {inside} up"))
                && ip(&format!("-n {name}-{host} link set lo up"));
        }
        is_made.then_some(network)
    }

    fn address_part(&self, last: usize) -> String {
        let [.., high, low] = std::process::id().to_be_bytes();
        format!("10.{}.{low}.{last}", 128 + high % 64)
    }

    pub fn address(&self, host: usize) -> String {
        self.address_part(host + 1)
    }

    /// A program on a host.
    pub fn inside(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}-{host}", self.name)]).arg(program);
        command
    }

    pub fn cut(&self, host: usize, is_cut: bool) {
        let state = if is_cut { "down" } else { "up" };
        assert!(ip(&format!("link set {}o{host} {state}", self.name)), "ip link set");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in 0..self.hosts {
            ip(&format!("link del {}o{host}", self.name));
            ip(&format!("netns del {}-{host}", self.name));
        }
        ip(&format!("link del {}", self.name));
    }
}
