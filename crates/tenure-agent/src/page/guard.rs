//! Who may: decides for each request whether it is let in, from its head alone. No I/O but the tokens' file.
//!
//! | question | answer |
//! |---|---|
//! | `Host` | one of the names the page is known by; a foreign name that resolves to this machine is turned away, also on loopback |
//! | `Origin`, where there is one | the page's own; required for whatever comes with a cookie and changes something |
//! | reading | open if the listener is on loopback and no proxy stands before it; else any token. A request that says itself that a proxy passed it on needs a token, too |
//! | ordering | a token of scope `order`, always |
//!
//! A session is a random number in an HttpOnly, SameSite=Strict cookie; the server keeps its digest, and the
//! session ends with the token's line in the file, after half a day, or with the process.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};

use super::tokens::{Digest, Entry, Scope, TokenFile};

/// How long a person stays signed in.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Of one token; its oldest goes when one more signs in. No token can sign out the people of another one.
const SESSIONS: usize = 20;
/// Longer is no token.
const TOKEN: usize = 512;

/// More cookies of that name are not looked at.
const COOKIES: usize = 8;
/// What a proxy adds, if it is told to.
const FORWARDED: [&str; 5] =
    ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];

/// How browsers reach the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Plain HTTP on loopback.
    Plain,
    /// TLS of our own.
    Tls,
    /// A proxy speaks to us, in plain HTTP; it says itself which names it serves.
    Proxy,
}

/// Why a request was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The page is not known by that name.
    Host,
    /// The request comes from another site.
    Origin,
    /// No token, or none that is good.
    NoToken,
    /// The token may only read.
    ReadOnly,
    /// There is no file of tokens, so that orders are off.
    NoTokens,
    /// A proxy passed it on, of which the page was not told: reading would be open to every client of the proxy.
    Forwarded,
}

impl Refusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Refusal::Host => StatusCode::MISDIRECTED_REQUEST,
            Refusal::Origin | Refusal::ReadOnly | Refusal::NoTokens | Refusal::Forwarded => {
                StatusCode::FORBIDDEN
            }
            Refusal::NoToken => StatusCode::UNAUTHORIZED,
        }
    }

    pub(super) fn why(self) -> &'static str {
        match self {
            Refusal::Host => {
                "the page is not known by that name; add it with --name, or `names` of [page] in an agent's file"
            }
            Refusal::Origin => "the request comes from another site; open the page itself",
            Refusal::NoToken => "no good token came with the request; sign in",
            Refusal::ReadOnly => "the token may read, not order; use one of scope `order`",
            Refusal::NoTokens => "orders are off: the page was started without tokens",
            Refusal::Forwarded => {
                "a proxy stands before the page; start it with --behind-proxy, --name and --tokens, or the same of [page] in an agent's file"
            }
        }
    }
}

/// The one that asks: a token's name and scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) name: String,
    pub(super) scope: Scope,
}

struct Session {
    digest: Digest,
    ends: Instant,
}

/// Decides.
pub(super) struct Guard {
    reach: Reach,
    /// Names in lower case, without a port.
    names: Vec<String>,
    open_reading: bool,
    cookie: String,
    tokens: Option<TokenFile>,
    sessions: Mutex<BTreeMap<Digest, Session>>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("reach", &self.reach)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// For a listener at `address`, known by `names`.
    pub(super) fn new(
        reach: Reach,
        address: SocketAddr,
        names: &[String],
        tokens: Option<TokenFile>,
    ) -> Self {
        let ip = address.ip();
        let mut known: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        if reach != Reach::Proxy {
            if ip.is_loopback() {
                known.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
            }
            if !ip.is_unspecified() {
                known.push(literal(ip));
            }
        }
        // Behind a proxy every peer is on loopback: reading is open to no one.
        let open_reading = ip.is_loopback() && reach != Reach::Proxy;
        // Browsers send a cookie to every port of a host: two pages of one machine must not sign each other out. A
        // name with the prefix is taken only with Secure, for this host alone.
        let cookie = match reach {
            Reach::Plain => format!("tenure-{}", address.port()),
            Reach::Tls => format!("__Host-tenure-{}", address.port()),
            Reach::Proxy => "__Host-tenure".to_owned(),
        };
        Guard { reach, names: known, open_reading, cookie, tokens, sessions: Mutex::default() }
    }

