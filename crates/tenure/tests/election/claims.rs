//! A claim of many roles: the same answers as claims of one, and few round trips.

use std::time::{Duration, Instant};

use tenure::config::RoleSpec;
use tenure_testkit::{Cluster, ClusterOptions};
use tokio_postgres::Client;

use crate::stage::{config, database, gone, leads, one, start, until};

/// Sixty roles in every state that a claim may find, chosen by `seed`, and the members that ask for them.
async fn scene(client: &Client, seed: usize) {
    client
        .batch_execute(&format!(
            "truncate tenure.role, tenure.term, tenure.candidate, tenure.member;
             select setseed({seed} / 100.0);
             select tenure.take_seat('{{\"identity\": \"me\", \"key\": 999999, \"seat\": \"s\", \"host\": \
                 \"h\", \"pid\": 1, \"lease_ms\": 3000, \"grace_ms\": 0}}');
             insert into tenure.member (identity, host, pid, backend_pid, backend_start, seat, key,
                     lease_ms, incarnation, beat, left_at)
                 select who, 'h', 1, 0, now(), '', 0, 5000, '', 7, case who when 'dead' then now() end
                 from unnest(array['you', 'dead']) who;
             insert into tenure.role (name, key, pair, policy, lease_ms, epoch, lineage, holder,
                     held_in, debtor, debtor_lease_ms, acted_in, paid_in, successor,
                     successor_until, paused, order_id, last_holder)
                 select 'r' || n, n, random() < 0.3, pick('exclusive', 'fenced'),
                     pick('1000', '9000')::int, 3,
                     case pick('a', 'b', 'c') when 'a' then '' when 'b' then 'elsewhere/1'
                         else (select lineage from tenure.origin) end,
                     pick(null, null, 'me', 'you', 'dead', 'gone'), pick(m.incarnation, 'old'),
                     pick(null, null, 'me', 'you', 'dead', 'gone'), pick(null, '2000')::int,
                     pick(m.incarnation, 'old'), pick(null, m.incarnation, 'old'),
                     pick(null, null, null, 'you', 'me'), now() + interval '1 minute',
                     random() < 0.1, pick(null, '5')::bigint, pick(null, 'me', 'you')
                 from generate_series(1, 60) n, tenure.member m where m.identity = 'me';
             insert into tenure.term (role, epoch, member, acting_at)
                 select name, epoch, coalesce(holder, 'gone'), now() from tenure.role
                 where random() < 0.7;
             insert into tenure.candidate (role, member, priority, ready, observer)
                 select name, who, pick('0', '1')::int, random() < 0.9, random() < 0.2
                 from tenure.role, unnest(array['me', 'you', 'dead']) who
                 where who = 'me' or random() < 0.3;"
        ))
        .await
        .expect("a scene");
}

/// The roles as they are asked for; some that are not registered, some with a wrong key.
const ASK: &str = "select jsonb_agg(jsonb_build_object('role', name, 'key', key, 'pair', pair, \
     'seen', seen, 'keep', keep, 'insist', insist)) from (\
       select name, case when random() < 0.05 then key + 1000 else key end as key, pair, \
              pick('0', '9')::int as seen, pick(null, null, null, '3', '2')::int as keep, \
              random() < 0.3 as insist from tenure.role \
       union all select 'unknown', 5000, false, 0, null, false) x";

/// What a claim answered and what it left behind, without times of day.
const LEFT: &str = "select jsonb_build_object(\
     'answers', (select jsonb_agg(jsonb_strip_nulls(a) order by a->>'role') \
                 from jsonb_array_elements(current_setting('test.answers')::jsonb) a), \
     'roles', (select jsonb_agg(to_jsonb(r) - 'since' - 'successor_until' - 'released_at' \
                                order by name) from tenure.role r), \
     'terms', (select jsonb_agg(jsonb_build_array(role, epoch, member, acting_at is null, how) \
                                order by role, epoch) from tenure.term), \
     'told', (select jsonb_agg(jsonb_build_array(identity, revoked) order by identity) \
              from tenure.member), \
     'locks', (select jsonb_agg(jsonb_build_array(classid, objid, objsubid) \
                                order by classid, objid, objsubid) \
               from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and objid <> 999999))";

