//! The served files as far as one client may see them: every access to files that a client causes goes through here.
//!
//! Files of transfers in progress, of followers and other secrets aren't there for anybody. Rules are about paths with links resolved. What a
//! client may not see answers as what isn't there does, so an error says more only about what may be seen.

use super::resource_errors::Shortage;
use super::source::{Attributes, Opened, OpenedDir, Source};
use crate::path::{RelPath, VERSIONS_NAME, is_reserved};
use crate::protocol::manifest::{self, OF_PREFIX, TREE, VersionName};
use crate::root::{FileKind, FileStat, Root, RootError, Timestamp, is_local};
use std::fs::File;
use std::sync::Arc;
use towpath_rules::{Permissions, Verb};

/// The served files, as far as one client may see them.
#[derive(Debug)]
pub(super) struct ClientRoot {
    source: Arc<dyn Source>,
    permissions: Permissions,
    /// The same root, through no link. `None`: everything is allowed, or there are no links.
    linkless: Option<Root>,
}

/// A directory, and its path with links resolved.
#[derive(Debug)]
pub(super) struct SeenDir {
    pub(super) dir: OpenedDir,
    pub(super) path: RelPath,
}

impl ClientRoot {
    pub(super) fn new(source: Arc<dyn Source>, permissions: Permissions) -> ClientRoot {
        // A root of one file has no links below it, and other sources have none at all.
        let linked = source.local().filter(|root| root.only_file().is_none() && !permissions.is_unrestricted());
        let linkless = linked.map(Root::without_links);
        ClientRoot { source, permissions, linkless }
    }

    /// The source, of what leads through no link.
    fn direct(&self) -> &dyn Source {
        match &self.linkless {
            Some(linkless) => linkless,
            None => &*self.source,
        }
    }

    /// Whether something is allowed for a path. What is in a version is also where it was when it was published.
    fn may(&self, verb: Verb, path: &[u8]) -> bool {
        self.permissions.may(verb, path) && original(path).is_none_or(|path| self.permissions.may(verb, path))
    }

    fn reaches(&self, verb: Verb, path: &[u8]) -> bool {
        self.permissions.may_reach(verb, path)
            && original(path).is_none_or(|path| self.permissions.may_reach(verb, path))
    }

    /// Learns of files that will be opened soon, as far as they may be read.
    pub(super) fn will_open(&self, paths: impl Iterator<Item = RelPath>) {
        if self.source.local().is_none() {
            let paths: Vec<_> = paths.filter(|path| self.may(Verb::Read, path.as_bytes())).collect();
            self.source.will_open(&mut paths.iter());
        }
    }

    pub(super) fn only_file(&self) -> Option<&RelPath> {
        self.source.local()?.only_file()
    }

    /// See [`Root::mounted_below`].
    pub(super) fn mounted_below(&self, path: &RelPath) -> Option<u64> {
        self.source.local()?.mounted_below(path)
    }

    /// See [`Root::is_local`].
    pub(super) fn is_local(&self, file: &File, stat: &FileStat) -> bool {
        self.source.local().map_or_else(|| is_local(file), |root| root.is_local(file, stat))
    }

    /// Whether a name may be there for this client: of what is seen, or of a directory on the way to it. `path` has no links.
    pub(super) fn may_see(&self, path: &[u8], kind: FileKind) -> bool {
        let is_allowed = self.may(Verb::List, path) || (kind == FileKind::Dir && self.reaches(Verb::List, path));
        is_allowed && !self.is_reserved(path)
    }

    /// Whether a path has a name that is there for nobody.
    fn is_reserved(&self, path: &[u8]) -> bool {
        let below_versions =
            path.strip_prefix(VERSIONS_NAME).filter(|_| self.source.local().is_some_and(Root::has_versions));
        let below_versions = below_versions.filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
        let mut names = below_versions.unwrap_or(path).split(|byte| *byte == b'/');
        // One that isn't whole yet has another name than a label.
        let is_unfinished = below_versions
            .and_then(|_| names.clone().nth(1))
            .is_some_and(|name| !is_label(name) && !name.starts_with(&[OF_PREFIX]));
        is_unfinished || names.any(is_reserved)
    }

