-- The durable state of schedules.
--
-- Invariants:
--   * A slot is (schedule, planned instant). Its row is inserted once, under the fence of the schedule's
--     role, before the work starts: the primary key makes a slot fire at most once.
--   * An attempt is (schedule, slot, number). Its row, too, is inserted under the fence before the work
--     starts. An attempt without an end, of a term that is over, was interrupted.
--   * Every slot up to a schedule's watermark is decided. The watermark only grows.
--   * Whether a slot is due is decided by this server's clock: members' clocks take no part.

create table tenure_agent.schedule (
    name       text primary key check (length(name) between 1 and 100),
    role       text not null,
    timing     text not null,                  -- pattern and zone: when it changes, the past is over
    definition jsonb not null,                 -- as the leader's file has it, for people
    digest     text not null,
    epoch      bigint not null,                -- the term that wrote it
    watermark  timestamptz not null,
    next_at    timestamptz,                    -- for people
    removed_at timestamptz                     -- the leader's file does not have it any more
);
create index schedule_role on tenure_agent.schedule (role);

create table tenure_agent.slot (
    schedule   text not null,
    at         timestamptz not null,           -- the planned instant, or that of the order
    state      text not null check (state in
        ('queued', 'running', 'waiting', 'succeeded', 'failed', 'interrupted', 'replaced', 'missed', 'skipped')),
    attempts   integer not null default 0,
    missed     integer not null default 0,     -- slots before this one that were missed with it
    more       boolean not null default false, -- and more than that
    ordered_by text,                           -- the last order that made it run
    order_id   bigint,                         -- and its number
    epoch      bigint not null,                -- the term that changed it last
    member     text not null,
    claimed_at timestamptz not null default clock_timestamp(),
    retry_at   timestamptz,
    ended_at   timestamptz,
    primary key (schedule, at)
);
create index slot_open on tenure_agent.slot (schedule, at) where state in ('queued', 'running', 'waiting');
create index slot_dead on tenure_agent.slot (schedule, at) where state in ('failed', 'interrupted');
create index slot_ended on tenure_agent.slot (ended_at);

create table tenure_agent.attempt (
    schedule   text not null,
    at         timestamptz not null,
    number     integer not null,
    epoch      bigint not null,
    member     text not null,
    started_at timestamptz not null default clock_timestamp(),
    ended_at   timestamptz,
    how        text check (how in ('succeeded', 'failed', 'timeout', 'interrupted', 'replaced')),
    code       integer,
    reason     text,
    output     text,
    primary key (schedule, at, number)
);

create table tenure_agent.run_order (
    id       bigint generated always as identity primary key,
    schedule text not null,
    at       timestamptz,                      -- the dead letter to run again; null: a run of its own
    by       text not null,
    given_at timestamptz not null default clock_timestamp()
);

create table tenure_agent.known (
    -- What each member's file says, so that members that differ are seen.
    member   text not null,
    schedule text not null,
    digest   text not null,
    primary key (member, schedule)
);

create function tenure_agent.micros(t timestamptz) returns bigint language sql immutable
return (extract(epoch from t) * 1000000)::bigint;

create function tenure_agent.instant(micros bigint) returns timestamptz language sql immutable
return to_timestamp(0) + make_interval(secs => micros / 1000000) + (micros % 1000000) * interval '1 microsecond';

-- What a member's file says. One statement for all schedules.
create function tenure_agent.announce(p_member text, p_schedules jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    delete from tenure_agent.known k where k.member = p_member
        or not exists (select from tenure.member m where m.identity = k.member and m.left_at is null);
    insert into tenure_agent.known (member, schedule, digest)
        select p_member, s.key, s.value #>> '{}' from jsonb_each(p_schedules) s;
    return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()));
end $$;

