-- The durable state of alerts, and the samples that rules are evaluated on.
--
-- Invariants:
--   * Only the leader of `tenure:alerts` writes here, under the fence of its epoch.
--   * A message leaves only because of an incident that was committed before. What a notifier acknowledged is
--     written afterwards: a message between the two is sent again by a successor, with the same key.

create table tenure_agent.alert (
    -- An element of a rule's result, as long as it is there: pending, and firing from fired_at on.
    fingerprint text primary key,
    rule        text not null,
    labels      jsonb not null,
    value       double precision not null,
    since       timestamptz not null,
    fired_at    timestamptz
);

create table tenure_agent.incident (
    key         text primary key,               -- the deduplication key
    rule        text not null,
    severity    text not null,
    opened_at   timestamptz not null,
    resolved_at timestamptz,
    owed        boolean not null,                -- it is open, or a notifier must still be told
    body        jsonb not null                   -- the engine's own record, with what each notifier was told
);
create index incident_owed on tenure_agent.incident (opened_at) where owed;

create table tenure_agent.alert_round (
    only_row     boolean primary key default true check (only_row),
    evaluated_at timestamptz not null,
    epoch        bigint not null
);

-- What a leader begins with.
create function tenure_agent.alerts_load(p_epoch bigint) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure.fence('tenure:alerts', p_epoch);
    return jsonb_build_object(
        'now', tenure_agent.micros(clock_timestamp()),
        'evaluated', (select tenure_agent.micros(evaluated_at) from tenure_agent.alert_round),
        'alerts', (select coalesce(jsonb_agg(jsonb_build_object('rule', a.rule, 'labels', a.labels,
                'value', a.value, 'since', a.since, 'fired', a.fired_at)), '[]') from tenure_agent.alert a),
        'incidents', (select coalesce(jsonb_agg(i.body order by i.opened_at), '[]')
                      from tenure_agent.incident i where i.owed));
end $$;

-- One step of the engine: all of it, or nothing.
create function tenure_agent.alerts_write(p_epoch bigint, p_member text, p_alerts jsonb, p_gone jsonb,
                                          p_incidents jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure.fence('tenure:alerts', p_epoch);
    delete from tenure_agent.alert a where a.fingerprint in (select jsonb_array_elements_text(p_gone));
    insert into tenure_agent.alert as a (fingerprint, rule, labels, value, since, fired_at)
        select e.key, e.value->>'rule', e.value->'labels', (e.value->>'value')::double precision,
               (e.value->>'since')::timestamptz, (e.value->>'fired')::timestamptz
        from jsonb_each(p_alerts) e
        on conflict (fingerprint) do update set value = excluded.value, since = excluded.since,
            fired_at = excluded.fired_at;
    -- For people: one line when an incident opens, and one when it is over.
    insert into tenure.event (role, member, epoch, kind, detail)
        select 'tenure:alerts', p_member, p_epoch,
               case when i->>'resolved' is null then 'alert_firing' else 'alert_resolved' end,
               (i->>'rule') || ', ' || (i->>'severity') || coalesce(': ' || (i->>'summary'), '')
        from jsonb_array_elements(p_incidents) i left join tenure_agent.incident o on o.key = i->>'key'
        where o.key is null or (o.resolved_at is null and i->>'resolved' is not null);
    insert into tenure_agent.incident (key, rule, severity, opened_at, resolved_at, owed, body)
        select i->>'key', i->>'rule', i->>'severity', (i->>'opened')::timestamptz,
               (i->>'resolved')::timestamptz, (i->>'owed')::boolean, i - 'owed'
        from jsonb_array_elements(p_incidents) i
        on conflict (key) do update set resolved_at = excluded.resolved_at, owed = excluded.owed,
            body = excluded.body;
    insert into tenure_agent.alert_round (evaluated_at, epoch) values (clock_timestamp(), p_epoch)
        on conflict (only_row) do update set evaluated_at = excluded.evaluated_at, epoch = excluded.epoch;
    delete from tenure_agent.incident i
        where not i.owed and i.resolved_at < clock_timestamp() - interval '90 days';
    return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()));
end $$;

-- Everything that rules are evaluated on, of all members, in one answer. `p_back_ms`: how far back terms are
-- told one by one, the latest 20,000 of them: a history that has more within a range flaps beyond all rules. Counts
-- are told of members that live, or had a term within the range: each start of a program is a member of its own,
-- and nothing but the history knows the others any more. Reads only. A holder acts only if its own session holds the lock and it has beaten within
-- its lease, as `tenure status` has it.
create function tenure_agent.alerts_sample(p_back_ms bigint) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    v_now timestamptz := clock_timestamp();
    v_since timestamptz := v_now - p_back_ms * interval '1 ms';
    v_out jsonb;
    v_tx jsonb := '[]';
