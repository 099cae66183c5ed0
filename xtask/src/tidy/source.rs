//! The files that the rules look at.

use std::process::Command;

use super::lexer::{Kind, Token, lex};
use crate::workspace;

/// The text files of the work tree that git tracks, or would track.
pub struct Tree {
    pub files: Vec<File>,
}

/// A file, its path relative to the workspace.
pub struct File {
    pub path: String,
    pub text: String,
    /// The tokens of a Rust file; none of any other.
    pub tokens: Vec<Token>,
    /// Compiled for tests alone: under `tests/` or `benches/`, or declared below `#[cfg(test)]`.
    pub test: bool,
}

impl Tree {
    /// Reads the files that git lists.
    pub fn load() -> Result<Self, String> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(workspace());
        let output = git.output().map_err(|error| format!("cannot run git: {error}"))?;
        if !output.status.success() {
            return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let listed = String::from_utf8_lossy(&output.stdout);
        let mut paths: Vec<&str> = listed.split_terminator('\0').filter(|path| is_checked(path)).collect();
        paths.sort_unstable();
        paths.dedup();
        // A listed file that can't be read has just been removed, or is no text.
        let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(workspace().join(path)).ok()?));
        Ok(Self::new(paths.into_iter().filter_map(read)))
    }

    /// A tree of the given paths and contents.
    pub fn new(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let lexed = |(path, text): (String, String)| {
            let tokens = if path.ends_with(".rs") { lex(&text) } else { Vec::new() };
            let test = ["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder))
                || path.ends_with("/tests.rs");
            File { path, text, tokens, test }
        };
        let mut files: Vec<File> = files.into_iter().map(lexed).collect();
        let declared: Vec<String> = files.iter().flat_map(test_modules).collect();
        for file in &mut files {
            let stem = file.path.trim_end_matches(".rs");
            let below = |module: &String| stem == module || stem.starts_with(&format!("{module}/"));
            file.test |= declared.iter().any(below);
        }
        Self { files }
    }

    /// The Rust files of a crate's `src` that aren't for tests alone.
    pub fn product<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a File> {
        let source = format!("{folder}/src/");
        self.files.iter().filter(move |file| file.path.starts_with(&source) && file.path.ends_with(".rs") && !file.test)
    }
}

impl File {
    /// The code's tokens: no comments, no items under `#[cfg(test)]`.
    pub fn code(&self) -> Vec<&Token> {
        let tokens: Vec<&Token> =
            self.tokens.iter().filter(|token| !matches!(token.kind, Kind::Comment { .. })).collect();
        let mut code = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            if let Some(attribute) = cfg_test(&tokens[at..]) {
                at = end_of_item(&tokens, at + attribute);
            } else {
                code.push(tokens[at]);
                at += 1;
            }
        }
        code
    }
}

/// Corpora and lock files are data.
fn is_checked(path: &str) -> bool {
    [
        ".rs", ".md", ".py", ".js", ".mjs", ".html", ".css", ".toml", ".service", ".roff", ".sh", ".java", ".go", ".c",
        ".h", ".yml",
    ]
    .iter()
    .any(|end| path.ends_with(end))
}

/// The length of the attribute that the tokens begin with, if it keeps an item to tests: `#[cfg(test)]` or `#[cfg(any(test, ...))]`.
fn cfg_test(tokens: &[&Token]) -> Option<usize> {
    let begins = |words: &[&str]| {
        tokens.len() >= words.len()
            && words.iter().zip(tokens).all(|(wanted, token)| match &token.kind {
                Kind::Word(word) => word == wanted,
                Kind::Punct(punct) => wanted.chars().eq([*punct]),
                _ => false,
            })
    };
    let is_for_tests =
        begins(&["#", "[", "cfg", "(", "test", ")"]) || begins(&["#", "[", "cfg", "(", "any", "(", "test"]);
    is_for_tests.then(|| tokens.iter().position(|token| token.is(']')).map_or(tokens.len(), |end| end + 1))
}

/// The position behind the item that begins at `at`: behind its first `;` or closing brace outside of other brackets.
fn end_of_item(tokens: &[&Token], mut at: usize) -> usize {
    let mut depth = 0usize;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.kind {
            Kind::Punct('{' | '(' | '[') => depth += 1,
            Kind::Punct('}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    break;
                }
            }
            Kind::Punct(')' | ']') => depth = depth.saturating_sub(1),
            Kind::Punct(';') if depth == 0 => break,
            _ => {}
        }
    }
    at
}

/// The paths, without `.rs`, of modules that the file declares under `#[cfg(test)]`.
fn test_modules(file: &File) -> Vec<String> {
    let tokens: Vec<&Token> = file.tokens.iter().filter(|token| !matches!(token.kind, Kind::Comment { .. })).collect();
    let stem = file.path.trim_end_matches(".rs");
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let folder = if ["mod", "lib", "main"].contains(&name) { folder } else { stem };
    let declared = (0..tokens.len()).filter_map(|at| {
        let item = &tokens[at + cfg_test(&tokens[at..])?..];
        let at = item.iter().position(|token| token.word() == Some("mod"))?;
        let name = item.get(at + 1)?.word()?;
        (at <= 4 && item.get(at + 2)?.is(';')).then(|| format!("{folder}/{name}"))
    });
    declared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::new(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())))
    }

    #[test]
    fn code_leaves_out_comments_and_test_items() {
        let text =
            "// no\nfn a() { b } #[cfg(test)] mod tests { fn no() { [x; 2] } } #[cfg(test)] use no::no; fn c() {}";
        let tree = tree(&[("crates/x/src/lib.rs", text)]);
        let words: Vec<_> = tree.files[0].code().into_iter().filter_map(Token::word).collect();
        assert_eq!(words, ["fn", "a", "b", "fn", "c"]);
    }

    #[test]
    fn modules_declared_for_tests_are_test_files() {
        let tree = tree(&[
            ("crates/x/src/lib.rs", "#[cfg(any(test, feature = \"fake\"))]\npub(crate) mod fake;\nmod real;"),
            ("crates/x/src/fake.rs", ""),
            ("crates/x/src/fake/disk.rs", ""),
            ("crates/x/src/real.rs", "#[cfg(test)]\nmod fake;"),
            ("crates/x/src/real/fake.rs", ""),
            ("crates/x/tests/all.rs", ""),
        ]);
        let product: Vec<_> = tree.product("crates/x").map(|file| file.path.as_str()).collect();
        assert_eq!(product, ["crates/x/src/lib.rs", "crates/x/src/real.rs"]);
    }
}
