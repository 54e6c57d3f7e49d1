-- Deletes one batch of what is older than {age_ms}, or beyond {terms} terms of a role or {events} events; at most
-- {batch} rows of each kind. Never a role's last two terms, the term of its epoch, its debtor's last term, or one
-- that has no end: the election goes on from those. Each role is looked at from its oldest term on, by the primary
-- key, so that a batch costs the same however long the history is (the {terms} latest are passed over each time, in
-- the index); what must stay is at most a few of these.
with recursive roles(name) as (
    (select t.role from tenure.term t order by t.role limit 1)
    union all
    select (select t.role from tenure.term t where t.role > k.name order by t.role limit 1)
    from roles k where k.name is not null
), old_terms as (
    select o.role, o.epoch
    from roles k
        left join tenure.role r on r.name = k.name
        left join lateral (select t.epoch from tenure.term t where t.role = k.name
                           order by t.epoch desc offset 2 limit 1) last_two on true
        left join lateral (select t.epoch from tenure.term t where t.role = k.name
                           order by t.epoch desc offset {terms} limit 1) beyond on true
        -- Without a debtor there is nothing to look for in the whole history.
        left join lateral (select t.epoch from tenure.term t where r.debtor is not null
                           and t.role = k.name and t.member = r.debtor
                           order by t.epoch desc limit 1) debt on true
        cross join lateral (select t.* from tenure.term t where t.role = k.name
                            order by t.epoch limit {batch} + 4) o
    where k.name is not null and o.epoch <= last_two.epoch and o.ended_at is not null
      and o.epoch is distinct from r.epoch and o.epoch is distinct from debt.epoch
      and (o.epoch <= beyond.epoch or o.ended_at < clock_timestamp() - {age_ms} * interval '1 ms')
    limit {batch}
), terms as (
    delete from tenure.term t using old_terms o where t.role = o.role and t.epoch = o.epoch returning 1
), events as (
    delete from tenure.event e where e.id in (
        select o.id from (select id, at from tenure.event order by id limit {batch}) o
        where o.at < clock_timestamp() - {age_ms} * interval '1 ms'
           or o.id <= (select id from tenure.event order by id desc offset {events} limit 1)) returning 1
)
select jsonb_build_object('terms', (select count(*) from terms), 'events', (select count(*) from events))
