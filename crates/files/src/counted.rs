//! Numbers of things in messages for people.

/// A number of things: `1 file`, `2 files`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The same of things that are said to be something: `1 file is`, `2 files are`.
pub fn counted_are(count: u64, what: &str) -> String {
    format!("{} {}", counted(count, what), if count == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "file")), ["0 files", "1 file", "2 files"]);
        assert_eq!([1, 2].map(|count| counted_are(count, "deletion")), ["1 deletion is", "2 deletions are"]);
    }
}
