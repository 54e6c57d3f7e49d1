//! An answer that the member does not understand is an unknown outcome.

use tenure::RoleName;
use tenure::config::RoleSpec;

use crate::stage::{PATIENCE, config, database, gone, leads, one, start, until};

/// The database grants the role in a word of a later version: the lock is held, and the member must
/// not believe anything of it.
#[tokio::test]
async fn an_unknown_verdict_drops_the_seat_and_the_lock_with_it() {
    let database = database().await;
    let member = start(config(&database).role(RoleSpec::named("r"))).await;
    let lock = member.locks().remove(0);
    let client = database.client().await.unwrap();
    let patch = "alter function tenure.claim(text, jsonb, integer, integer) rename to true_claim;
         create table public.odd (pid integer);
         create function tenure.claim(text, jsonb, integer, integer) returns jsonb
         language plpgsql as $$ begin
             insert into public.odd values (pg_backend_pid());
             return replace(tenure.true_claim($1, $2, $3, $4)::text, '\"won\"', '\"granted\"');
         end $$";
    client.batch_execute(patch).await.unwrap();
    lock.start().await.unwrap();
    // More than one seat has tried, so the first was given up.
    until(&client, "select count(distinct pid) > 1 from public.odd", "t").await;
    assert!(!lock.is_leader());
    let trouble = async {
        loop {
            // None while the next seat tries.
            if let Some(trouble) = member.health().await.unwrap().error {
                break trouble;
            }
            tokio::task::yield_now().await;
        }
    };
    let trouble = tokio::time::timeout(PATIENCE, trouble).await.expect("the member tells why");
    assert!(trouble.contains("granted"), "{trouble:?}");

    let mend = "drop function tenure.claim(text, jsonb, integer, integer);
         alter function tenure.true_claim(text, jsonb, integer, integer) rename to claim";
    client.batch_execute(mend).await.unwrap();
    leads(&lock).await;
    let key = RoleName::new("r").unwrap().key();
    let (class, object, kind) = key.pg_locks_columns();
    let held = format!(
        "select count(*) from pg_locks where locktype = 'advisory' and granted \
         and (classid, objid, objsubid) = ({class}::oid, {object}::oid, {kind}::smallint)"
    );
    assert_eq!(one(&client, &held).await, "1", "one session holds it, and no old one");
    lock.step_down(Some(PATIENCE)).await.unwrap();
    gone(member).await;
}
