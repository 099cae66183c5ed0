//! Folders and files of a disk in memory.

use super::BLOCK_BYTES;
use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) attributes: FileAttr,
    pub(super) content: Vec<u8>,
    pub(super) names: BTreeMap<OsString, u64>,
}

impl Node {
    pub(super) fn new(inode: u64, kind: FileType, mode: u32) -> Node {
        let now = SystemTime::now();
        let attributes = FileAttr {
            ino: INodeNo(inode),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm: (mode & 0o7777) as u16,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: BLOCK_BYTES,
        };
        Node { attributes, content: Vec::new(), names: BTreeMap::new() }
    }

    pub(super) fn resize(&mut self, size: u64) {
        self.content.resize(usize::try_from(size).unwrap_or(usize::MAX), 0);
        self.attributes.size = size;
        self.attributes.blocks = size.div_ceil(512);
    }
}

/// Nodes by inode. Unlinked ones stay, since the disk is short-lived.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: BTreeMap<u64, Node>,
    /// Names that this makes equal are one.
    fold: fn(&OsStr) -> OsString,
    /// Inode numbers that other spellings of names have, if they have their own.
    others: Option<BTreeMap<u64, u64>>,
}

/// From here on numbers are those of other spellings.
const OTHERS_FROM: u64 = 1 << 32;

impl Nodes {
    pub(super) fn new(fold: fn(&OsStr) -> OsString) -> Nodes {
        let root = Node::new(INodeNo::ROOT.0, FileType::Directory, 0o777);
        Nodes { nodes: BTreeMap::from([(INodeNo::ROOT.0, root)]), fold, others: None }
    }

    pub(super) fn unstable(fold: fn(&OsStr) -> OsString) -> Nodes {
        Nodes { others: Some(BTreeMap::new()), ..Nodes::new(fold) }
    }

    pub(super) fn node(&mut self, inode: INodeNo) -> Result<&mut Node, Errno> {
        let real = self.others.as_ref().and_then(|others| others.get(&inode.0)).copied().unwrap_or(inode.0);
        self.nodes.get_mut(&real).ok_or(Errno::ENOENT)
    }

    /// Attributes of what has a name, with the number of this spelling.
    pub(super) fn look_up(&mut self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let (inode, stored) = (self.find(parent, name)?, self.stored(parent, name)?);
        let attributes = self.node(inode)?.attributes;
        match &mut self.others {
            Some(others) if stored != name => {
                let other = OTHERS_FROM + others.len() as u64;
                others.insert(other, inode.0);
                Ok(FileAttr { ino: INodeNo(other), ..attributes })
            }
            _ => Ok(attributes),
        }
    }

    /// Bytes of all files that have a name.
    pub(super) fn bytes(&self) -> u64 {
        let named = self.nodes.values().filter(|node| node.attributes.nlink > 0);
        named.map(|node| node.attributes.size).sum()
    }

    pub(super) fn find(&mut self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        let stored = self.stored(parent, name)?;
        self.node(parent)?.names.get(&stored).copied().map(INodeNo).ok_or(Errno::ENOENT)
    }

    /// A name as the folder has it.
    fn stored(&mut self, parent: INodeNo, name: &OsStr) -> Result<OsString, Errno> {
        let (fold, wanted) = (self.fold, (self.fold)(name));
        let names = &self.node(parent)?.names;
        names.keys().find(|stored| fold(stored) == wanted).cloned().ok_or(Errno::ENOENT)
    }

    pub(super) fn make(&mut self, parent: INodeNo, name: &OsStr, kind: FileType, mode: u32) -> Result<FileAttr, Errno> {
        let inode = self.nodes.len() as u64 + 1;
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.node(parent)?.names.insert(name.to_owned(), inode);
        let node = self.nodes.entry(inode).or_insert(Node::new(inode, kind, mode));
        Ok(node.attributes)
    }

    pub(super) fn unlink(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let inode = self.find(parent, name)?;
        if !self.node(inode)?.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        let stored = self.stored(parent, name)?;
        self.node(parent)?.names.remove(&stored);
        self.node(inode)?.attributes.nlink = 0;
        Ok(())
    }

    pub(super) fn rename(&mut self, parent: INodeNo, name: &OsStr, to: INodeNo, as_name: &OsStr) -> Result<(), Errno> {
        let inode = self.find(parent, name)?;
        if self.find(to, as_name).is_ok() {
            self.unlink(to, as_name)?;
        }
        let stored = self.stored(parent, name)?;
        self.node(parent)?.names.remove(&stored);
        self.node(to)?.names.insert(as_name.to_owned(), inode.0);
        Ok(())
    }
}
