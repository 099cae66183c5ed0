//! The page for browsers, as it was when this was compiled: crates/tow/page.

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Security policy of the page: it loads nothing from elsewhere, and nobody may frame it. The icon is a `data:` URL.
pub const SECURITY_POLICY: &str =
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
pub struct File {
    path: &'static str,
    pub content_type: &'static str,
    pub content: &'static [u8],
}

macro_rules! file {
    ($path:literal, $content_type:expr, $name:literal) => {
        File { path: $path, content_type: $content_type, content: include_bytes!(concat!("../../page/", $name)) }
    };
}

/// All files. Another one needs a line here.
const FILES: &[File] = &[
    file!("/", HTML, "index.html"),
    file!("/style.css", CSS, "style.css"),
    file!("/main.js", SCRIPT, "main.js"),
    file!("/actions.js", SCRIPT, "actions.js"),
    file!("/api.js", SCRIPT, "api.js"),
    file!("/cell.js", SCRIPT, "cell.js"),
    file!("/charts.js", SCRIPT, "charts.js"),
    file!("/dialog.js", SCRIPT, "dialog.js"),
    file!("/dom.js", SCRIPT, "dom.js"),
    file!("/format.js", SCRIPT, "format.js"),
    file!("/history.js", SCRIPT, "history.js"),
    file!("/journal.js", SCRIPT, "journal.js"),
    file!("/links.js", SCRIPT, "links.js"),
    file!("/list.js", SCRIPT, "list.js"),
    file!("/overview.js", SCRIPT, "overview.js"),
    file!("/problems.js", SCRIPT, "problems.js"),
    file!("/table.js", SCRIPT, "table.js"),
    file!("/thing.js", SCRIPT, "thing.js"),
    file!("/views.js", SCRIPT, "views.js"),
    // Of others, as they made it. The licence goes with it.
    file!("/uplot.js", SCRIPT, "uplot.js"),
    file!("/uplot.css", CSS, "uplot.css"),
    file!("/uplot-license.txt", TEXT, "uplot-license.txt"),
];

/// The file at a path.
pub fn file(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_of_the_page_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir()
                || path.extension().is_none_or(|kind| !["html", "css", "js", "txt"].iter().any(|of| kind == *of))
            {
                continue;
            }
            let content = std::fs::read(&path).unwrap();
            assert!(FILES.iter().any(|file| file.content == content), "{} has no line in FILES", path.display());
        }
    }
}