begin
    with locks as materialized (
        select distinct l.pid, l.classid, l.objid, l.objsubid from pg_locks l
        where l.locktype = 'advisory' and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
    ), terms as materialized (
        select t.role, t.epoch, t.member, t.claimed_at, t.acting_at, t.ended_at, t.how,
               lag(t.how) over (partition by t.role order by t.epoch) = 'replaced' as took_over,
               t.ended_at is null or greatest(t.claimed_at, t.acting_at, t.ended_at) > v_since as recent
        from tenure.term t
    ), sessions as materialized (
        select s.pid, s.backend_start from pg_stat_get_activity(null) s
    ), members as materialized (
        select m.identity, m.backend_pid, m.seen_at, m.lease_ms,
               -- A login that may not see another's session start goes by its number alone.
               s.pid is not null and coalesce(s.backend_start = m.backend_start, true) as connected
        from tenure.member m left join sessions s on s.pid = m.backend_pid
        where m.left_at is null
    ), candidates as materialized (
        select c.role, jsonb_agg(c.member) as members
        from tenure.candidate c join members m on m.identity = c.member
        where not c.observer and (m.connected or m.seen_at > v_now - interval '1 minute')
        group by c.role
    ), roles as (
        select r.name, r.epoch, r.holder, r.last_holder, r.paused, c.members, t.acting_at,
               m.identity is not null and l.pid is not null as held,
               m.seen_at < v_now - m.lease_ms * interval '1 ms' as silent,
               r.debtor is not distinct from r.holder and t.acting_at is not null as acting
        from tenure.role r
            left join members m on m.identity = r.holder
            left join locks l on l.pid = m.backend_pid and l.classid = ((r.key >> 32) & 4294967295)::oid
                and l.objid = (r.key & 4294967295)::oid
                and l.objsubid = case when r.pair then 2 else 1 end
            left join tenure.term t on t.role = r.name and t.epoch = r.epoch
            left join candidates c on c.role = r.name
    )
    select jsonb_build_object(
        'now', tenure_agent.micros(v_now),
        'roles', (select coalesce(jsonb_agg(jsonb_build_object(
                'role', r.name, 'epoch', r.epoch, 'holder', r.holder, 'last', r.last_holder,
                'paused', r.paused, 'candidates', coalesce(r.members, '[]'),
                'leads', r.held and r.acting and not r.silent, 'silent', r.held and r.silent,
                'acting', tenure_agent.micros(r.acting_at),
                'violations', (
                    select count(*) from (
                        select x.*, lead(x.epoch) over w as next_epoch, lead(x.claimed_at) over w as next_claimed,
                               lead(x.acting_at) over w as next_acting
                        from (select * from tenure.term y where y.role = r.name order by y.epoch desc limit 20) x
                        window w as (order by x.epoch)) v
                    where v.next_claimed < v.claimed_at or (v.next_epoch is not null and v.ended_at is null)
                       or v.next_acting < v.ended_at or v.ended_at < v.acting_at
                       or v.acting_at < v.claimed_at))), '[]') from roles r),
        'members', (select coalesce(jsonb_agg(jsonb_build_object(
                'member', m.identity, 'connected', m.connected,
                'age_ms', (extract(epoch from v_now - m.seen_at) * 1000)::bigint)), '[]')
            from members m where m.connected or m.seen_at > v_now - interval '1 hour'),
        'totals', (select coalesce(jsonb_agg(jsonb_build_array(s.role, s.member, s.claimed, s.acquired,
                s.released, s.lost, s.failovers)), '[]')
            from (select t.role, t.member, count(*) as claimed, count(t.acting_at) as acquired,
                         count(*) filter (where t.how = 'released') as released,
                         count(*) filter (where t.how in ('replaced', 'forced') and t.acting_at is not null) as lost,
                         count(*) filter (where t.took_over) as failovers
                  from terms t group by t.role, t.member
                  having bool_or(t.recent) or t.member in (select m.identity from members m)
                  order by max(t.claimed_at) desc limit 20000) s),
        'terms', (select coalesce(jsonb_agg(jsonb_build_object('role', t.role, 'member', t.member,
                'claimed', tenure_agent.micros(t.claimed_at), 'acting', tenure_agent.micros(t.acting_at),
                'ended', tenure_agent.micros(t.ended_at), 'how', t.how,
                'took_over', coalesce(t.took_over, false))), '[]')
            from (select * from terms r where r.recent
                  order by coalesce(r.ended_at, 'infinity') desc, r.claimed_at desc limit 20000) t),
        'late', (select coalesce(jsonb_agg(jsonb_build_array(e.role, e.member, tenure_agent.micros(e.at))), '[]')
            from tenure.event e
            where e.id > (select coalesce(max(id), 0) - 10000 from tenure.event) and e.kind = 'late'
              and e.role is not null and e.member is not null and e.at > v_now - interval '1 hour'),
        'schedules', (select coalesce(jsonb_agg(jsonb_build_object('schedule', s.name, 'role', s.role,
                'late_ms', case when r.paused then 0 else
                    greatest(0, (extract(epoch from v_now - s.next_at) * 1000)::bigint) end,
                'dead', (select count(*) from tenure_agent.slot d
                         where d.schedule = s.name and d.state in ('failed', 'interrupted')))), '[]')
            from tenure_agent.schedule s left join tenure.role r on r.name = s.role
            where s.removed_at is null)) into v_out;
    if exists (select from pg_namespace n where n.nspname = 'tenure_tx' and has_schema_privilege(n.oid, 'usage')) then
        if to_regclass('tenure_tx.pending_transactions') is not null
            and has_table_privilege('tenure_tx.pending_transactions', 'select')
            and has_table_privilege('tenure_tx.account', 'select') then
            execute 'select coalesce(jsonb_agg(jsonb_build_array(q.role, q.age_ms)), ''[]'') from (
                select a.role, coalesce((extract(epoch from $1 - min(p.created_at)) * 1000)::bigint, 0) as age_ms
                from tenure_tx.account a left join tenure_tx.pending_transactions p
                    on p.account_id = a.account_id and p.ended_at is null
                group by a.role) q' into v_tx using v_now;
        end if;
    end if;
    return v_out || jsonb_build_object('transactions', v_tx);
end $$;
