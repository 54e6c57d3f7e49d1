-- Every role's leader and candidates, and whether the lock itself agrees. Reads only; {role} is a literal
-- or null for all roles. The age of a heartbeat is the database's own, for people. A holder is acting only
-- if its own session holds the lock and it has beaten within its lease: a row alone proves nothing.
-- The locks are read once, however many roles there are.
with lock as materialized (
    select l.classid::bigint << 32 | l.objid::bigint as key, l.objsubid = 2 as pair, l.pid,
           a.application_name, a.usename
    from pg_locks l left join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted
      and l.database = (select oid from pg_database where datname = current_database())
), held as (
    select r.name, coalesce(bool_or(l.pid = m.backend_pid), false) as by_holder,
           jsonb_agg(jsonb_build_object(
               'pid', l.pid, 'program', l.application_name, 'user', l.usename,
               'tenure', coalesce(l.pid = m.backend_pid, false))) as sessions
    from tenure.role r join lock l on l.key = r.key and l.pair = r.pair
        left join tenure.member m on m.identity = r.holder
    group by r.name
)
select coalesce(jsonb_agg(s order by s->>'role'), '[]') from (
    select jsonb_build_object(
        'role', r.name,
        'key', case when r.pair then (r.key >> 32) || ',' || (r.key << 32 >> 32)
                    else r.key::text end,
        'policy', r.policy,
        'lease_ms', r.lease_ms,
        'epoch', r.epoch,
        'holder', r.holder,
        'state', h.state,
        'acting', h.state = 'led',
        'since', case when h.state in ('led', 'silent') then
            (select t.acting_at from tenure.term t where t.role = r.name and t.epoch = r.epoch) end,
        'released_at', r.released_at,
        'last_holder', r.last_holder,
        'paused', r.paused,
        'step_down_ordered', r.order_id is not null,
        'heartbeat_age_ms', (extract(epoch from clock_timestamp() - m.seen_at) * 1000)::bigint,
        'waiting', (
            select coalesce(jsonb_agg(jsonb_build_object(
                'member', c.member, 'priority', c.priority, 'ready', c.ready,
                'observer', c.observer,
                'heartbeat_age_ms',
                    (extract(epoch from clock_timestamp() - o.seen_at) * 1000)::bigint)
                order by c.priority desc, c.member), '[]')
            from tenure.candidate c
                join tenure.member o on o.identity = c.member and o.left_at is null
            where c.role = r.name and c.member is distinct from r.holder),
        'lock_held_by', held.sessions) as s
    from tenure.role r left join tenure.member m on m.identity = r.holder
        left join held on held.name = r.name
    cross join lateral (
        select case
            when r.holder is null then 'vacant'
            when m.identity is null or m.left_at is not null or held.by_holder is not true then 'gone'
            when clock_timestamp() - m.seen_at > m.lease_ms * interval '1 ms' then 'silent'
            -- The debtor may be this same member, of an earlier term that is waited out.
            when r.debtor is distinct from r.holder or not exists (
                select from tenure.term t
                where t.role = r.name and t.epoch = r.epoch and t.acting_at is not null) then 'taking_over'
            else 'led' end as state) h
    where {role}::text is null or r.name = {role}
) q