    pub(super) fn open_reading(&self) -> bool {
        self.open_reading
    }

    pub(super) fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Comes before everything else, for every path.
    pub(super) fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = self.host(headers)?;
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        match text(headers, header::ORIGIN)? {
            Some(origin) => self.same_origin(origin, host)?,
            // A browser always sends it with what changes something; a program has no cookie.
            None if changes && headers.contains_key(header::COOKIE) => return Err(Refusal::Origin),
            None => {}
        }
        match headers.get("sec-fetch-site").map(|site| site.as_bytes()) {
            Some(b"same-origin" | b"none") | None => Ok(()),
            // A link from elsewhere may open the page; what it asks for then comes from itself.
            Some(_)
                if !changes
                    && headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate") =>
            {
                Ok(())
            }
            Some(_) => Err(Refusal::Origin),
        }
    }

    /// Whether the request may read, and under which token.
    pub(super) fn reader(&self, headers: &HeaderMap) -> Result<Option<Caller>, Refusal> {
        match self.caller(headers) {
            Some(caller) => Ok(Some(caller)),
            None if self.open_reading
                && FORWARDED.iter().any(|name| headers.contains_key(*name)) =>
            {
                Err(Refusal::Forwarded)
            }
            None if self.open_reading => Ok(None),
            None => Err(Refusal::NoToken),
        }
    }

    /// Whether the request may order, and in whose name.
    pub(super) fn orderer(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        if self.tokens.is_none() {
            return Err(Refusal::NoTokens);
        }
        let caller = self.caller(headers).ok_or(Refusal::NoToken)?;
        if caller.scope < Scope::Order { Err(Refusal::ReadOnly) } else { Ok(caller) }
    }

    /// Begins a session: the caller, and the cookie to set.
    pub(super) fn sign_in(&self, token: &str) -> Option<(Caller, String)> {
        let entry = self.tokens.as_ref().filter(|_| token.len() <= TOKEN)?.find(token)?;
        let secret = hex::encode(rand::random::<[u8; 32]>());
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        sessions.retain(|_, session| session.ends > now);
        let of_token = || sessions.iter().filter(|(_, session)| session.digest == entry.digest);
        if of_token().count() >= SESSIONS {
            let oldest = of_token().min_by_key(|(_, session)| session.ends).map(|(key, _)| *key);
            oldest.map(|key| sessions.remove(&key));
        }
        let session = Session { digest: entry.digest, ends: now + SESSION };
        sessions.insert(Sha256::digest(secret.as_bytes()).into(), session);
        let cookie = self.cookie(&secret, SESSION.as_secs());
        Some((Caller { name: entry.name, scope: entry.scope }, cookie))
    }

    /// Ends the request's session, if it has one: the cookie that takes its cookie away.
    pub(super) fn sign_out(&self, headers: &HeaderMap) -> String {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        for secret in self.secrets(headers) {
            sessions.remove(&Digest::from(Sha256::digest(secret.as_bytes())));
        }
        self.cookie("", 0)
    }

    fn cookie(&self, secret: &str, seconds: u64) -> String {
        let name = &self.cookie;
        let secure = if self.reach == Reach::Plain { "" } else { "; Secure" };
        format!("{name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }

    /// Every cookie of the name: another service of the same host may have set one that comes first.
    fn secrets<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(key, _)| *key == self.cookie).map(|(_, secret)| secret).take(COOKIES)
    }

    fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        let tokens = self.tokens.as_ref()?;
        let said = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let entry: Entry = match said {
            Some(said) => {
                let (kind, token) = said.split_once(' ')?;
                let bears = kind.eq_ignore_ascii_case("bearer") && token.len() <= TOKEN;
                bears.then(|| tokens.find(token.trim()))??
            }
            None => {
                let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
                // Looked up by the digest: how long that takes tells nothing of the secret.
                let session = self.secrets(headers).find_map(|secret| {
                    let found = sessions.get(&Digest::from(Sha256::digest(secret.as_bytes())))?;
                    (found.ends > Instant::now()).then_some(found)
                })?;
                tokens.known(&session.digest)?
            }
        };
        Some(Caller { name: entry.name, scope: entry.scope })
    }

    fn host<'a>(&self, headers: &'a HeaderMap) -> Result<&'a str, Refusal> {
        if headers.get_all(header::HOST).iter().count() != 1 {
            return Err(Refusal::Host);
        }
        let host =
            headers.get(header::HOST).and_then(|value| value.to_str().ok()).ok_or(Refusal::Host)?;
        let bare = without_port(host).ok_or(Refusal::Host)?.to_ascii_lowercase();
        if self.names.contains(&bare) { Ok(host) } else { Err(Refusal::Host) }
    }

    fn same_origin(&self, origin: &str, host: &str) -> Result<(), Refusal> {
        let (scheme, authority) = origin.split_once("://").ok_or(Refusal::Origin)?;
        let scheme_is_ours = match self.reach {
            Reach::Plain => scheme == "http",
            // A proxy speaks TLS: the flag says so, and the cookie is taken only then.
            Reach::Tls | Reach::Proxy => scheme == "https",
        };
        if scheme_is_ours && authority.eq_ignore_ascii_case(host) {
            Ok(())
        } else {
            Err(Refusal::Origin)
        }
    }
}

