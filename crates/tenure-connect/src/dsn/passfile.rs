//! The password file (`PGPASSFILE`, `~/.pgpass`).

use std::io;
use std::path::Path;

use super::Secret;

/// What a line of the file is matched with.
pub(super) struct Subject<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
}

/// The first matching password.
///
/// A file that others may read is ignored with a warning, as libpq does: using it would bless the
/// leak. A missing file is no error, a password may not be needed.
pub(super) fn lookup(path: &Path, subject: &Subject<'_>) -> Option<Secret> {
    let content = match read_private(path) {
        Ok(content) => content?,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "password file cannot be read and is ignored");
            }
            return None;
        }
    };
    content.lines().find_map(|line| match_line(line, subject))
}

fn read_private(path: &Path) -> io::Result<Option<String>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            tracing::warn!(path = %path.display(), "password file is not a plain file and is ignored");
            return Ok(None);
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            tracing::warn!(path = %path.display(), "password file has group or world access and is ignored; set its mode to 0600");
            return Ok(None);
        }
    }
    std::fs::read_to_string(path).map(Some)
}

fn match_line(line: &str, subject: &Subject<'_>) -> Option<Secret> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line;
    let port = subject.port.to_string();
    for wanted in [subject.host, &port, subject.database, subject.user] {
        let (field, tail) = field(rest)?;
        if !(field.raw == "*" || field.text == wanted) {
            return None;
        }
        rest = tail;
    }
    // The password runs to the next bare colon or the end of the line.
    let password = field_text(rest).0;
    (!password.is_empty()).then(|| Secret::new(password))
}

struct Field<'a> {
    raw: &'a str,
    text: String,
}

fn field(rest: &str) -> Option<(Field<'_>, &str)> {
    let (text, length) = field_text(rest);
    let tail = rest.get(length..)?.strip_prefix(':')?;
    Some((Field { raw: &rest[..length], text }, tail))
}

/// The unescaped text up to a bare colon, and its length in the line.
fn field_text(rest: &str) -> (String, usize) {
    let mut text = String::new();
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            ':' if !escaped => return (text, at),
            c => {
                escaped = false;
                text.push(c);
            }
        }
    }
    (text, rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: Subject<'_> =
        Subject { host: "db:1", port: 5432, database: "app", user: "leader" };

    #[test]
    fn a_line_matches_by_name_or_star_and_unescapes() {
        for (line, password) in [
            (r"db\:1:5432:app:leader:s3c\:ret", Some("s3c:ret")),
            (r"*:*:*:*:back\\slash", Some(r"back\slash")),
            ("*:*:*:*:first:second", Some("first")),
            ("*:5433:*:*:x", None),
            (r"\*:*:*:*:x", None),
            ("#*:*:*:*:x", None),
            ("*:*:*", None),
            ("*:*:*:*:", None),
        ] {
            let found = match_line(line, &SUBJECT);
            assert_eq!(found.as_ref().map(Secret::reveal), password, "{line}");
        }
    }
}
