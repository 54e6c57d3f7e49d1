-- The latest slots of a schedule with their attempts, newest first.
select coalesce(jsonb_agg(h order by q.at desc), '[]') from (
    select jsonb_build_object('schedule', s.schedule, 'at', s.at, 'state', s.state, 'missed', s.missed,
        'more', s.more, 'ordered_by', s.ordered_by, 'order_id', s.order_id, 'epoch', s.epoch, 'member', s.member,
        'claimed_at', s.claimed_at, 'ended_at', s.ended_at, 'retry_at', s.retry_at,
        'attempts', (select coalesce(jsonb_agg(jsonb_build_object('number', a.number, 'epoch', a.epoch,
                'member', a.member, 'started_at', a.started_at, 'ended_at', a.ended_at, 'how', a.how,
                'code', a.code, 'reason', a.reason, 'output', a.output) order by a.number), '[]')
            from tenure_agent.attempt a where a.schedule = s.schedule and a.at = s.at)) as h, s.at
    from tenure_agent.slot s
    where ({name}::text is null or s.schedule = {name})
      and ({order}::bigint is null or s.order_id = {order})
      and (not {dead} or s.state in ('failed', 'interrupted'))
    order by s.at desc limit {limit}
) q
