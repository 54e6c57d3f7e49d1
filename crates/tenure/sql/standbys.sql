-- What the server shows of its standbys. Reads only; others' sessions show their state only to a login role
-- with pg_read_all_stats. A base backup, an archive of the log and a logical subscriber replicate too, and
-- none of them can be promoted.
with sender as (
    select s.*, count(*) over (partition by sync_state) as alike
    from pg_stat_replication s
    where state is distinct from 'backup'
      and application_name is distinct from 'pg_receivewal'
      and application_name is distinct from 'pg_basebackup'
      and not exists (select from pg_replication_slots l
                      where l.active_pid = s.pid and l.slot_type = 'logical')
), names as (
    select current_setting('synchronous_standby_names') as names
)
select jsonb_build_object(
    'user', current_user,
    'names', names,
    'visible', pg_has_role('pg_read_all_stats', 'usage'),
    'timeline', ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
    'idle_slots', (select count(*) from pg_replication_slots
                   where slot_type = 'physical' and not active and not temporary),
    'senders', (select count(*) from pg_stat_replication),
    'standbys', (select count(*) from sender),
    'lagging', (select count(*) from sender where coalesce(sync_state, 'async') in ('async', 'potential')
                or sync_state = 'quorum' and alike > substring(names from '(?i)any *([0-9]+)')::bigint),
    'acknowledge', (select count(*) from sender where sync_state in ('sync', 'quorum')),
    'needed', coalesce(substring(names from '(?i)^ *(?:first|any)? *([0-9]+) *[(]')::bigint,
                       (names <> '')::integer))
from names
