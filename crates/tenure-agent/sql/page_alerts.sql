-- Alerts that fire, each with the incident it belongs to and the notifiers that acknowledged it. Of a notifier only
-- its kind is shown, and a channel's name: an address may hold a secret.
(select coalesce(jsonb_agg(jsonb_build_object('key', a.fingerprint, 'name', a.rule, 'state', 'firing',
        'role', a.labels->>'role', 'member', a.labels->>'instance', 'severity', i.severity,
        'detail', (select left(string_agg(l.key || ' ' || l.value, ', ' order by l.key), 200)
                   from jsonb_each_text(a.labels) l where l.key not in ('role', 'instance')),
        'summary', left(i.body->>'summary', 200), 'since', {ms}(a.fired_at), 'notified', i.notified)
        order by a.fired_at), '[]')
    from (select * from tenure_agent.alert where fired_at is not null order by fired_at limit 200) a
        left join lateral (
            select o.severity, o.body, (
                select string_agg(case when d.key like 'slack:%' then d.key else split_part(d.key, ':', 1) end, ', '
                                  order by d.key)
                from jsonb_each(coalesce(o.body->'deliveries', '{}')) d where d.value->'told' ? 'firing') as notified
            from tenure_agent.incident o where o.rule = a.rule and o.resolved_at is null
            order by o.opened_at desc limit 1) i on true)
