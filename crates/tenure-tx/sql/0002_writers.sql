-- The leader's writes. Each is one statement from the client, fenced first.
--
-- Invariants:
--   * Nothing here touches a row of a nonce that is used for good.
--   * `change` never goes back, not even when a crash or a failover of the database loses the last
--     commits: a session's first write lifts it above all that was ever seen (open_writer).
--   * One plan for every batch: for each nonce given, one look into an index, whatever the planner
--     believes of the table. Left to itself it plans every batch anew, which costs more than
--     writing it, and on a table that grew since it was last analysed it reads all open rows for a
--     handful of them. So each update finds its rows first, by key, and then names them by ctid;
--     nothing else of the table is left to choose, and no writer moves a row under the account's
--     lock. The planner's switches are set once for each writer's session (open_writer).
--   * A request, and each further form of it, is stored only where its commit survives the loss of the
--     server, as far as the server can tell, or by the operator's word (refuse_loss).

-- What a reader saw may be lost in a crash (statuses are not flushed) or in a failover; the numbers
-- it saw must not be given again, or it would take what comes next for old. The clock is above
-- any number given before, since no group writes a million rows a second; should it have been set
-- back, the step is above what can be lost on one server.
create function tenure_tx.open_writer() returns void language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    -- "tenurech": one at a time, or the second would set back what the first has set.
    perform pg_advisory_xact_lock(x'74656e7572656368'::bigint);
    perform setval('tenure_tx.change', greatest(
        (select last_value from tenure_tx.change) + 1048576,
        (extract(epoch from clock_timestamp()) * 1000000)::bigint));
    perform set_config('tenure_tx.writer', 'open', false);
    perform set_config('plan_cache_mode', 'force_generic_plan', false);
    perform set_config(switch, 'off', false) from unnest(array[
        'enable_seqscan', 'enable_bitmapscan', 'enable_hashjoin', 'enable_mergejoin',
        'enable_memoize']) as switch;
    -- Durable before a reader sees a number above it.
    perform set_config('synchronous_commit', 'on', true);
end $$;

-- What every write does first: it passes the fence, then it is alone on the account. Not flushed
-- if told so, and never less than the session's first write.
create function tenure_tx.begin_write(
    p_role text, p_epoch bigint, p_account bytea, p_flush boolean
) returns void language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure.fence(p_role, p_epoch);
    perform tenure_tx.lock_account(p_account);
    if not p_flush then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    -- Asked here: a call of a function that pins search_path costs more than all of this.
    if current_setting('tenure_tx.writer', true) is distinct from 'open' then
        perform tenure_tx.open_writer();
    end if;
end $$;

-- Raises TN102 where a request that is accepted now could be forgotten: there are standbys, and no
-- commit waits for one. A standby that is promoted would not know the request, and a retry would pay
-- twice. Looked at inside every accept, because the list is emptied at run time (by Patroni, when its
-- last synchronous standby goes). The views tell a login without pg_read_all_stats that a WAL sender
-- is there, and not of what kind.
create function tenure_tx.refuse_loss() returns void language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
declare
    sender record;
begin
    if current_setting('synchronous_standby_names') <> '' then
        return;
    end if;
    if exists (select from pg_get_replication_slots() s
               where s.slot_type = 'physical' and not s.temporary) then
        raise exception 'commits wait for no standby, and a replication slot tells of one'
            using errcode = 'TN102';
    end if;
    -- The common case first: no sender at all.
    if not exists (select from pg_stat_get_wal_senders()) then
        return;
    end if;
    for sender in
        select w.state, w.application_name from pg_stat_replication w
            where not exists (select from pg_get_replication_slots() s
                              where s.active_pid = w.pid and s.slot_type = 'logical')
    loop
        if sender.state is null then
            raise exception 'commits wait for no standby, and this login may not see whether there are any'
                using errcode = 'TN102',
                      hint = format('grant pg_read_all_stats to %I', session_user);
        end if;
        -- Neither becomes a primary.
        if sender.state <> 'backup'
           and sender.application_name not in ('pg_basebackup', 'pg_receivewal') then
            raise exception 'commits wait for no standby, and "%" is one', sender.application_name
                using errcode = 'TN102';
        end if;
    end loop;
end $$;

