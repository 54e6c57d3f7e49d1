-- One role in full: its key, the sessions that hold its lock, and its latest terms. Reads only.
select jsonb_build_object(
    'role', r.name,
    'key', case when r.pair then (r.key >> 32) || ',' || (r.key << 32 >> 32) else r.key::text end,
    'lock_held_by', (
        select coalesce(jsonb_agg(jsonb_build_object('pid', l.pid, 'program', a.application_name,
            'leader', l.pid is not distinct from m.backend_pid)), '[]')
        from pg_locks l left join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'advisory' and l.granted
          and l.database = (select oid from pg_database where datname = current_database())
          and l.classid = ((r.key >> 32) & 4294967295)::oid and l.objid = (r.key & 4294967295)::oid
          and l.objsubid = case when r.pair then 2 else 1 end),
    'terms', (
        select coalesce(jsonb_agg(jsonb_build_array(t.epoch, t.member, {ms}(t.claimed_at), {ms}(t.acting_at),
            {ms}(t.ended_at), t.how) order by t.epoch desc), '[]')
        from (select * from tenure.term t where t.role = r.name order by t.epoch desc limit 30) t),
    'orders', (
        select coalesce(jsonb_agg(jsonb_build_array(o.id, {ms}(o.at), o.kind, o.member, o.epoch,
            left(regexp_replace(o.detail, ', login role [^,]*', ''), 300)) order by o.id desc), '[]')
        from (select * from tenure.event o where o.role = r.name order by o.id desc limit 20) o))
from tenure.role r left join tenure.member m on m.identity = r.holder
where r.name = {role}
