-- The fence: a write under an old epoch cannot commit after a newer one was issued.
--
-- Invariant: FOR KEY SHARE on the row (name, epoch) conflicts with every update of the epoch,
-- because a unique index covers it. So either the bump waits for this transaction, or this
-- transaction sees the bump; at READ COMMITTED as "no such row", above it as a serialization
-- failure, which is raised as ours. An advisory lock with a plain read lets stale writes commit
-- above READ COMMITTED; FOR SHARE fails the rightful leader on any other update of the row.
--
-- A session that has locked the row once has a *pass*: the later transactions of that session need not read
-- the row until an epoch moves, of whatever role. Invariant of a pass:
--   * `tenure.moves` is a sequence: what is read of it is what it is, not what a snapshot saw.
--   * A pass holds the value that `moves` had before the row was locked with that epoch.
--   * Every change of an epoch first locks the row, then advances `moves`, then waits until no transaction
--     holds the role's pass key shared, then commits.
--   * A transaction that uses its pass first takes that key, shared until its end, then compares `moves`.
-- So if it compares before `moves` is advanced, the change waits for it. If it compares afterwards, its pass is
-- void, and it must lock the row, which the change has locked.

-- The advisory key of the barrier before a role's fence. Fences share the row, so a stream of them
-- would overtake a claim that waits for it without end; the session that unblocks a claim holds the
-- barrier, and voids all passes.
create function tenure.barrier(p_role text) returns bigint language sql immutable
return hashtextextended('tenure fence ' || p_role, 0);

-- The advisory key that a transaction holds, shared, which passed the fence by its pass.
create function tenure.pass_key(p_role text) returns bigint language sql immutable
return hashtextextended(p_role, 7);

create sequence tenure.moves;
-- A sequence that was never asked has no last value.
select nextval('tenure.moves');

-- Voids the passes of all sessions.
create function tenure.void_passes() returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    return nextval('tenure.moves');
end $$;

