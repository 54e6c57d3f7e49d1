-- What a sentinel says to the database.
--
-- Invariant: no wait here outlives its argument (at most one heartbeat interval), so no snapshot of
-- ours holds up vacuum; and a wait that ends without a death writes nothing to the server's log.

-- The next member in the ring after `me`, by identity.
create function tenure.successor_of(me text) returns jsonb language sql stable as $$
    select jsonb_build_object('identity', identity, 'key', key) from tenure.member
    where left_at is null and identity <> me
    order by identity <= me, identity limit 1
$$;

-- True if no session holds that member lock: the member's session is gone. Shared and for this
-- statement only, so that several may watch and a returning member is not held up.
create function tenure.await_death(k bigint, p_ms integer) returns boolean
language plpgsql volatile as $$
begin
    perform set_config('lock_timeout', p_ms::text, true);
    perform pg_advisory_xact_lock_shared(k);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- Records a death, if it is still one: the lock is free and the row is not younger than the look.
create function tenure.record_death(p_identity text, k bigint) returns boolean language plpgsql volatile as $$
begin
    if not pg_try_advisory_xact_lock_shared(k) then
        return false;
    end if;
    update tenure.member set left_at = clock_timestamp()
        where identity = p_identity and left_at is null;
    if not found then
        return false;
    end if;
    delete from tenure.candidate where member = p_identity;
    perform tenure.forget();
    return true;
end $$;

-- Ends the sessions that hold up a seat's claim: transactions older than `p_age_ms` that stand
-- before it. Called from another session while the seat waits, for at most `p_ms`. The age spares a
-- transaction that merely passes through; a frozen leader's open fenced transaction is always older. A
-- session that waits for the same row is spared whatever its age: it holds nothing, and other members
-- are among them. A prepared transaction has no session, and only its owner knows its outcome: it is
-- named.
create function tenure.unblock(p_seat_pid integer, p_age_ms integer, p_ms integer) returns jsonb
language plpgsql volatile as $$
declare
    until    timestamptz := clock_timestamp() + make_interval(secs => p_ms / 1000.0);
    ended    jsonb := '[]';
    prepared text;
    waiting  integer[];
    b        record;
begin
    loop
        -- Only a session that waits for the row has a lock of the kind `tuple`.
        waiting := p_seat_pid || array(select w.pid from pg_locks mine
            join pg_locks w using (locktype, database, relation, page, tuple)
            where mine.pid = p_seat_pid and not mine.granted and locktype = 'tuple');
        for b in select distinct a.pid, a.application_name
                 from unnest(waiting) w, unnest(pg_blocking_pids(w)) x
                     join pg_stat_get_activity(null) a on a.pid = x
                 where x <> all (waiting)
                   and a.xact_start < clock_timestamp() - make_interval(secs => p_age_ms / 1000.0)
        loop
            begin
                if pg_terminate_backend(b.pid, 200) then
                    ended := ended || jsonb_build_object('pid', b.pid, 'name', b.application_name);
                end if;
            exception when insufficient_privilege then
                return jsonb_build_object('ended', ended, 'refused', b.pid);
            end;
        end loop;
        select p.gid into prepared from pg_locks l
            join pg_prepared_xacts p on p.transaction = l.transactionid
            where l.pid = any (waiting) and not l.granted and l.locktype = 'transactionid';
        exit when jsonb_array_length(ended) > 0 or prepared is not null
            or clock_timestamp() > until;
        perform pg_sleep(0.01);
    end loop;
    return jsonb_build_object('ended', ended, 'prepared', prepared);
end $$;

-- The prepared transactions of this database that hold a fence, or any other lock on a role's row.
create function tenure.prepared_fences() returns table (gid text) language sql volatile as $$
    select p.gid from pg_prepared_xacts p
        join pg_locks own on own.locktype = 'transactionid' and own.transactionid = p.transaction
                         and own.pid is null
        join pg_locks l on l.virtualtransaction = own.virtualtransaction and l.pid is null
    where p.database = current_database() and l.relation = 'tenure.role'::regclass
$$;
