//! `tenure forget` and `tenure alter`: what is done to a role at rest.

use tenure::operate::{Change, Operator};

use crate::args::{Alter, OrderArgs};
use crate::exit::{Exit, Failure};
use crate::output::out;
use crate::setting::Setting;
use crate::table::count;

pub(crate) async fn forget(order: OrderArgs) -> Result<Exit, Failure> {
    let role = order.role.required()?;
    let operator = Operator::connect(&Setting::of(&order.database)?.config).await?;
    let forgotten = operator.forget(&role).await?;
    operator.close().await;
    out!(
        "{role} is forgotten, with {}; the name, used again, continues above epoch {}",
        count(forgotten.terms, "term"),
        forgotten.epoch
    );
    Ok(Exit::Clean)
}

pub(crate) async fn alter(args: Alter) -> Result<Exit, Failure> {
    let change = Change { policy: args.policy, key: args.new_key, lease: args.lease };
    if change.policy.is_none() && change.key.is_none() && change.lease.is_none() {
        return Err(Failure::usage("alter changes nothing; give --policy, --new-key or --lease"));
    }
    let role = args.order.role.required()?;
    let operator = Operator::connect(&Setting::of(&args.order.database)?.config).await?;
    operator.alter(&role, change).await?;
    operator.close().await;
    out!("{role} is changed; start its members with the same setting, then `tenure resume` it");
    Ok(Exit::Clean)
}
