-- The operators' orders: each is recorded in tenure.event and told to the group.
--
-- Invariant: an order never touches epoch, debtor or lock; the leader carries it out by itself.
-- The exceptions are force_release, the last resort: it ends the holder's session, and the debt stays; and
-- forget_role and alter_role, for a role that is paused, in which no member takes part, and whose last gate
-- was waited out.

create function tenure.notify_role(p_channel text, p_role text) returns void
language sql volatile return pg_notify(p_channel, p_role);

-- With an epoch, an order that a person confirmed for one leader never meets the next one.
create function tenure.order_step_down(p_role text, p_to text, p_by text, p_epoch bigint default null) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r tenure.role;
begin
    select * into r from tenure.role where name = p_role for no key update;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
    if p_epoch <> r.epoch then return jsonb_build_object('error', 'another_epoch'); end if;
    if r.holder is null then return jsonb_build_object('error', 'no_leader'); end if;
    if p_to is not null and not exists (
        select from tenure.candidate c join tenure.member m on m.identity = c.member
        where c.role = p_role and c.member = p_to and not c.observer and m.left_at is null) then
        return jsonb_build_object('error', 'unknown_member');
    end if;
    if p_to = r.holder then return jsonb_build_object('error', 'already_leader'); end if;
    update tenure.role set order_id = nextval('tenure.order_id'), order_to = p_to
        where name = p_role;
    insert into tenure.event (role, member, epoch, kind, detail)
        values (p_role, r.holder, r.epoch, 'step_down',
                'asked by ' || p_by || coalesce(', to ' || p_to, ''));
    return jsonb_build_object('holder', r.holder, 'epoch', r.epoch);
end $$;

create function tenure.set_paused(p_role text, p_paused boolean, p_by text, p_epoch bigint default null) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r tenure.role;
begin
    select * into r from tenure.role where name = p_role for no key update;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
    if p_epoch <> r.epoch then return jsonb_build_object('error', 'another_epoch'); end if;
    update tenure.role set paused = p_paused where name = p_role;
    insert into tenure.event (role, member, epoch, kind, detail)
        values (p_role, r.holder, r.epoch, case when p_paused then 'pause' else 'resume' end,
                'asked by ' || p_by);
    return jsonb_build_object('holder', r.holder, 'epoch', r.epoch);
end $$;

