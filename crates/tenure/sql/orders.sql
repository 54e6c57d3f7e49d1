-- The latest orders of operators about a role, newest first. Reads only.
select coalesce(jsonb_agg(o order by (o->>'id')::bigint desc), '[]') from (
    select jsonb_build_object('id', id, 'at', at, 'role', role, 'member', member, 'epoch', epoch,
        'kind', kind, 'detail', detail) as o
    from tenure.event
    where role is not null and ({role}::text is null or role = {role})
    order by id desc limit {limit}
) q
