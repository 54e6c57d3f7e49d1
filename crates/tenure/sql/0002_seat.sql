-- What a seat says to the database. Each function is one round trip for any number of roles.
--
-- Every function of this schema finds what it names whatever the caller's search_path is: its names are
-- resolved when it is made (a body without quotes), or it pins search_path. Otherwise a login role that
-- may create functions elsewhere could have its own run with the caller's rights.
--
-- Invariants:
--   * Lock first, then read the row FOR UPDATE: what was read before the lock is stale.
--   * A role that was not won leaves no lock; a role that failed half way unlocks itself.
--   * Every function that a seat calls first proves that it runs on the seat of record.

-- (system identifier, database, table; timeline). The timeline comes from the current WAL position: the
-- control file lags behind a promotion. A copy of a database, by a template or a dump, is another database
-- or another table: what led in the original since the copy was made is not known in it.
create function tenure.lineage() returns text language sql volatile
return (select system_identifier from pg_control_system())::text || '.' ||
       (select oid from pg_database where datname = current_database()) || '.' ||
       to_regclass('tenure.role')::oid || '/' ||
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer;

insert into tenure.origin (lineage, made_by) values (tenure.lineage(), pg_current_xact_id()::xid);

-- What no acknowledged write was lost in: it ends with every restart, crash, promotion and restore.
create function tenure.incarnation() returns text language sql volatile
begin atomic
    insert into tenure.boot (mark, made_by) select gen_random_uuid(), pg_current_xact_id()::xid
        where not exists (select from tenure.boot) on conflict do nothing;
    update tenure.boot set mark = gen_random_uuid(), made_by = pg_current_xact_id()::xid
        where xmin <> made_by;
    update tenure.origin set mark = gen_random_uuid(), made_by = pg_current_xact_id()::xid
        where xmin <> made_by;
    select tenure.lineage() || '/' || extract(epoch from pg_postmaster_start_time())
           || '/' || (select mark from tenure.boot) || '/' || (select mark from tenure.origin);
end;

-- A seat's lineage cannot change under it: a server leaves recovery only by a restart or by a
-- promotion, and a seat is never on a standby. So it is read once, when the seat is taken.
create function tenure.lineage_of(incarnation text) returns text language sql immutable
return split_part(incarnation, '/', 1) || '/' || split_part(incarnation, '/', 2);

-- Epochs strictly above `above`. On another line of history than the last bump's, a generation of
-- 2^40 that no earlier timeline had, so that bumps which failovers lost are never issued again: not
-- even if a second failover lost the first bump after the first.
create function tenure.next_epoch(above bigint, moved_to integer) returns bigint
language sql immutable
return case when moved_to is null then above + 1
            else greatest((above >> 40) + 1, moved_to) << 40 end;

create function tenure.try_lock(k bigint, pair boolean) returns boolean language sql volatile
return case when pair then pg_try_advisory_lock((k >> 32)::integer, (k << 32 >> 32)::integer)
            else pg_try_advisory_lock(k) end;

create function tenure.unlock_key(k bigint, pair boolean) returns boolean language sql volatile
return case when pair then pg_advisory_unlock((k >> 32)::integer, (k << 32 >> 32)::integer)
            else pg_advisory_unlock(k) end;

-- One role of a registration.
create type tenure.candidacy as (role text, key bigint, pair boolean, policy text, priority integer,
                                 ready boolean, observer boolean, withdraw boolean);
-- One role of a claim, as it is asked for.
create type tenure.ask as (role text, key bigint, pair boolean, seen bigint, keep bigint,
                           insist boolean);

-- The advisory key that a registration takes shared, and an order to lower a role's lease exclusively.
create function tenure.lease_key() returns bigint language sql immutable
return hashtextextended('tenure lease', 0);

