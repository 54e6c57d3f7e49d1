-- Terms that ended since {since}, with how long each waited for its gate. Reads only, by the primary key: the
-- latest 20 of each role, and more only of a role that changed its leader more often. 4,000 are more than a picture
-- may weigh: which are left out is decided by weight.
with few as materialized (
    select r.name, t.* from tenure.role r cross join lateral (
        select * from tenure.term o where o.role = r.name order by o.epoch desc limit 20) t
), busy as materialized (
    select f.name from few f group by f.name
    having count(*) = 20 and coalesce(min(f.ended_at), now()) >= {since}
), found as (
    select f.role, f.epoch, f.member, f.claimed_at, f.acting_at, f.ended_at, f.how from few f
    where f.name not in (select b.name from busy b)
    union all
    select t.role, t.epoch, t.member, t.claimed_at, t.acting_at, t.ended_at, t.how
    from busy b cross join lateral (
        select * from tenure.term o where o.role = b.name order by o.epoch desc limit 4000) t
)
select coalesce(jsonb_agg(jsonb_build_array(f.role, f.epoch, f.member, {ms}(f.acting_at),
        {ms}(f.acting_at) - {ms}(f.claimed_at), {ms}(f.ended_at), f.how) order by f.ended_at desc), '[]')
from (select * from found where acting_at is not null and ended_at >= {since}
      order by ended_at desc limit 4000) f
