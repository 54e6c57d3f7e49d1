-- A bad day of a group that does not exist, for the picture of the page: one role without a leader, one that changes its
-- leader too often, one silent member, two dead letters, an alert that fires, a transaction that is stuck. The tables
-- are the real ones. Sessions of the test stand for the members that beat: they hold the locks.

create function pg_temp.id(name text) returns text language sql as $$
    select 'tenure-' || name || '-4711-00000000-0000-4000-8000-' || lpad(to_hex(abs(hashtext(name))), 12, '0')
$$;
create function pg_temp.ago(seconds double precision) returns timestamptz language sql as $$
    select clock_timestamp() - make_interval(secs => seconds)
$$;
-- A term: from so many seconds ago until so many, or until now.
create function pg_temp.led(role text, epoch bigint, name text, since double precision, until double precision, how text)
returns void language sql as $$
    insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how)
    values (role, epoch, pg_temp.id(name), pg_temp.ago(since), pg_temp.ago(since) + interval '4 ms',
            case when until is not null then pg_temp.ago(until) end, how)
$$;

insert into tenure.member (identity, host, pid, backend_pid, backend_start, seat, key, lease_ms, incarnation, joined_at, seen_at)
select pg_temp.id(name), host, 4711, 0, now(), '', 900000 + n, 3000, '', now() - interval '3 days',
    case when name = 'harbor' then now() - interval '53 s' else now() + interval '1 h' end
from unnest(array['north', 'east', 'south', 'west', 'harbor'], array['app-1', 'app-2', 'app-3', 'app-4', 'app-5'])
    with ordinality m(name, host, n);

insert into tenure.role (name, key, policy, lease_ms, epoch, holder, debtor, since, last_holder)
select r.name, 1000 + row_number() over (), case when r.name like 'relayer%' then 'fenced' else 'exclusive' end, 3000, r.epoch,
    pg_temp.id(r.leader), pg_temp.id(r.leader), now(), pg_temp.id(r.last)
from (values ('alerts', 81, 'south', 'north'), ('cache-warmer', 76, 'north', 'south'), ('invoice-mailer', 80, 'east', 'west'),
    ('maintenance', 36, 'west', 'south'), ('price-feed', 67, 'south', 'east'), ('relayer:mainnet', 50, 'east', 'north'),
    ('report-builder', 65, 'west', 'east'), ('scheduler', 62, 'north', 'east'), ('search-index', 87, 'south', 'harbor'),
    ('ledger-sync', 60, 'west', 'north')) r(name, epoch, leader, last);
insert into tenure.role (name, key, policy, lease_ms, epoch, last_holder, released_at)
values ('billing-export', 1099, 'exclusive', 3000, 41, pg_temp.id('harbor'), pg_temp.ago(49));
insert into tenure.role (name, key, policy, lease_ms, epoch, holder, debtor, since, last_holder)
select 'ingest-' || n, 2000 + n, 'exclusive', 3000, 12, pg_temp.id(m), pg_temp.id(m), now(), pg_temp.id('harbor')
from generate_series(0, 63) n, lateral (select (array['north', 'east', 'south', 'west'])[n % 4 + 1] as m) x;

select pg_temp.led('billing-export', 41, 'harbor', 20000, 49, 'replaced');
select pg_temp.led('alerts', 80, 'north', 20000, 1808, 'released'), pg_temp.led('alerts', 81, 'south', 1807.98, null, null);
select pg_temp.led('cache-warmer', 74, 'west', 9000, 3064, 'replaced'), pg_temp.led('cache-warmer', 75, 'south', 3062.1, 1662, 'released'),
    pg_temp.led('cache-warmer', 76, 'north', 1661.99, null, null);
select pg_temp.led('invoice-mailer', 79, 'west', 9000, 1709, 'released'), pg_temp.led('invoice-mailer', 80, 'east', 1708.99, null, null);
select pg_temp.led('maintenance', 35, 'south', 9000, 1752, 'released'), pg_temp.led('maintenance', 36, 'west', 1751.98, null, null);
select pg_temp.led('price-feed', 66, 'east', 9000, 310, 'released'), pg_temp.led('price-feed', 67, 'south', 255, null, null);
select pg_temp.led('relayer:mainnet', 49, 'north', 9000, 1211, 'replaced'), pg_temp.led('relayer:mainnet', 50, 'east', 1210.987, null, null);
select pg_temp.led('report-builder', 63, 'west', 9000, 3063.9, 'replaced'), pg_temp.led('report-builder', 64, 'east', 3062.1, 1629, 'released'),
    pg_temp.led('report-builder', 65, 'west', 1628.98, null, null);