    /// Metadata as the client may know it: size and time of a directory depend on all that is in it.
    pub(super) fn shown(&self, real: &[u8], of: Attributes) -> Attributes {
        let sees_all = of.kind != FileKind::Dir || self.permissions.may_all(Verb::List, original(real).unwrap_or(real));
        if sees_all { of } else { Attributes { size: 0, modified: Timestamp::default(), ..of } }
    }

    /// See [`Root::is_secret`].
    pub(super) fn is_secret(&self, of: &Attributes) -> bool {
        self.source.local().zip(of.local).is_some_and(|(root, stat)| root.is_secret(&stat))
    }

    /// An error unless a path through no link may be there for clients: under its own names, which rules are about.
    fn check_place(&self, real: &RelPath) -> Result<(), RootError> {
        let is_spelled = match &self.linkless {
            _ if self.is_reserved(real.as_bytes()) => Ok(false),
            Some(linkless) => linkless.is_spelled(real),
            None => Ok(true),
        };
        match is_spelled {
            Ok(true) => Ok(()),
            Ok(false) => Err(RootError::NotFound),
            Err(error) => Err(hidden(Some(error))),
        }
    }

    /// The found entry, unless it is secret.
    fn unless_secret<T>(&self, found: T, of: &Attributes) -> Result<T, RootError> {
        if self.is_secret(of) { Err(RootError::NotFound) } else { Ok(found) }
    }

    /// Whether [`ClientRoot::may_see`] would be true for a directory. False for everything that the client may not see.
    pub(super) fn may_reach(&self, path: &[u8]) -> bool {
        self.reaches(Verb::List, path)
    }

    /// See [`Source::open`].
    pub(super) fn open_file(&self, path: &RelPath) -> Result<Opened, RootError> {
        self.noted(path, self.open_file_quietly(path))
    }

    /// The same without a word to the operator if it may not be read.
    pub(super) fn open_file_quietly(&self, path: &RelPath) -> Result<Opened, RootError> {
        let opened = match self.linkless.as_ref().map(|linkless| (linkless, linkless.open(path))) {
            None => self.check_read(self.subject(path)).and_then(|()| {
                self.check_place(path)?;
                self.source.open(path)
            }),
            Some((linkless, Err(RootError::Outside))) => {
                let real = self.resolve(path)?;
                self.check_read(real.as_bytes())?;
                self.check_place(&real)?;
                linkless.open(&real)
            }
            Some((_, opened)) => self.checked(path, opened),
        };
        let opened = opened?;
        let attributes = opened.attributes;
        self.unless_secret(opened, &attributes)
    }

    /// See [`Root::open_unmounted_file`]. `None` of other sources.
    pub(super) fn open_unmounted_file(&self, path: &RelPath) -> Result<Option<Opened>, RootError> {
        Ok(self.open_directly(path, Root::open_unmounted_file, ClientRoot::check_place)?.map(Opened::from))
    }

    /// See [`Root::open_cached_file`]. `None` of other sources.
    pub(super) fn open_cached_file(&self, path: &RelPath) -> Result<Option<(File, FileStat)>, RootError> {
        // What may block is left to [`ClientRoot::open_file`].
        if !self.linkless.as_ref().is_none_or(|linkless| linkless.is_known_to_be_spelled(path)) {
            return Ok(None);
        }
        let check = |root: &ClientRoot, path: &RelPath| {
            if root.is_reserved(path.as_bytes()) { Err(RootError::NotFound) } else { Ok(()) }
        };
        self.open_directly(path, Root::open_cached_file, check)
    }