-- Those of the roles that no transaction has passed by a pass. Of roles whose rows the caller has locked, none can do so
-- any more. The key is let go at once: a claim of ten thousand roles has no room for as many locks, and no new pass
-- comes before the rows are free. A lock that is tried and let go in one expression is never left behind: nothing
-- interrupts it. That is not so of a lock of the session that is waited for, which an error may leave to it.
create function tenure.unpassed(p_names text[]) returns text[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if p_names = '{}' then
        return p_names;
    end if;
    perform nextval('tenure.moves');
    return array(select n from unnest(p_names) n
                 where case when pg_try_advisory_lock(tenure.pass_key(n))
                       then pg_advisory_unlock(tenure.pass_key(n)) else false end);
end $$;

-- Waits until no transaction has passed one of these roles by a pass.
create function tenure.await_passes(p_names text[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    one text;
begin
    foreach one in array p_names loop
        if not (case when pg_try_advisory_lock(tenure.pass_key(one))
                then pg_advisory_unlock(tenure.pass_key(one)) else false end) then
            -- To wait for it is enough: it goes with the part that is rolled back.
            begin
                perform pg_advisory_xact_lock(tenure.pass_key(one));
                raise exception using errcode = 'TN000';
            exception when sqlstate 'TN000' then
                null;
            end;
        end if;
    end loop;
end $$;

-- An epoch moved, or roles are gone: their rows are locked by now. A claim has done the same for its roles, and says so by
-- its setting `tenure.unpassed`: a trigger for each would cost the next leader half a millisecond, and 0.2 s with ten
-- thousand roles.
create function tenure.epoch_moved() returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform nextval('tenure.moves');
    if tg_level = 'ROW' then
        perform tenure.await_passes(array[old.name]);
    else
        perform tenure.await_passes(array(select name from tenure.role));
    end if;
    return null;
end $$;
create trigger epoch_moved after update on tenure.role for each row
    when ((old.name, old.epoch) is distinct from (new.name, new.epoch)
          and current_setting('tenure.unpassed', true) is distinct from 'on') execute function tenure.epoch_moved();
create trigger role_gone after delete on tenure.role for each row execute function tenure.epoch_moved();
create trigger roles_gone before truncate on tenure.role for each statement execute function tenure.epoch_moved();
alter table tenure.role enable always trigger epoch_moved, enable always trigger role_gone,
    enable always trigger roles_gone;

-- The transaction remembers each fence that it stands behind as a line of its setting `tenure.fenced`:
-- role, its own number, epoch. The lock and the line come and go together, also with a
-- savepoint; the number makes a line that another transaction left worthless. A role's name has no
-- control characters, so a line is never part of another one.
--
-- The session has one pass, in its settings `tenure.pass` (role, epoch, moves, the limit on idling that it was
-- made under, and which sequence `moves` was: a restore makes another) and `tenure.pass_limit` (what a fenced
-- transaction sets that limit to; empty: it stays).
--
-- A call costs what its expressions and queries are, each of which is set up anew in every transaction. With a pass
-- there is no query, and no pinned search_path either: every name and every operator here has its schema.
create function tenure.fence(p_role text, p_epoch bigint) returns bigint
language plpgsql volatile security definer as $$
declare
    fences pg_catalog.text := pg_catalog.current_setting('tenure.fenced', true);
    -- Before anything else: see the invariant of a pass.
    moves bigint := pg_catalog.pg_sequence_last_value('tenure.moves'::pg_catalog.regclass);
begin
    -- Behind this fence already: it holds until the end of the transaction, and a transaction must not
    -- wait at the barrier for itself.
    if fences operator(pg_catalog.<>) '' then
        if pg_catalog.strpos(fences, pg_catalog.concat(E'\n', p_role, E'\t',
               pg_catalog.pg_current_xact_id_if_assigned(), E'\t', p_epoch, E'\n')
               collate pg_catalog."C") operator(pg_catalog.>) 0 then
            return p_epoch;
        end if;
    end if;
    if pg_catalog.current_setting('tenure.pass', true) operator(pg_catalog.=) pg_catalog.concat(
           p_role, E'\t', p_epoch, E'\t', moves, E'\t',
           pg_catalog.current_setting('idle_in_transaction_session_timeout'), E'\t',
           'tenure.moves'::pg_catalog.regclass::pg_catalog.oid) collate pg_catalog."C" then
        -- The key of the session first: it can be given back, and a transaction that waits for the row with a void
        -- pass must not hold it. One expression, and no wait, as above.
        if (case
            when not pg_catalog.pg_try_advisory_lock_shared(tenure.pass_key(p_role)) then false
            when (pg_catalog.pg_sequence_last_value('tenure.moves'::pg_catalog.regclass)
                  operator(pg_catalog.=) moves) is not true
                 then not pg_catalog.pg_advisory_unlock_shared(tenure.pass_key(p_role))
            when pg_catalog.pg_advisory_xact_lock_shared(tenure.pass_key(p_role)) is null then false
            when not pg_catalog.pg_advisory_unlock_shared(tenure.pass_key(p_role)) then false
            when pg_catalog.set_config('tenure.fenced', pg_catalog.concat(fences, E'\n', p_role, E'\t',
                     pg_catalog.pg_current_xact_id(), E'\t', p_epoch, E'\n'), true) is null then false
            when pg_catalog.current_setting('tenure.pass_limit') operator(pg_catalog.=) '' then true
            -- An open fenced transaction holds up the next leader, so it may not outlive the lease idly.
            else pg_catalog.set_config('idle_in_transaction_session_timeout',
                     pg_catalog.current_setting('tenure.pass_limit'), true) is not null end) then
            return p_epoch;
        end if;
    end if;
    return tenure.fence_row(p_role, p_epoch, fences, moves);
end $$;

-- The fence by the row. `p_moves` is what `moves` was before.
create function tenure.fence_row(p_role text, p_epoch bigint, p_fences text, p_moves bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    idle     text := current_setting('idle_in_transaction_session_timeout');
    lease    integer;
    now_is   bigint;
begin
    if not (case when pg_try_advisory_lock_shared(tenure.barrier(p_role))
            then pg_advisory_unlock_shared(tenure.barrier(p_role)) else false end) then
        -- As in tenure.await_passes().
        begin
            perform pg_advisory_xact_lock_shared(tenure.barrier(p_role));
            raise exception using errcode = 'TN000';
        exception when sqlstate 'TN000' then
            null;
        end;
    end if;
    -- By the role's own collation, whatever the argument's is: the keys are of its very letters.
    if current_setting('transaction_isolation') = 'read committed' then
        select r.lease_ms into lease from tenure.role r
            where r.name = p_role collate "default" and r.epoch = p_epoch for key share;
    else
        begin
            select r.lease_ms into lease from tenure.role r
                where r.name = p_role collate "default" and r.epoch = p_epoch for key share;
        exception when serialization_failure then
            lease := null;
        end;
    end if;
    if lease is not null then
        -- An open fenced transaction holds up the next leader, so it may not outlive the lease idly.
        if idle <> '0' and extract(epoch from idle::interval) * 1000 <= lease then
            lease := null;
        else
            perform set_config('idle_in_transaction_session_timeout', lease::text, true);
        end if;
        perform set_config('tenure.fenced',
                    concat(p_fences, E'\n', p_role, E'\t', pg_current_xact_id(), E'\t', p_epoch, E'\n'), true),
                set_config('tenure.pass', concat(p_role, E'\t', p_epoch, E'\t', p_moves, E'\t', idle, E'\t',
                                                 'tenure.moves'::regclass::oid), false),
                set_config('tenure.pass_limit', coalesce(lease::text, ''), false);
        return p_epoch;
    end if;
    select r.epoch into now_is from tenure.role r where r.name = p_role collate "default";
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

-- The prepared transactions of this database that hold a fence, or any other lock on a role's row.
create function tenure.prepared_fences() returns table (gid text) language sql volatile
begin atomic
    select p.gid from pg_prepared_xacts p
        join pg_locks own on own.locktype = 'transactionid' and own.transactionid = p.transaction
                         and own.pid is null
        join pg_locks l on l.virtualtransaction = own.virtualtransaction and l.pid is null
    where p.database = current_database()
      and (l.relation = 'tenure.role'::regclass
           or l.locktype = 'advisory' and l.objsubid = 1
              and (l.classid::bigint << 32) | l.objid::bigint
                  in (select tenure.pass_key(r.name) from tenure.role r));
end;
