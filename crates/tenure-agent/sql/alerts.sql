-- What is pending and firing, and the latest incidents with what each notifier was told.
select jsonb_build_object(
    'evaluated', (select evaluated_at from tenure_agent.alert_round),
    'alerts', (select coalesce(jsonb_agg(jsonb_build_object('rule', a.rule, 'labels', a.labels,
            'value', a.value, 'since', a.since, 'fired', a.fired_at) order by a.since), '[]')
        from tenure_agent.alert a),
    'incidents', (select coalesce(jsonb_agg(i.body order by i.opened_at desc), '[]')
        from (select * from tenure_agent.incident order by opened_at desc limit {limit}) i))
