//! The two written forms of a DSN, turned into key and value pairs.
//!
//! Errors here name positions and reasons, never the text: a password that was not encoded or
//! quoted ends up in the place of a host, a port or a key, and must not be echoed from there.

use super::DsnError;

/// Pairs in the order written; for a repeated key the last one wins, as in libpq.
pub(super) type Pairs = Vec<(String, String)>;

/// Splits either form.
pub(super) fn parse(text: &str) -> Result<Pairs, DsnError> {
    let text = text.trim();
    for scheme in ["postgresql://", "postgres://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return url(rest);
        }
    }
    // Without "=" it is a URL of another kind or a bare name; key=value has at least one.
    if text.contains("://") && !text.split("://").next().is_some_and(|head| head.contains('=')) {
        return Err(syntax("the scheme is not postgresql:// or postgres://"));
    }
    key_value(text)
}

fn syntax(reason: &'static str) -> DsnError {
    DsnError::Syntax { reason }
}

fn url(rest: &str) -> Result<Pairs, DsnError> {
    let (before_query, query) = match rest.split_once('?') {
        Some((head, query)) => (head, Some(query)),
        None => (rest, None),
    };
    let (authority, path) = match before_query.split_once('/') {
        Some((authority, path)) => (authority, path),
        None => (before_query, ""),
    };
    // A raw @ behind the authority means that the password holds a raw / or ?: everything after
    // it would be taken for a database name and shown in messages.
    if path.contains('@') || query.is_some_and(|query| query.contains('@')) {
        return Err(syntax(
            "an @ behind the host part must be written %40, and a / or ? inside a password %2F or %3F",
        ));
    }
    let mut pairs = Pairs::new();
    // The last @, so that a password with a raw @ still works.
    let hosts = match authority.rsplit_once('@') {
        Some((user_info, hosts)) => {
            let (user, password) = match user_info.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (user_info, None),
            };
            if !user.is_empty() {
                pairs.push(("user".into(), decode(user)?));
            }
            if let Some(password) = password.filter(|password| !password.is_empty()) {
                pairs.push(("password".into(), decode(password)?));
            }
            hosts
        }
        None => authority,
    };
    if !hosts.is_empty() {
        let (mut names, mut ports) = (Vec::new(), Vec::new());
        for entry in hosts.split(',') {
            let (name, port) = host_and_port(entry)?;
            names.push(decode(name)?);
            ports.push(decode(port)?);
        }
        if names.iter().any(|name| !name.is_empty()) {
            pairs.push(("host".into(), names.join(",")));
        }
        if ports.iter().any(|port| !port.is_empty()) {
            pairs.push(("port".into(), ports.join(",")));
        }
    }
    if !path.is_empty() {
        pairs.push(("dbname".into(), decode(path)?));
    }
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| syntax("a query parameter has no ="))?;
        let key = match decode(key)?.as_str() {
            // JDBC's spelling, which libpq accepts in a URL.
            "ssl" if value == "true" => {
                pairs.push(("sslmode".into(), "require".into()));
                continue;
            }
            key => key.to_owned(),
        };
        pairs.push((key, decode(value)?));
    }
    Ok(pairs)
}

fn host_and_port(entry: &str) -> Result<(&str, &str), DsnError> {
    if let Some(rest) = entry.strip_prefix('[') {
        let (name, rest) =
            rest.split_once(']').ok_or_else(|| syntax("an IPv6 address has no closing ]"))?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((name, port)),
            None if rest.is_empty() => Ok((name, "")),
            None => Err(syntax("there is text between ] and the port")),
        };
    }
    match entry.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(syntax("an IPv6 address must stand in [ ]")),
        Some(pair) => Ok(pair),
        None => Ok((entry, "")),
    }
}

/// As a URL has it: what would end its part is percent-encoded.
pub(super) fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn decode(text: &str) -> Result<String, DsnError> {
    const BAD: &str = "a % is not followed by two hexadecimal digits (write a bare % as %25)";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or_default())
            }
            _ => return Err(syntax(BAD)),
        }
    }
    if bytes.contains(&0) {
        return Err(syntax("it contains a %00"));
    }
    String::from_utf8(bytes).map_err(|_| syntax("the percent-encoded bytes are not UTF-8"))
}

fn key_value(text: &str) -> Result<Pairs, DsnError> {
    let mut pairs = Pairs::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(pairs);
        }
        // What follows an unquoted password may be the rest of it.
        let after_password = pairs.last().is_some_and(|(key, _)| key.contains("password"));
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
            key.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next() != Some('=') {
            return Err(syntax(if after_password {
                "there is text without = behind the password (quote a password that has spaces: password='…')"
            } else {
                "a key has no ="
            }));
        }
        if after_password && !super::keyword::is_known(&key) {
            return Err(syntax(
                "there is an unknown key behind the password (quote a password that has spaces: password='…')",
            ));
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let value = value(&mut chars)?;
        pairs.push((key, value));
    }
}

fn value(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, DsnError> {
    let mut value = String::new();
    let quoted = chars.next_if_eq(&'\'').is_some();
    loop {
        match chars.peek() {
            None if quoted => return Err(syntax("a quoted value has no closing '")),
            None => return Ok(value),
            Some('\'') if quoted => {
                chars.next();
                return Ok(value);
            }
            Some(c) if !quoted && c.is_whitespace() => return Ok(value),
            Some('\\') => {
                chars.next();
                value.push(chars.next().ok_or_else(|| syntax("it ends in a backslash"))?);
            }
            Some(&c) => {
                chars.next();
                value.push(c);
            }
        }
    }
}
