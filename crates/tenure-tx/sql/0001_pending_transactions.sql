-- The transactions of each signing account, one row per nonce.
--
-- Invariants:
--   * A row exists before its bytes leave the process (intent first).
--   * Every write is fenced with the writer's epoch: tenure.fence() raises TN001 for an old one.
--   * `ended_at` is null while a leader owes work on the nonce. An ended status alone does not set
--     it: a dropped transaction may still be mined.
--   * `change` grows in commit order within an account (the writers' advisory lock), so a reader
--     that remembers the highest it saw misses nothing.
--   * `provisional` is true of an end that no block proves (refused, withdrawn, expired unsent, usurped)
--     until the chain, final at that nonce, proves it or another (tenure_tx.settle).
--   * One role, one account, one chain: what was signed for one is never sent to another.
--   * Every function finds what it names whatever the caller's search_path is: its names are resolved
--     when it is made (a body without quotes), or it pins search_path. Otherwise a login role that may
--     create functions elsewhere could have its own run with the caller's rights.

create sequence tenure_tx.change;

-- Which chain an account's nonces belong to, and which role's leader may use them. Written by the
-- first leader, and compared by every later one before it acts (tenure_tx.open_account).
create table tenure_tx.account (
    account_id bytea primary key check (octet_length(account_id) between 1 and 64),
    role       text not null unique,
    chain      text not null,                     -- its id and its first block
    created_at timestamptz not null default clock_timestamp()
);

create table tenure_tx.pending_transactions (
    account_id      bytea not null check (octet_length(account_id) between 1 and 64),
    nonce           bigint not null check (nonce >= 0),
    hash            bytea not null check (octet_length(hash) = 32),
    call_scale      bytea,                        -- null: signed by the caller, or a gap's no-op
    raw             bytea,                        -- null: an older attempt won
    state           text not null,
    block_hash      bytea check (octet_length(block_hash) = 32),
    status_metadata jsonb not null default '{}',
    tip             numeric(39, 0) not null,
    noop            boolean not null default false,
    attempt         integer not null default 1 check (attempt > 0),
    attempts        jsonb not null,               -- every signed form, the newest last
    request_id      text collate "C" not null check (length(request_id) between 1 and 200),
    creator_id      text not null,
    epoch           bigint not null,              -- of the last writer
    built_at_block  bigint not null,              -- no attempt is in an earlier block
    created_at      timestamptz not null default clock_timestamp(),
    updated_at      timestamptz not null default clock_timestamp(),
    deadline_at     timestamptz,                  -- given up if it is in no block by then
    ended_at        timestamptz,
    provisional     boolean not null default false,  -- no block proves its end yet
    change          bigint not null default nextval('tenure_tx.change'),
    -- What is indexed instead of `change`: it stays the same from one status to the next as long as
    -- not too much happens in between, so that most updates touch no index at all.
    era             bigint not null generated always as (change / 4096) stored,
    primary key (account_id, nonce),
    -- The account comes last, here and below, so that only the key's own index leads to a nonce.
    unique (request_id, account_id),
    constraint known_state check (state in ('future', 'ready', 'broadcast', 'in_block', 'retracted',
        'finalized', 'usurped', 'dropped', 'invalid', 'finality_timeout')),
    constraint block_where_due check (block_hash is not null
        or state not in ('in_block', 'retracted', 'finalized', 'finality_timeout')),
    constraint ended_for_good check (ended_at is null or state in ('finalized', 'usurped', 'invalid'))
) with (fillfactor = 50);  -- room for each row's next status beside it

create index pending_transactions_hash on tenure_tx.pending_transactions (hash);
create index pending_transactions_open on tenure_tx.pending_transactions (account_id, nonce)
    where ended_at is null;
create index pending_transactions_provisional on tenure_tx.pending_transactions (account_id, nonce)
    where provisional;
create index pending_transactions_era on tenure_tx.pending_transactions (era, account_id);

-- How far each member of a group sees its chain, told by itself every few seconds (tenure_tx.see). A
-- matter of manners, never of safety.
create table tenure_tx.sight (
    account_id bytea not null check (octet_length(account_id) between 1 and 64),
    member     text not null,
    chain      text not null,                     -- its id and its first block
    best       bigint not null,                   -- the number of its best block
    seen_at    timestamptz not null default clock_timestamp(),
    primary key (account_id, member)
);

-- What left the table: refused transactions whose nonce went to another request (by a trigger, so
-- that no writer can forget it), and ended rows that were kept long enough. Without their bytes, but
-- with all that a late reader or a repeated request must hear; the digest tells whether a repeated
-- request asks for the same.
create table tenure_tx.past_transactions (
    like tenure_tx.pending_transactions,
    call_digest bytea                             -- SHA-256 of call_scale
);
create index past_transactions_change on tenure_tx.past_transactions (change, account_id);
create index past_transactions_request on tenure_tx.past_transactions (request_id, account_id);
create index past_transactions_nonce on tenure_tx.past_transactions (account_id, nonce);
create index past_transactions_provisional on tenure_tx.past_transactions (account_id, nonce)
    where provisional;
create index past_transactions_ended on tenure_tx.past_transactions (account_id, ended_at);

create function tenure_tx.keep_past(t tenure_tx.pending_transactions) returns integer
language sql volatile set search_path = pg_catalog, pg_temp as $$
    insert into tenure_tx.past_transactions
        (account_id, nonce, hash, state, block_hash, status_metadata, tip, noop, attempt, attempts,
         request_id, creator_id, epoch, built_at_block, created_at, updated_at, deadline_at,
         ended_at, provisional, change, era, call_digest)
    values (t.account_id, t.nonce, t.hash, t.state, t.block_hash, t.status_metadata, t.tip, t.noop,
            t.attempt, t.attempts, t.request_id, t.creator_id, t.epoch, t.built_at_block,
            t.created_at, t.updated_at, t.deadline_at, t.ended_at, t.provisional, t.change,
            t.era, sha256(t.call_scale))
    returning 1
$$;

create function tenure_tx.keep_overwritten() returns trigger language plpgsql
set search_path = pg_catalog, pg_temp as $$
begin
    perform tenure_tx.keep_past(old);
    return new;
end $$;

create trigger keep_overwritten before update on tenure_tx.pending_transactions for each row
    when (old.ended_at is not null and old.request_id <> new.request_id)
    execute function tenure_tx.keep_overwritten();

-- Orders the writers of one account, so that `change` follows the order of commits.
create function tenure_tx.lock_account(p_account bytea) returns void language sql volatile
return pg_advisory_xact_lock(
    ('x' || left(encode(sha256('tenure_tx:'::bytea || p_account), 'hex'), 16))::bit(64)::bigint);

-- Tells readers which rows changed: keys only, because a notification is limited to 8,000 bytes and a
-- transaction is not. Called by every writer (0002). Not a trigger: a transition table would copy each
-- row once more, with its bytes, for the sake of its key.
create function tenure_tx.announce(p_channel text, p_account bytea, p_nonces bigint[])
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    part constant integer := 200;
    first integer;
begin
    for first in select generate_series(1, cardinality(p_nonces), part) loop
        perform pg_notify(p_channel, format('{"account_id":"%s","nonces":[%s]}',
            encode(p_account, 'hex'), array_to_string(p_nonces[first:first + part - 1], ',')));
    end loop;
end $$;