-- Whether a slot that this term runs, as its row says, may still be at work. A lost session is no proof that it is
-- not: the gate and the work outlive it by up to a lease. Proof is
--   * an exclusive role without a debt: that is cleared with nothing in flight. A fenced role's debt says this of its
--     last term alone;
--   * a later term that acts: under `exclusive` another member has waited for that; the same member, and any member of a
--     fenced role, has not, and must have begun long ago;
--   * a member that was silent for long: the role may have no candidate any more, and then no claimant waits for it.
-- Long is two leases and a second. The member may have been seen by another server, whose clock is behind this one's,
-- and its last beats may be lost with a failover.
create function tenure_agent.may_run(p_role text, p_epoch bigint, p_member text) returns boolean
language sql volatile
begin atomic
    select exists (
        select from tenure.role r
            join tenure.member m on m.identity = p_member
            cross join lateral (
                select clock_timestamp() - (2 * m.lease_ms::bigint + 1000) * interval '1 ms' as long_ago) l
            cross join lateral (
                select count(*) > 0 as acts,
                       coalesce(bool_or(r.policy = 'exclusive' and t.member <> p_member
                                        or t.acting_at < l.long_ago), false) as proves
                from tenure.term t
                where t.role = p_role and t.epoch > p_epoch and t.acting_at is not null) later
        where r.name = p_role and m.seen_at > l.long_ago and not later.proves
          and (r.debtor is not null or r.policy = 'fenced' and later.acts));
end;

-- The leader's file decides: makes the role's schedules what it says, and answers with their state.
-- A schedule that is new, or whose timing changed, begins now: a changed definition never fires the past.
-- A schedule of another role stays that role's, and is left out of the answer, while a member acts in that role and
-- has it in its file, or may run a slot of it: a schedule that moves is never run by two terms at once.
-- No slot of a removed schedule stays open: one that was not started is missed, and one of another term, of this role
-- or of the one that had the schedule before, whose leader did not live to record its end, was interrupted. This term
-- ends its own.
create function tenure_agent.define(p_role text, p_epoch bigint, p_schedules jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    leader text;
begin
    perform tenure.fence(p_role, p_epoch);
    -- The roles have different fences: these rows order a move with the claims of the other role's leader. A statement
    -- of its own, so that the next one sees what was claimed before; all of them at once, in one order.
    perform from tenure_agent.schedule s
        where s.role = p_role or s.name in (select d->>'name' from jsonb_array_elements(p_schedules) d)
        order by s.name for update;
    insert into tenure_agent.schedule as s (name, role, timing, definition, digest, epoch, watermark, next_at)
        select d->>'name', p_role, d->>'timing', d->'definition', d->>'digest', p_epoch, clock_timestamp(),
               tenure_agent.instant((d->>'next')::bigint)
        from jsonb_array_elements(p_schedules) d
        on conflict (name) do update set role = excluded.role, timing = excluded.timing,
            definition = excluded.definition, digest = excluded.digest, epoch = excluded.epoch,
            -- One that moves to another role goes on where it was: what fell due meanwhile is late or missed, not lost.
            watermark = case when s.timing = excluded.timing
                                  and (s.removed_at is null or s.role <> excluded.role
                                       and s.removed_at > clock_timestamp() - interval '1 day') then s.watermark
                             else greatest(s.watermark, excluded.watermark) end,
            -- Of the old timing it says nothing any more.
            next_at = case when s.timing = excluded.timing and s.removed_at is null and s.next_at is not null
                           then s.next_at else excluded.next_at end,
            removed_at = null
            where s.role = p_role
               or (s.removed_at is not null
                   or not exists (select from tenure.role r join tenure.member m on m.identity = r.holder
                                  where r.name = s.role and r.debtor = r.holder and m.left_at is null))
                  and not exists (select from tenure_agent.slot o
                                  where o.schedule = s.name and o.state = 'running'
                                    and tenure_agent.may_run(s.role, o.epoch, o.member));
    update tenure_agent.schedule s set removed_at = clock_timestamp(), next_at = null
        where s.role = p_role and s.removed_at is null
          and not exists (select from jsonb_array_elements(p_schedules) d where d->>'name' = s.name);
    select r.holder into leader from tenure.role r where r.name = p_role;
    with ended as (
        update tenure_agent.slot o set state = case when o.state = 'queued' and o.attempts = 0 then 'missed'
                                                    else 'interrupted' end,
            epoch = p_epoch, member = coalesce(leader, o.member), retry_at = null, ended_at = clock_timestamp()
            from tenure_agent.schedule s
            where s.name = o.schedule and s.role = p_role and s.removed_at is not null
              and (o.state = 'queued' or o.state in ('running', 'waiting')
                   and (o.epoch <> p_epoch or o.member <> leader))
            returning o.schedule, o.at, o.attempts)
    update tenure_agent.attempt a set ended_at = clock_timestamp(), how = 'interrupted',
        reason = 'its leader was gone, and the next leader''s file does not have the schedule'
        from ended e
        where a.schedule = e.schedule and a.at = e.at and a.number = e.attempts and a.ended_at is null;
    -- An order for a schedule that is gone must not fire when the name comes back.
    delete from tenure_agent.run_order o using tenure_agent.schedule s
        where s.name = o.schedule and s.role = p_role and s.removed_at is not null;
    return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()), 'schedules', (
        select coalesce(jsonb_object_agg(s.name, jsonb_build_object(
            'watermark', tenure_agent.micros(s.watermark),
            'open', (select coalesce(jsonb_agg(jsonb_build_object(
                    'at', tenure_agent.micros(o.at), 'state', o.state, 'attempts', o.attempts,
                    'retry_at', tenure_agent.micros(o.retry_at),
                    'stays', o.order_id is not null or o.claimed_at - o.at > interval '60 s')
                    order by o.at), '[]')
                from tenure_agent.slot o
                where o.schedule = s.name and o.state in ('queued', 'running', 'waiting')))), '{}')
        from tenure_agent.schedule s
        where s.role = p_role
          and s.name in (select d->>'name' from jsonb_array_elements(p_schedules) d)));
