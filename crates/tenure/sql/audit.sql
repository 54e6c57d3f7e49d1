-- The terms that break a promise: epochs of a role must grow with time, and the time in which one
-- term may have acted must end before the next one's begins. Reads only, one page: the terms from
-- ({from_role}, {from_epoch}) on. The last of a full page is looked at again as the first of the next.
with page as materialized (
    select * from tenure.term
    where ({role}::text is null or role = {role}) and (role, epoch) >= ({from_role}, {from_epoch})
    order by role, epoch limit {limit}
), t as (
    select *, lead(epoch) over w as next_epoch, lead(claimed_at) over w as next_claimed,
           lead(acting_at) over w as next_acting,
           row_number() over (order by role, epoch) as number
    from page window w as (partition by role order by epoch)
), bad as (
    select role, epoch, member, next_epoch, case
        when next_claimed < claimed_at then 'a higher epoch was claimed earlier'
        when next_epoch is not null and ended_at is null then 'it never ended, and another began'
        when acting_at is not null and next_acting is not null and next_acting < ended_at
            then 'it overlaps with the next one'
        when ended_at < acting_at then 'it ended before it acted'
        when acting_at < claimed_at then 'it acted before it was claimed'
    end as why
    from t where number < {limit}
), last as (
    select role, epoch from page order by role desc, epoch desc limit 1
)
select jsonb_build_object(
    'terms', (select count(*) from t),
    'roles', (select count(distinct role) from t),
    'since', (select min(claimed_at) from t),
    'last_role', (select role from last),
    'last_epoch', (select epoch from last),
    'violations', coalesce((select jsonb_agg(jsonb_build_object('role', role, 'epoch', epoch,
        'member', member, 'next_epoch', next_epoch, 'why', why) order by role, epoch)
        from bad where why is not null), '[]'))
