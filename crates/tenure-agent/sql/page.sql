-- What the page shows, in one statement of set-based parts: no statement for each role. Reads only. The placeholders
-- are the query of page_terms.sql and, where their tables exist, those of the other files of this name.
-- Times are milliseconds since 1970 by this server's clock.
with locks as materialized (
    select l.pid, l.classid, l.objid, l.objsubid from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.pid is not null
      and l.database = (select oid from pg_database where datname = current_database())
), live as materialized (
    select m.*, clock_timestamp() - m.seen_at > m.lease_ms * interval '1 ms' as silent
    from tenure.member m where m.left_at is null
), strange as materialized (
    select distinct l.classid, l.objid, l.objsubid from locks l
    where l.pid not in (select m.backend_pid from live m)
), cand as materialized (
    -- As text, a candidate in each line: a tenth of what objects cost.
    select c.role, string_agg(concat_ws(chr(9), c.member, c.priority, c.ready::integer, c.observer::integer), chr(10)
                              order by c.priority desc, c.member) as list
    from tenure.candidate c join live m on m.identity = c.member group by c.role
), sets as materialized (
    select d.list, row_number() over () - 1 as id from (select distinct list from cand) d
), roles as materialized (
    select r.*, t.acting_at, t.claimed_at, s.id as set_id, m.seen_at,
        case
            when r.holder is null then 'vacant'
            when m.identity is null or m.left_at is not null or own.pid is null then 'gone'
            when clock_timestamp() - m.seen_at > m.lease_ms * interval '1 ms' then 'silent'
            when r.debtor is distinct from r.holder or t.acting_at is null then 'taking_over'
            else 'led' end as state,
        other.objid is not null as stranger
    from tenure.role r
        left join tenure.member m on m.identity = r.holder
        left join tenure.term t on t.role = r.name and t.epoch = r.epoch
        left join cand c on c.role = r.name
        left join sets s on s.list = c.list
        left join locks own on own.pid = m.backend_pid and own.classid = ((r.key >> 32) & 4294967295)::oid
            and own.objid = (r.key & 4294967295)::oid and own.objsubid = case when r.pair then 2 else 1 end
        left join strange other on other.classid = ((r.key >> 32) & 4294967295)::oid
            and other.objid = (r.key & 4294967295)::oid and other.objsubid = case when r.pair then 2 else 1 end
)
select jsonb_build_object(
    'now', {now},
    'sets', (select coalesce(jsonb_agg(list order by id), '[]') from sets),
    'roles', (select coalesce(jsonb_agg(jsonb_build_array(r.name, r.state, r.holder, r.last_holder, r.epoch,
            case r.state when 'led' then {ms}(r.acting_at)
                when 'taking_over' then {ms}(coalesce((select max(p.ended_at) from tenure.term p
                    where p.role = r.name and p.epoch < r.epoch), r.claimed_at))
                when 'vacant' then {ms}(r.released_at)
                else {ms}(r.seen_at) end,
            case when r.state = 'led' then {ms}(r.acting_at) - {ms}(r.claimed_at) else 0 end,
            r.policy, r.lease_ms, r.paused, r.order_id is not null, r.set_id,
            r.stranger and r.state in ('vacant', 'gone')) order by r.name), '[]') from roles r),
    'members', (select coalesce(jsonb_agg(jsonb_build_array(m.identity, m.host, {ms}(m.joined_at), {ms}(m.seen_at),
            m.lease_ms, m.silent) order by m.identity), '[]') from live m),
    'terms', ({terms}),
    'events', (select coalesce(jsonb_agg(e order by e->0), '[]') from (
        select jsonb_build_array(o.id, {ms}(o.at), o.kind, o.role, o.member, o.epoch,
            left(regexp_replace(o.detail, ', login role [^,]*', ''), 300)) as e
        from tenure.event o order by o.id desc limit 100) q),
    'schedules', {schedules},
    'tx', {tx},
    'alerts', {alerts})