-- Lowers the lease that successors wait out after a restart or failover to the longest that still
-- takes part. It only ever rose by itself: after a failover that lost writes, the last leader may have
-- been any member that had registered.
--
-- Why this is safe. The role must be settled in this incarnation, in which no write was lost: so the
-- one gate that may be open is the debtor's, and its lease counts. Every gate that opens later belongs
-- to a member that is registered now, whose lease counts, or registers later and raises the lease
-- first; the key keeps the two apart, as a registration in progress cannot be seen. A failover that
-- loses this write brings the longer lease back.
create function tenure.lower_lease(p_role text, p_by text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    inc   text := tenure.incarnation();
    r     tenure.role;
    low   integer;
begin
    perform set_config('lock_timeout', '1000', true);
    select * into r from tenure.role where name = p_role for no key update;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
    -- After the row, which may be long in coming, and briefly: a member that registers waits behind this
    -- session, on its seat, and with it its beats.
    perform set_config('lock_timeout', '20', true);
    perform pg_advisory_xact_lock(tenure.lease_key());
    if inc is distinct from (case when r.debtor is null then r.paid_in else r.acted_in end) then
        return jsonb_build_object('error', 'not_settled');
    end if;
    select greatest(max(m.lease_ms), r.debtor_lease_ms) into low
        from tenure.candidate c join tenure.member m on m.identity = c.member
        where c.role = p_role and m.left_at is null;
    -- No member takes part and no debt is known: there is no lease to come down to.
    if low is null then return jsonb_build_object('error', 'no_member'); end if;
    if low < r.lease_ms then
        update tenure.role set lease_ms = low where name = p_role;
        insert into tenure.event (role, member, epoch, kind, detail)
            values (p_role, r.holder, r.epoch, 'lower_lease',
                    'asked by ' || p_by || ', from ' || r.lease_ms || ' ms to ' || low || ' ms');
    end if;
    return jsonb_build_object('from_ms', r.lease_ms, 'to_ms', least(r.lease_ms, low));
end $$;

-- The sessions that hold a role's lock.
create function tenure.lock_pids(k bigint, pair boolean) returns setof integer language sql volatile
begin atomic
    select l.pid from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.pid is not null
      and l.database = (select oid from pg_database where datname = current_database())
      and l.classid = ((k >> 32) & 4294967295)::oid and l.objid = (k & 4294967295)::oid
      and l.objsubid = case when lock_pids.pair then 2 else 1 end;
end;

-- Ends every session that holds the role's lock, a member's or not. The debt stays, and the term is over: its
-- holder cannot take it up again. Counted are the sessions that really ended, within two seconds.
create function tenure.force_release(p_role text, p_by text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r     tenure.role;
    pids  integer[];
    still integer;
    until timestamptz := clock_timestamp() + interval '2 seconds';
begin
    perform set_config('lock_timeout', '1000', true);
    -- The row first: a holder that reconnects waits for it, and finds that its term is over.
    select * into r from tenure.role where name = p_role for no key update;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
    pids := array(select l.pid from tenure.lock_pids(r.key, r.pair) l(pid));
    -- No row says what a session that is no member's did under the lock.
    if tenure.held_by_strangers(array[p_role]) <> '{}' then
        update tenure.role set debtor = '(unknown)', paid_in = null, acted_in = null,
            debtor_lease_ms = greatest(debtor_lease_ms, lease_ms) where name = p_role;
    end if;
    perform pg_terminate_backend(pid) from unnest(pids) pid;
    loop
        select count(*) into still from tenure.lock_pids(r.key, r.pair) l(pid) where l.pid = any (pids);
        exit when still = 0 or clock_timestamp() > until;
        perform pg_sleep(0.01);
    end loop;
    if still = 0 then
        update tenure.role set holder = null, held_in = null, released_at = clock_timestamp(),
            last_holder = coalesce(r.holder, last_holder), order_id = null, order_to = null
            where name = p_role;
        update tenure.term set ended_at = clock_timestamp(), how = 'forced'
            where role = p_role and epoch = r.epoch and ended_at is null;
    end if;
    insert into tenure.event (role, member, epoch, kind, detail)
        values (p_role, r.holder, r.epoch, 'force_release', 'asked by ' || p_by || ', sessions ended: '
                || cardinality(pids) - still || case when still > 0 then ', not ended: ' || still else '' end);
    return jsonb_build_object('holder', r.holder, 'epoch', r.epoch,
        'sessions_ended', cardinality(pids) - still, 'sessions_left', still);
end $$;

-- A role is settled for good in two steps, between which the operator waits, under the role's lock and on its
-- own clock, until no gate of the role can be open: `settle` takes the lock and says how long, and
-- `forget_role` or `alter_role` is refused unless the same session still holds it and nothing has changed.
-- The lock belongs to the session: it goes with `unsettle`, or with the session.
create function tenure.settle(p_role text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    inc  text := tenure.incarnation();
    r    tenure.role;
    live text;
begin
    select * into r from tenure.role where name = p_role;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
    live := tenure.not_settled(r);
    if live is not null then return jsonb_build_object('error', live); end if;
    if not tenure.try_lock(r.key, r.pair) then return jsonb_build_object('error', 'held'); end if;
    -- What was read before the lock is stale.
    select * into r from tenure.role where name = p_role;
    -- Under either policy: a gate may be open although no claimant would wait for it.
    return (select jsonb_build_object('epoch', r.epoch, 'incarnation', inc, 'wait_ms',
                case when o.settled then 0 else o.ms end)
            from (values (true)) one left join tenure.member d on d.identity = r.debtor
                cross join lateral tenure.owed(r, d, inc) o);
end $$;

-- Why a role is not to be touched: it is not paused, or a member takes part in it.
create function tenure.not_settled(r tenure.role) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if not r.paused then return 'not_paused'; end if;
    -- A member that is gone without a word has let go of its member lock.
    perform tenure.record_death(m.identity, m.key) from tenure.candidate c
        join tenure.member m on m.identity = c.member
        where c.role = r.name and m.left_at is null and pg_try_advisory_xact_lock_shared(m.key);
    if exists (select from tenure.candidate c join tenure.member m on m.identity = c.member
               where c.role = r.name and m.left_at is null) then
        return 'candidates';
    end if;
    return null;
end $$;

create function tenure.unsettle(p_role text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure.unlock_key(key, pair) from tenure.role r
        where name = p_role and pg_backend_pid() in (select tenure.lock_pids(r.key, r.pair));
    return '{}';
end $$;

-- The row of a role that this session has settled, locked; null if anything has changed since.
create function tenure.settled(p_role text, p_epoch bigint, p_incarnation text) returns tenure.role
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r tenure.role;
begin
    perform set_config('lock_timeout', '1000', true);
    select * into r from tenure.role where name = p_role for update;
    if r.epoch = p_epoch and tenure.incarnation() = p_incarnation and tenure.not_settled(r) is null
        and pg_backend_pid() in (select tenure.lock_pids(r.key, r.pair)) then
        return r;
    end if;
    return null;
end $$;

-- Deletes a role and its history. Its name, used again, continues above its epochs, and owes a wait.
create function tenure.forget_role(p_role text, p_epoch bigint, p_incarnation text, p_by text)
returns jsonb language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r   tenure.role := tenure.settled(p_role, p_epoch, p_incarnation);
    top bigint;
    n   bigint;
begin
    if r.name is null then return jsonb_build_object('error', 'changed'); end if;
    select greatest(r.epoch, max(epoch)), count(*) into top, n from tenure.term where role = p_role;
    insert into tenure.tombstone as t (role, epoch, lease_ms) values (p_role, top, r.lease_ms)
        on conflict (role) do update set epoch = greatest(t.epoch, excluded.epoch),
            lease_ms = excluded.lease_ms, forgotten_at = clock_timestamp();
    delete from tenure.candidate where role = p_role;
    delete from tenure.term where role = p_role;
    delete from tenure.role where name = p_role;
    insert into tenure.event (role, epoch, kind, detail)
        values (p_role, top, 'forget', 'asked by ' || p_by || ', terms: ' || n);
    perform tenure.unlock_key(r.key, r.pair);
    return jsonb_build_object('epoch', top, 'terms', n);
end $$;

-- Changes a role's policy, key or lease; null leaves it. No gate of the role is open and no member takes
-- part, so that nothing is owed any more; but of another key it is not known what was done under it.
create function tenure.alter_role(p_role text, p_epoch bigint, p_incarnation text, p_by text, p_to jsonb)
returns jsonb language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r     tenure.role := tenure.settled(p_role, p_epoch, p_incarnation);
    other text;
    moves boolean;
begin
    if r.name is null then return jsonb_build_object('error', 'changed'); end if;
    moves := (r.key, r.pair) <> (coalesce((p_to->>'key')::bigint, r.key),
                                 coalesce((p_to->>'pair')::boolean, r.pair));
    select name into other from tenure.role where name <> p_role
        and (key, pair) = ((p_to->>'key')::bigint, (p_to->>'pair')::boolean);
    if found then return jsonb_build_object('error', 'collision', 'with', other); end if;
    -- A role's lock is told from an earlier holder's only while it is held.
    if moves and exists (select from tenure.lock_pids((p_to->>'key')::bigint, (p_to->>'pair')::boolean)) then
        return jsonb_build_object('error', 'key_held');
    end if;
    update tenure.role set policy = coalesce(p_to->>'policy', policy),
        key = coalesce((p_to->>'key')::bigint, key), pair = coalesce((p_to->>'pair')::boolean, pair),
        lease_ms = coalesce((p_to->>'lease_ms')::integer, lease_ms),
        holder = null, held_in = null, acted_in = null, waited_for = null, waited_ms = 0,
        debtor = case when moves then '(unknown)' end,
        debtor_lease_ms = case when moves then greatest(r.lease_ms, (p_to->>'lease_ms')::integer) end,
        paid_in = case when moves then null else p_incarnation end
        where name = p_role;
    insert into tenure.event (role, epoch, kind, detail)
        values (p_role, r.epoch, 'alter', 'asked by ' || p_by || ': ' || p_to::text);
    perform tenure.unlock_key(r.key, r.pair);
    return jsonb_build_object('epoch', r.epoch);
end $$;
