-- Deletes one batch of slots that are over, with their attempts: older than {age_ms}, or beyond the latest
-- {slots} of their schedule; at most {batch}.
with ranked as (
    select s.schedule, s.at, s.state, s.ended_at,
           row_number() over (partition by s.schedule order by s.at desc) as place
    from tenure_agent.slot s
), old as (
    select k.schedule, k.at from ranked k
    where k.ended_at is not null and k.state not in ('queued', 'running', 'waiting')
      and (k.place > {slots} or k.ended_at < clock_timestamp() - {age_ms} * interval '1 ms')
    limit {batch}
), attempts as (
    delete from tenure_agent.attempt a using old o where a.schedule = o.schedule and a.at = o.at
), slots as (
    delete from tenure_agent.slot s using old o where s.schedule = o.schedule and s.at = o.at returning 1
)
select count(*) from slots