end $$;

-- Claims slots: each {schedule, at, state, missed, more, order, by, next}. The answer has one word for each:
--   claimed  the row is there, and this term wrote it (also by an earlier call whose answer was lost)
--   taken    another term claimed it, or the schedule is another role's by now, or removed
--   early    this server's clock has not come to it
--   gone     the schedule has no row: it was deleted by hand, and has to be defined again
create function tenure_agent.claim(p_role text, p_epoch bigint, p_member text, p_slots jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    one     jsonb;
    slot_at timestamptz;
    word    text;
    answers jsonb := '[]';
begin
    perform tenure.fence(p_role, p_epoch);
    -- No schedule moves to another role meanwhile.
    perform from tenure_agent.schedule c
        where c.role = p_role and c.name in (select e->>'schedule' from jsonb_array_elements(p_slots) e)
        order by c.name for update;
    for one in select e from jsonb_array_elements(p_slots) with ordinality x(e, n) order by n loop
        slot_at := tenure_agent.instant((one->>'at')::bigint);
        if slot_at > clock_timestamp() then
            word := 'early';
        elsif not exists (select from tenure_agent.schedule c where c.name = one->>'schedule') then
            word := 'gone';
        elsif not exists (select from tenure_agent.schedule c
                          where c.name = one->>'schedule' and c.role = p_role
                            and (c.removed_at is null
                                 -- An earlier call whose answer was lost.
                                 or exists (select from tenure_agent.slot s where s.schedule = c.name
                                            and s.at = slot_at and s.epoch = p_epoch and s.member = p_member))) then
            word := 'taken';
        else
            insert into tenure_agent.slot (schedule, at, state, attempts, missed, more, ordered_by, order_id,
                                           epoch, member, ended_at)
                values (one->>'schedule', slot_at, one->>'state',
                        case when one->>'state' = 'running' then 1 else 0 end,
                        coalesce((one->>'missed')::integer, 0), coalesce((one->>'more')::boolean, false),
                        one->>'by', (one->>'order')::bigint, p_epoch, p_member,
                        case when one->>'state' in ('missed', 'skipped') then clock_timestamp() end)
                on conflict (schedule, at) do nothing;
            if found then
                word := 'claimed';
                if one->>'state' = 'running' then
                    insert into tenure_agent.attempt (schedule, at, number, epoch, member)
                        values (one->>'schedule', slot_at, 1, p_epoch, p_member);
                end if;
            elsif exists (select from tenure_agent.slot s where s.schedule = one->>'schedule'
                          and s.at = slot_at and s.epoch = p_epoch and s.member = p_member
                          and s.state = one->>'state'
                          and s.attempts = case when s.state = 'running' then 1 else 0 end) then
                word := 'claimed';
            else
                word := 'taken';
            end if;
            if one->>'order' is not null then
                delete from tenure_agent.run_order where id = (one->>'order')::bigint;
            else
                update tenure_agent.schedule set watermark = greatest(watermark, slot_at),
                    next_at = tenure_agent.instant((one->>'next')::bigint)
                    where name = one->>'schedule';
            end if;
        end if;
        answers := answers || to_jsonb(word);
    end loop;
    return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()), 'answers', answers);
