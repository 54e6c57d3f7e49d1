-- The shapes in which earlier systems published their leader, for dashboards and scripts that read
-- them. Read-only; nothing in the election reads these.

-- `id` is 1 where there is one role. A role that was never led has its last heartbeat in 1970: the
-- column is never null.
create view tenure.leader_state as
    select (row_number() over (order by r.name))::integer as id, r.name as scope, r.key as scope_key,
           r.epoch, coalesce(r.holder, '') as holder_identity,
           coalesce(m.seen_at, r.released_at, r.since, to_timestamp(0)) as last_heartbeat
    from tenure.role r left join tenure.member m on m.identity = r.holder;

create view tenure.leaders as
    select r.name as role, r.holder as node_id, r.since as acquired_at,
           m.seen_at + make_interval(secs => r.lease_ms / 1000.0) as lease_until
    from tenure.role r join tenure.member m on m.identity = r.holder;

create view tenure.leader_heartbeat as
    select r.name as provider_id, r.holder as instance_id, m.seen_at as last_seen
    from tenure.role r join tenure.member m on m.identity = r.holder;

-- Under the names of those systems' tables: `set search_path = tenure` is enough for a reader.
create view tenure.msp_leader_state as
    select id, scope_key, epoch, holder_identity, last_heartbeat from tenure.leader_state;

create view tenure.forge_leaders as
    select role, node_id, acquired_at, lease_until from tenure.leaders;
