-- Deletes one batch of what is older than {age_ms} or beyond {terms} terms of a role, at most {batch} rows of
-- each kind. Never a role's last two terms, the term of its epoch, its debtor's last term, or one that has
-- no end: the election goes on from those.
with ranked as (
    select t.role, t.epoch, t.member, t.ended_at,
           row_number() over (partition by t.role order by t.epoch desc) as place,
           row_number() over (partition by t.role, t.member order by t.epoch desc) as own_place
    from tenure.term t
), old_terms as (
    select k.role, k.epoch from ranked k left join tenure.role r on r.name = k.role
    where k.place > 2 and k.ended_at is not null and k.epoch is distinct from r.epoch
      and not (k.member is not distinct from r.debtor and k.own_place = 1)
      and (k.place > {terms} or k.ended_at < clock_timestamp() - {age_ms} * interval '1 ms')
    limit {batch}
), terms as (
    delete from tenure.term t using old_terms o where t.role = o.role and t.epoch = o.epoch returning 1
), events as (
    delete from tenure.event e where e.id in (
        select id from tenure.event where at < clock_timestamp() - {age_ms} * interval '1 ms'
        order by id limit {batch}) returning 1
)
select jsonb_build_object('terms', (select count(*) from terms), 'events', (select count(*) from events))
