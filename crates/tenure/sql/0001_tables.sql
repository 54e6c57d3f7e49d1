-- The durable state of the election.
--
-- Invariants:
--   * role.epoch only grows. Only the session that holds the role's advisory lock raises it.
--   * role.debtor is the last member whose gate may have been open. It is replaced only by a
--     durable write just before another gate opens, and cleared only by a clean release, or by an order
--     that waited the debt out under the role's lock.
--   * A role that `term` or `tombstone` remembers was led: a row made anew continues above their epochs,
--     with a debt.
--   * No wall clock in these tables takes part in a safety decision; timestamps are for people.

create table tenure.origin (
    -- Where this schema was born. A role that is new on the same line of history never had a leader.
    only_row boolean primary key default true check (only_row),
    lineage  text not null,
    -- As in `boot`, for a restore that leaves unlogged tables alone: this one is in every dump.
    mark     text not null default gen_random_uuid()::text,
    made_by  xid not null
);

create unlogged table tenure.boot (
    -- Empty after every crash: also after one that the postmaster survives (a killed backend), in
    -- which acknowledged beats are lost although pg_postmaster_start_time() stays what it was.
    only_row boolean primary key default true check (only_row),
    mark     text not null,
    -- The transaction that wrote this row. A row that a restore wrote, from a dump of another day, has
    -- another number, and its mark is void.
    made_by  xid not null
);

create table tenure.member (
    identity      text primary key check (length(identity) between 1 and 255),
    host          text not null,
    pid           integer not null,
    backend_pid   integer not null,
    backend_start timestamptz not null,
    seat          text not null,               -- proves that a statement runs on the seat itself
    key           bigint not null,             -- the advisory lock that says "this member lives"
    beat          bigint not null default 0,
    revoked       bigint not null default 0,   -- times a role of ours was taken while we held it
    lease_ms      integer not null check (lease_ms > 0),
    grace_ms      integer not null default 0 check (grace_ms >= 0),
    incarnation   text not null,
    joined_at     timestamptz not null default clock_timestamp(),
    seen_at       timestamptz not null default clock_timestamp(),
    silent_ms     bigint not null default 0,   -- before that; for people
    left_at       timestamptz
) with (fillfactor = 50);

create table tenure.role (
    name            text primary key check (length(name) between 1 and 200),
    key             bigint not null,           -- the advisory key; for a pair, key1 << 32 | key2
    pair            boolean not null default false,
    policy          text not null check (policy in ('exclusive', 'fenced')),
    lease_ms        integer not null check (lease_ms > 0),  -- never below any gate's lease
    epoch           bigint not null default 0 check (epoch >= 0),
    lineage         text not null default '',  -- tenure.lineage() at the last bump
    holder          text,
    held_in         text,                      -- incarnation in which holder took it
    since           timestamptz,
    released_at     timestamptz,
    debtor          text,                      -- '(unknown)': a session that is no member's
    debtor_lease_ms integer,
    acted_in        text,                      -- incarnation of the last `acting` write
    paid_in         text,                      -- incarnation of the last clean release
    waited_for      text,                      -- debtor and its beat, or -, and incarnation: what was waited for
    waited_ms       bigint not null default 0, -- and for how long, by claimants that gave up
    successor       text,
    successor_until timestamptz,
    paused          boolean not null default false,
    order_id        bigint,                    -- a step-down that was ordered
    order_to        text,
    last_holder     text,
    unique (pair, key)
) with (fillfactor = 70);

-- The fence stands on this index: with it, raising the epoch is a key update, which conflicts with
-- FOR KEY SHARE. It must stay unique, complete and immediate.
create unique index role_fence on tenure.role (name, epoch);
create index role_holder on tenure.role (holder);
create index role_orders on tenure.role (holder) where paused or order_id is not null;

create table tenure.candidate (
    -- No foreign key: its check would take the row lock that a claim must not wait for.
    role     text not null,
    member   text not null,
    priority integer not null default 0,
    ready    boolean not null default true,
    observer boolean not null default false,
    primary key (member, role)
);
create index candidate_role on tenure.candidate (role);

create table tenure.term (
    role        text not null,
    epoch       bigint not null,
    member      text not null,
    claimed_at  timestamptz not null default clock_timestamp(),
    acting_at   timestamptz,                   -- null: it never led
    ended_at    timestamptz,
    how         text check (how in ('released', 'abandoned', 'replaced', 'forced')),
    primary key (role, epoch)
);

create table tenure.tombstone (
    -- A role that was forgotten. Its name, used again, continues above this epoch.
    role         text primary key,
    epoch        bigint not null,
    lease_ms     integer not null,             -- the longest it was registered with
    forgotten_at timestamptz not null default clock_timestamp()
);

create sequence tenure.order_id;

create table tenure.event (
    id     bigint generated always as identity primary key,
    at     timestamptz not null default clock_timestamp(),
    role   text,
    member text,
    epoch  bigint,
    kind   text not null,
    detail text not null default ''
);
create index event_role on tenure.event (role, id);
