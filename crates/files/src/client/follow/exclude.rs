//! What isn't followed although it is below what is: `--exclude`.

use crate::path::RelPath;
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Globs of paths below what is followed that are left out, each with all below it. One without a slash matches names anywhere.
#[derive(Clone, Debug, Default)]
pub struct Excludes(Vec<Exclude>);

#[derive(Clone, Debug)]
struct Exclude {
    glob: String,
    matcher: GlobMatcher,
    is_name: bool,
}

impl Excludes {
    /// Compiles them.
    ///
    /// # Errors
    /// One that isn't a glob, and why.
    pub fn new(globs: impl IntoIterator<Item = String>) -> Result<Excludes, String> {
        let compiled = globs.into_iter().map(|glob| {
            let pattern = glob.trim_start_matches('/').trim_end_matches('/');
            if pattern.is_empty() {
                return Err(format!("{glob:?} excludes nothing or everything"));
            }
            let built = GlobBuilder::new(pattern).literal_separator(true).empty_alternates(true).build();
            let matcher = built.map_err(|error| error.to_string())?.compile_matcher();
            let is_name = !glob.trim_end_matches('/').contains('/');
            Ok(Exclude { glob, matcher, is_name })
        });
        let mut compiled = compiled.collect::<Result<Vec<_>, _>>()?;
        compiled.sort_by(|one, other| one.glob.cmp(&other.glob));
        compiled.dedup_by(|one, other| one.glob == other.glob);
        Ok(Excludes(compiled))
    }

    /// As they were given, in the order of their bytes.
    pub fn globs(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|exclude| &exclude.glob[..])
    }

    /// Whether a path below what is followed is left out.
    pub fn has(&self, path: &RelPath) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let bytes = path.as_bytes();
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let mut above = ends.chain([bytes.len()]).filter_map(|end| bytes.get(..end));
        above.any(|path| {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let is_match = |exclude: &Exclude| {
                exclude.matcher.is_match(OsStr::from_bytes(if exclude.is_name { name } else { path }))
            };
            self.0.iter().any(is_match)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_anywhere_and_paths_from_the_top() {
        for (glob, excluded, kept) in [
            ("*.tmp", &["a.tmp", "d/a.tmp", "d.tmp/x/y"][..], &["tmp", "a.tmp2", "d/tmp"][..]),
            ("cache/", &["cache", "a/cache/x"], &["caches", "a/b"]),
            ("/cache", &["cache", "cache/x"], &["a/cache", "caches"]),
            ("a/*.bin", &["a/x.bin", "a/x.bin/y"], &["x.bin", "b/a/x.bin", "a/b/x.bin"]),
            ("a/**/x", &["a/x", "a/b/c/x"], &["x", "b/x"]),
            ("{x,y}", &["x", "d/y"], &["z"]),
        ] {
            let excludes = Excludes::new([glob.to_owned()]).unwrap();
            assert!(excluded.iter().all(|path| excludes.has(&path.parse().unwrap())), "{glob}");
            assert!(!kept.iter().any(|path| excludes.has(&path.parse().unwrap())), "{glob}");
        }
        assert!(!Excludes::default().has(&"a".parse().unwrap()));
        for wrong in ["[", "", "/", "{a"] {
            assert!(Excludes::new([wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
