-- The leaders of some roles; {roles} is a JSON list of names. Reads only. A holder whose session is
-- gone leads no more, although its row stays until the next claim. It acts only once its own term was
-- marked, and as long as it beats within its lease.
select coalesce(jsonb_object_agg(r.name, jsonb_build_object(
           'identity', r.holder,
           'epoch', r.epoch,
           'acting', r.debtor is not distinct from r.holder
               and clock_timestamp() - m.seen_at <= m.lease_ms * interval '1 ms'
               and exists (select from tenure.term t where t.role = r.name and t.epoch = r.epoch
                           and t.acting_at is not null))), '{}')
from tenure.role r join tenure.member m on m.identity = r.holder
where r.name in (select jsonb_array_elements_text({roles}))
  and exists (select from pg_stat_get_activity(m.backend_pid))
