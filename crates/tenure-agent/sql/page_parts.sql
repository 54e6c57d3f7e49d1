-- Which further tables there are, and may all be read. A schema that must not be used is looked at no further: even
-- the name of a table in it is an error then.
select jsonb_build_object(
    'schedules', case when coalesce(has_schema_privilege(to_regnamespace('tenure_agent'), 'usage'), false) then (
        select bool_and(coalesce(has_table_privilege(to_regclass('tenure_agent.' || t), 'select'), false))
        from unnest(array['schedule', 'slot', 'attempt', 'run_order']) t) else false end,
    'tx', case when coalesce(has_schema_privilege(to_regnamespace('tenure_tx'), 'usage'), false) then (
        select bool_and(coalesce(has_table_privilege(to_regclass('tenure_tx.' || t), 'select'), false))
        from unnest(array['account', 'pending_transactions']) t) else false end,
    'alerts', case when coalesce(has_schema_privilege(to_regnamespace('tenure_agent'), 'usage'), false) then (
        select bool_and(coalesce(has_table_privilege(to_regclass('tenure_agent.' || t), 'select'), false))
        from unnest(array['alert', 'incident']) t) else false end)
