-- The operators' orders: each is recorded in tenure.event and told to the group.
--
-- Invariant: an order never touches epoch, debtor or lock; the leader carries it out by itself.
-- The exception is force_release, the last resort: it ends the holder's session, and the debt stays.

create function tenure.notify_role(p_channel text, p_role text) returns void
language sql volatile return pg_notify(p_channel, p_role);

create function tenure.order_step_down(p_role text, p_to text, p_by text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r tenure.role;
begin
    select * into r from tenure.role where name = p_role for no key update;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
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

create function tenure.set_paused(p_role text, p_paused boolean, p_by text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r tenure.role;
begin
    update tenure.role set paused = p_paused where name = p_role returning * into r;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
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
    if low < r.lease_ms then
        update tenure.role set lease_ms = low where name = p_role;
        insert into tenure.event (role, member, epoch, kind, detail)
            values (p_role, r.holder, r.epoch, 'lower_lease',
                    'asked by ' || p_by || ', from ' || r.lease_ms || ' ms to ' || low || ' ms');
    end if;
    return jsonb_build_object('from_ms', r.lease_ms, 'to_ms', least(r.lease_ms, low));
end $$;

create function tenure.force_release(p_role text, p_by text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    r tenure.role;
    m tenure.member;
    n integer;
begin
    select * into r from tenure.role where name = p_role;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
    -- The session that holds the lock, a member's or not.
    select count(pg_terminate_backend(l.pid, 2000)) into n from pg_locks l
        where l.locktype = 'advisory' and l.granted
          and l.database = (select oid from pg_database where datname = current_database())
          and l.classid = ((r.key >> 32) & 4294967295)::oid
          and l.objid = (r.key & 4294967295)::oid
          and l.objsubid = case when r.pair then 2 else 1 end;
    update tenure.term set ended_at = clock_timestamp(), how = 'forced'
        where role = p_role and epoch = r.epoch and ended_at is null;
    insert into tenure.event (role, member, epoch, kind, detail)
        values (p_role, r.holder, r.epoch, 'force_release',
                'asked by ' || p_by || ', sessions ended: ' || n);
    return jsonb_build_object('holder', r.holder, 'epoch', r.epoch, 'sessions_ended', n);
end $$;
