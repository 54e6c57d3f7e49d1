//! The paths of the page: its files, its API, and the stream of what changes.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tenure::RoleName;
use tenure::config::Config;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::listener::Peer;

use super::guard::{Caller, Guard, Refusal};
use super::orders::{self, PageOrder};
use super::poller::{Asked, Message, Poller, Window};

/// When a browser whose stream has ended asks for another one.
const AGAIN: Duration = Duration::from_millis(500);
/// The largest body of a request.
const BODY: usize = 4 * 1024;
/// The most output of runs in one answer.
const OUTPUT: usize = 256 * 1024;
/// Browsers that watch at once.
const STREAMS: usize = 100;
/// How long an answer may take; an order waits for the database.
const PATIENCE: Duration = Duration::from_secs(20);
/// True of every path: nothing is said to have failed that may have been done.
const LATE: &str = "that took too long; an order may have been recorded all the same: look at the events before \
    you repeat it";
/// A browser hears something this often, also when nothing changes: it can tell a calm group from a dead connection.
const BEAT: Duration = Duration::from_secs(2);
/// Orders at once: each has a session of its own, and sessions are the database's to spare.
const ORDERS: u32 = 4;
/// How long an order waits for its turn.
const TURN: Duration = Duration::from_secs(5);
/// What an answer takes from here to its connection.
const FLUSH: Duration = Duration::from_millis(200);
/// What a wrong token costs. One at a time: guessing is slow, and signing in is not.
const WRONG: Duration = Duration::from_millis(250);
/// Nothing is fetched from elsewhere, nothing runs that is not a file of ours, no page frames this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

