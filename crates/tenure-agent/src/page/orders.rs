//! Orders from the page: the operators' functions, in the name of a token.

use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure::config::Config;
use tenure::operate::{Operator, Ordered};
use tenure::{Epoch, Identity, RoleName, TenureError};

use crate::desk::{Desk, DeskError};
use crate::store::StoreError;

/// An order as a browser or a program sends it.
#[derive(Debug, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum PageOrder {
    /// The leader drains and hands over, to `to` if it is named. With an epoch: only the leader of that epoch.
    StepDown { role: String, to: Option<String>, epoch: Option<Epoch> },
    /// No member leads the role until it is resumed. With an epoch: only if the role still has it.
    Pause { role: String, epoch: Option<Epoch> },
    /// Ends a pause.
    Resume { role: String },
    /// Runs a schedule now, beside its slots.
    Run { schedule: String },
    /// Runs a dead letter again.
    RunAgain { schedule: String, slot: Timestamp },
}

/// Why an order was not taken: for the answer's status, and a sentence.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) why: String,
}

impl Refused {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Refused { status, why: why.into() }
    }
}

/// Gives an order in the name of a token. What the database did not answer may have been done: the answer
/// says so.
pub(super) async fn give(config: &Config, order: PageOrder, token: &str) -> Result<Value, Refused> {
    let by = format!("{token}, by the page");
    match order {
        PageOrder::StepDown { role, to, epoch } => {
            let role = named(&role)?;
            let member = |name: String| {
                name.parse::<Identity>().map_err(|_| {
                    Refused::new(
                        StatusCode::NOT_FOUND,
                        "no member is called so; choose one of the candidates",
                    )
                })
            };
            let to = to.map(member).transpose()?;
            let operator = operator(config, &by).await?;
            let ordered = match epoch {
                Some(epoch) => operator.step_down_of(&role, epoch, to.as_ref()).await,
                None => operator.step_down(&role, to.as_ref()).await,
            };
            operator.close().await;
            let ordered = ordered.map_err(refused)?;
            Ok(
                json!({"role": role.as_str(), "holder": ordered.holder.map(|holder| holder.to_string()),
                      "epoch": ordered.epoch.get(), "by": token}),
            )
        }
        PageOrder::Pause { role, epoch } => {
            let role = named(&role)?;
            let operator = operator(config, &by).await?;
            let ordered = match epoch {
                Some(epoch) => operator.pause_of(&role, epoch).await,
                None => operator.pause(&role).await,
            };
            operator.close().await;
            paused(&role, ordered, token)
        }
        PageOrder::Resume { role } => {
            let role = named(&role)?;
            let operator = operator(config, &by).await?;
            let ordered = operator.resume(&role).await;
            operator.close().await;
            paused(&role, ordered, token)
        }
        PageOrder::Run { schedule } => run(config, &schedule, None, &by, token).await,
        PageOrder::RunAgain { schedule, slot } => {
            run(config, &schedule, Some(slot), &by, token).await
        }
    }
}

fn paused(
    role: &RoleName,
    ordered: Result<Ordered, TenureError>,
    token: &str,
) -> Result<Value, Refused> {
    let ordered = ordered.map_err(refused)?;
    Ok(json!({"role": role.as_str(), "epoch": ordered.epoch.get(), "by": token}))
}

async fn run(
    config: &Config,
    schedule: &str,
    slot: Option<Timestamp>,
    by: &str,
    token: &str,
) -> Result<Value, Refused> {
    if schedule.is_empty() || schedule.contains(char::is_control) {
        return Err(Refused::new(StatusCode::NOT_FOUND, "there is no schedule of that name"));
    }
    let desk = Desk::new(config).map_err(run_refused)?;
    let (role, _) = desk.order_run(schedule, slot, by).await.map_err(run_refused)?;
    Ok(json!({"schedule": schedule, "role": role, "by": token}))
}

fn named(role: &str) -> Result<RoleName, Refused> {
    RoleName::new(role)
        .map_err(|_| Refused::new(StatusCode::NOT_FOUND, "there is no role of that name"))
}

async fn operator(config: &Config, by: &str) -> Result<Operator, Refused> {
    let operator = Operator::connect(config).await.map_err(refused)?;
    Ok(operator.in_the_name_of(by))
}

/// Nothing of the connection string is in these sentences.
fn refused(error: TenureError) -> Refused {
    let status = match &error {
        TenureError::NoSuchRole(_) | TenureError::NoSuchMember(_) => StatusCode::NOT_FOUND,
        TenureError::NoLeader(_) | TenureError::Order(_) => StatusCode::CONFLICT,
        _ => {
            tracing::warn!("an order from the page was not taken: {error}");
            return match error {
                TenureError::Denied(_) => Refused::new(
                    StatusCode::FORBIDDEN,
                    "the page's login role may not give that order; `tenure migrate --print-grants` lists what it needs",
                ),
                TenureError::Session(_) => unknown(),
                _ => away(),
            };
        }
    };
    Refused::new(status, error.to_string())
}

fn run_refused(error: DeskError) -> Refused {
    let status = match &error {
        DeskError::UnknownSchedule(_) | DeskError::NoDeadLetter(_) | DeskError::NoSchedules => {
            StatusCode::NOT_FOUND
        }
        DeskError::TooMany(_) => StatusCode::CONFLICT,
        DeskError::Store(why) => {
            tracing::warn!("an order from the page was not taken: {why}");
            return if matches!(why, StoreError::Unknown(_)) { unknown() } else { away() };
        }
    };
    Refused::new(status, error.to_string())
}

fn unknown() -> Refused {
    Refused::new(
        StatusCode::GATEWAY_TIMEOUT,
        "the database did not answer: the order may have been recorded; look at the events before you repeat it",
    )
}

fn away() -> Refused {
    Refused::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "the database cannot be reached; nothing was ordered",
    )
}
