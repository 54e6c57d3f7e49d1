-- What happened, for people, oldest first: the transitions of terms, operators' orders, what members noted,
-- and the ends of schedules' slots. Reads only. Each row has a key of its own, so that a reader that follows
-- can look back a little, for what was committed late, and leave out what it has shown. The latest terms of each role
-- are found by the primary key, and the latest notes by theirs: what it costs does not grow with the history.
with recursive roles(name) as (
    (select t.role from tenure.term t where {role}::text is null or t.role = {role} order by t.role limit 1)
    union all
    select (select t.role from tenure.term t where t.role > k.name and {role}::text is null order by t.role limit 1)
    from roles k where k.name is not null
), terms as materialized (
    select t.* from roles k
        cross join lateral (select l.* from tenure.term l where l.role = k.name order by l.epoch desc limit {limit}) t
    where greatest(t.claimed_at, t.acting_at, t.ended_at) >= {since}
), notes as (
    select o.* from tenure.event o where {role}::text is null or o.role = {role} order by o.id desc limit {limit}
)
select coalesce(jsonb_agg(latest.e order by latest.at, latest.e->>'key'), '[]') from (
    select * from (
        select jsonb_build_object('at', t.claimed_at, 'key', 'c' || t.epoch || ' ' || t.role, 'role', t.role,
            'member', t.member, 'epoch', t.epoch, 'event', 'claimed') as e, t.claimed_at as at
        from terms t where t.claimed_at >= {since}
        union all
        select jsonb_build_object('at', t.acting_at, 'key', 'a' || t.epoch || ' ' || t.role, 'role', t.role,
            'member', t.member, 'epoch', t.epoch, 'event', 'acquired'), t.acting_at
        from terms t where t.acting_at >= {since}
        union all
        select jsonb_build_object('at', t.ended_at, 'key', 'e' || t.epoch || ' ' || t.role, 'role', t.role,
            'member', t.member, 'epoch', t.epoch, 'event', t.how), t.ended_at
        from terms t where t.ended_at >= {since}
        union all
        select jsonb_build_object('at', o.at, 'key', 'o' || o.id, 'role', o.role, 'member', o.member,
            'epoch', o.epoch, 'event', o.kind, 'detail', o.detail), o.at
        from notes o where o.at >= {since}
        {slots}
    ) every
    where {role}::text is null or every.e->>'role' = {role}
    order by every.at desc limit {limit}
) latest