select pg_temp.led('scheduler', 61, 'east', 9000, 1865, 'released'), pg_temp.led('scheduler', 62, 'north', 1864.99, null, null);
select pg_temp.led('search-index', 86, 'harbor', 9000, 49, 'replaced'), pg_temp.led('search-index', 87, 'south', 46.9, null, null);
select pg_temp.led('ledger-sync', 45, 'west', 9000, 860, 'replaced');
select pg_temp.led('ledger-sync', 45 + n, case n % 2 when 1 then 'north' else 'west' end, 857 - (n - 1) * 53.5,
    case when n < 15 then 857 - n * 53.5 + 2.9 end, case when n < 15 then 'replaced' end) from generate_series(1, 15) n;
select pg_temp.led('ingest-' || n, 11, 'harbor', 9000, 49, 'replaced'), pg_temp.led('ingest-' || n, 12, m, 46.8, null, null)
from generate_series(0, 63) n, lateral (select (array['north', 'east', 'south', 'west'])[n % 4 + 1] as m) x where n % 5 = 3;
select pg_temp.led('ingest-' || n, 12, m, 9000, null, null)
from generate_series(0, 63) n, lateral (select (array['north', 'east', 'south', 'west'])[n % 4 + 1] as m) x where n % 5 <> 3;

insert into tenure.candidate (role, member, priority, ready)
select r.name, pg_temp.id(m), 0, r.name <> 'billing-export' from tenure.role r, unnest(array['north', 'east', 'south', 'west']) m
where r.name <> 'billing-export' or m = 'west';

insert into tenure.event (at, role, member, epoch, kind, detail)
values (pg_temp.ago(310), 'price-feed', pg_temp.id('east'), 66, 'pause', 'asked by ana, by the page'),
       (pg_temp.ago(256), 'price-feed', null, 66, 'resume', 'asked by ana, by the page');

insert into tenure_agent.schedule (name, role, timing, definition, digest, epoch, watermark, next_at)
select name, role, cron, jsonb_build_object('cron', cron, 'overlap', 'forbid'), '', 62, now(), pg_temp.ago(-next)
from (values ('invoice-mail', 'invoice-mailer', '*/10 * * * *', 431), ('nightly-report', 'report-builder', '30 6 * * *', 52000),
    ('price-refresh', 'scheduler', '@every 1m', 22), ('search-compact', 'scheduler', '15 * * * *', 1840),
    ('session-cleanup', 'scheduler', '*/5 * * * *', 131)) s(name, role, cron, next);
insert into tenure_agent.slot (schedule, at, state, attempts, epoch, member, claimed_at, ended_at)
select s.name, t, case when bad then 'failed' else 'succeeded' end, case when bad then 3 else 1 end, 62, pg_temp.id('north'), t,
    t + make_interval(secs => 2 + (k * 7 + length(s.name)) % 11)
from tenure_agent.schedule s, generate_series(1, 20) k,
    lateral (select (s.name, k) in (('invoice-mail', 3), ('nightly-report', 1)) as bad,
        date_trunc('minute', pg_temp.ago(case s.name when 'nightly-report' then 34200 + (k - 1) * 86400 when 'search-compact' then 1700 + k * 3600
            when 'price-refresh' then k * 60 when 'session-cleanup' then k * 300 else k * 600 end)) as t) x;
insert into tenure_agent.attempt (schedule, at, number, epoch, member, started_at, ended_at, how, code, output)
select schedule, at, 3, 62, member, claimed_at, ended_at, 'failed', 1, 'smtp: 421 too many connections, retry later'
from tenure_agent.slot where state = 'failed';

insert into tenure_agent.alert (fingerprint, rule, labels, value, since, fired_at)
values ('f1', 'no_leader', '{"role": "billing-export"}', 0, pg_temp.ago(48), pg_temp.ago(18));
insert into tenure_agent.incident (key, rule, severity, opened_at, owed, body)
values ('k1', 'no_leader', 'critical', pg_temp.ago(18), true, '{"summary": "a role has no leader", "deliveries":
    {"pagerduty": {"told": {"firing": []}}, "slack:#ops": {"told": {"firing": []}}}}');
