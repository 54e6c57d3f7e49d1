//! What alerts read from the database and write to it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure::Epoch;
use tenure_connect::sql::{json as jsonb, literal};

use crate::store::{Store, StoreError};

use super::engine::{Alert, Change, Engine, Incident};
use super::sampler::Answer;

#[derive(Deserialize)]
struct Loaded {
    evaluated: Option<i64>,
    alerts: Vec<Alert>,
    incidents: Vec<Incident>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    incident: &'a Incident,
    owed: bool,
}

impl Store {
    /// Everything that rules are evaluated on; terms one by one as far back as `back` milliseconds.
    pub(crate) async fn sample(&self, back: i64) -> Result<Answer, StoreError> {
        self.ask(&format!("select tenure_agent.alerts_sample({back})")).await
    }

    /// What the leader before wrote down.
    pub(crate) async fn load_alerts(
        &self,
        group: &str,
        epoch: Epoch,
    ) -> Result<Engine, StoreError> {
        let sql = format!("select tenure_agent.alerts_load({})", epoch.get());
        let Loaded { evaluated, alerts, incidents } = self.ask(&sql).await?;
        let evaluated = evaluated.and_then(|micros| Timestamp::from_microsecond(micros).ok());
        Ok(Engine::restore(group, alerts, incidents, evaluated))
    }

    /// Writes one step down, under the fence: all of it, or nothing.
    pub(crate) async fn write_alerts(
        &self,
        epoch: Epoch,
        member: &str,
        change: &Change,
    ) -> Result<(), StoreError> {
        let incidents: Vec<Row<'_>> = change
            .incidents
            .iter()
            .map(|incident| Row { incident, owed: !incident.is_over() })
            .collect();
        let sql = format!(
            "select tenure_agent.alerts_write({}, {}, {}, {}, {})",
            epoch.get(),
            literal(member),
            jsonb(&change.alerts),
            jsonb(&change.gone),
            jsonb(&incidents),
        );
        self.ask::<Value>(&sql).await.map(drop)
    }
}