    /// Opens a file if it is at this very path; `None` if there are links, which [`ClientRoot::open_file`] follows, or as `open` says.
    fn open_directly(
        &self,
        path: &RelPath,
        open: impl Fn(&Root, &RelPath) -> Result<Option<(File, FileStat)>, RootError>,
        check_place: impl Fn(&ClientRoot, &RelPath) -> Result<(), RootError>,
    ) -> Result<Option<(File, FileStat)>, RootError> {
        let Some(root) = self.source.local() else { return Ok(None) };
        let opened = match self.linkless.as_ref().map(|linkless| open(linkless, path)) {
            None => self.check_read(self.subject(path)).and_then(|()| open(root, path)),
            Some(Ok(None) | Err(RootError::Outside)) => return Ok(None),
            Some(opened) => self.permitted(path, opened),
        };
        let opened = opened.and_then(|opened| {
            check_place(self, path)?;
            match opened {
                Some((_, stat)) => self.unless_secret(opened, &stat.into()),
                None => Ok(None),
            }
        });
        self.noted(path, opened)
    }

    /// Logs an outcome that the rules decided.
    fn noted<T>(&self, path: &RelPath, outcome: Result<T, RootError>) -> Result<T, RootError> {
        if matches!(outcome, Err(RootError::NotAllowed | RootError::NotFound)) {
            self.permissions.note_refusal(Verb::Read, self.subject(path));
        }
        outcome
    }

    /// See [`Source::stat`].
    pub(super) fn stat(&self, path: &RelPath) -> Result<Attributes, RootError> {
        let real = self.place_of(path)?;
        self.seen(&real, self.direct().stat(&real))
    }

    /// See [`Root::stat_followed`].
    pub(super) fn stat_followed(&self, path: &RelPath) -> Result<Attributes, RootError> {
        match (&self.linkless, self.source.local()) {
            (Some(_), _) => {
                let real = self.resolve(path)?;
                self.seen(&real, self.direct().stat(&real))
            }
            (None, Some(root)) => self.seen(path, root.stat_followed(path).map(Attributes::from)),
            (None, None) => self.stat(path),
        }
    }

    /// See [`Root::read_link`].
    pub(super) fn read_link(&self, path: &RelPath) -> Result<Vec<u8>, RootError> {
        let real = self.place_of(path)?;
        let root = self.linkless.as_ref().or(self.source.local()).ok_or(RootError::NotFound)?;
        let target = root.read_link(&real);
        if !self.may_see(real.as_bytes(), FileKind::Link) {
            return Err(hidden(target.err()));
        }
        self.check_place(&real)?;
        target
    }

    /// See [`Source::open_dir`].
    pub(super) fn open_dir(&self, path: &RelPath) -> Result<SeenDir, RootError> {
        let real = if self.linkless.is_some() { self.resolve(path)? } else { path.clone() };
        let dir = self.direct().open_dir(&real);
        if !self.may_reach(real.as_bytes()) {
            return Err(hidden(dir.err()));
        }
        self.check_place(&real)?;
        let seen = SeenDir { dir: dir?, path: real };
        match &seen.dir {
            OpenedDir::Local(dir) => {
                let own = dir.own_stat()?.into();
                self.unless_secret(seen, &own)
            }
            OpenedDir::Pages(_) => Ok(seen),
        }
    }

    /// The path as rules know it, if it leads through no link: that of the one file has a name.
    fn subject<'a>(&'a self, path: &'a RelPath) -> &'a [u8] {
        if path.is_root() { self.only_file().unwrap_or(path).as_bytes() } else { path.as_bytes() }
    }

    /// The target of a path, through links.
    fn resolve(&self, path: &RelPath) -> Result<RelPath, RootError> {
        // Whatever is wrong, it may be wrong with something that isn't to be seen.
        let Some(root) = self.source.local() else { return Ok(path.clone()) };
        root.real_path(path).map_err(|error| hidden(Some(error)))
    }