#[tokio::test]
async fn a_claim_of_many_roles_answers_and_leaves_what_claims_of_one_do() {
    let database = database().await;
    gone(start(config(&database).role(RoleSpec::named("r"))).await).await;
    let client = database.client().await.unwrap();
    let other = database.client().await.unwrap();
    client
        .batch_execute(
            "create function pick(variadic text[]) returns text language sql volatile as \
             $$ select $1[1 + floor(random() * cardinality($1))::int] $$;
             create function asked(jsonb) returns tenure.ask[] language sql as \
             $$ select array_agg(x order by x.pair, x.key) \
                from jsonb_populate_recordset(null::tenure.ask, $1) x $$",
        )
        .await
        .unwrap();
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..25 {
        scene(&client, seed).await;
        // Some locks are held by a stranger.
        other
            .batch_execute("select pg_advisory_lock(n) from generate_series(1, 8) n")
            .await
            .unwrap();
        let ask = one(&client, ASK).await.replace('\'', "''");
        let mut found = Vec::new();
        for how in [
            format!("select tenure.claim_rows(m, asked('{ask}'), false) from tenure.member m"),
            format!(
                "select jsonb_agg(tenure.claim_rows(m, array[q], true)->0 order by q.pair, q.key) \
                 from tenure.member m, unnest(asked('{ask}')) q"
            ),
        ] {
            client
                .batch_execute(&format!(
                    "begin; select set_config('test.answers', ({how} where identity = 'me')::text, \
                     true)"
                ))
                .await
                .unwrap();
            let left = one(&client, LEFT).await;
            // Locks outlive the rollback; the member's own does not matter here.
            client.batch_execute("rollback; select pg_advisory_unlock_all()").await.unwrap();
            found.push(serde_json::from_str::<serde_json::Value>(&left).unwrap());
        }
        let [mut many, mut single] = <[_; 2]>::try_from(found).unwrap();
        // A role without a row is left to the other, which says so.
        for side in [&mut many, &mut single] {
            let answers = side["answers"].as_array_mut().unwrap();
            answers.retain(|answer| answer["role"] != "unknown");
            for answer in answers {
                let out = answer["out"].as_str().unwrap().to_owned();
                assert_ne!(out, "error", "{answer}");
                outcomes.insert(out);
            }
        }
        let answers = |side: &serde_json::Value| side["answers"].as_array().unwrap().clone();
        for (many, single) in answers(&many).into_iter().zip(answers(&single)) {
            assert_eq!(many, single, "with seed {seed}");
        }
        for part in ["answers", "roles", "terms", "told", "locks"] {
            assert_eq!(many[part], single[part], "{part} with seed {seed}");
        }
        other.batch_execute("select pg_advisory_unlock_all()").await.unwrap();
    }
    let all = ["held", "kept", "moved", "paused", "unknown", "won", "yield"];
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), all, "a state that no scene has");
}

