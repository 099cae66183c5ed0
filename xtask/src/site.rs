//! The documentation as a site: mdBook, no broken link, and a search that finds something.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{Outcome, check, in_ci};
use crate::{browser, cargo, target, workspace};

const MDBOOK: &str = "0.5.4";

/// Pages, and files that they link to: the site has the folders of the repository, so that links lead to the same places.
const CONTENT: &[&str] = &[
    ":(glob)*.md",
    "LICENSE",
    "docs",
    "examples",
    "packaging",
    "crates/*/examples/*",
    "fuzz/README.md",
    "python/README.md",
];

/// Where the table of contents is; mdBook wants it at the top.
const CONTENTS: &str = "docs/SUMMARY.md";

/// Builds the site in target/site/book.
pub fn run() -> Result<Outcome, String> {
    let mdbook = match mdbook() {
        Ok(mdbook) => mdbook,
        Err(why) if in_ci() => return Err(why),
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let site = target().join("site");
    let book = site.join("book");
    for folder in [site.join("src"), book.clone()] {
        let _ = std::fs::remove_dir_all(folder);
    }
    assemble(&site)?;
    check(Command::new(mdbook).args(["build", "--dest-dir"]).arg(&book).arg(&site))?;
    let broken = broken_links(&book)?;
    if !broken.is_empty() {
        return Err(format!("broken links:\n{}", broken.join("\n")));
    }
    if let Some(why) = browser::site(&book)? {
        println!("skipped: its search wasn't tried: {why}");
    }
    println!("{}", book.join("index.html").display());
    Ok(Outcome::Passed)
}

/// mdBook, which is installed below the target folder if `MDBOOK` doesn't name one.
fn mdbook() -> Result<PathBuf, String> {
    if let Some(mdbook) = std::env::var_os("MDBOOK") {
        return Ok(mdbook.into());
    }
    let tools = target().join("tools");
    let mdbook = tools.join("bin/mdbook");
    let version = |mdbook: &Path| Command::new(mdbook).arg("--version").output().ok().map(|output| output.stdout);
    if version(&mdbook).is_none_or(|version| !String::from_utf8_lossy(&version).ends_with(&format!("v{MDBOOK}\n"))) {
        // Without optimization: it compiles faster, and has little to do.
        let install = ["install", "mdbook", "--version", MDBOOK, "--locked", "--debug", "--force", "--quiet"];
        check(cargo().args(install).arg("--root").arg(&tools).arg("--target-dir").arg(tools.join("build")))?;
        let _ = std::fs::remove_dir_all(tools.join("build"));
    }
    Ok(mdbook)
}

/// Copies what the repository has of the content.
fn assemble(site: &Path) -> Result<(), String> {
    let listed = Command::new("git").args(["ls-files", "-z", "--"]).args(CONTENT).current_dir(workspace()).output();
    let listed = listed.map_err(|error| format!("git ls-files: {error}"))?.stdout;
    for path in String::from_utf8_lossy(&listed).split('\0').filter(|path| !path.is_empty()) {
        copy(path, &site.join("src").join(path))?;
    }
    let contents = std::fs::read_to_string(workspace().join(CONTENTS)).map_err(|e| format!("{CONTENTS}: {e}"))?;
    let moved = contents.replace("](", "](docs/").replace("](docs/../", "](");
    std::fs::write(site.join("src/SUMMARY.md"), moved).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_file(site.join("src").join(CONTENTS));
    copy("docs/book.toml", &site.join("book.toml"))
}

fn copy(path: &str, to: &Path) -> Result<(), String> {
    let copied =
        std::fs::create_dir_all(to.with_file_name("")).and_then(|()| std::fs::copy(workspace().join(path), to));
    copied.map(drop).map_err(|error| format!("{path}: {error}"))
}

/// Links within the site that lead nowhere, each with its page.
fn broken_links(book: &Path) -> Result<Vec<String>, String> {
    let mut pages = Vec::new();
    html_files(book, &mut pages).map_err(|error| format!("{}: {error}", book.display()))?;
    let read = |page: &PathBuf| std::fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()));
    let texts = pages.iter().map(|page| Ok((page.clone(), read(page)?))).collect::<Result<HashMap<_, _>, String>>()?;
    let anchors: HashMap<&PathBuf, HashSet<&str>> =
        texts.iter().map(|(page, text)| (page, values(text, "id").collect())).collect();
    let mut broken = Vec::new();
    for (page, text) in &texts {
        for link in values(text, "href").chain(values(text, "src")).filter(|link| !is_elsewhere(link)) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let leads_to = if path.is_empty() { page.clone() } else { page.with_file_name("").join(path) };
            let leads_to = leads_to.canonicalize().unwrap_or(leads_to);
            let has_anchor = || anchors.get(&leads_to).is_some_and(|anchors| anchors.contains(anchor));
            if !leads_to.is_file() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {link}", page.strip_prefix(book).unwrap_or(page).display()));
            }
        }
    }
    broken.sort();
    broken.dedup();
    Ok(broken)
}

/// Pages for readers, by their real paths: not the one with all pages in one, whose links are those of the pages.
fn html_files(folder: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            html_files(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "html")
            && !path.ends_with("print.html")
            && !path.ends_with("404.html")
        {
            into.push(path.canonicalize()?);
        }
    }
    Ok(())
}

/// Values of an attribute, as mdBook writes them.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {attribute}=\"");
    text.match_indices(&begin)
        .map(|(at, _)| at + begin.len())
        .collect::<Vec<_>>()
        .into_iter()
        .filter_map(|at| text[at..].split_once('"').map(|(value, _)| value))
}

fn is_elsewhere(link: &str) -> bool {
    link.is_empty() || link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found() {
        let folder = target().join("xtask/site-test");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("a")).expect("a folder");
        let page = r##"<h1 id="top">x</h1><a href="a/b.html#there">1</a><a href="a/b.html#nowhere">2</a><a href="https://example.org/">3</a>"##;
        std::fs::write(folder.join("page.html"), page).expect("write");
        std::fs::write(folder.join("a/b.html"), r##"<p id="there"><a href="../page.html#top"></a><img src="c.png">"##)
            .expect("write");
        let broken = broken_links(&folder.canonicalize().expect("a path")).expect("read");
        assert_eq!(broken, ["a/b.html: c.png", "page.html: a/b.html#nowhere"]);
    }
}