    /// The place of a name, through links above it.
    fn place_of(&self, path: &RelPath) -> Result<RelPath, RootError> {
        match path.split() {
            Some((parent, name)) if self.linkless.is_some() => Ok(self.resolve(&parent)?.join(name)?),
            _ => Ok(path.clone()),
        }
    }

    fn check_read(&self, subject: &[u8]) -> Result<(), RootError> {
        if self.may(Verb::Read, subject) {
            return Ok(());
        }
        let is_seen = self.may(Verb::List, subject);
        Err(if is_seen { RootError::NotAllowed } else { RootError::NotFound })
    }

    /// The outcome for a path through no link, as the client may know it.
    fn checked<T>(&self, path: &RelPath, outcome: Result<T, RootError>) -> Result<T, RootError> {
        let outcome = self.permitted(path, outcome)?;
        self.check_place(path)?;
        Ok(outcome)
    }

    /// The same, whatever the names are.
    fn permitted<T>(&self, path: &RelPath, outcome: Result<T, RootError>) -> Result<T, RootError> {
        match (self.check_read(self.subject(path)), outcome) {
            (Ok(()), outcome) => outcome,
            (Err(_), Err(error)) if Shortage::is_why(&error) => Err(error),
            (Err(refused), _) => Err(refused),
        }
    }

    fn seen(&self, real: &RelPath, found: Result<Attributes, RootError>) -> Result<Attributes, RootError> {
        let kind = found.as_ref().map_or(FileKind::Other, |found| found.kind);
        if self.may_see(self.subject(real), kind) {
            self.check_place(real)?;
            return found.and_then(|found| self.unless_secret(self.shown(real.as_bytes(), found), &found));
        }
        self.permissions.note_refusal(Verb::List, self.subject(real));
        Err(hidden(found.err()))
    }
}

/// The error for what may not be seen.
fn hidden(error: Option<RootError>) -> RootError {
    error.filter(Shortage::is_why).unwrap_or(RootError::NotFound)
}

fn is_label(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(manifest::is_label)
}

