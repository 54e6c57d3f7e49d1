//! What a node's refusal of a submission means.
//!
//! | error | at first sight | looked at closely |
//! |---|---|---|
//! | 1001 invalid format | refused | |
//! | 1002 verification error | the runtime failed at it | uncertain if it is an extrinsic of the runtime, unwanted or expired if it was signed for an earlier one, else refused |
//! | 1010 outdated | outdated | which attempt was it? |
//! | 1010 ancient birth block | expired | |
//! | 1010 bad signature | | expired if an earlier birth verifies, unwanted if an earlier runtime does, else refused |
//! | 1010 cannot pay | unfunded | |
//! | 1010 valid in the future | busy | |
//! | 1010 anything else, 1015 | refused | |
//! | 1011 unknown validity, 1016 dropped at once, 1017 not for this node | busy | |
//! | 1012 temporarily banned | | outdated if the nonce is used, already known if it is pending, else unwanted |
//! | 1013 already imported | already known | |
//! | 1014 priority too low | underpriced | |
//! | -32006 too many subscriptions | | a new connection |
//! | others, or nothing | uncertain | |

use subxt_rpcs::UserError;

use crate::chain::{Outcome, Shortfall, without_addresses};

/// How many letters of a node's words are kept.
const LONGEST: usize = 300;

/// A refusal at first sight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nothing more needs to be known.
    Clear(Outcome),
    /// The signature does not fit: three of four phases of an expired era look like this, and so
    /// do bytes that were signed for another runtime.
    BadSignature(String),
    /// The runtime failed at it: it may be undecodable, or the runtime may be in trouble.
    Failed(String),
    /// The pool had it, let go of it, and takes the same bytes no more for a while.
    Banned(String),
    /// This connection has no room for a further subscription.
    TooManySubscriptions(String),
}

/// The first line of a node's words, of which a failing runtime makes a page.
fn brief(words: &str) -> &str {
    let line = words.split(['\n', '\r']).next().unwrap_or_default();
    // Also where it was escaped, once or twice.
    let line = line.split("\\n").next().unwrap_or_default().trim_end_matches('\\');
    line.char_indices().nth(LONGEST).map_or(line, |(end, _)| &line[..end])
}

pub(super) fn refusal(error: &UserError) -> Refusal {
    let detail = error.data.as_ref().map(|data| data.get().trim_matches('"')).unwrap_or_default();
    let text = format!("{} ({}): {}", brief(&error.message), error.code, brief(detail));
    // A gateway may quote the address that it could not reach.
    let text = without_addresses(text);
    Refusal::Clear(match error.code {
        1010 if detail.contains("bad signature") => return Refusal::BadSignature(text),
        1002 => return Refusal::Failed(text),
        1012 => return Refusal::Banned(text),
        -32006 => return Refusal::TooManySubscriptions(text),
        1010 if detail.contains("outdated") => Outcome::Outdated,
        1010 if detail.contains("ancient birth block") => Outcome::Expired,
        1010 if detail.contains("pay some fees") => Outcome::Unfunded(text),
        1010 if detail.contains("valid in the future") => Outcome::Busy(text),
        1001 | 1010 | 1015 => Outcome::Refused(text),
        1013 => Outcome::AlreadyKnown,
        1014 => Outcome::Underpriced(Shortfall::Outbid, text),
        1011 | 1016 | 1017 => Outcome::Busy(text),
        _ => Outcome::Uncertain(text),
    })
}
