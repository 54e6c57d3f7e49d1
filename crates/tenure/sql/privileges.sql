-- The least a member needs. Run by the schema's owner; {role} is the login role of the members.
-- A program that only fences its writes needs two of the grants: usage on the schema, and execute on the
-- functions.
grant usage on schema tenure to {role};
grant select, insert, update, delete on tenure.member, tenure.candidate to {role};
grant select, insert, update on tenure.role, tenure.term to {role};
grant select, insert on tenure.event to {role};
grant delete on tenure.term, tenure.event to {role};  -- only for retention: `tenure prune`, an agent
grant select, insert, update on tenure.boot to {role};
grant select, update on tenure.origin to {role};
grant select on tenure.migration, tenure.tombstone to {role};
grant select on tenure.leader_state, tenure.leaders, tenure.leader_heartbeat to {role};
grant select on tenure.msp_leader_state, tenure.forge_leaders to {role};
grant usage on sequence tenure.order_id, tenure.moves to {role};
grant execute on all functions in schema tenure to {role};