/// One header as text; a second one, or one that is no text, is a trick.
fn text(headers: &HeaderMap, name: header::HeaderName) -> Result<Option<&str>, Refusal> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(one), None) => one.to_str().map(Some).map_err(|_| Refusal::Origin),
        (Some(_), Some(_)) => Err(Refusal::Origin),
    }
}

fn literal(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// A host without its port; none if it is not a host.
fn without_port(host: &str) -> Option<&str> {
    let end = match host.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (bare, port) = host.split_at(end);
    let good =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    (good && !bare.is_empty()).then_some(bare)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
    const PORT: u16 = 7007;

    fn guard(reach: Reach, ip: IpAddr, names: &[&str]) -> Guard {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Guard::new(reach, (ip, PORT).into(), &names, None)
    }

    fn with_tokens(reach: Reach, ip: IpAddr) -> Guard {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        let hex = |token: &str| hex::encode(Sha256::digest(token.as_bytes()));
        let text = format!("eye read {}\nhand order {}\n", hex("see"), hex("do"));
        std::fs::write(&path, text).expect("written");
        let tokens = TokenFile::open(&path).expect("it is read");
        Guard::new(reach, (ip, PORT).into(), &["page.example".to_owned()], Some(tokens))
    }

    fn head(lines: &[(&'static str, &str)]) -> HeaderMap {
        let lines = lines.iter().map(|(name, value)| {
            (header::HeaderName::from_static(name), value.parse().expect("a header"))
        });
        lines.collect()
    }

    #[test]
    fn a_foreign_name_is_turned_away_also_on_loopback() {
        let guard = guard(Reach::Plain, HOME, &["ops.example"]);
        let admitted = |host: &str| guard.admit(&Method::GET, &head(&[("host", host)])).is_ok();
        for good in [
            "localhost",
            "localhost:7007",
            "LOCALHOST:1",
            "127.0.0.1:7007",
            "[::1]:7007",
            "ops.example",
        ] {
            assert!(admitted(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:7007",
            "localhost.evil.example",
            "127.0.0.2",
            "",
            "localhost:x",
            "[::1",
            "a b",
        ] {
            assert!(!admitted(bad), "{bad}");
        }
        assert_eq!(guard.admit(&Method::GET, &HeaderMap::new()), Err(Refusal::Host));
        let mut twice = head(&[("host", "localhost")]);
        twice.append("host", "evil.example".parse().expect("a header"));
        assert_eq!(guard.admit(&Method::GET, &twice), Err(Refusal::Host));
    }

    #[test]
    fn an_address_is_a_name_unless_it_stands_for_all_of_them() {
        let far = guard(Reach::Tls, FAR, &[]);
        assert!(far.admit(&Method::GET, &head(&[("host", "10.0.0.7:443")])).is_ok());
        assert!(far.admit(&Method::GET, &head(&[("host", "localhost")])).is_err());
        let all = guard(Reach::Tls, IpAddr::V6(Ipv6Addr::UNSPECIFIED), &["page.example"]);
        assert!(all.admit(&Method::GET, &head(&[("host", "[::]:443")])).is_err());
        assert!(all.admit(&Method::GET, &head(&[("host", "page.example")])).is_ok());
    }

    #[test]
    fn what_comes_from_another_site_is_turned_away() {
        let guard = guard(Reach::Plain, HOME, &[]);
        let admit = |method: &Method, more: &[(&'static str, &str)]| {
            let lines = [&[("host", "localhost:7007")][..], more].concat();
            guard.admit(method, &head(&lines))
        };
        assert_eq!(admit(&Method::POST, &[("origin", "http://localhost:7007")]), Ok(()));
        for bad in
            ["http://evil.example", "https://localhost:7007", "http://localhost:8000", "null", ""]
        {
            assert_eq!(admit(&Method::POST, &[("origin", bad)]), Err(Refusal::Origin), "{bad}");
            assert_eq!(admit(&Method::GET, &[("origin", bad)]), Err(Refusal::Origin), "{bad}");
        }
        // A cookie without an origin changes nothing.
        assert_eq!(admit(&Method::POST, &[("cookie", "tenure=1")]), Err(Refusal::Origin));
        assert_eq!(admit(&Method::GET, &[("cookie", "tenure=1")]), Ok(()));
        // A program has neither.
        assert_eq!(admit(&Method::POST, &[]), Ok(()));
        assert_eq!(admit(&Method::GET, &[("sec-fetch-site", "cross-site")]), Err(Refusal::Origin));
        assert_eq!(admit(&Method::GET, &[("sec-fetch-site", "same-site")]), Err(Refusal::Origin));
        let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert_eq!(admit(&Method::GET, &link), Ok(()));
        assert_eq!(admit(&Method::POST, &link), Err(Refusal::Origin));
    }

    #[test]
    fn reading_is_open_on_loopback_alone_and_not_behind_a_proxy() {
        let nothing = HeaderMap::new();
        assert_eq!(with_tokens(Reach::Plain, HOME).reader(&nothing), Ok(None));
        assert_eq!(with_tokens(Reach::Tls, HOME).reader(&nothing), Ok(None));
        assert_eq!(with_tokens(Reach::Proxy, HOME).reader(&nothing), Err(Refusal::NoToken));
        assert_eq!(with_tokens(Reach::Tls, FAR).reader(&nothing), Err(Refusal::NoToken));
    }

    #[test]
    fn an_order_needs_a_token_of_that_scope_wherever_it_comes_from() {
        let bare = guard(Reach::Plain, HOME, &[]);
        assert_eq!(bare.orderer(&HeaderMap::new()), Err(Refusal::NoTokens));
        let guard = with_tokens(Reach::Plain, HOME);
        let with = |token: &str| {
            guard.orderer(&head(&[("authorization", token)])).map(|caller| caller.name)
        };
        assert_eq!(guard.orderer(&HeaderMap::new()), Err(Refusal::NoToken));
        assert_eq!(with("Bearer see"), Err(Refusal::ReadOnly));
        assert_eq!(with("Bearer do"), Ok("hand".to_owned()));
        assert_eq!(with("bearer do"), Ok("hand".to_owned()));
        for bad in ["Bearer", "Bearer ", "Basic do", "do", "Bearer doo"] {
            assert_eq!(with(bad), Err(Refusal::NoToken), "{bad}");
        }
        assert_eq!(with(&format!("Bearer {}", "x".repeat(TOKEN + 1))), Err(Refusal::NoToken));
    }

    #[test]
    fn a_session_is_a_cookie_that_scripts_and_other_sites_cannot_use() {
        let guard = with_tokens(Reach::Plain, HOME);
        assert!(guard.sign_in("wrong").is_none());
        let (caller, cookie) = guard.sign_in("do").expect("a session");
        assert_eq!(caller, Caller { name: "hand".to_owned(), scope: Scope::Order });
        assert!(cookie.ends_with("; HttpOnly; SameSite=Strict"), "{cookie}");
        assert!(!cookie.contains("do;"), "the token itself is in no cookie");
        let pair = cookie.split(';').next().expect("a pair").to_owned();
        let headers = head(&[("cookie", &format!("other=1; {pair}"))]);
        assert_eq!(guard.orderer(&headers).map(|caller| caller.name), Ok("hand".to_owned()));
        guard.sign_out(&headers);
        assert_eq!(guard.orderer(&headers), Err(Refusal::NoToken));
        let (_, cookie) = with_tokens(Reach::Tls, FAR).sign_in("see").expect("a session");
        assert!(cookie.starts_with("__Host-tenure-7007="), "{cookie}");
        assert!(cookie.ends_with("; Secure"), "{cookie}");
    }

    /// The head of a request with the cookie of a new session.
    fn signed_in(guard: &Guard, token: &str) -> HeaderMap {
        let (_, cookie) = guard.sign_in(token).expect("a session");
        head(&[("cookie", cookie.split(';').next().expect("a pair"))])
    }

    #[test]
    fn a_session_that_is_over_is_good_for_nothing() {
        let guard = with_tokens(Reach::Plain, HOME);
        let headers = signed_in(&guard, "do");
        assert!(guard.orderer(&headers).is_ok());
        let over = Instant::now();
        guard.sessions.lock().expect("whole").values_mut().for_each(|session| session.ends = over);
        assert_eq!(guard.orderer(&headers), Err(Refusal::NoToken));
        assert_eq!(SESSION, Duration::from_secs(43_200), "the documents say half a day");
    }

    #[test]
    fn no_token_signs_out_the_people_of_another_one() {
        let guard = with_tokens(Reach::Plain, HOME);
        let person = signed_in(&guard, "do");
        let first = signed_in(&guard, "see");
        for _ in 0..2_000 {
            signed_in(&guard, "see");
        }
        assert!(guard.orderer(&person).is_ok(), "signed out by another token");
        assert_eq!(guard.reader(&first).map(|caller| caller.is_some()), Ok(false), "the oldest");
        assert!(guard.sessions.lock().expect("whole").len() <= SESSIONS + 1);
    }

    #[test]
    fn a_cookie_of_another_service_of_this_host_does_not_hide_ours() {
        let guard = with_tokens(Reach::Plain, HOME);
        let ours = signed_in(&guard, "do");
        let ours = ours["cookie"].to_str().expect("text").to_owned();
        assert!(ours.starts_with("tenure-7007="), "{ours}");
        let both = head(&[("cookie", &format!("tenure-7007=planted; tenure=old; {ours}"))]);
        assert!(guard.orderer(&both).is_ok());
    }

    #[test]
    fn what_a_proxy_passed_on_is_not_open_to_read() {
        let guard = with_tokens(Reach::Plain, HOME);
        assert_eq!(guard.reader(&HeaderMap::new()), Ok(None));
        for name in FORWARDED {
            let passed = head(&[(name, "203.0.113.7")]);
            assert_eq!(guard.reader(&passed), Err(Refusal::Forwarded), "{name}");
            let signed = head(&[(name, "203.0.113.7"), ("authorization", "Bearer see")]);
            assert!(guard.reader(&signed).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_proxy_speaks_tls_so_that_an_origin_without_it_is_another_one() {
        let guard = with_tokens(Reach::Proxy, HOME);
        let admit = |origin| {
            let lines = head(&[("host", "page.example"), ("origin", origin)]);
            guard.admit(&Method::POST, &lines)
        };
        assert_eq!(admit("https://page.example"), Ok(()));
        assert_eq!(admit("http://page.example"), Err(Refusal::Origin));
    }
}
