//! The schema: applied once, by the member that comes first; readable in the shapes of old; usable by a
//! login role that may do nothing else.

use tenure::config::{Config, RoleSpec};
use tenure::preflight::check;
use tenure::{Member, TenureError, schema};

use crate::stage::{PATIENCE, config, database, gone, leader, leads, one, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_members_that_boot_at_once_apply_it_once_and_elect_one_leader() {
    let database = database().await;
    let boots = (0..10).map(|_| start(config(&database).role(RoleSpec::named("r"))));
    let members = futures_util::future::join_all(boots).await;
    for member in &members {
        member.start_all().await.expect("it takes part");
    }
    let client = database.client().await.unwrap();
    let versions = one(&client, "select count(*) from tenure.migration").await;
    assert_eq!(versions, schema::VERSION.to_string());
    let wait = |member: &Member| {
        let lock = member.locks().remove(0);
        async move { lock.wait_for_leadership(Some(PATIENCE)).await }
    };
    let (_, _) =
        futures_util::future::select_ok(members.iter().map(|member| Box::pin(wait(member))))
            .await
            .expect("a member leads");
    let leaders = members.iter().filter(|m| m.locks()[0].is_leader()).count();
    assert_eq!(leaders, 1);
    for member in members {
        gone(member).await;
    }
}

#[tokio::test]
async fn the_printed_script_makes_the_same_schema() {
    let database = database().await;
    let client = database.client().await.unwrap();
    client.batch_execute(&schema::script()).await.expect("the script runs");
    client.batch_execute(&schema::script()).await.expect("and does nothing the second time");
    let built = config(&database).role(RoleSpec::named("r")).build().unwrap();
    let member = Member::start_without_migrating(built).await.expect("it is complete");
    member.start_all().await.unwrap();
    leads(&member.locks()[0]).await;
    gone(member).await;
}

#[tokio::test]
async fn a_missing_or_newer_schema_is_refused_with_the_remedy() {
    let database = database().await;
    let built = || config(&database).build().unwrap();
    let error = Member::start_without_migrating(built()).await.expect_err("missing");
    assert!(error.is_refusal() && error.to_string().contains("tenure migrate"), "{error}");
    gone(start(config(&database)).await).await;
    let client = database.client().await.unwrap();
    client.batch_execute("insert into tenure.migration values (9999, 'future')").await.unwrap();
    let error = Member::start(built()).await.expect_err("newer");
    assert!(error.to_string().contains("upgrade this program"), "{error}");
}

#[tokio::test]
async fn the_compatibility_views_carry_the_shapes_of_other_systems() {
    let database = database().await;
    let (member, lock) = leader(&database, "scheduler").await;
    let client = database.client().await.unwrap();
    let me = member.identity().to_string();
    let key = lock.key();
    let columns = |view: &str| {
        format!(
            "select string_agg(column_name, ',' order by ordinal_position) \
             from information_schema.columns where table_schema = 'tenure' and table_name = '{view}'"
        )
    };
    for (view, wanted) in [
        ("msp_leader_state", "id,scope_key,epoch,holder_identity,last_heartbeat"),
        ("leader_state", "id,scope,scope_key,epoch,holder_identity,last_heartbeat"),
        ("leader_heartbeat", "provider_id,instance_id,last_seen"),
        ("leaders", "role,node_id,acquired_at,lease_until"),
        ("forge_leaders", "role,node_id,acquired_at,lease_until"),
    ] {
        assert_eq!(one(&client, &columns(view)).await, wanted, "{view}");
    }
    for (sql, wanted) in [
        ("select id || ' ' || scope_key from tenure.msp_leader_state", format!("1 {key}")),
        (
            "select (last_heartbeat > now() - interval '1 min')::text from tenure.msp_leader_state",
            "true".to_owned(),
        ),
        ("select node_id from tenure.forge_leaders", me.clone()),
        ("select epoch || holder_identity from tenure.leader_state", format!("1{me}")),
        ("select node_id from tenure.leaders where role = 'scheduler'", me.clone()),
        ("select (lease_until > acquired_at)::text from tenure.leaders", "true".to_owned()),
        (
            "select provider_id || instance_id from tenure.leader_heartbeat",
            format!("scheduler{me}"),
        ),
        (
            "select (last_seen > now() - interval '1 min')::text from tenure.leader_heartbeat",
            "true".to_owned(),
        ),
    ] {
        assert_eq!(one(&client, sql).await, wanted, "{sql}");
    }
    gone(member).await;
}

#[tokio::test]
async fn a_restricted_login_role_lives_the_whole_lifecycle() {
    let database = database().await;
    let client = database.client().await.unwrap();
    // Login roles belong to the whole cluster: one of our own.
    let user = format!("member_{}", database.name());
    client.batch_execute(&schema::script()).await.unwrap();
    client.batch_execute(&format!("create role {user} login")).await.unwrap();
    let as_user = || Config::builder().dsn(database.dsn_for(&user)).role(RoleSpec::named("r"));

    let error = Member::start(as_user().build().unwrap()).await.expect_err("it may nothing yet");
    assert!(error.to_string().contains("lacks privileges"), "{error}");

    let grants = schema::privileges_sql(&user);
    client.batch_execute(&grants).await.expect("the grants");
    // The right to call a function is one of its own, and every login role has it until it is taken away.
    let revoke = format!("revoke execute on all functions in schema tenure from public, {user}");
    client.batch_execute(&revoke).await.unwrap();
    let error = Member::start(as_user().build().unwrap()).await.expect_err("it may call nothing");
    let sentence = format!(
        "the login role {user} may not execute tenure.await_death(), tenure.await_passes(), tenure.barrier() and "
    );
    assert!(error.to_string().contains(&sentence), "{error}");
    assert!(
        error.to_string().contains(&format!("`tenure migrate --print-grants {user}`")),
        "{error}"
    );
    let told = check(&as_user().build().unwrap()).await.unwrap();
    assert!(told.refusal().unwrap().to_string().contains(&sentence), "{told:?}");
    client.batch_execute(&grants).await.expect("the grants");
    // What only operators and fenced writes call is no member's affair.
    for function in ["tenure.fence(text, bigint)", "tenure.force_release(text, text)"] {
        client
            .batch_execute(&format!("revoke execute on function {function} from {user}"))
            .await
            .unwrap();
    }
    assert!(check(&as_user().build().unwrap()).await.unwrap().refusal().is_none());
    client.batch_execute(&grants).await.expect("the grants");
    let (one_member, two) = (start(as_user()).await, start(as_user()).await);
    one_member.start_all().await.unwrap();
    leads(&one_member.locks()[0]).await;
    two.start_all().await.unwrap();
    one_member.locks()[0].step_down(Some(PATIENCE)).await.unwrap();
    leads(&two.locks()[0]).await;
    // It can end its own old session and everything an operator orders.
    let mut operator =
        tenure::operate::Operator::connect(&as_user().build().unwrap()).await.unwrap();
    let role = tenure::RoleName::new("r").unwrap();
    assert_eq!(operator.status(None).await.unwrap().len(), 1);
    let ordered = operator.step_down(&role, None).await.unwrap();
    let next = operator.await_successor(&role, ordered.epoch, PATIENCE).await.unwrap();
    assert!(next.is_some(), "a member takes over");
    operator.force_release(&role).await.expect("its own login role's session");
    assert!(operator.audit(None).await.unwrap().violations.is_empty());
    gone(one_member).await;
    gone(two).await;
    client.batch_execute(&format!("drop owned by {user}; drop role {user}")).await.unwrap();
}

#[tokio::test]
async fn two_names_with_one_key_and_two_policies_of_one_role_are_refused() {
    let database = database().await;
    let (member, _) = leader(&database, "r").await;
    let key = tenure::LockKey::of_name("r");
    for (spec, wanted) in [
        (RoleSpec::named("other").key(key), "already used by role r"),
        (RoleSpec::named("r").policy(tenure::TakeoverPolicy::Fenced), "policy exclusive"),
        (RoleSpec::named("r").key(tenure::LockKey::Big(1)), "lock key"),
    ] {
        let other = start(config(&database).role(spec)).await;
        let lock = other.locks().remove(0);
        let error = lock.start().await.expect_err("refused");
        assert!(matches!(error, TenureError::Registration { .. }), "{error:?}");
        assert!(error.to_string().contains(wanted), "{error}");
        lock.shutdown(Some(PATIENCE)).await.unwrap();
        assert_eq!(lock.state(), tenure::LockState::Stopped);
        gone(other).await;
    }
    // Nothing is left behind.
    let client = database.client().await.unwrap();
    assert_eq!(one(&client, "select count(*) from tenure.role").await, "1");
    gone(member).await;
}

#[tokio::test]
async fn every_function_finds_its_names_whatever_the_callers_search_path_is() {
    let database = database().await;
    let client = database.client().await.unwrap();
    client.batch_execute(&schema::script()).await.expect("the script runs");
    let open = "select string_agg(oid::regprocedure::text, ', ') from pg_proc \
        where pronamespace = 'tenure'::regnamespace and prosqlbody is null \
          and not 'search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}'))";
    // The fence names the schema of all that it uses: the next test tries it.
    assert_eq!(one(&client, open).await, "tenure.fence(text,bigint)");
    let all = "select count(*) > 20 from pg_proc where pronamespace = 'tenure'::regnamespace";
    assert_eq!(one(&client, all).await, "t");
}

/// What the fence uses, or could be thought to use, in a schema that the caller's search_path names first.
const TRAP: &str = r#"
    create schema trap; create table trap.ran (name text);
    insert into tenure.role (name, key, policy, lease_ms, epoch) values ('r', 1, 'fenced', 9000, 1);
    do $$ declare f record; begin
        for f in select p.proname, pg_get_function_identity_arguments(p.oid) as args,
                        pg_get_function_result(p.oid) as result
                 from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace
                   and p.prokind = 'f' and p.provariadic = 0 and p.proname in ('current_setting',
                     'set_config', 'strpos', 'pg_sequence_last_value', 'pg_current_xact_id',
                     'pg_current_xact_id_if_assigned', 'pg_advisory_xact_lock_shared', 'hashtextextended') loop
            execute format('create function trap.%I(%s) returns %s language plpgsql as %L',
                f.proname, f.args, f.result,
                format('begin insert into trap.ran values (%L); raise exception ''trap''; end', f.proname));
        end loop;
        for f in select o.oprname, o.oprleft::regtype as l, o.oprright::regtype as r from pg_operator o
                 where o.oprname in ('=', '<>', '>', '<')
                   and o.oprleft in ('text'::regtype, 'int8'::regtype, 'int4'::regtype, 'xid8'::regtype)
                   and o.oprright in ('text'::regtype, 'int8'::regtype, 'int4'::regtype, 'xid8'::regtype) loop
            execute format('create or replace function trap.op(%s, %s) returns bool language plpgsql as %L',
                f.l, f.r, 'begin raise exception ''trap''; end');
            execute format('create operator trap.%s (function = trap.op, leftarg = %s, rightarg = %s)',
                f.oprname, f.l, f.r);
        end loop;
    end $$;
    create domain trap.text as pg_catalog.int4; create domain trap.regclass as pg_catalog.int4;
    create function trap.concat(variadic "any") returns pg_catalog.text language internal as 'text_concat';
    set search_path = trap, pg_catalog"#;

#[tokio::test]
async fn the_fence_uses_nothing_that_the_callers_search_path_finds_first() {
    let database = database().await;
    let client = database.client().await.unwrap();
    client.batch_execute(&schema::script()).await.expect("the script runs");
    client.batch_execute(TRAP).await.expect("the trap is set");
    for sprung in ["select 1 = 1", "select current_setting('port')", "select 'a'::text"] {
        client.batch_execute(sprung).await.expect_err("it is a trap");
    }
    // The first makes a pass, the next uses it and then stands behind the fence already, the last is stale.
    for sql in [
        "select tenure.fence('r', 1)",
        "begin; select tenure.fence('r', 1), tenure.fence('r', 1); commit",
    ] {
        client.batch_execute(sql).await.expect(sql);
    }
    let error = client.batch_execute("select tenure.fence('r', 7)").await.expect_err("stale");
    assert_eq!(error.code().map(|code| code.code()), Some("TN001"), "{error:?}");
}

#[tokio::test]
async fn a_function_that_a_login_role_made_elsewhere_never_runs_with_the_callers_rights() {
    let database = database().await;
    let client = database.client().await.unwrap();
    client.batch_execute(&schema::script()).await.expect("the script runs");
    let attacker = format!("attacker_{}", database.name());
    client
        .batch_execute(&format!(
            "create role {attacker}; grant create on schema public to {attacker}; \
             create table public.jobs (id int, epoch bigint); create table public.ran (name text); \
             insert into tenure.role (name, key, policy, lease_ms, epoch) values ('r', 1, 'fenced', 9, 1); \
             create trigger f before insert on public.jobs for each row \
                execute function tenure.fenced('r', 'epoch'); \
             set role {attacker}; \
             create function public.to_jsonb(public.jobs) returns jsonb language plpgsql as \
                $$ begin insert into public.ran values ('to_jsonb'); return '{{\"epoch\": 1}}'; end $$; \
             create function public.jsonb_build_object(text, integer, text, integer) returns jsonb \
                language plpgsql as \
                $$ begin insert into public.ran values ('build'); return '{{}}'; end $$; \
             create function public.jsonb_build_object(text, text) returns jsonb \
                language plpgsql as \
                $$ begin insert into public.ran values ('build'); return '{{}}'; end $$; \
             reset role"
        ))
        .await
        .expect("the trap is set");
    client
        .batch_execute(
            "insert into public.jobs values (1, 1); select tenure.lower_lease('r', 'operator'); \
             select tenure.order_step_down('r', null, 'operator')",
        )
        .await
        .expect("the operator works on");
    assert_eq!(one(&client, "select count(*) from public.ran").await, "0");
    client.batch_execute(&format!("drop owned by {attacker}; drop role {attacker}")).await.unwrap();
}
