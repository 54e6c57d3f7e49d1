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
create function tenure.barrier(p_role text) returns bigint language sql immutable
return hashtextextended('tenure fence ' || p_role, 0);

-- The transaction remembers each fence that it stands behind as a line of its setting `tenure.fenced`:
-- role, its own number, epoch. The lock on the row and the line come and go together, also with a
-- savepoint; the number makes a line that another transaction left worthless. A role's name has no
-- control characters, so a line is never part of another one.
--
-- What it costs is mostly how many expressions and queries it has, each of which is set up anew in every
-- transaction: so the settings are written by the query that takes the lock, and the common case has no other.
-- If that query then finds no row, the exception takes them back.
create function tenure.fence(p_role text, p_epoch bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    fences   text := current_setting('tenure.fenced', true);
    found_it boolean;
    now_is   bigint;
begin
    -- Behind this fence already: it holds until the end of the transaction, and a transaction must not
    -- wait at the barrier for itself.
    if fences <> '' then
        if position(concat(E'\n', p_role, E'\t', pg_current_xact_id_if_assigned(), E'\t', p_epoch, E'\n')
                    in fences) > 0 then
            return p_epoch;
        end if;
    end if;
    -- An open fenced transaction holds up the next leader, so it may not outlive the lease idly.
    if pg_try_advisory_lock_shared(tenure.barrier(p_role))
       and pg_advisory_unlock_shared(tenure.barrier(p_role))
       and current_setting('transaction_isolation') = 'read committed' then
        select set_config('tenure.fenced', concat(fences, E'\n', p_role, E'\t', pg_current_xact_id(), E'\t',
                                                  p_epoch, E'\n'), true) <> ''
               and case when current_setting('idle_in_transaction_session_timeout') <> '0'
                        and extract(epoch from current_setting('idle_in_transaction_session_timeout')
                                    ::interval) * 1000 <= r.lease_ms then true
                   else set_config('idle_in_transaction_session_timeout', r.lease_ms::text, true) <> '' end
            into found_it from tenure.role r
            where r.name = p_role and r.epoch = p_epoch for key share;
    else
        perform pg_advisory_lock_shared(tenure.barrier(p_role));
        perform pg_advisory_unlock_shared(tenure.barrier(p_role));
        begin
            select set_config('tenure.fenced', concat(fences, E'\n', p_role, E'\t', pg_current_xact_id(), E'\t',
                                                      p_epoch, E'\n'), true) <> ''
                   and case when current_setting('idle_in_transaction_session_timeout') <> '0'
                            and extract(epoch from current_setting('idle_in_transaction_session_timeout')
                                        ::interval) * 1000 <= r.lease_ms then true
                       else set_config('idle_in_transaction_session_timeout', r.lease_ms::text, true) <> '' end
                into found_it from tenure.role r
                where r.name = p_role and r.epoch = p_epoch for key share;
        exception when serialization_failure then
            found_it := null;
        end;
    end if;
    if found_it then
        return p_epoch;
    end if;
    select r.epoch into now_is from tenure.role r where r.name = p_role;
    if now_is is null then
        raise exception 'tenure knows no role "%"', p_role
            using errcode = 'TN003', hint = 'Register the role before fencing with it.';
    end if;
    if p_epoch > now_is then
        -- As this transaction sees it: its snapshot may be older than the epoch.
        raise exception 'epoch % of role "%" is above the last one, %', p_epoch, p_role, now_is
            using errcode = 'TN001',
                  hint = 'Fence with the epoch of the term: TENURE_EPOCH, or the act''s.';
    end if;
    raise exception 'epoch % of role "%" is stale', p_epoch, p_role
        using errcode = 'TN001',
              hint = 'Another member leads: roll back and stop acting for this role.';
end $$;

-- The epoch with which this transaction stands behind a role's fence; null if it does not.
create function tenure.fenced_with(p_role text) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    head text := E'\n' || p_role || E'\t' || pg_current_xact_id_if_assigned()::text || E'\t';
    lines text := current_setting('tenure.fenced', true);
    at   integer := position(head in lines);
begin
    if at > 0 then
        return split_part(substr(lines, at + length(head)), E'\n', 1)::bigint;
    end if;
    return null;
end $$;

-- The fence as a trigger. Two forms:
--   before insert or update or delete … for each row        execute function tenure.fenced('role', 'column')
--   before insert or update or delete … for each statement  execute function tenure.fenced('role')
-- A row's column says which term wrote it. Only in an insert does it say which term writes: an update or a
-- delete finds the column as an earlier term left it. So the writer's epoch is
--   * in an insert of the first form: the column, and where it is null what follows;
--   * otherwise the transaction's setting `tenure.epoch` (set local tenure.epoch = '7'), or else the
--     epoch with which the transaction called tenure.fence().
-- A row that is inserted or updated is stamped with it.
create function tenure.fenced() returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    fields jsonb;
    writer bigint;
begin
    if tg_when <> 'BEFORE' or tg_op = 'TRUNCATE' and tg_nargs <> 1
        or (tg_level = 'ROW') <> (tg_nargs = 2) or tg_nargs not in (1, 2) then
        raise exception 'tenure.fenced(role, column) is a trigger before each row, tenure.fenced(role) '
            'one before each statement' using errcode = 'TN004';
    end if;
    if tg_nargs = 2 and tg_op <> 'DELETE' then
        fields := to_jsonb(new);
        if not fields ? tg_argv[1] then
            raise exception 'table "%" has no column "%"', tg_table_name, tg_argv[1]
                using errcode = 'TN004', hint = 'Name the column of the epoch in the trigger.';
        end if;
        if tg_op = 'INSERT' then
            writer := fields ->> tg_argv[1];
        end if;
    end if;
    if writer is null then
        writer := coalesce(nullif(current_setting('tenure.epoch', true), '')::bigint,
                           tenure.fenced_with(tg_argv[0]));
    end if;
    if writer is null then
        raise exception 'a write to "%" carries no epoch', tg_table_name
            using errcode = 'TN001',
                  hint = 'Call tenure.fence() first in the same transaction, or set tenure.epoch.';
    end if;
    perform tenure.fence(tg_argv[0], writer);
    if tg_nargs = 2 and tg_op <> 'DELETE' then
        if (fields ->> tg_argv[1])::bigint is distinct from writer then
            new := jsonb_populate_record(new, jsonb_build_object(tg_argv[1], writer));
        end if;
        return new;
    end if;
    return old;
end $$;
