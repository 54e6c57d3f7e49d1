-- The durable terms of a role, newest first. Reads only. A term whose end is not on record is gone if its
-- member's session does not hold the lock any more: the next claim ends it on record.
select coalesce(jsonb_agg(t order by (t->>'role'), (t->>'epoch')::bigint desc), '[]') from (
    select jsonb_build_object('role', t.role, 'epoch', t.epoch, 'member', t.member,
        'claimed_at', t.claimed_at, 'acting_at', t.acting_at, 'ended_at', t.ended_at, 'how', t.how,
        'gone', case when t.ended_at is null then not exists (
            select from tenure.role r
                join tenure.member m on m.identity = r.holder and m.left_at is null
                join pg_locks l on l.pid = m.backend_pid and l.locktype = 'advisory' and l.granted
                    and l.classid = ((r.key >> 32) & 4294967295)::oid
                    and l.objid = (r.key & 4294967295)::oid
                    and l.objsubid = case when r.pair then 2 else 1 end
            where r.name = t.role and r.epoch = t.epoch and r.holder = t.member)
            else false end) as t
    from tenure.term t
    where {role}::text is null or t.role = {role}
    order by t.claimed_at desc, t.epoch desc limit {limit}
) q