end $$;

-- Begins a further attempt of a slot that was claimed before, also if the row of its schedule was deleted by hand.
-- False: the slot is not what the caller thinks.
create function tenure_agent.attempt(p_role text, p_epoch bigint, p_member text, p_schedule text, p_at bigint,
                                     p_number integer, p_order bigint) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    began boolean;
begin
    perform tenure.fence(p_role, p_epoch);
    -- It does not move to another role meanwhile.
    perform from tenure_agent.schedule c where c.name = p_schedule for update;
    update tenure_agent.slot s set state = 'running', attempts = p_number, epoch = p_epoch,
        member = p_member, retry_at = null, ended_at = null,
        ordered_by = coalesce((select o.by from tenure_agent.run_order o where o.id = p_order), s.ordered_by),
        order_id = coalesce(p_order, s.order_id)
        where s.schedule = p_schedule and s.at = tenure_agent.instant(p_at)
          and not exists (select from tenure_agent.schedule c where c.name = p_schedule and c.role <> p_role)
          and (s.attempts = p_number - 1 and s.state in ('queued', 'waiting', 'failed', 'interrupted')
               -- An earlier call whose answer was lost.
               or s.attempts = p_number and s.state = 'running' and s.epoch = p_epoch and s.member = p_member);
    began := found;
    if began then
        insert into tenure_agent.attempt (schedule, at, number, epoch, member)
            values (p_schedule, tenure_agent.instant(p_at), p_number, p_epoch, p_member)
            on conflict do nothing;
    end if;
    delete from tenure_agent.run_order where id = p_order;
    return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()), 'began', began);
end $$;

-- Takes back the row of an attempt whose work this very term did not start: the slot waits for its turn, and the
-- next attempt has the same number. Without such a row nothing changes. If the schedule was removed meanwhile, there
-- is no next attempt.
create function tenure_agent.requeue(p_role text, p_epoch bigint, p_member text, p_schedule text, p_at bigint,
                                     p_number integer) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    is_removed boolean;
begin
    perform tenure.fence(p_role, p_epoch);
    select exists (select from tenure_agent.schedule c where c.name = p_schedule and c.removed_at is not null)
        into is_removed;
    update tenure_agent.slot s set attempts = p_number - 1,
        state = case when not is_removed then 'queued' when p_number = 1 then 'missed' else 'interrupted' end,
        ended_at = case when is_removed then clock_timestamp() end
        where s.schedule = p_schedule and s.at = tenure_agent.instant(p_at) and s.state = 'running'
          and s.attempts = p_number and s.epoch = p_epoch and s.member = p_member;
    if found then
        delete from tenure_agent.attempt a
            where a.schedule = p_schedule and a.at = tenure_agent.instant(p_at) and a.number = p_number;
    end if;
    return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()));
