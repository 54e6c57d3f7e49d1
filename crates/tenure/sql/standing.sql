-- Where a set of shards stands, once for the whole set. Reads only; a matter of manners, never of safety.
--   places  the members that could lead it: live, ready, and candidates for its first and its last role (a
--           member whose file gives the set another size takes no part)
--   held    by member, the roles in which it acts, with their epochs
--   unled   how many have no member that acts, are not paused, and are not on their way to a successor
with shard as materialized (
    select r.*, r.debtor = r.holder and m.identity is not null as acts
    from generate_series(0, {count} - 1) n
        left join tenure.role r on r.name = {name} || '-' || n
        left join tenure.member m on m.identity = r.holder and m.left_at is null
)
select jsonb_build_object(
    'places', (
        select coalesce(jsonb_agg(m.identity order by m.identity), '[]')
        from tenure.member m
        where m.left_at is null and 2 = (
            select count(*) from (values (0), ({count} - 1)) ends(n)
                join tenure.candidate c on c.role = {name} || '-' || ends.n
            where c.member = m.identity and c.ready and not c.observer)),
    'held', (
        select coalesce(jsonb_object_agg(h.holder, h.roles), '{}')
        from (select s.holder, jsonb_object_agg(s.name, s.epoch) as roles
              from shard s where s.acts group by s.holder) h),
    'unled', (
        select count(*) from shard s
        where s.acts is not true and s.paused is not true
            and (s.holder is null and s.successor_until > clock_timestamp()) is not true))