/// The planner believes its statistics, and those know nothing of a member that has just come.
#[tokio::test]
async fn a_new_member_claims_as_quickly_as_one_that_the_statistics_know() {
    let database = database().await;
    gone(start(config(&database).role(RoleSpec::named("r"))).await).await;
    let client = database.client().await.unwrap();
    client
        .batch_execute(
            "set jit = off; -- as every seat does
             truncate tenure.role, tenure.candidate;
             insert into tenure.role (name, key, policy, lease_ms)
                 select 'r' || n, n, 'exclusive', 3000 from generate_series(1, 10000) n;
             insert into tenure.candidate (role, member) select name, 'old' from tenure.role;
             analyze tenure.role, tenure.candidate;
             select tenure.take_seat('{\"identity\": \"new\", \"key\": 1, \"seat\": \"s\", \"host\": \"h\", \
                 \"pid\": 1, \"lease_ms\": 3000, \"grace_ms\": 0}');
             insert into tenure.candidate (role, member) select name, 'new' from tenure.role;",
        )
        .await
        .unwrap();
    let ask = "select tenure.claim('new', (select jsonb_agg(jsonb_build_object('role', name, 'key', \
               key, 'pair', pair, 'seen', 0)) from tenure.role where key <= 1000), 100, 60000)";
    let before = Instant::now();
    let answer: serde_json::Value = serde_json::from_str(&one(&client, ask).await).unwrap();
    let took = before.elapsed();
    let won = answer["roles"].as_array().unwrap().iter().filter(|role| role["out"] == "won");
    assert_eq!(won.count(), 1000);
    // A tenth of a second or two; with a plan for one candidacy it is several seconds.
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// A claim that outlasted the seat's deadline would cost the seat.
#[tokio::test]
async fn a_claim_of_very_many_roles_ends_in_its_time_and_goes_on_with_the_next() {
    let database = database().await;
    gone(start(config(&database).role(RoleSpec::named("r"))).await).await;
    let client = database.client().await.unwrap();
    client
        .batch_execute(
            "set jit = off; -- as every seat does
             truncate tenure.role, tenure.candidate;
             insert into tenure.role (name, key, policy, lease_ms)
                 select 'r' || n, n, 'fenced', 3000 from generate_series(1, 1000) n;
             select tenure.take_seat('{\"identity\": \"m\", \"key\": -1, \"seat\": \"s\", \"host\": \"h\", \
                 \"pid\": 1, \"lease_ms\": 3000, \"grace_ms\": 0}');
             insert into tenure.candidate (role, member) select name, 'm' from tenure.role;",
        )
        .await
        .unwrap();
    // In a millisecond it comes to its first part. All that is not answered is as it was.
    let ask = "select tenure.claim('m', (select jsonb_agg(jsonb_build_object('role', name, 'key', key, \
               'pair', pair, 'seen', 0)) from tenure.role where holder is null), 100, 1)";
    let locks =
        "select count(*) - 1 from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    let (mut won, mut claims) = (0, 0);
    while won < 1000 {
        let answer: serde_json::Value = serde_json::from_str(&one(&client, ask).await).unwrap();
        let roles = answer["roles"].as_array().unwrap();
        assert!(roles.iter().all(|role| role["out"] == "won"), "{answer}");
        assert!((1..=200).contains(&roles.len()), "{} in one part", roles.len());
        (won, claims) = (won + roles.len(), claims + 1);
        let held = "select count(*) from tenure.role where holder = 'm' and epoch = 1";
        for sql in
            [held, locks, "select count(*) from tenure.term where epoch = 1 and member = 'm'"]
        {
            assert_eq!(one(&client, sql).await, won.to_string(), "{sql}");
        }
    }
    assert_eq!(claims, 5);
}

/// Such a role may have been led before the failover, and names no leader.
#[tokio::test]
async fn a_role_that_is_new_after_a_failover_is_led_after_a_lease() {
    let database = database().await;
    let member = start(config(&database).lease(Duration::from_secs(1))).await;
    let client = database.client().await.unwrap();
    until(&client, "select to_regclass('tenure.origin') is not null", "t").await;
    client.batch_execute("update tenure.origin set lineage = 'elsewhere/1'").await.unwrap();
    gone(member).await;
    let before = Instant::now();
    let role = RoleSpec::named("r");
    let member = start(config(&database).lease(Duration::from_secs(1)).role(role)).await;
    member.start_all().await.unwrap();
    leads(&member.locks()[0]).await;
    assert!(before.elapsed() > Duration::from_secs(1), "an unknown leader may have led before");
    gone(member).await;
}

#[tokio::test]
async fn ten_thousand_roles_are_led_by_one_member_in_few_round_trips() {
    let roles = 10_000;
    // A quarter of the lock table must hold them.
    let options = ClusterOptions::default().set("max_locks_per_transaction", 512);
    let cluster = Cluster::start_with(options).await.expect("a cluster");
    let database = cluster.database().await.expect("a database");
    let mut builder = config(&database).lease(Duration::from_secs(10));
    for n in 0..roles {
        builder = builder.role(RoleSpec::named(format!("r{n}")));
    }
    let before = Instant::now();
    let member = start(builder).await;
    member.start_all().await.expect("all are taken");
    let locks = member.locks();
    for lock in &locks {
        leads(lock).await;
    }
    let took = before.elapsed();
    let client = database.client().await.unwrap();
    // A dozen registrations and a dozen claims, up to a thousand each; on a busy machine they carry fewer, and
    // beats come in between.
    let trips: u64 = one(&client, "select beat from tenure.member").await.parse().unwrap();
    assert!(trips < 60 + took.as_secs(), "{trips} round trips in {took:?}");
    let sessions = "select count(*) from pg_stat_activity \
                    where application_name like 'tenure %' and datname = current_database()";
    until(&client, sessions, "2").await;
    let epochs = "select max(epoch) || ' ' || count(*) from tenure.role where holder is not null";
    assert_eq!(one(&client, epochs).await, "1 10000", "a seat was lost on the way");
    assert!(locks.iter().all(|lock| lock.is_leader()));
    gone(member).await;
    let locks = "select count(*) from pg_locks where locktype = 'advisory' and granted";
    until(&client, locks, "0").await;
}