-- What is accepted and might still be lost, for people: the server cannot tell which standby will be
-- promoted, nor whether one is yet to come.
create function tenure_tx.doubts() returns setof text language plpgsql stable
set search_path = pg_catalog, pg_temp as $$
declare
    names    text := current_setting('synchronous_standby_names');
    parts    text[] := regexp_match(names, '^\s*(any|first)?\s*(\d+)?\s*\((.*)\)\s*$', 'i');
    listed   text := coalesce(parts[3], names);
    timeline integer := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer;
begin
    if names <> '' and (listed like '%*%'
            or coalesce(parts[2]::integer, 1) < cardinality(string_to_array(listed, ','))) then
        return next format('commits wait for some of the standbys only (synchronous_standby_names '
            'is %L): accepted requests survive if one of those is promoted', names);
    elsif names = '' and timeline > 1 then
        return next format('this server was promoted once (timeline %s) and shows no standby now: '
            'if it is to have one, make it synchronous first', timeline);
    end if;
end $$;

-- Raises TN103 if the account, the role and the chain are not bound to each other, but to others.
create function tenure_tx.check_account(p_role text, p_account bytea, p_chain text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp as $$
declare
    bound record;
begin
    for bound in
        select a.account_id, a.role, a.chain from tenure_tx.account a
            where a.account_id = p_account or a.role = p_role
    loop
        if bound.account_id <> p_account then
            raise exception 'role "%" signs with account 0x%, not with 0x%', p_role,
                encode(bound.account_id, 'hex'), encode(p_account, 'hex') using errcode = 'TN103';
        elsif bound.role <> p_role then
            raise exception 'account 0x% belongs to role "%", not to "%"',
                encode(p_account, 'hex'), bound.role, p_role using errcode = 'TN103';
        elsif bound.chain <> p_chain then
            raise exception 'account 0x% is used on chain %, not on %',
                encode(p_account, 'hex'), bound.chain, p_chain using errcode = 'TN103';
        end if;
    end loop;
end $$;

-- What a leader does before anything else: it binds the account to its role and its chain, or finds
-- that they are bound already.
create function tenure_tx.open_account(
    p_role text, p_epoch bigint, p_account bytea, p_chain text
) returns void language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure_tx.begin_write(p_role, p_epoch, p_account, true);
    insert into tenure_tx.account (account_id, role, chain) values (p_account, p_role, p_chain)
        on conflict do nothing;
    perform tenure_tx.check_account(p_role, p_account, p_chain);
end $$;

-- Statuses, without the fence: for the functions below. One for another hash than the current
-- attempt's is ignored, unless it is an older attempt that finalised: that one wins.
create function tenure_tx.put_statuses(
    p_epoch bigint, p_account bytea,
    p_nonces bigint[], p_hashes bytea[], p_states text[], p_blocks bytea[], p_metadata text[],
    p_ended boolean[]
) returns setof bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    return query
    update tenure_tx.pending_transactions t set
        state = n.state, block_hash = n.block, status_metadata = n.metadata::jsonb,
        epoch = p_epoch, updated_at = clock_timestamp(),
        ended_at = case when n.ended then clock_timestamp() end,
        -- What fills a gap has no caller, and its first form is a no-op.
        provisional = n.ended and n.state <> 'finalized'
            and not coalesce((t.attempts -> 0 ->> 'noop')::boolean, false),
        change = nextval('tenure_tx.change')
        from unnest(p_nonces, p_hashes, p_states, p_blocks, p_metadata, p_ended)
             as n (nonce, hash, state, block, metadata, ended)
             cross join lateral (
                 select r.ctid as place from tenure_tx.pending_transactions r
                     where r.account_id = p_account and r.nonce = n.nonce
                       and r.ended_at is null and r.hash = n.hash
                     limit 1) k
        where t.ctid = k.place
    returning t.nonce;
    perform tenure_tx.announce('pending_tx_update', p_account, p_nonces);
    if 'finalized' = any (p_states) then
        return query
        update tenure_tx.pending_transactions t set
            hash = n.hash, raw = null, tip = k.tip, noop = k.noop,
            state = 'finalized', block_hash = n.block, status_metadata = n.metadata::jsonb,
            epoch = p_epoch, updated_at = clock_timestamp(),
            ended_at = case when n.ended then clock_timestamp() end,
            change = nextval('tenure_tx.change')
            from unnest(p_nonces, p_hashes, p_states, p_blocks, p_metadata, p_ended)
                 as n (nonce, hash, state, block, metadata, ended)
                 cross join lateral (
                     select r.ctid as place, (a ->> 'tip')::numeric as tip,
                            coalesce((a ->> 'noop')::boolean, false) as noop
                         from tenure_tx.pending_transactions r, jsonb_array_elements(r.attempts) a
                         where r.account_id = p_account and r.nonce = n.nonce
                           and r.ended_at is null and r.hash <> n.hash
                           and n.state = 'finalized'
                           and a ->> 'hash' = '0x' || encode(n.hash, 'hex')
                         limit 1) k
            where t.ctid = k.place
        returning t.nonce;
        -- The nonce is used for good, by this request: every other one that had it ended rightly.
        if exists (select from tenure_tx.past_transactions p
                       where p.account_id = p_account and p.provisional) then
            update tenure_tx.past_transactions p set provisional = false
                from unnest(p_nonces, p_states, p_ended) as n (nonce, state, ended)
                where n.ended and n.state = 'finalized'
                  and p.account_id = p_account and p.nonce = n.nonce and p.provisional;
        end if;
    end if;
end $$;

-- New rows, and with them, in one commit, statuses of others. A nonce is taken over only from a
-- row that ended as invalid: no node ever took that one, and it is kept for its readers
-- (past_transactions). Returns the nonces stored; a missing one belongs to another live
-- transaction. An end that found no open row of its form is returned as well, as -1 - nonce: its
-- request has not ended, whatever was to be told.
create function tenure_tx.accept(
    p_role text, p_epoch bigint, p_account bytea, p_creator text, p_block bigint,
    p_nonces bigint[], p_hashes bytea[], p_calls bytea[], p_raws bytea[], p_tips text[],
    p_noops boolean[], p_attempts text[], p_requests text[], p_left float8[],
    p_accept_loss boolean,
    s_nonces bigint[], s_hashes bytea[], s_states text[], s_blocks bytea[], s_metadata text[],
    s_ended boolean[]
) returns setof bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
declare
    recorded bigint[];
begin
    -- The common case first: no commit waits for a standby, and there is none.
    if not p_accept_loss and current_setting('synchronous_standby_names') = ''
       and (exists (select from pg_get_replication_slots())
            or exists (select from pg_stat_get_wal_senders())) then
        perform tenure_tx.refuse_loss();
    end if;
    perform tenure_tx.begin_write(p_role, p_epoch, p_account, true);
    if (select min(n) from unnest(p_nonces) n) > coalesce(
            -- Not max(): planned while the table is empty, that reads every row of the account.
            (select t.nonce from tenure_tx.pending_transactions t
                 where t.account_id = p_account order by t.nonce desc limit 1), -1) then
        -- The common case first: above all nonces of the table. Under the account's lock nothing can
        -- be in the way, and to be prepared for it costs another look, a lock and a log record.
        return query
        insert into tenure_tx.pending_transactions as t
            (account_id, nonce, hash, call_scale, raw, state, tip, noop, attempts, request_id,
             creator_id, epoch, built_at_block, deadline_at)
        select p_account, n.nonce, n.hash, n.call, n.raw, 'future', n.tip::numeric, n.noop,
               n.attempts::jsonb, n.request, p_creator, p_epoch, p_block,
               clock_timestamp() + make_interval(secs => n.secs)
            from unnest(p_nonces, p_hashes, p_calls, p_raws, p_tips, p_noops, p_attempts, p_requests,
                        p_left)
                 as n (nonce, hash, call, raw, tip, noop, attempts, request, secs)
        returning t.nonce;
    else
        return query
        insert into tenure_tx.pending_transactions as t
            (account_id, nonce, hash, call_scale, raw, state, tip, noop, attempts, request_id,
             creator_id, epoch, built_at_block, deadline_at)
        select p_account, n.nonce, n.hash, n.call, n.raw, 'future', n.tip::numeric, n.noop,
               n.attempts::jsonb, n.request, p_creator, p_epoch, p_block,
               clock_timestamp() + make_interval(secs => n.secs)
            from unnest(p_nonces, p_hashes, p_calls, p_raws, p_tips, p_noops, p_attempts, p_requests,
                        p_left)
                 as n (nonce, hash, call, raw, tip, noop, attempts, request, secs)
        on conflict (account_id, nonce) do update set
            hash = excluded.hash, call_scale = excluded.call_scale, raw = excluded.raw,
            state = 'future', block_hash = null, status_metadata = '{}', tip = excluded.tip,
            noop = excluded.noop, attempt = 1, attempts = excluded.attempts,
            request_id = excluded.request_id, creator_id = excluded.creator_id, epoch = excluded.epoch,
            built_at_block = excluded.built_at_block, deadline_at = excluded.deadline_at,
            created_at = clock_timestamp(), updated_at = clock_timestamp(), ended_at = null,
            provisional = false, change = nextval('tenure_tx.change')
            where t.ended_at is not null and t.state = 'invalid'
        returning t.nonce;
    end if;
    perform tenure_tx.announce('pending_tx_new', p_account, p_nonces);
    if cardinality(s_nonces) > 0 then
        recorded := array(select tenure_tx.put_statuses(p_epoch, p_account, s_nonces, s_hashes,
                                                        s_states, s_blocks, s_metadata, s_ended));
        return query
        select -1 - n.nonce from unnest(s_nonces, s_ended) as n (nonce, ended)
            where n.ended and n.nonce <> all (recorded);
    end if;
end $$;

-- Further attempts of open rows. Returns the nonces stored; a missing one has ended.
create function tenure_tx.replace(
    p_role text, p_epoch bigint, p_account bytea,
    p_nonces bigint[], p_hashes bytea[], p_raws bytea[], p_tips text[], p_noops boolean[],
    p_attempts text[], p_accept_loss boolean
) returns setof bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    -- As accept: a leader that knows only the older attempts would take a lost one that executed for a
    -- stranger's, and call the request usurped.
    if not p_accept_loss and current_setting('synchronous_standby_names') = ''
       and (exists (select from pg_get_replication_slots())
            or exists (select from pg_stat_get_wal_senders())) then
        perform tenure_tx.refuse_loss();
    end if;
    perform tenure_tx.begin_write(p_role, p_epoch, p_account, true);
    return query
    update tenure_tx.pending_transactions t set
        hash = n.hash, raw = n.raw, state = 'future', block_hash = null, status_metadata = '{}',
        tip = n.tip::numeric, noop = n.noop, attempt = t.attempt + 1, attempts = n.attempts::jsonb,
        epoch = p_epoch, updated_at = clock_timestamp(), change = nextval('tenure_tx.change')
        from unnest(p_nonces, p_hashes, p_raws, p_tips, p_noops, p_attempts)
             as n (nonce, hash, raw, tip, noop, attempts)
             cross join lateral (
                 select r.ctid as place from tenure_tx.pending_transactions r
                     where r.account_id = p_account and r.nonce = n.nonce and r.ended_at is null
                     limit 1) k
        where t.ctid = k.place
    returning t.nonce;
    perform tenure_tx.announce('pending_tx_update', p_account, p_nonces);
end $$;

-- Statuses alone. Not flushed, because a lost status is learnt again from the chain, unless one of
-- them ends a request that is in no block: of that end the chain knows nothing, and a caller that was
-- told of it must not see the request executed after a crash or a failover.
create function tenure_tx.record(
    p_role text, p_epoch bigint, p_account bytea,
    p_nonces bigint[], p_hashes bytea[], p_states text[], p_blocks bytea[], p_metadata text[],
    p_ended boolean[]
) returns setof bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure_tx.begin_write(p_role, p_epoch, p_account, exists (
        select from unnest(p_states, p_ended) as n (state, ended)
            where n.ended and n.state = 'invalid'));
    return query select tenure_tx.put_statuses(p_epoch, p_account, p_nonces, p_hashes, p_states,
                                               p_blocks, p_metadata, p_ended);
end $$;

-- Provisional ends that the chain has proved (no hash), or proved wrong: then the row gets the end that is
-- true, wherever it is by now, and its readers hear of it by `change`. Flushed: a caller is told.
create function tenure_tx.settle(
    p_role text, p_epoch bigint, p_account bytea,
    p_nonces bigint[], p_requests text[], p_hashes bytea[], p_blocks bytea[], p_noops boolean[],
    p_metadata text[]
) returns setof bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure_tx.begin_write(p_role, p_epoch, p_account, true);
    return query
    update tenure_tx.pending_transactions t set
        provisional = false, hash = coalesce(n.hash, t.hash),
        raw = case when n.hash is null or n.hash = t.hash then t.raw end,
        state = case when n.hash is null then t.state else 'finalized' end,
        block_hash = coalesce(n.block, t.block_hash), noop = coalesce(n.noop, t.noop),
        status_metadata = coalesce(n.metadata::jsonb, t.status_metadata),
        epoch = p_epoch, updated_at = clock_timestamp(),
        change = case when n.hash is null then t.change else nextval('tenure_tx.change') end
        from unnest(p_nonces, p_requests, p_hashes, p_blocks, p_noops, p_metadata)
             as n (nonce, request, hash, block, noop, metadata)
        where t.account_id = p_account and t.nonce = n.nonce and t.request_id = n.request
          and t.provisional
    returning t.nonce;
    return query
    update tenure_tx.past_transactions t set
        provisional = false, hash = coalesce(n.hash, t.hash),
        state = case when n.hash is null then t.state else 'finalized' end,
        block_hash = coalesce(n.block, t.block_hash), noop = coalesce(n.noop, t.noop),
        status_metadata = coalesce(n.metadata::jsonb, t.status_metadata),
        epoch = p_epoch, updated_at = clock_timestamp(),
        change = case when n.hash is null then t.change else nextval('tenure_tx.change') end
        from unnest(p_nonces, p_requests, p_hashes, p_blocks, p_noops, p_metadata)
             as n (nonce, request, hash, block, noop, metadata)
        where t.account_id = p_account and t.nonce = n.nonce and t.request_id = n.request
          and t.provisional
    returning t.nonce;
    perform tenure_tx.announce('pending_tx_update', p_account, p_nonces);
end $$;

-- Moves ended rows below the finalised nonce that are older than p_age to the past, and forgets what
-- is older than p_ids; at most p_limit of each at once. Without the account's lock: no writer touches
-- a row that has ended, but to give a refused one's nonce away, and no accept waits for this.
create function tenure_tx.cleanup(
    p_role text, p_epoch bigint, p_account bytea, p_below bigint, p_age interval, p_ids interval,
    p_limit integer
) returns bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
declare
    moved bigint;
    gone bigint;
begin
    perform tenure.fence(p_role, p_epoch);
    with moving as (
        delete from tenure_tx.pending_transactions t
            where t.account_id = p_account and t.nonce in (
                select o.nonce from tenure_tx.pending_transactions o
                    where o.account_id = p_account and o.nonce < p_below
                      and o.ended_at < clock_timestamp() - p_age
                    order by o.nonce limit p_limit)
            returning t)
    select count(tenure_tx.keep_past(m.t)) into moved from moving m;
    delete from tenure_tx.past_transactions o
        where o.ctid = any (array(
            select p.ctid from tenure_tx.past_transactions p
                where p.account_id = p_account and p.ended_at < clock_timestamp() - p_ids
                limit p_limit));
    get diagnostics gone = row_count;
    return greatest(moved, gone);
end $$;

-- Notes how far a member sees its chain, and tells how far the others see the same one: the highest best
-- block among candidates that live and are ready. Without the fence, for followers tell it too, and not
-- flushed, for it is told again in a moment. What members that are long gone told is removed on the way.
create function tenure_tx.see(
    p_role text, p_account bytea, p_member text, p_chain text, p_best bigint
) returns bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into tenure_tx.sight (account_id, member, chain, best)
        values (p_account, p_member, p_chain, p_best)
        on conflict (account_id, member) do update set
            chain = excluded.chain, best = excluded.best, seen_at = excluded.seen_at;
    delete from tenure_tx.sight s
        where s.account_id = p_account and s.seen_at < clock_timestamp() - interval '1 day';
    return (select max(s.best) from tenure_tx.sight s
        join tenure.candidate c on c.role = p_role and c.member = s.member
        join tenure.member m on m.identity = s.member and m.left_at is null
        where s.account_id = p_account and s.member <> p_member and s.chain = p_chain
          and c.ready and not c.observer
          and m.seen_at > clock_timestamp() - make_interval(secs => m.lease_ms / 1000.0));
end $$;