-- A member takes its seat, or takes it again after a lost connection: it ends its own old backend
-- first (pid and start must match, pids are reused).
create function tenure.take_seat(p jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    me   text := p->>'identity';
    k    bigint := (p->>'key')::bigint;
    inc  text := tenure.incarnation();
    old  tenure.member;
    mine timestamptz;
begin
    select backend_start into mine from pg_stat_activity where pid = pg_backend_pid();
    select * into old from tenure.member where identity = me;
    if found and (old.backend_pid, old.backend_start) is distinct from (pg_backend_pid(), mine) then
        perform pg_terminate_backend(a.pid) from pg_stat_activity a
            where a.pid = old.backend_pid and a.backend_start = old.backend_start
              and old.incarnation = inc;
    end if;
    -- The old backend holds the member lock until it has ended; a watcher may hold it, shared, for the
    -- length of its look. A wait that is too long is an answer and no error, which would be logged.
    perform set_config('lock_timeout', coalesce(p->>'lock_ms', '500'), true);
    begin
        perform pg_advisory_lock(k);
    exception when lock_not_available then
        return '{"busy": true}';
    end;
    perform set_config('tenure.seat', p->>'seat', false);
    insert into tenure.member as m (identity, host, pid, backend_pid, backend_start, seat, key,
                                    lease_ms, grace_ms, incarnation)
    values (me, p->>'host', (p->>'pid')::integer, pg_backend_pid(), mine, p->>'seat', k,
            (p->>'lease_ms')::integer, (p->>'grace_ms')::integer, inc)
    on conflict (identity) do update set
        backend_pid = excluded.backend_pid, backend_start = excluded.backend_start,
        seat = excluded.seat, incarnation = inc, beat = m.beat + 1, left_at = null,
        seen_at = clock_timestamp();
    return jsonb_build_object('incarnation', inc, 'backend_pid', pg_backend_pid(),
        'beat', (select beat from tenure.member where identity = me),
        'revoked', (select revoked from tenure.member where identity = me));
end $$;

-- The proof that this statement runs on the member's seat; it also advances the beat.
create function tenure.prove(me text) returns tenure.member
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    m tenure.member;
begin
    update tenure.member set beat = beat + 1, seen_at = clock_timestamp(),
        silent_ms = extract(epoch from clock_timestamp() - seen_at) * 1000
        where identity = me and seat = current_setting('tenure.seat', true)
          and backend_pid = pg_backend_pid() and left_at is null
        returning * into m;
    if not found then
        raise exception 'this session is not the seat of member %', me
            using errcode = 'TN002',
                  hint = 'Connect to the server itself or through a session pooler.';
    end if;
    if m.silent_ms >= m.lease_ms then
        -- For people, once it is over: the gates were shut meanwhile. No more than a beat has time for.
        insert into tenure.event (at, role, member, epoch, kind, detail)
            select late.at, r.name, me, r.epoch, late.kind, late.detail
            from (select name, epoch from tenure.role
                  where holder = me and debtor = me order by name limit 100) r
                cross join (values
                    (m.seen_at - make_interval(secs => (m.silent_ms - m.lease_ms) / 1000.0), 'late',
                     'no heartbeat succeeded within the lease'),
                    (m.seen_at, 'well', 'heartbeats succeed again')) late(at, kind, detail);
    end if;
    return m;
end $$;

-- Locks the rows of those roles, in key order, and says which: another session's lock costs 20 ms once
-- and its role, not the statement and with it the seat. A fence does not stand in the way of this.
create function tenure.lock_rows(p_names text[]) returns text[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    got text[] := array(select name from tenure.role where name = any (p_names)
                        order by pair, key for no key update skip locked);
    old text := current_setting('lock_timeout');
    -- A quarter of the seat's deadline for all rows that are held up, however many they are.
    quarter double precision := nullif(extract(epoch from
        current_setting('statement_timeout')::interval), 0) / 4;
    until timestamptz := clock_timestamp() + make_interval(secs => quarter);
    one text;
begin
    if cardinality(got) < cardinality(p_names) then
        perform set_config('lock_timeout',
            greatest(1, least(20, (quarter * 1000)::integer))::text, true);
        for one in select name from tenure.role
                   where name = any (p_names) and name <> all (got) order by pair, key loop
            exit when clock_timestamp() > until;
            begin
                perform from tenure.role where name = one for no key update;
                got := got || one;
            exception when lock_not_available then
                perform set_config('lock_timeout', '1', true);
            end;
        end loop;
        perform set_config('lock_timeout', old, true);
    end if;
    return got;
end $$;

-- Those of the roles whose lock a session holds that is no member's: another program's, or a member's without
-- tables. A member holds its member lock as long as it may hold a role's. One look at all locks: in a second
-- one a member that ends would be missing.
--
-- In plpgsql, which keeps its plan: every claim that finds a lock held asks it.
create function tenure.held_by_strangers(p_names text[]) returns text[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    return (
        with locks as materialized (
            select l.pid, l.mode, l.objsubid = 2 as pair,
                   (l.classid::bigint << 32) | l.objid::bigint as key
            from pg_lock_status() l
            where l.locktype = 'advisory' and l.granted
              and l.database = (select oid from pg_database where datname = current_database())
        ), seats as materialized (
            select l.pid from locks l join tenure.member o on o.key = l.key
            where not l.pair and l.mode = 'ExclusiveLock'
        ), strange as materialized (
            -- A prepared transaction has no pid.
            select pair, key from locks
            where coalesce(pid, 0) <> all (array(select s.pid from seats s where s.pid is not null))
        )
        select coalesce(array_agg(r.name), '{}') from tenure.role r
        where r.name = any (p_names) and (r.pair, r.key) in (select s.pair, s.key from strange s));
end $$;

-- Makes roles known, with their key and policy, and this member a candidate for them, or no candidate any
-- more (`withdraw`, which is not answered). A role whose row is held up and would have to be changed, or is
-- forgotten meanwhile, is answered `blocked`: nothing happened to it.
create function tenure.register(me text, p_roles jsonb) returns jsonb
language plpgsql volatile
    set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan as $$
declare
    m   tenure.member := tenure.prove(me);
    out jsonb;
    low text[];
    -- New on the line of history on which the schema was born: no member ever led it.
    fresh text := (select m.incarnation from tenure.origin
                   where lineage = tenure.lineage_of(m.incarnation));
    -- Read once: there may be a thousand.
    asked tenure.candidacy[] :=
        array(select x from jsonb_populate_recordset(null::tenure.candidacy, p_roles) x);
    -- Tenure never uses more than a quarter of the lock table.
    over  text[] := '{}';
    room  bigint := current_setting('max_locks_per_transaction')::bigint / 4.0
        * (current_setting('max_connections')::bigint
           + current_setting('max_prepared_transactions')::bigint);
begin
    -- Lowering a role's lease must see every registration: see tenure.lower_lease().
    perform pg_advisory_xact_lock_shared(tenure.lease_key());
    delete from tenure.candidate c using unnest(asked) x
        where x.withdraw and c.member = me and c.role = x.role;
    asked := array(select x from unnest(asked) x where x.withdraw is not true);
    -- Only a candidate can hold a role's lock, and no observer. The roles are counted when it matters.
    if (select count(*) from tenure.candidate where not observer) + cardinality(asked) > room then
        over := array(select x.role from unnest(asked) x
            where not x.observer
              and not exists (select from tenure.candidate c where c.role = x.role and not c.observer)
            order by x.pair, x.key offset greatest(0, room
                - (select count(distinct role) from tenure.candidate where not observer)));
    end if;
    insert into tenure.role (name, key, pair, policy, lease_ms, paid_in, epoch, debtor, debtor_lease_ms)
        select x.role, x.key, x.pair, x.policy, m.lease_ms, fresh, 0, null, null
        from unnest(asked) x
        where x.role <> all (over)
          and not exists (select from tenure.role r where r.name = x.role)
          and not exists (select from tenure.term t where t.role = x.role)
          and not exists (select from tenure.tombstone t where t.role = x.role)
        union all
        -- It was led, and its row was deleted: by which member, and whether that still acts, is not known. Its
        -- lease is, if the role was forgotten in good order.
        select x.role, x.key, x.pair, x.policy, longest, null, greatest(led, t.epoch), '(unknown)', longest
        from unnest(asked) x
            left join tenure.tombstone t on t.role = x.role
            cross join lateral (select max(e.epoch) as led from tenure.term e where e.role = x.role) e
            cross join lateral (select greatest(m.lease_ms, case when led is null then t.lease_ms
                else (select max(o.lease_ms) from tenure.member o) end) as longest) l
        where x.role <> all (over)
          and not exists (select from tenure.role r where r.name = x.role)
          and (led is not null or t.role is not null)
        order by 3, 2
        on conflict do nothing;
    -- Raised before it is used: successors wait at least this long.
    low := array(select r.name from unnest(asked) x
                 join tenure.role r on r.name = x.role where r.lease_ms < m.lease_ms);
    if low <> '{}' then
        update tenure.role set lease_ms = m.lease_ms
            where name = any (tenure.lock_rows(low)) and lease_ms < m.lease_ms;
    end if;
    -- For people: what a candidate's own check of its health said.
    insert into tenure.event (role, member, kind, detail)
        select c.role, me, case when x.ready then 'ready' else 'not_ready' end,
               case when x.ready then 'the candidate may lead' else 'another candidate should lead' end
        from unnest(asked) x
            join tenure.candidate c on c.member = me and c.role = x.role
        where c.ready <> x.ready;
    with judged as materialized (
        select x.*, case
            when r.name is null then coalesce(
                (select jsonb_build_object('because', 'collision', 'with', name)
                 from tenure.role where key = x.key and pair = x.pair),
                case when x.role = any (over)
                     then jsonb_build_object('because', 'locks', 'room', room)
                     else jsonb_build_object('because', 'blocked') end)
            when x.role = any (over) then jsonb_build_object('because', 'locks', 'room', room)
            when (r.key, r.pair) is distinct from (x.key, x.pair) then
                jsonb_build_object('because', 'key', 'key', r.key, 'pair', r.pair)
            when r.policy <> x.policy then
                jsonb_build_object('because', 'policy', 'known', r.policy)
            when r.lease_ms < m.lease_ms then
                jsonb_build_object('because', 'blocked') end as why
        from unnest(asked) x
            left join tenure.role r on r.name = x.role
    ), candidates as (
        insert into tenure.candidate as c (role, member, priority, ready, observer)
        select role, me, priority, ready, observer from judged where why is null
        on conflict (role, member) do update set priority = excluded.priority,
            ready = excluded.ready, observer = excluded.observer
        where (c.priority, c.ready, c.observer)
              is distinct from (excluded.priority, excluded.ready, excluded.observer)
    )
    select coalesce(jsonb_agg(jsonb_build_object('role', role, 'refused', why)), '[]')
        into out from judged;
    -- Of nothing: the plans of a release are ready when a successor waits for it.
    perform tenure.release_rows(m, '[]');
    return out;
end $$;

-- Which of those roles another candidate should have first, and why. A matter of manners, never of
-- safety: clocks may be wrong here.
--
-- It goes from role to role (lateral). Statistics that do not know a new member yet would make the
-- planner begin with that member's candidacies and go through all names for each: minutes for 10,000.
create function tenure.better_candidates(m tenure.member, p_names text[])
returns table (role text, why text, holder text, epoch bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    -- Alone: there is no other candidate.
    if not exists (select from tenure.member o
                   where o.identity <> m.identity and o.left_at is null) then
        return;
    end if;
    return query select distinct on (n) n,
        case when c.member = r.successor then 'successor'
             when c.ready and not mine.ready then 'ready' else 'priority' end, r.holder, r.epoch
    from unnest(p_names) n
        cross join lateral (select * from tenure.candidate c
            where c.role = n and c.member <> m.identity and not c.observer offset 0) c
        cross join lateral (select * from tenure.candidate c
            where c.member = m.identity and c.role = n offset 0) mine
        cross join lateral (select * from tenure.role r where r.name = n offset 0) r
        join tenure.member o on o.identity = c.member and o.left_at is null
    -- A candidate that has just released the role does not want it back so soon.
    where not (r.holder is null and c.member is not distinct from r.last_holder)
      and o.seen_at > clock_timestamp() - make_interval(secs => o.lease_ms / 1000.0)
      and (c.member = r.successor and r.successor_until > clock_timestamp()
           or (c.ready, c.priority) > (mine.ready, mine.priority)
              and r.successor is distinct from m.identity)
    order by n, 2 desc;
end $$;

-- What the next leader of a role owes: nothing if it is `settled`, as no gate can be open; otherwise `ms`,
-- counted from the last beat of its debtor `d`. The rule for a claim and for an operator that settles a role.
-- A function of rows, not of a value: only so is it a part of the caller's plan.
create function tenure.owed(r tenure.role, d tenure.member, p_incarnation text)
returns table (settled boolean, ms integer) language sql stable
begin atomic
    select r.debtor is null and r.paid_in is not distinct from p_incarnation,
        -- In this incarnation no write was lost, so the debtor's own lease is known; otherwise the
        -- debtor may have been any member that ever registered, or a member whose registration was lost:
        -- one that sat here in another incarnation, and is a candidate for nothing.
        case when r.debtor is not null and r.acted_in = p_incarnation then r.debtor_lease_ms
             else greatest(r.debtor_lease_ms, r.lease_ms, d.lease_ms, (
                 select max(o.lease_ms) from tenure.member o where o.incarnation <> p_incarnation
                     and not exists (select from tenure.candidate c where c.member = o.identity))) end;
end;

-- The verdict on one role whose lock is held: `q` as it was asked for, its row `r` as it was read after
-- the lock, its debtor `d`, and why a better candidate should have it. It decides every claim, and it
-- writes nothing. A claim that is won leads at once if it is `paid`; otherwise the claimant waits
-- `wait_ms`, counted from the debtor's last beat. `waits_for` names that beat, in this incarnation: claimants
-- that gave up have already waited `waited_ms` for the same.
create function tenure.verdict(m tenure.member, q tenure.ask, r tenure.role, d tenure.member,
                               better text)
returns table (outcome text, paid boolean, next bigint, wait_ms integer, waits_for text,
               already_ms bigint) language sql stable
begin atomic
    select case
            when (r.key, r.pair) is distinct from (q.key, q.pair) then 'unknown'
            when r.paused then 'paused'
            when q.keep is not null and r.holder = m.identity and r.epoch = q.keep
                 and r.held_in = m.incarnation and r.debtor = m.identity then 'kept'
            -- The member asked for its own term back, and that term is over.
            when q.keep is not null then 'moved'
            when better is not null and not q.insist then 'yield'
            else 'won' end,
        r.policy = 'fenced'
            or o.settled
            or coalesce(r.debtor = m.identity and r.acted_in = m.incarnation, false),
        tenure.next_epoch(w.above, w.moved_to),
        o.ms,
        w.waits_for, case when r.waited_for = w.waits_for then r.waited_ms else 0 end
    from (select
            -- The history may know of epochs that the row does not: rows were restored, or written by hand.
            greatest(r.epoch, q.seen,
                (select max(t.epoch) from tenure.term t where t.role = r.name)) as above,
            case when tenure.lineage_of(m.incarnation) <> case when r.lineage = ''
                          then (select lineage from tenure.origin) else r.lineage end
                 then split_part(m.incarnation, '/', 2)::integer end as moved_to,
            -- Without a debtor the wait is for what was lost with another incarnation: in this one a member that
            -- acts is written as the debtor.
            coalesce(d.identity || ' ' || d.beat, case when r.debtor is null then '-' end)
                || ' ' || m.incarnation as waits_for
          -- Read once: a function that is given a query is not made a part of the plan.
          offset 0) w
        cross join lateral tenure.owed(r, d, m.incarnation) o;
end;

-- Claims roles, in key order. The caller holds none of their locks; on return a lock is held exactly
-- if the outcome is `won` or `kept`.
--
-- With `p_wait` it claims one role, waits for its row up to lock_timeout and answers in any case.
-- Without, it answers the roles that nothing obstructs: a role whose row is locked or missing, or all
-- of them if one fails, is left out of the answer, without its lock.
create function tenure.claim_rows(m tenure.member, asked tenure.ask[], p_wait boolean) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    yields  text[];
    locked  tenure.ask[];
    before  tenure.ask[];
    odd     text[];
    names   text[];
    rows    tenure.role[];
    ours    text[];
    answers jsonb;
    more    jsonb;
begin
    -- Before the lock: a candidate that yields must not hold the lock while a better candidate tries
    -- it. After the lock the same is asked again, as what is read here is stale.
    select coalesce(array_agg(b.role), '{}'), coalesce(jsonb_agg(jsonb_build_object('role', b.role,
               'out', 'yield', 'to', b.why, 'epoch', b.epoch)), '[]')
        into yields, answers
        from tenure.better_candidates(m, array(select q.role from unnest(asked) q
                                               where q.keep is null and not q.insist)) b
        where b.holder is null;
    -- The locks; then, in statements that see what the locks protect, the rows.
    select coalesce(array_agg(t.q) filter (where t.got), '{}'),
           coalesce(array_agg((t.q).role) filter (where not t.got), '{}')
        into locked, odd
        from (select q, tenure.try_lock(q.key, q.pair) as got
              from unnest(asked) q where q.role <> all (yields) offset 0) t;
    if odd <> '{}' then
        select coalesce(jsonb_agg(jsonb_build_object('role', name, 'out', 'held',
                   'holder', r.holder, 'epoch', r.epoch, 'held_by_us', r.holder = m.identity)), '[]'),
               coalesce(array_agg(r.name) filter (where r.debtor is distinct from '(unknown)'), '{}')
            into more, odd
            from unnest(odd) asked_for(name) left join tenure.role r using (name);
        answers := answers || more;
    end if;
    -- Held by a session that is no member's, whatever the row says: what it does meanwhile is not known, so the
    -- next winner owes it a wait. A member between the two halves of its release, or in the middle of its claim,
    -- is told by its member lock. A backend that ends lets go of its locks one by one, so a stranger is one
    -- that is there ten milliseconds later. That look comes after the row's lock: while a stranger has the
    -- role's lock no member can win it, and a member that wins it later waits for the row and finds the debt.
    -- A lock that is free by now was such a backend's, or one look at a stranger is missed, as it would be
    -- between two claims.
    if odd <> '{}' then
        odd := tenure.held_by_strangers(odd);
        for look in 1..10 loop
            exit when odd = '{}';
            perform pg_sleep(0.001);
            before := locked;
            -- Not known until the statement is over: an error in it unlocks whatever is ours.
            locked := null;
            select before || coalesce(array_agg(t.q) filter (where t.got), '{}'),
                   coalesce(array_agg((t.q).role) filter (where not t.got), '{}')
                into locked, odd
                from (select q, tenure.try_lock(q.key, q.pair) as got
                      from unnest(asked) q where q.role = any (odd) offset 0) t;
        end loop;
        answers := (select coalesce(jsonb_agg(a), '[]') from jsonb_array_elements(answers) a
                    where not exists (select from unnest(locked) q where q.role = a->>'role'));
    end if;
    if odd <> '{}' then
        odd := array(select name from tenure.role where name = any (odd) order by pair, key
                     for no key update skip locked);
        odd := tenure.held_by_strangers(odd);
        update tenure.role r set debtor = '(unknown)', paid_in = null, acted_in = null,
            debtor_lease_ms = greatest(r.debtor_lease_ms, r.lease_ms) where r.name = any (odd);
    end if;
    -- What follows runs also if no lock was won: a session that waits has its plans ready when it wins.
    names := array(select q.role from unnest(locked) q);
    if p_wait then
        rows := array(select r from tenure.role r where r.name = any (names) for update);
        -- As tenure.unpassed() does. One expression: see there.
        if cardinality(rows) > 0 and not (case
               when nextval('tenure.moves') is null then false
               when pg_try_advisory_lock(tenure.pass_key(names[1]))
                   then pg_advisory_unlock(tenure.pass_key(names[1])) else false end) then
            perform tenure.await_passes(names);
        end if;
    else
        -- A fenced transaction has locked the row, or it has a pass. First without the row's lock, which another fence
        -- of the same transaction may wait for; then with it, so that none comes after the look.
        names := tenure.unpassed(names);
        rows := array(select r from tenure.role r where r.name = any (names)
                      order by r.pair, r.key for update skip locked);
        names := tenure.unpassed(array(select r.name from unnest(rows) r));
        if cardinality(names) < cardinality(rows) then
            rows := array(select r from unnest(rows) r where r.name = any (names));
        end if;
    end if;
    with seen as materialized (
        select q.role as asked_for, r.*, b.why, d.beat as debtor_beat, v.*
        from unnest(locked) q
            left join unnest(rows) r on r.name = q.role
            left join tenure.better_candidates(m, names) b on b.role = q.role
            left join tenure.member d on d.identity = r.debtor
            cross join lateral tenure.verdict(m, q, r, d, b.why) v
        where p_wait or r.name is not null
    ), taken as materialized (select * from seen where outcome = 'won'),
    ended as (
        update tenure.term t set ended_at = clock_timestamp(), how = coalesce(t.how, 'replaced')
        from taken w where t.role = w.name and t.epoch = w.epoch and t.ended_at is null
    ), bumped as (
        update tenure.role r set epoch = w.next, lineage = tenure.lineage_of(m.incarnation),
            holder = m.identity, held_in = m.incarnation, since = clock_timestamp(),
            released_at = null, last_holder = coalesce(w.holder, r.last_holder),
            successor = null, successor_until = null, order_id = null, order_to = null,
            lease_ms = greatest(r.lease_ms, m.lease_ms),
            debtor = case when w.paid then m.identity else r.debtor end,
            debtor_lease_ms = case when w.paid then m.lease_ms else r.debtor_lease_ms end,
            acted_in = case when w.paid then m.incarnation else r.acted_in end,
            paid_in = case when w.paid then null else r.paid_in end,
            waited_for = case when w.paid then null else w.waits_for end,
            waited_ms = case when w.paid then 0 else w.already_ms end
        from taken w where r.name = w.name
    ), begun as (
        -- One reading of the clock for both: a term that acts at once acts when it is claimed.
        insert into tenure.term (role, epoch, member, claimed_at, acting_at)
        select name, next, m.identity, at, case when paid then at end
        from (select *, clock_timestamp() as at from taken) w
    ), told as (
        -- Tells a holder that still beats, which none should. Two members that take each other's
        -- roles must not wait for each other's row.
        update tenure.member o set revoked = o.revoked + h.lost
        from (select holder, count(*) as lost from taken where holder <> m.identity
              group by holder) h
        where o.identity = h.holder and o.identity in (
            select identity from tenure.member
            where identity in (select holder from taken where holder <> m.identity)
            for no key update skip locked)
    )
    select coalesce(array_agg(s.asked_for) filter (where s.outcome in ('won', 'kept')), '{}'),
           coalesce(jsonb_agg(case
               when s.outcome = 'unknown' then
                   jsonb_build_object('role', s.asked_for, 'out', s.outcome)
               when s.outcome = 'yield' then
                   jsonb_build_object('role', s.name, 'out', s.outcome, 'holder', s.holder,
                       'epoch', s.epoch, 'to', s.why)
               when s.outcome = 'won' and s.paid then
                   jsonb_build_object('role', s.name, 'out', s.outcome, 'holder', s.holder,
                       'epoch', s.next, 'acting', true)
               when s.outcome = 'won' then
                   jsonb_build_object('role', s.name, 'out', s.outcome, 'holder', s.holder,
                       'epoch', s.next, 'acting', false, 'debtor', s.debtor,
                       'debtor_beat', s.debtor_beat, 'debtor_lease_ms', s.wait_ms,
                       'waited_ms', s.already_ms)
               else
                   jsonb_build_object('role', s.name, 'out', s.outcome, 'holder', s.holder,
                       'epoch', s.epoch) end), '[]')
        into ours, more
        from seen s;
    if cardinality(ours) < cardinality(locked) then
        perform tenure.unlock_key(q.key, q.pair) from unnest(locked) q
            where not exists (select from unnest(ours) o where o = q.role);
    end if;
    return answers || more;
exception when others then
    -- Locks outlive what is rolled back here. None of these roles was held before.
    if locked is not null then
        perform tenure.unlock_key(q.key, q.pair) from unnest(locked) q;
    else
        perform tenure.unlock_key(q.key, q.pair) from unnest(asked) q join pg_locks l
            on l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
               and l.classid = ((q.key >> 32) & 4294967295)::oid
               and l.objid = (q.key & 4294967295)::oid
               and l.objsubid = case when q.pair then 2 else 1 end
            where l.database = (select oid from pg_database where datname = current_database());
    end if;
    if not p_wait then
        return '[]';
    end if;
    return jsonb_build_array(jsonb_build_object('role', asked[1].role)
        || case when sqlstate = '55P03' then jsonb_build_object('out', 'blocked')
                else jsonb_build_object('out', 'error', 'sqlstate', sqlstate, 'error', sqlerrm) end);
end $$;

-- The claim itself: it waits `p_lock_ms` for the row of the first role that is held up and hardly at
-- all for the rows of the others, and it takes no more than about `p_ms`. Roles it did not come to
-- are missing from its answer: a claim of very many roles must not outlast the seat's deadline.
create function tenure.claim(me text, p_roles jsonb, p_lock_ms integer, p_ms integer) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    m     tenure.member := tenure.prove(me);
    until timestamptz := clock_timestamp() + make_interval(secs => p_ms / 1000.0);
    asked tenure.ask[] := array(
        select row(x.role, x.key, x.pair, x.seen, x.keep, coalesce(x.insist, false))::tenure.ask
        from jsonb_to_recordset(p_roles) as x(role text, key bigint, pair boolean, seen bigint,
            keep bigint, insist boolean) order by x.pair, x.key);
    done  jsonb := '[]';
    out   jsonb[] := '{}';
    one   jsonb;
    q     tenure.ask;
    -- How many roles the next part has, how many parts came to, when the last one began, what is left.
    part  integer := 200;
    came  integer := 0;
    begun timestamptz;
    rest  double precision;
begin
    -- Many roles are claimed at once, with a plan for so many. A few are claimed one by one: their
    -- plan is made once for a session.
    if cardinality(asked) > 8 then
        perform set_config('plan_cache_mode', 'force_custom_plan', true),
                set_config('tenure.unpassed', 'on', true);
        -- In parts, in key order. Only a part that has begun cannot be cut short: it has so many roles as,
        -- by the part before it, a third of the time that is left is enough for. Mostly that is all of them.
        loop
            begun := clock_timestamp();
            done := done || tenure.claim_rows(m, asked[came + 1 : came + part], false);
            came := least(came + part, cardinality(asked));
            rest := extract(epoch from until - clock_timestamp());
            exit when came = cardinality(asked) or rest <= 0;
            part := greatest(20, least(1000, part * rest / 3
                / greatest(0.001, extract(epoch from clock_timestamp() - begun))));
        end loop;
        asked := asked[1 : came];
    end if;
    perform set_config('plan_cache_mode', 'force_generic_plan', true),
            set_config('lock_timeout', p_lock_ms::text, true),
            set_config('tenure.unpassed', 'on', true);
    for q in select a.* from unnest(asked) a
             where not exists (select from jsonb_array_elements(done) y where y->>'role' = a.role)
             loop
        one := tenure.claim_rows(m, array[q], true)->0;
        out := out || one;
        if one->>'out' = 'blocked' then
            perform set_config('lock_timeout', '1', true);
        end if;
        exit when clock_timestamp() > until;
    end loop;
    return jsonb_build_object('beat', m.beat, 'roles', done || to_jsonb(out));
end $$;

-- The durable word "my gate opens now": from here on this member is the debtor. `blocked` are those
-- that are ours and whose row another session holds up: their gates stay shut.
create function tenure.mark_acting(me text, p_roles jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    m    tenure.member := tenure.prove(me);
    ours text[] := array(select r.name
        from jsonb_to_recordset(p_roles) as x(role text, epoch bigint)
            join tenure.role r on r.name = x.role and r.epoch = x.epoch and r.holder = me);
    free text[] := tenure.lock_rows(ours);
    out  jsonb;
begin
    with done as (
        update tenure.role r set debtor = me, debtor_lease_ms = m.lease_ms,
            acted_in = m.incarnation, paid_in = null, waited_for = null, waited_ms = 0
        from jsonb_to_recordset(p_roles) as x(role text, epoch bigint)
        where r.name = any (free) and r.name = x.role and r.epoch = x.epoch and r.holder = me
        returning r.name, r.epoch
    ), terms as (
        update tenure.term t set acting_at = clock_timestamp() from done d
        where t.role = d.name and t.epoch = d.epoch
    )
    select coalesce(jsonb_agg(name), '[]') into out from done;
    return jsonb_build_object('beat', m.beat, 'roles', out, 'blocked', (
        select coalesce(jsonb_agg(name), '[]') from unnest(ours) name where name <> all (free)));
end $$;

-- The heartbeat. Not durable (a lost beat only makes others wait longer, and a crash voids what
-- was seen of it) unless standbys must acknowledge: then a deposed primary cannot keep a leader.
create function tenure.beat(me text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    m tenure.member;
begin
    if current_setting('synchronous_standby_names') = '' then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    m := tenure.prove(me);
    return jsonb_build_object('beat', m.beat, 'revoked', m.revoked,
        -- For how many roles the rows name us: a row that was deleted by hand tells no holder.
        'held', (select count(*) from tenure.role r where r.holder = me),
        'others', (select jsonb_agg(jsonb_build_array(o.identity, o.beat, o.grace_ms))
                   from tenure.member o where o.identity <> me
                     -- The dead too, for a while: their debts run from when their last beat was seen.
                     and (o.left_at is null or o.left_at > clock_timestamp()
                                               - make_interval(secs => o.lease_ms / 250.0))),
        'orders', (select jsonb_agg(jsonb_build_object('role', r.name, 'paused', r.paused,
                                                       'id', r.order_id, 'to', r.order_to))
                   from tenure.role r
                   where r.holder = me and (r.paused or r.order_id is not null)));
end $$;

-- The first half of a release: the row. Guarded by holder and epoch, so that a late release cannot
-- overwrite a successor. A row that is held up stays as it is, and the lock goes all the same:
-- the successor finds a debt and waits. The second half (unlock and notify) writes nothing and is its own
-- transaction: a poller that wins the lock finds the row as it is written here.
--
-- One plan for any number of roles: most sessions release a few times at most, and their successors would wait
-- while each of these is planned anew.
create function tenure.release_rows(m tenure.member, p_roles jsonb) returns jsonb
language plpgsql volatile
    set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
    free text[];
    out  jsonb;
begin
    free := tenure.lock_rows(array(select x.role from jsonb_to_recordset(p_roles) as x(role text)));
    with done as (
        update tenure.role r set holder = null, held_in = null, last_holder = m.identity,
            released_at = clock_timestamp(),
            debtor = case when x.pays then null else r.debtor end,
            debtor_lease_ms = case when x.pays then null else r.debtor_lease_ms end,
            paid_in = case when x.pays then m.incarnation else r.paid_in end,
            waited_ms = r.waited_ms + case when r.waited_for is null then 0 else coalesce(x.waited_ms, 0) end,
            order_id = null, order_to = null,
            successor = x."to",
            successor_until = case when x."to" is not null
                then clock_timestamp() + make_interval(secs => m.lease_ms / 1000.0) end
        -- A debt from another incarnation is not paid by a release: a failover may have lost the member
        -- that led after this one.
        from (select y.*, y.clean and o.debtor = m.identity and o.acted_in = m.incarnation as pays
              from jsonb_to_recordset(p_roles) as y(role text, epoch bigint, clean boolean, "to" text,
                      waited_ms bigint)
                  join tenure.role o on o.name = y.role) x
        where r.name = any (free) and r.name = x.role and r.epoch = x.epoch and r.holder = m.identity
        returning r.name, r.epoch
    ), terms as (
        update tenure.term t set ended_at = clock_timestamp(),
            how = case when t.acting_at is null then 'abandoned' else 'released' end
        from done d where t.role = d.name and t.epoch = d.epoch and t.ended_at is null
    )
    select coalesce(jsonb_agg(name), '[]') into out from done;
    return out;
end $$;

create function tenure.release(me text, p_roles jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    m tenure.member := tenure.prove(me);
begin
    -- A clean flag that a crash loses makes the successor wait: safe, so it need not be durable.
    if current_setting('synchronous_standby_names') = '' then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    return jsonb_build_object('beat', m.beat, 'roles', tenure.release_rows(m, p_roles));
end $$;

-- The rare and complete look at what we hold: roles whose epoch, holder or lock is not ours.
create function tenure.inspect(me text, p_roles jsonb) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    m tenure.member := tenure.prove(me);
begin
    return jsonb_build_object('beat', m.beat, 'revoked', m.revoked, 'gone', (
        select coalesce(jsonb_agg(x.role), '[]')
        from jsonb_to_recordset(p_roles) as x(role text, epoch bigint, key bigint, pair boolean)
        where not exists (select from tenure.role r
                          where r.name = x.role and r.epoch = x.epoch and r.holder = me)
           or not exists (select from pg_locks l
                          where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
                            and l.mode = 'ExclusiveLock'
                            and l.classid = ((x.key >> 32) & 4294967295)::oid
                            and l.objid = (x.key & 4294967295)::oid
                            and l.objsubid = case when x.pair then 2 else 1 end)));
end $$;

-- The second half of a release. A named successor is told so, before all are told of the role: it claims although
-- it may have stepped down itself a moment ago.
create function tenure.unlock(p_roles jsonb, p_channel text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    q   jsonb;
    bad jsonb := '[]';
begin
    for q in select * from jsonb_array_elements(p_roles) loop
        if not tenure.unlock_key((q->>'key')::bigint, (q->>'pair')::boolean) then
            bad := bad || (q->'role');
        end if;
        if q->>'to' is not null then
            perform pg_notify(p_channel, '> ' || (q->>'to') || ' ' || (q->>'role'));
        end if;
        perform pg_notify(p_channel, q->>'role');
    end loop;
    return jsonb_build_object('not_held', bad);
end $$;

-- Forgets members long gone that are the debtor of no role: every beat reads the others' rows.
create function tenure.forget() returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
    delete from tenure.member where identity in (
        select m.identity from tenure.member m
        where m.left_at < clock_timestamp() - interval '1 hour'
          and not exists (select from tenure.role r where r.debtor = m.identity)
          and not exists (select from tenure.role r where r.holder = m.identity)
        for update skip locked)
$$;

-- Leaves the group: no roles are held any more.
create function tenure.leave_seat(me text) returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    m tenure.member := tenure.prove(me);
begin
    delete from tenure.candidate where member = me;
    update tenure.member set left_at = clock_timestamp() where identity = me;
    perform tenure.forget();
    perform pg_advisory_unlock(m.key);
    return '{}';
end $$;