/// The original path of an entry in a version.
fn original(path: &[u8]) -> Option<&[u8]> {
    let (_, rest) = VersionName::split_known(path)?;
    let rest = rest.strip_prefix(TREE.as_bytes())?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;
    use towpath_rules::{Origin, Rules};

    /// A root of which everything may be seen.
    pub(in crate::server) fn served(path: &Path) -> ClientRoot {
        ClientRoot::new(Arc::new(Root::serve(path).unwrap()), Permissions::unrestricted())
    }

    fn seen_by_anyone(path: &Path, rules: &str) -> ClientRoot {
        let permissions = Rules::parse(rules).unwrap().permissions(None, Origin::Local);
        ClientRoot::new(Arc::new(Root::serve(path).unwrap()), permissions)
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn what_is_in_a_version_is_judged_by_where_it_was() {
        let temp = tempfile::tempdir().unwrap();
        for name in [
            "served/open/a",
            "versions/v1/manifest",
            "versions/v1/tree/open/a",
            "versions/v1/tree/secret/s",
            "versions/.new-v2/tree/open/a",
            "versions/=secret/v1/tree/secret/s",
        ] {
            let file = temp.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, name).unwrap();
        }
        let versions = Root::directory(temp.path().join("versions"), crate::root::Links::Never).unwrap();
        let root = Root::serve(temp.path().join("served")).unwrap().with_versions(Some(Arc::new(versions)));
        let rules = "allow anyone to read **\ndeny anyone to read secret\n";
        let root = ClientRoot::new(Arc::new(root), Rules::parse(rules).unwrap().permissions(None, Origin::Local));
        for readable in ["open/a", ".tow-versions/v1/manifest", ".tow-versions/v1/tree/open/a"] {
            assert!(root.open_file(&path(readable)).is_ok(), "{readable}");
        }
        // As where it was.
        // Nor what isn't whole yet.
        let unfinished = ".tow-versions/.new-v2/tree/open/a";
        let of_secret = ".tow-versions/=secret/v1/tree/secret/s";
        for secret in ["secret/s", ".tow-versions/v1/tree/secret/s", of_secret, unfinished] {
            let secret = path(secret);
            assert!(root.open_file(&secret).is_err(), "{secret}");
            assert!(!matches!(root.open_cached_file(&secret), Ok(Some(_))), "{secret}");
        }
        assert!(root.open_dir(&path(".tow-versions/v1/tree")).is_ok());
    }

    #[test]
    fn links_are_judged_by_where_they_lead() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["open/a", "open/deep/b", "secret/s", "names/n"] {
            let file = temp.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, name).unwrap();
        }
        for (link, target) in [
            ("open/to_secret", "../secret"),
            ("open/to_s", "../secret/s"),
            ("open/to_a", "a"),
            ("elsewhere", "open/deep"),
            ("open/dangling", "nowhere"),
            ("open/out", "/etc"),
        ] {
            std::os::unix::fs::symlink(target, temp.path().join(link)).unwrap();
        }
        let rules = "allow anyone to read open\nallow anyone to list names\n";
        let root = seen_by_anyone(temp.path(), rules);
        for readable in ["open/a", "open/deep/b", "open/to_a", "elsewhere/b"] {
            assert!(root.open_file(&path(readable)).is_ok(), "{readable}");
        }
        for hidden in [
            "secret/s",
            "open/to_s",
            "open/to_secret/s",
            "open/to_secret",
            "open/dangling",
            "open/out",
            "open/no",
            "secret/no",
            "secret",
        ] {
            let error = root.open_file(&path(hidden)).unwrap_err();
            assert!(matches!(error, RootError::NotFound), "{hidden}: {error}");
            let cached = root.open_cached_file(&path(hidden));
            assert!(matches!(cached, Ok(None) | Err(RootError::NotFound)), "{hidden}: {cached:?}");
        }
        let error = root.open_file(&path("names/n")).unwrap_err();
        assert!(matches!(error, RootError::NotAllowed), "{error}");
        assert!(root.stat(&path("names/n")).is_ok() && root.stat(&path("open/to_secret")).is_ok());
        assert!(root.stat(&path("elsewhere/b")).is_ok() && root.stat_followed(&path("elsewhere")).is_ok());
        for hidden in ["secret", "secret/s", "open/to_secret/s", "elsewhere"] {
            assert!(matches!(root.stat(&path(hidden)), Err(RootError::NotFound)), "{hidden}");
        }
        assert!(matches!(root.stat_followed(&path("open/to_s")), Err(RootError::NotFound)));
        assert!(matches!(root.open_dir(&path("open/to_secret")), Err(RootError::NotFound)));
        assert!(matches!(root.read_link(&path("elsewhere")), Err(RootError::NotFound)));
        assert_eq!(root.read_link(&path("open/to_s")).unwrap(), b"../secret/s");
        assert_eq!(root.open_dir(&path("elsewhere")).unwrap().path, path("open/deep"));
        assert!(root.open_dir(&RelPath::root()).is_ok());
    }

    #[test]
    fn one_file_is_known_by_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("notes");
        std::fs::write(&file, "x").unwrap();
        let root = seen_by_anyone(&file, "allow anyone to read notes\n");
        assert!(root.open_file(&path("notes")).is_ok() && root.open_file(&RelPath::root()).is_ok());
        assert!(root.stat(&RelPath::root()).is_ok());
        let root = seen_by_anyone(&file, "allow anyone to read other\n");
        assert!(matches!(root.open_file(&RelPath::root()), Err(RootError::NotFound)));
        assert!(matches!(root.stat(&RelPath::root()), Err(RootError::NotFound)));
    }
}
