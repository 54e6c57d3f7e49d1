union all
        select jsonb_build_object('at', s.ended_at, 'key', 's' || s.schedule || ' ' || s.at || ' ' || s.attempts,
            'role', d.role, 'member', s.member, 'epoch', s.epoch, 'event', 'slot_' || s.state,
            'schedule', s.schedule, 'slot', s.at,
            'detail', (select a.reason from tenure_agent.attempt a
                       where a.schedule = s.schedule and a.at = s.at order by a.number desc limit 1)), s.ended_at
        from tenure_agent.slot s left join tenure_agent.schedule d on d.name = s.schedule
        where s.ended_at >= {since}
