-- Schedules with their latest twenty slots, and the dead letters of all. The command line is left out: it may
-- hold a secret. A run that goes on has no length: nothing here changes by itself as time passes.
(select jsonb_build_object(
    'list', (select coalesce(jsonb_agg(jsonb_build_object(
            'name', s.name, 'role', s.role, 'cron', s.definition->>'cron', 'timezone', s.definition->>'timezone',
            'overlap', s.definition->>'overlap', 'next', {ms}(s.next_at),
            'ordered', (select count(*) from tenure_agent.run_order o where o.schedule = s.name),
            'runs', (select coalesce(jsonb_agg(jsonb_build_array({ms}(p.at), p.state,
                    {ms}(p.ended_at) - {ms}(p.claimed_at), p.ordered_by) order by p.at), '[]')
                from (select * from tenure_agent.slot p where p.schedule = s.name
                      order by p.at desc limit 20) p)) order by s.name), '[]')
        from (select * from tenure_agent.schedule where removed_at is null order by name limit 500) s),
    'dead', (select coalesce(jsonb_agg(jsonb_build_object(
            'schedule', d.schedule, 'slot', {ms}(d.at), 'at', d.at, 'state', d.state, 'attempts', d.attempts,
            'ended', {ms}(d.ended_at), 'code', a.code, 'reason', left(a.reason, 200),
            'output', right(a.output, 300)) order by d.ended_at desc), '[]')
        from (select * from tenure_agent.slot where state in ('failed', 'interrupted')
              order by ended_at desc limit 50) d
            left join lateral (select * from tenure_agent.attempt a
                where a.schedule = d.schedule and a.at = d.at order by a.number desc limit 1) a on true),
    'dead_count', (select count(*) from tenure_agent.slot where state in ('failed', 'interrupted')),
    'ended', (select coalesce(jsonb_agg(jsonb_build_array(e.schedule, {ms}(e.at), e.state, e.member, e.epoch,
            {ms}(e.ended_at), e.attempts) order by e.ended_at), '[]')
        from (select * from tenure_agent.slot where ended_at is not null order by ended_at desc limit 50) e)))
