//! The connection service file (`PGSERVICEFILE`, `~/.pg_service.conf`, `pg_service.conf`).

use std::path::{Path, PathBuf};

use super::text::Pairs;
use super::{DsnError, Env, keyword};

/// The pairs of a service; it fills what the DSN leaves out, before the environment does.
pub(super) fn lookup(service: &str, env: &dyn Env) -> Result<Pairs, DsnError> {
    let mut searched = Vec::new();
    for (path, named) in candidates(env) {
        let content = match std::fs::read_to_string(&path) {
            Ok(content) => content,
            Err(source) if !named && source.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(DsnError::Read { path, source }),
        };
        if let Some(pairs) = section(&content, service, &path)? {
            return Ok(pairs);
        }
        searched.push(path);
    }
    Err(DsnError::NoService { service: service.to_owned(), searched })
}

/// Where libpq looks, in its order; `true` for a file the user named, which must exist.
fn candidates(env: &dyn Env) -> Vec<(PathBuf, bool)> {
    let user = match env.var("PGSERVICEFILE") {
        Some(path) => Some((PathBuf::from(path), true)),
        None => env.var("HOME").map(|home| (Path::new(&home).join(".pg_service.conf"), false)),
    };
    let system = env.var("PGSYSCONFDIR").unwrap_or_else(|| "/etc/postgresql-common".into());
    user.into_iter().chain([(Path::new(&system).join("pg_service.conf"), false)]).collect()
}

fn section(content: &str, service: &str, path: &Path) -> Result<Option<Pairs>, DsnError> {
    let bad = |line: usize, reason| DsnError::ServiceFile {
        path: path.to_owned(),
        line: line + 1,
        reason,
    };
    let mut found: Option<Pairs> = None;
    let mut inside = false;
    for (number, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // The first section of a name counts, as in libpq.
            if found.is_some() {
                break;
            }
            inside = name == service;
            if inside {
                found = Some(Pairs::new());
            }
            continue;
        }
        if !inside {
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(|| bad(number, "a line has no ="))?;
        let key = key.trim();
        if key == "service" {
            return Err(bad(number, "a service cannot refer to another service"));
        }
        keyword::check(key)?;
        if let Some(pairs) = &mut found {
            pairs.push((key.to_owned(), value.trim().to_owned()));
        }
    }
    Ok(found)
}
