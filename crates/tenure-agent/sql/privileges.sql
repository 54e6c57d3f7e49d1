-- The least an agent needs beside a member's grants. Run by the schema's owner; {role} is the agents' login role.
grant usage on schema tenure_agent to {role};
grant select, insert, update, delete on all tables in schema tenure_agent to {role};
grant execute on all functions in schema tenure_agent to {role};
