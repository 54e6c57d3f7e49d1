-- The leader's writes. Each is one statement from the client, fenced first.
--
-- Invariant: nothing here touches a row of a nonce that is used for good.
--
-- The updates also name the range of nonces: on a table that grew since it was last analysed the
-- planner would otherwise read all open rows for a handful of them.

-- New rows. A nonce is taken over only from a row that ended as invalid: no node ever took that
-- one. Returns the nonces stored; a missing one belongs to another live transaction.
create function tenure_tx.accept(
    p_role text, p_epoch bigint, p_account bytea, p_creator text, p_block bigint,
    p_nonces bigint[], p_hashes bytea[], p_calls bytea[], p_raws bytea[], p_tips text[],
    p_noops boolean[], p_attempts text[], p_requests text[]
) returns setof bigint language plpgsql volatile as $$
begin
    perform tenure.fence(p_role, p_epoch);
    perform tenure_tx.lock_account(p_account);
    return query
    insert into tenure_tx.pending_transactions as t
        (account_id, nonce, hash, call_scale, raw, state, tip, noop, attempts, request_id,
         creator_id, epoch, built_at_block)
    select p_account, n.nonce, n.hash, n.call, n.raw, 'future', n.tip::numeric, n.noop,
           n.attempts::jsonb, n.request, p_creator, p_epoch, p_block
        from unnest(p_nonces, p_hashes, p_calls, p_raws, p_tips, p_noops, p_attempts, p_requests)
             as n (nonce, hash, call, raw, tip, noop, attempts, request)
    on conflict (account_id, nonce) do update set
        hash = excluded.hash, call_scale = excluded.call_scale, raw = excluded.raw,
        state = 'future', block_hash = null, status_metadata = '{}', tip = excluded.tip,
        noop = excluded.noop, attempt = 1, attempts = excluded.attempts,
        request_id = excluded.request_id, creator_id = excluded.creator_id, epoch = excluded.epoch,
        built_at_block = excluded.built_at_block, created_at = clock_timestamp(),
        updated_at = clock_timestamp(), ended_at = null, change = nextval('tenure_tx.change')
        where t.ended_at is not null and t.state = 'invalid'
    returning t.nonce;
end $$;

-- Further attempts of open rows. Returns the nonces stored; a missing one has ended.
create function tenure_tx.replace(
    p_role text, p_epoch bigint, p_account bytea,
    p_nonces bigint[], p_hashes bytea[], p_raws bytea[], p_tips text[], p_noops boolean[],
    p_attempts text[]
) returns setof bigint language plpgsql volatile
set enable_seqscan = off as $$
declare
    low  bigint := (select min(u) from unnest(p_nonces) u);
    high bigint := (select max(u) from unnest(p_nonces) u);
begin
    perform tenure.fence(p_role, p_epoch);
    perform tenure_tx.lock_account(p_account);
    return query
    update tenure_tx.pending_transactions t set
        hash = n.hash, raw = n.raw, state = 'future', block_hash = null, status_metadata = '{}',
        tip = n.tip::numeric, noop = n.noop, attempt = t.attempt + 1, attempts = n.attempts::jsonb,
        epoch = p_epoch, updated_at = clock_timestamp(), change = nextval('tenure_tx.change')
        from unnest(p_nonces, p_hashes, p_raws, p_tips, p_noops, p_attempts)
             as n (nonce, hash, raw, tip, noop, attempts)
        where t.account_id = p_account and t.nonce between low and high and t.nonce = n.nonce
          and t.ended_at is null
    returning t.nonce;
end $$;

-- Statuses. One for another hash than the current attempt's is ignored, unless it is an older
-- attempt that finalised: that one wins. Not flushed: a lost status is learnt again from the chain.
create function tenure_tx.record(
    p_role text, p_epoch bigint, p_account bytea,
    p_nonces bigint[], p_hashes bytea[], p_states text[], p_blocks bytea[], p_metadata text[],
    p_ended boolean[]
) returns setof bigint language plpgsql volatile
set enable_seqscan = off as $$
declare
    low  bigint := (select min(u) from unnest(p_nonces) u);
    high bigint := (select max(u) from unnest(p_nonces) u);
begin
    perform tenure.fence(p_role, p_epoch);
    perform tenure_tx.lock_account(p_account);
    perform set_config('synchronous_commit', 'off', true);
    return query
    update tenure_tx.pending_transactions t set
        state = n.state, block_hash = n.block, status_metadata = n.metadata::jsonb,
        epoch = p_epoch, updated_at = clock_timestamp(),
        ended_at = case when n.ended then clock_timestamp() end,
        change = nextval('tenure_tx.change')
        from unnest(p_nonces, p_hashes, p_states, p_blocks, p_metadata, p_ended)
             as n (nonce, hash, state, block, metadata, ended)
        where t.account_id = p_account and t.nonce between low and high and t.nonce = n.nonce
          and t.ended_at is null
          and t.hash = n.hash
    returning t.nonce;
    if 'finalized' = any (p_states) then
        return query
        update tenure_tx.pending_transactions t set
            hash = n.hash, raw = null,
            tip = (select (a ->> 'tip')::numeric from jsonb_array_elements(t.attempts) a
                    where a ->> 'hash' = n.name limit 1),
            noop = (select coalesce((a ->> 'noop')::boolean, false)
                      from jsonb_array_elements(t.attempts) a where a ->> 'hash' = n.name limit 1),
            state = 'finalized', block_hash = n.block, status_metadata = '{}',
            epoch = p_epoch, updated_at = clock_timestamp(),
            ended_at = case when n.ended then clock_timestamp() end,
            change = nextval('tenure_tx.change')
            from (select s.*, '0x' || encode(s.hash, 'hex') as name
                    from unnest(p_nonces, p_hashes, p_states, p_blocks, p_ended)
                         as s (nonce, hash, state, block, ended)
                    where s.state = 'finalized') n
            where t.account_id = p_account and t.nonce between low and high and t.nonce = n.nonce
          and t.ended_at is null
              and t.hash <> n.hash
              and t.attempts @> jsonb_build_array(jsonb_build_object('hash', n.name))
        returning t.nonce;
    end if;
end $$;

-- Removes ended rows below the finalised nonce that are old enough; at most p_limit at once.
create function tenure_tx.cleanup(
    p_role text, p_epoch bigint, p_account bytea, p_below bigint, p_age interval, p_limit integer
) returns bigint language plpgsql volatile as $$
declare
    gone bigint;
begin
    perform tenure.fence(p_role, p_epoch);
    delete from tenure_tx.pending_transactions t
        where t.account_id = p_account and t.nonce in (
            select o.nonce from tenure_tx.pending_transactions o
                where o.account_id = p_account and o.nonce < p_below
                  and o.ended_at < clock_timestamp() - p_age
                order by o.nonce limit p_limit);
    get diagnostics gone = row_count;
    return gone;
end $$;
