-- Which further tables there are, and may be read.
select jsonb_build_object(
    'schedules', coalesce(has_table_privilege(to_regclass('tenure_agent.slot'), 'select'), false),
    'tx', coalesce(has_table_privilege(to_regclass('tenure_tx.pending_transactions'), 'select'), false),
    'alerts', coalesce(has_table_privilege(to_regclass('tenure_agent.incident'), 'select'), false))