end $$;

-- Records how a slot's attempt ended, and what becomes of the slot. An attempt that has ended stays as it is; so does
-- all of a schedule that is another role's by now (recorded: false), and a slot that has another attempt.
create function tenure_agent.finish(p_role text, p_epoch bigint, p_member text, p_end jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    slot_at timestamptz := tenure_agent.instant((p_end->>'at')::bigint);
begin
    perform tenure.fence(p_role, p_epoch);
    -- It does not move to another role meanwhile.
    perform from tenure_agent.schedule c where c.name = p_end->>'schedule' for update;
    if exists (select from tenure_agent.schedule c where c.name = p_end->>'schedule' and c.role <> p_role) then
        return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()), 'recorded', false);
    end if;
    update tenure_agent.attempt a set ended_at = clock_timestamp(), how = p_end->>'how',
        code = (p_end->>'code')::integer, reason = p_end->>'reason', output = p_end->>'output'
        where a.schedule = p_end->>'schedule' and a.at = slot_at
          and a.number = (p_end->>'attempt')::integer and a.ended_at is null;
    update tenure_agent.slot s set state = p_end->>'state', epoch = p_epoch, member = p_member,
        retry_at = tenure_agent.instant((p_end->>'retry_at')::bigint),
        ended_at = case when p_end->>'state' in ('queued', 'waiting') then null else clock_timestamp() end
        where s.schedule = p_end->>'schedule' and s.at = slot_at
          and s.attempts = (p_end->>'attempt')::integer and s.state in ('queued', 'running', 'waiting');
    return jsonb_build_object('now', tenure_agent.micros(clock_timestamp()), 'recorded', true);
end $$;

-- What an agent asks now and then, once for all its roles: the time, and the orders for what it leads.
create function tenure_agent.look(p_roles jsonb) returns jsonb
language sql volatile set search_path = pg_catalog, pg_temp
begin atomic
    select jsonb_build_object('now', tenure_agent.micros(clock_timestamp()), 'orders', (
        select coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'schedule', o.schedule, 'by', o.by,
                'role', s.role, 'at', tenure_agent.micros(o.at),
                'given_at', tenure_agent.micros(o.given_at),
                'attempts', (select p.attempts from tenure_agent.slot p
                             where p.schedule = o.schedule and p.at = o.at)) order by o.id), '[]')
        from tenure_agent.run_order o join tenure_agent.schedule s on s.name = o.schedule
        where p_roles ? s.role));
end;

-- An operator's order to run a schedule now (at: null), or a dead letter again.
create function tenure_agent.order_run(p_schedule text, p_at timestamptz, p_by text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    s tenure_agent.schedule;
    n bigint;
begin
    select * into s from tenure_agent.schedule where name = p_schedule and removed_at is null;
    if not found then return jsonb_build_object('error', 'unknown_schedule'); end if;
    if p_at is not null and not exists (select from tenure_agent.slot d where d.schedule = p_schedule
            and d.at = p_at and d.state in ('failed', 'interrupted')) then
        return jsonb_build_object('error', 'no_dead_letter');
    end if;
    if (select count(*) from tenure_agent.run_order o where o.schedule = p_schedule) >= 10 then
        return jsonb_build_object('error', 'too_many');
    end if;
    insert into tenure_agent.run_order (schedule, at, by) values (p_schedule, p_at, p_by) returning id into n;
    insert into tenure.event (role, kind, detail)
        values (s.role, 'run_schedule', 'asked by ' || p_by || ', schedule ' || p_schedule
                || coalesce(', slot ' || to_char(p_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), ''));
    return jsonb_build_object('id', n, 'role', s.role);
end $$;
