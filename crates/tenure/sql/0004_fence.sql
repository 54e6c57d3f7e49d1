-- The fence: a write under an old epoch cannot commit after a newer one was issued.
--
-- Invariant: FOR KEY SHARE on the row (name, epoch) conflicts with every update of the epoch,
-- because a unique index covers it. So either the bump waits for this transaction, or this
-- transaction sees the bump; at READ COMMITTED as "no such row", above it as a serialization
-- failure, which is raised as ours. An advisory lock with a plain read lets stale writes commit
-- above READ COMMITTED; FOR SHARE fails the rightful leader on any other update of the row.

-- The advisory key of the barrier before a role's fence. Fences share the row, so a stream of them
-- would overtake a claim that waits for it without end; the session that unblocks a claim holds the
-- barrier.
create function tenure.barrier(p_role text) returns bigint language sql immutable as $$
    select hashtextextended('tenure fence ' || p_role, 0)
$$;

create function tenure.fence(p_role text, p_epoch bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    ms  integer;
    now_is bigint;
    idle bigint;
    mark text := p_role || '/' || p_epoch;
begin
    -- A transaction that is behind the barrier already must not wait at it for itself.
    if current_setting('tenure.fenced', true) is distinct from mark then
        perform pg_advisory_lock_shared(tenure.barrier(p_role));
        perform pg_advisory_unlock_shared(tenure.barrier(p_role));
    end if;
    begin
        select r.lease_ms into ms from tenure.role r
            where r.name = p_role and r.epoch = p_epoch for key share;
    exception when serialization_failure then
        ms := null;
    end;
    if ms is null then
        select r.epoch into now_is from tenure.role r where r.name = p_role;
        if now_is is null then
            raise exception 'tenure knows no role "%"', p_role
                using errcode = 'TN003', hint = 'Register the role before fencing with it.';
        end if;
        raise exception 'epoch % of role "%" is stale', p_epoch, p_role
            using errcode = 'TN001',
                  hint = 'Another member leads: roll back and stop acting for this role.';
    end if;
    perform set_config('tenure.fenced', mark, true);
    -- An open fenced transaction holds up the next leader, so it may not outlive the lease idly.
    -- Not from pg_settings, which computes all settings: a row trigger comes here for every row.
    idle := extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval)
            * 1000;
    if idle = 0 or idle > ms then
        perform set_config('idle_in_transaction_session_timeout', ms::text, true);
    end if;
    return p_epoch;
end $$;

-- The fence as a trigger. Two forms:
--   before insert or update … for each row       execute function tenure.fenced('role', 'column')
--   before insert or update or delete … for each statement  execute function tenure.fenced('role')
-- The first takes the epoch from a column of the new row, the second from the transaction's
-- setting `tenure.epoch` (set local tenure.epoch = '7').
create function tenure.fenced() returns trigger language plpgsql volatile as $$
declare
    e text;
begin
    if tg_nargs = 2 then
        if tg_level <> 'ROW' or tg_op = 'DELETE' then
            raise exception 'tenure.fenced(role, column) is a row trigger for insert and update'
                using errcode = 'TN004';
        end if;
        e := to_jsonb(new) ->> tg_argv[1];
    else
        e := current_setting('tenure.epoch', true);
    end if;
    if coalesce(e, '') = '' then
        raise exception 'a write to "%" carries no epoch', tg_table_name
            using errcode = 'TN001', hint = 'Set tenure.epoch, or the epoch column, to your epoch.';
    end if;
    perform tenure.fence(tg_argv[0], e::bigint);
    return case when tg_level = 'ROW' and tg_op <> 'DELETE' then new
                when tg_level = 'ROW' then old end;
end $$;
