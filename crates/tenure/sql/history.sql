-- The durable terms of a role, newest first. Reads only.
select coalesce(jsonb_agg(t order by (t->>'role'), (t->>'epoch')::bigint desc), '[]') from (
    select jsonb_build_object('role', role, 'epoch', epoch, 'member', member,
        'claimed_at', claimed_at, 'acting_at', acting_at, 'ended_at', ended_at, 'how', how) as t
    from tenure.term
    where {role}::text is null or role = {role}
    order by claimed_at desc, epoch desc limit {limit}
) q