/// The page's own files.
const FILES: [(&str, &str, &str); 12] = [
    ("/", "text/html; charset=utf-8", include_str!("../../page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../../page/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../../page/icon.svg")),
    ("/main.js", SCRIPT, include_str!("../../page/main.js")),
    ("/dom.js", SCRIPT, include_str!("../../page/dom.js")),
    ("/time.js", SCRIPT, include_str!("../../page/time.js")),
    ("/store.js", SCRIPT, include_str!("../../page/store.js")),
    ("/look.js", SCRIPT, include_str!("../../page/look.js")),
    ("/cards.js", SCRIPT, include_str!("../../page/cards.js")),
    ("/timeline.js", SCRIPT, include_str!("../../page/timeline.js")),
    ("/panel.js", SCRIPT, include_str!("../../page/panel.js")),
    ("/orders.js", SCRIPT, include_str!("../../page/orders.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// What every request shares.
pub(super) struct Site {
    pub(super) guard: Guard,
    pub(super) poller: Arc<Poller>,
    pub(super) config: Config,
    title: Option<String>,
    streams: Arc<Semaphore>,
    orders: Arc<Semaphore>,
    wrong: Semaphore,
    /// When a refusal was last logged.
    told: Mutex<Option<Instant>>,
}

impl Site {
    pub(super) fn new(
        guard: Guard,
        poller: Arc<Poller>,
        config: Config,
        title: Option<String>,
    ) -> Self {
        Site {
            guard,
            poller,
            config,
            title,
            streams: Arc::new(Semaphore::new(STREAMS)),
            orders: Arc::new(Semaphore::new(ORDERS as usize)),
            wrong: Semaphore::new(1),
            told: Mutex::default(),
        }
    }

    /// Waits, within limits, until no order is being given; from then on none is.
    pub(super) async fn settle(&self) {
        let idle = self.orders.available_permits() == ORDERS as usize;
        if let Ok(Ok(all)) = timeout(TURN, self.orders.acquire_many(ORDERS)).await {
            all.forget();
        }
        if !idle {
            // The last answer is on its way.
            sleep(FLUSH).await;
        }
    }

    /// For the log, at most once a second.
    fn warn(&self, peer: Peer, what: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
            *told = Some(Instant::now());
            tracing::warn!("the page turned a request from {} away: {what}", peer.0);
        }
    }
}

type Shared = State<Arc<Site>>;
type Named = Result<Path<String>, PathRejection>;
type Body = Result<Bytes, BytesRejection>;

/// The page's files, and what they ask for under `/api/v1`.
pub(super) fn router(site: Arc<Site>) -> Router {
    let mut router = Router::new()
        .route("/api/v1/snapshot", get(snapshot))
        .route("/api/v1/events", get(events))
        .route("/api/v1/role/{*role}", get(role))
        .route("/api/v1/runs/{*schedule}", get(runs))
        .route("/api/v1/session", get(session).post(sign_in).delete(sign_out))
        .route("/api/v1/orders", post(order))
        .route("/api/v1/openapi.json", get(openapi));
    for (path, kind, text) in FILES {
        let file = move || async move { ([(header::CONTENT_TYPE, kind)], text) };
        router = router.route(path, get(file));
    }
    router
        .fallback(async || fault(StatusCode::NOT_FOUND, "there is nothing here; the page is at /"))
        .method_not_allowed_fallback(async || {
            fault(StatusCode::METHOD_NOT_ALLOWED, "that path does not take this method")
        })
        .layer(DefaultBodyLimit::max(BODY))
        .layer(from_fn_with_state(site.clone(), admit))
        .with_state(site)
}

/// Stands before every path.
async fn admit(State(site): Shared, request: Request, next: Next) -> Response {
    let mut response = match site.guard.admit(request.method(), request.headers()) {
        Err(refusal) => turned_away(refusal),
        Ok(()) => timeout(PATIENCE, next.run(request))
            .await
            .unwrap_or_else(|_| fault(StatusCode::GATEWAY_TIMEOUT, LATE)),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

async fn snapshot(State(site): Shared, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    if let Err(refusal) = site.guard.reader(&headers) {
        return turned_away(refusal);
    }
    let window = match query.as_deref().unwrap_or_default() {
        "" => Some(Window::Hour),
        query => query.strip_prefix("window=").and_then(Window::parse),
    };
    let Some(window) = window else {
        return fault(StatusCode::BAD_REQUEST, "the window is 5m, 1h, 24h or 7d, as in ?window=1h");
    };
    match site.poller.whole(window).await {
        Ok(whole) => answer(StatusCode::OK, &whole),
        Err(why) => fault(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn events(State(site): Shared, headers: HeaderMap) -> Response {
    if let Err(refusal) = site.guard.reader(&headers) {
        return turned_away(refusal);
    }
    let Ok(place) = Arc::clone(&site.streams).try_acquire_owned() else {
        let mut full = fault(
            StatusCode::SERVICE_UNAVAILABLE,
            "as many browsers as may watch already; try later",
        );
        full.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
        return full;
    };
    let (hello, receiver) = site.poller.listen();
    let watch = Watching { first: Some(hello), receiver, site, headers, _place: place };
    Sse::new(stream(watch)).into_response()
}

struct Watching {
    first: Option<Message>,
    receiver: Receiver<Message>,
    site: Arc<Site>,
    headers: HeaderMap,
    _place: OwnedSemaphorePermit,
}

fn stream(watching: Watching) -> impl Stream<Item = Result<Event, Infallible>> {
    unfold(watching, async |mut watching| {
        let message = match watching.first.take() {
            Some(hello) => hello,
            // Cancel-safe: a message is taken whole, or waits.
            None => match timeout(BEAT, watching.receiver.recv()).await {
                Ok(Ok(message)) => message,
                // Too slow: what was lost is loaded anew.
                Ok(Err(RecvError::Lagged(_))) => Message::bare("reload"),
                Ok(Err(RecvError::Closed)) => return None,
                Err(_) => Message::bare("beat"),
            },
        };
        // A session that ended, or a token that was taken out of the file, sees no more.
        watching.site.guard.reader(&watching.headers).ok()?;
        let event = Event::default()
            .retry(AGAIN)
            .event(message.event)
            .id(message.number.to_string())
            .data(&*message.data);
        Some((Ok(event), watching))
    })
}

async fn role(State(site): Shared, headers: HeaderMap, name: Named) -> Response {
    if let Err(refusal) = site.guard.reader(&headers) {
        return turned_away(refusal);
    }
    // What cannot be a name is no name of a role.
    let Some(name) = name.ok().and_then(|Path(name)| RoleName::new(&name).ok()) else {
        return fault(StatusCode::NOT_FOUND, "there is no role of that name");
    };
    match Arc::clone(&site.poller).role(name.as_str()).await {
        Asked::Answer(Some(role)) => answer(StatusCode::OK, &role),
        Asked::Answer(None) => fault(StatusCode::NOT_FOUND, "there is no role of that name"),
        Asked::Refused | Asked::Away => away(),
        Asked::Full => full(),
    }
}

async fn runs(State(site): Shared, headers: HeaderMap, name: Named) -> Response {
    if let Err(refusal) = site.guard.reader(&headers) {
        return turned_away(refusal);
    }
    let plain = |name: &String| name.len() <= 400 && !name.contains(char::is_control);
    let Some(name) = name.ok().map(|Path(name)| name).filter(plain) else {
        return fault(StatusCode::NOT_FOUND, "there is no schedule of that name");
    };
    let none = || fault(StatusCode::NOT_FOUND, "that schedule has no run yet");
    match Arc::clone(&site.poller).runs(&name).await {
        Asked::Answer(Some(Value::Array(runs))) if runs.is_empty() => none(),
        Asked::Answer(Some(runs)) => answer(StatusCode::OK, &lighter(runs)),
        Asked::Answer(None) => none(),
        // No agent with schedules ever ran here.
        Asked::Refused => fault(StatusCode::NOT_FOUND, "this group has no schedules"),
        Asked::Away => away(),
        Asked::Full => full(),
    }
}

/// Runs with at most [`OUTPUT`] of output, that of the newest first: a run may have many attempts.
fn lighter(mut runs: Value) -> Value {
    let mut left = OUTPUT;
    let slots = runs.as_array_mut().into_iter().flatten();
    let attempts = slots.filter_map(|slot| slot.get_mut("attempts")?.as_array_mut());
    for attempt in attempts.flat_map(|attempts| attempts.iter_mut().rev()) {
        let length = attempt["output"].as_str().map_or(0, str::len);
        if length > left {
            attempt["output"] = "(left out here: `tenure schedule history` has it)".into();
        } else {
            left -= length;
        }
    }
    runs
}

async fn session(State(site): Shared, headers: HeaderMap) -> Response {
    let guard = &site.guard;
    let caller = guard.reader(&headers);
    let body = about(&site, caller.as_ref().ok().and_then(Option::as_ref), caller.is_ok());
    answer(StatusCode::OK, &body)
}

fn about(site: &Site, caller: Option<&Caller>, may_read: bool) -> Value {
    let guard = &site.guard;
    json!({
        "title": site.title.as_ref().filter(|_| may_read),
        "name": caller.map(|caller| &caller.name),
        "scope": caller.map(|caller| caller.scope.as_str()),
        "may_read": may_read,
        "open_reading": guard.open_reading(),
        "tokens": guard.has_tokens(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: String,
}

async fn sign_in(
    State(site): Shared,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    // What is wrong is not repeated: it may be a token.
    let given: SignIn = match read(&headers, body, |_| "it has one key, `token`".to_owned()) {
        Ok(given) => given,
        Err(fault) => return *fault,
    };
    match site.guard.sign_in(&given.token) {
        Some((caller, cookie)) => {
            let mut response = answer(StatusCode::OK, &about(&site, Some(&caller), true));
            set_cookie(&mut response, &cookie);
            response
        }
        None => {
            site.warn(peer, "a token that is not in the file");
            let _turn = site.wrong.acquire().await;
            sleep(WRONG).await;
            fault(StatusCode::UNAUTHORIZED, "that token is not in the file of tokens")
        }
    }
}

async fn sign_out(State(site): Shared, headers: HeaderMap) -> Response {
    let cookie = site.guard.sign_out(&headers);
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut response, &cookie);
    response
}

fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
}

async fn order(
    State(site): Shared,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let caller = match site.guard.orderer(&headers) {
        Ok(caller) => caller,
        Err(refusal) => {
            site.warn(peer, refusal.why());
            return turned_away(refusal);
        }
    };
    let order: PageOrder = match read(&headers, body, misread) {
        Ok(order) => order,
        Err(fault) => return *fault,
    };
    // In a task of its own: a browser that goes away does not leave an order half given.
    let Ok(Ok(turn)) = timeout(TURN, Arc::clone(&site.orders).acquire_owned()).await else {
        let why = "too many orders are being given; nothing was ordered, try again";
        return fault(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    let (given, name) = (Arc::clone(&site), caller.name);
    let task = tokio::spawn(async move {
        let done = orders::give(&given.config, order, &name).await;
        drop(turn);
        done
    });
    let done = match task.await {
        Ok(Ok(done)) => answer(StatusCode::OK, &done),
        Ok(Err(refused)) => fault(refused.status, &refused.why),
        Err(_) => fault(StatusCode::INTERNAL_SERVER_ERROR, "the order failed; look at the events"),
    };
    site.poller.hurry();
    done
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("../../page/openapi.json"))
        .into_response()
}

/// What is wrong with an order: the key, or the value.
fn misread(error: &serde_json::Error) -> String {
    error.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// A body that says that it is JSON: a form of another site cannot. `why` says what is wrong with it otherwise.
fn read<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    why: impl Fn(&serde_json::Error) -> String,
) -> Result<T, Box<Response>> {
    let kind =
        headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind
        .split(';')
        .next()
        .is_none_or(|kind| !kind.trim().eq_ignore_ascii_case("application/json"))
    {
        let why = "send JSON, with content-type: application/json";
        return Err(Box::new(fault(StatusCode::UNSUPPORTED_MEDIA_TYPE, why)));
    }
    let body = body.map_err(|error| {
        Box::new(fault(error.status(), "the body is above 4 KiB, or broken off"))
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        let why = format!("the body is not what /api/v1/openapi.json describes: {}", why(&error));
        Box::new(fault(StatusCode::BAD_REQUEST, &why))
    })
}

fn away() -> Response {
    fault(StatusCode::SERVICE_UNAVAILABLE, "the database does not answer; try again")
}

fn full() -> Response {
    fault(StatusCode::SERVICE_UNAVAILABLE, "too many questions are being asked; try again")
}

fn turned_away(refusal: Refusal) -> Response {
    let mut response = fault(refusal.status(), refusal.why());
    if refusal == Refusal::NoToken {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn fault(status: StatusCode, why: &str) -> Response {
    answer(status, &json!({"error": why}))
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
