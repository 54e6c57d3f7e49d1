-- The sessions that hold one advisory key, Tenure's or not; needs no schema. Informational: not authoritative.
select coalesce(jsonb_agg(jsonb_build_object(
    'pid', l.pid, 'program', a.application_name, 'user', a.usename,
    'tenure', a.application_name like 'tenure %')), '[]')
from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted
  and l.database = (select oid from pg_database where datname = current_database())
  and l.classid = {class}::bigint::oid and l.objid = {object}::bigint::oid
  and l.objsubid = {sub}
