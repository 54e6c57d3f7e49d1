-- Every schedule, as its role's leader has it: next and latest slot, and the members that say otherwise: by their
-- files, or as candidates of its role that do not know it. One that the leader's file does not have is listed as
-- removed as long as a live member's file has it.
select coalesce(jsonb_agg(l order by l->>'name'), '[]') from (
    select jsonb_build_object(
        'name', s.name, 'role', s.role, 'cron', s.definition->>'cron',
        'timezone', s.definition->>'timezone', 'definition', s.definition,
        'next_at', s.next_at, 'removed', s.removed_at is not null,
        'leader', (select r.holder from tenure.role r where r.name = s.role),
        'last', (select jsonb_build_object('at', p.at, 'state', p.state, 'ended_at', p.ended_at)
                 from tenure_agent.slot p where p.schedule = s.name order by p.at desc limit 1),
        'dead', (select count(*) from tenure_agent.slot d
                 where d.schedule = s.name and d.state in ('failed', 'interrupted')),
        'differs', (select coalesce(jsonb_agg(m.identity order by m.identity), '[]')
            from tenure.member m
            where m.left_at is null
              and (exists (select from tenure_agent.known k where k.member = m.identity)
                   or exists (select from tenure.candidate c
                              where c.member = m.identity and c.role = s.role and not c.observer))
              and not exists (select from tenure_agent.known k
                              where k.member = m.identity and k.schedule = s.name and k.digest = s.digest))
        ) as l
    from tenure_agent.schedule s
    where (s.removed_at is null
           or exists (select from tenure_agent.known k join tenure.member m on m.identity = k.member
                      where k.schedule = s.name and m.left_at is null))
      and ({name}::text is null or s.name = {name})
) q
