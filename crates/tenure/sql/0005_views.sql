-- The shapes in which earlier systems published their leader, for dashboards and scripts that read
-- them. Read-only; nothing in the election reads these.

create view tenure.leader_state as
    select r.name as scope, r.key as scope_key, r.epoch, coalesce(r.holder, '') as holder_identity,
           coalesce(m.seen_at, r.released_at, r.since) as last_heartbeat
    from tenure.role r left join tenure.member m on m.identity = r.holder;

create view tenure.leaders as
    select r.name as role, r.holder as node_id, r.since as acquired_at,
           m.seen_at + make_interval(secs => r.lease_ms / 1000.0) as lease_until
    from tenure.role r join tenure.member m on m.identity = r.holder;

create view tenure.leader_heartbeat as
    select r.name as provider_id, r.holder as instance_id, m.seen_at as last_seen
    from tenure.role r join tenure.member m on m.identity = r.holder;
