-- Deletes one batch of slots that are over, with their attempts: older than {age_ms}, or beyond the latest
-- {slots} of their schedule; at most {batch} rows of both tables together, or one slot with all its attempts. Each
-- schedule is looked at from its oldest slot on, by the primary key, so that a batch costs the same however long the
-- history is.
with recursive schedules(name) as (
    (select s.schedule from tenure_agent.slot s order by s.schedule limit 1)
    union all
    select (select s.schedule from tenure_agent.slot s where s.schedule > k.name order by s.schedule limit 1)
    from schedules k where k.name is not null
), old as (
    select o.schedule, o.at, o.attempts
    from schedules k
        left join lateral (select s.at from tenure_agent.slot s where s.schedule = k.name
                           order by s.at desc offset {slots} limit 1) beyond on true
        cross join lateral (select s.* from tenure_agent.slot s where s.schedule = k.name
                            order by s.at limit {batch}) o
    where k.name is not null and o.ended_at is not null and o.state not in ('queued', 'running', 'waiting')
      and (o.at <= beyond.at or o.ended_at < clock_timestamp() - {age_ms} * interval '1 ms')
    limit {batch}
), counted as (
    select o.*, sum(1 + o.attempts) over (order by o.schedule, o.at) as rows from old o
), batch as (
    -- The first of them in any case: what stays before it would hold up everything after it.
    select c.schedule, c.at from counted c where c.rows <= {batch} or c.rows = 1 + c.attempts
), attempts as (
    delete from tenure_agent.attempt a using batch b where a.schedule = b.schedule and a.at = b.at
), slots as (
    delete from tenure_agent.slot s using batch b where s.schedule = b.schedule and s.at = b.at returning 1
)
select count(*) from slots
