-- What happened, for people, oldest first: the transitions of terms, operators' orders, what members noted,
-- and the ends of schedules' slots. Reads only. Each row has a key of its own, so that a reader that follows
-- can look back a little, for what was committed late, and leave out what it has shown.
select coalesce(jsonb_agg(latest.e order by latest.at, latest.e->>'key'), '[]') from (
    select * from (
        select jsonb_build_object('at', t.claimed_at, 'key', 'c' || t.epoch || ' ' || t.role, 'role', t.role,
            'member', t.member, 'epoch', t.epoch, 'event', 'claimed') as e, t.claimed_at as at
        from tenure.term t where t.claimed_at >= {since}
        union all
        select jsonb_build_object('at', t.acting_at, 'key', 'a' || t.epoch || ' ' || t.role, 'role', t.role,
            'member', t.member, 'epoch', t.epoch, 'event', 'acquired'), t.acting_at
        from tenure.term t where t.acting_at >= {since}
        union all
        select jsonb_build_object('at', t.ended_at, 'key', 'e' || t.epoch || ' ' || t.role, 'role', t.role,
            'member', t.member, 'epoch', t.epoch, 'event', t.how), t.ended_at
        from tenure.term t where t.ended_at >= {since}
        union all
        select jsonb_build_object('at', o.at, 'key', 'o' || o.id, 'role', o.role, 'member', o.member,
            'epoch', o.epoch, 'event', o.kind, 'detail', o.detail), o.at
        from tenure.event o where o.at >= {since}
        {slots}
    ) every
    where {role}::text is null or every.e->>'role' = {role}
    order by every.at desc limit {limit}
) latest
