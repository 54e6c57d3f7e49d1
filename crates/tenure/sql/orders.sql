-- The latest orders of operators about a role, newest first. Reads only. Members and alerts write events of
-- their own there, which no operator ordered.
select coalesce(jsonb_agg(o order by (o->>'id')::bigint desc), '[]') from (
    select jsonb_build_object('id', id, 'at', at, 'role', role, 'member', member, 'epoch', epoch,
        'kind', kind, 'detail', detail) as o
    from tenure.event
    where kind in ('step_down', 'pause', 'resume', 'lower_lease', 'force_release', 'alter', 'forget',
                   'run_schedule')
      and role is not null and ({role}::text is null or role = {role})
    order by id desc limit {limit}
) q
