-- What an operator says: each order is recorded in tenure.event and told to the group.
--
-- Invariant: an order never touches epoch, debtor or lock; the leader carries it out by itself.
-- The exception is force_release, the last resort: it ends the holder's session, and the debt stays.

create function tenure.notify_role(p_channel text, p_role text) returns void
language sql volatile as $$ select pg_notify(p_channel, p_role) $$;

create function tenure.order_step_down(p_role text, p_to text, p_by text) returns jsonb
language plpgsql volatile as $$
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
language plpgsql volatile as $$
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

create function tenure.force_release(p_role text, p_by text) returns jsonb
language plpgsql volatile as $$
declare
    r tenure.role;
    m tenure.member;
    n integer;
begin
    select * into r from tenure.role where name = p_role;
    if not found then return jsonb_build_object('error', 'unknown_role'); end if;
    -- Whoever holds the lock, ours or not.
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
