-- What a sentinel says to the database.
--
-- Invariant: no wait here outlives its argument (at most one heartbeat interval), so no snapshot of
-- ours holds up vacuum; and a wait that ends without a death writes nothing to the server's log.

-- How long a wait of at most `p_ms` may take before the server logs it as a slow statement or a long
-- wait for a lock. Not below 100 ms: where that is too long already, shorter waits would only mean more
-- lines, and `tenure check` names the setting.
create function tenure.quiet_ms(p_ms integer) returns integer language sql stable
begin atomic
    select least(p_ms, min(ms)::integer) from (values
        (extract(epoch from current_setting('log_min_duration_statement')::interval) * 800),
        (case when current_setting('log_lock_waits')::boolean
              then extract(epoch from current_setting('deadlock_timeout')::interval) * 800 end)) v(ms)
    where ms >= 100;
end;

-- Waits for the death of the next member in the ring after `me`, by identity: `dead` if no session holds
-- its member lock. Shared and for this statement only, so that several may watch and a returning member
-- is not held up. Null: `me` is alone. `members`: how many take part. A death is told to the group with the end
-- of this statement, which writes nothing (NOTIFY takes a cluster-wide lock at commit): members of its roles
-- need not wait until it is recorded. It is told by name, so that the members of other roles sleep on: their claims
-- would only take the heir's time.
create function tenure.await_death(me text, p_ms integer, p_channel text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    next record;
begin
    select identity, key, count(*) over () + 1 as members into next from tenure.member
        where left_at is null and identity <> me
        order by identity <= me, identity limit 1;
    if not found then
        return null;
    end if;
    perform set_config('lock_timeout', tenure.quiet_ms(p_ms)::text, true);
    perform pg_advisory_xact_lock_shared(next.key);
    perform pg_notify(p_channel, '! ' || next.identity);
    return to_jsonb(next) || '{"dead": true}';
exception when lock_not_available then
    return to_jsonb(next) || '{"dead": false}';
end $$;

-- Records a death, if it is still one: the lock is free and the row is not younger than the look.
create function tenure.record_death(p_identity text, k bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if not pg_try_advisory_xact_lock_shared(k) then
        return false;
    end if;
    -- A record that a crash loses is made again; and a claim that commits beside this one must not wait
    -- for its flush.
    if current_setting('synchronous_standby_names') = '' then
        perform set_config('synchronous_commit', 'off', true);
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
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
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
            left join pg_locks held on l.locktype = 'advisory' and held.pid is null
                and (held.database, held.classid, held.objid, held.objsubid)
                    = (l.database, l.classid, l.objid, l.objsubid)
            left join pg_locks own on own.locktype = 'transactionid' and own.pid is null
                and own.virtualtransaction = held.virtualtransaction
            join pg_prepared_xacts p on p.transaction = coalesce(own.transactionid, l.transactionid)
            where l.pid = any (waiting) and not l.granted and l.locktype in ('transactionid', 'advisory');
        exit when jsonb_array_length(ended) > 0 or prepared is not null
            or clock_timestamp() > until;
        perform pg_sleep(0.01);
    end loop;
    return jsonb_build_object('ended', ended, 'prepared', prepared);
end $$;
