//! Actions of an administrator on the source: file systems come and go, files and directories can't be read for a while, files have several names.

use super::source::{PATHS, Source};
use crate::transfer::tests::world::Draw;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mount point of file systems.
const MOUNT_POINT: &str = "m";
/// Paths in them.
const MOUNTED_PATHS: [&str; 3] = ["m/a", "m/b", "m/d/a"];

pub struct Devices {
    can_mount: bool,
    /// Whether modes concern the server.
    can_hide: bool,
    /// The file system that is mounted again and again.
    disk: PathBuf,
    is_mounted: bool,
    /// The server has looked while it was mounted.
    is_seen: bool,
    /// Published paths in it at the time of unmounting, which may not be deleted.
    pub lost: HashSet<String>,
}

impl Devices {
    pub fn new(disk: PathBuf, can_mount: bool) -> Devices {
        fs::create_dir(&disk).unwrap();
        // A file system that gives no number twice shows less.
        let numbers = [0; 2].map(|_| {
            fs::create_dir(disk.join("d")).unwrap();
            let number = disk.join("d").metadata().unwrap().ino();
            fs::remove_dir(disk.join("d")).unwrap();
            number
        });
        if numbers[0] != numbers[1] {
            println!("this file system doesn't give an inode's number to the next one (TMPDIR)");
        }
        let can_hide = rustix::process::geteuid().is_root();
        Devices { can_mount, can_hide, disk, is_mounted: false, is_seen: false, lost: HashSet::new() }
    }

    /// The server has looked.
    pub fn looked(&mut self) {
        self.is_seen = self.is_mounted;
    }
}

impl Source {
    /// Does something, and says what. `is_live`: whether a path is published.
    pub fn administer(&mut self, draw: &mut Draw, is_live: impl Fn(&str) -> bool) -> String {
        let (path, other) = (PATHS[draw.below(PATHS.len())], PATHS[draw.below(PATHS.len())]);
        let mounted = MOUNTED_PATHS[draw.below(MOUNTED_PATHS.len())];
        match draw.below(20) {
            0..4 => self.mount_or_unmount(draw, is_live),
            4..8 => self.write(mounted, draw.below(10), 1),
            8..10 => self.remove(mounted),
            10..13 => self.hide(path),
            13..16 => self.hard_link(path, other),
            // As a checkout of another branch does.
            _ => {
                self.remove(path);
                if draw.one_in(2) { self.make_dir(path) } else { self.write(&format!("{path}/a"), draw.below(10), 1) }
            }
        }
    }

    fn mount_or_unmount(&mut self, draw: &mut Draw, is_live: impl Fn(&str) -> bool) -> String {
        if !self.devices.can_mount {
            return "nothing can be mounted".to_owned();
        }
        let at = self.dir.join(MOUNT_POINT);
        if self.devices.is_mounted {
            let in_it = MOUNTED_PATHS.iter().filter(|path| is_live(path) && self.dir.join(path).exists());
            let lost: HashSet<_> = in_it.map(|path| (*path).to_owned()).collect();
            let is_seen = self.devices.is_seen;
            self.unmount();
            if is_seen {
                self.devices.lost = lost;
            }
            return format!("unmount {MOUNT_POINT}");
        }
        self.make_way(MOUNTED_PATHS[0]);
        (self.devices.is_mounted, self.devices.is_seen) = (true, false);
        self.devices.lost.clear();
        if draw.one_in(2) {
            mount_bind(&self.devices.disk, &at).unwrap();
            return format!("mount the disk on {MOUNT_POINT}");
        }
        mount("none", &at, "tmpfs", MountFlags::empty(), None).unwrap();
        format!("mount an empty file system on {MOUNT_POINT}")
    }

    pub fn unmount(&mut self) {
        if std::mem::take(&mut self.devices.is_mounted) {
            unmount(self.dir.join(MOUNT_POINT), UnmountFlags::DETACH).unwrap();
        }
        self.devices.lost.clear();
    }

    /// Makes something unreadable.
    fn hide(&mut self, path: &str) -> String {
        let at = self.dir.join(path);
        if !self.devices.can_hide || at.symlink_metadata().is_ok_and(|stat| stat.is_symlink()) || !at.exists() {
            return "nothing to hide".to_owned();
        }
        fs::set_permissions(at, Permissions::from_mode(0o000)).unwrap();
        format!("{path} can't be read")
    }

    /// Unreadable paths in readable directories.
    pub fn hidden(&self) -> Vec<String> {
        let (mut hidden, mut dirs) = (Vec::new(), vec![self.dir.clone()]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let (path, stat) = { entry.map(|entry| (entry.path(), entry.metadata().unwrap())) }.unwrap();
                if is_hidden(&stat) {
                    hidden.push(path.strip_prefix(&self.dir).unwrap().to_str().unwrap().to_owned());
                } else if stat.is_dir() {
                    dirs.push(path);
                }
            }
        }
        hidden
    }

    /// Everything can be read again.
    pub fn reveal(&self) {
        reveal(&self.dir);
    }

    fn hard_link(&mut self, from: &str, to: &str) -> String {
        let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|stat| stat.is_file());
        if from.starts_with(to) || !is_file(&self.dir.join(from)) {
            return "nothing to link".to_owned();
        }
        self.make_way(to);
        // What was in the way may have been this.
        if is_file(&self.dir.join(from)) {
            self.remove(to);
            self.finish_writing_to(&self.dir.join(from));
            fs::hard_link(self.dir.join(from), self.dir.join(to)).unwrap();
        }
        format!("another name of {from}: {to}")
    }
}

fn is_hidden(stat: &fs::Metadata) -> bool {
    !stat.is_symlink() && stat.mode() & 0o777 == 0
}

fn reveal(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let (path, stat) = { entry.map(|entry| (entry.path(), entry.metadata().unwrap())) }.unwrap();
        if is_hidden(&stat) {
            fs::set_permissions(&path, Permissions::from_mode(if stat.is_dir() { 0o755 } else { 0o644 })).unwrap();
        }
        if stat.is_dir() {
            reveal(&path);
        }
    }
}
