-- Transactions by account: how many are open, the oldest of them, and the latest that ended. A transaction is
-- called stuck if it is in no block two minutes after it was accepted.
(select coalesce(jsonb_agg(jsonb_build_object(
        'account', '0x' || encode(a.account_id, 'hex'), 'role', a.role, 'chain', left(a.chain, 80),
        'open', o.n, 'stuck', o.stuck, 'next', n.next,
        'oldest', (select coalesce(jsonb_agg(jsonb_build_array(p.nonce, p.request_id, p.state, {ms}(p.created_at),
                p.attempt) order by p.nonce), '[]')
            from (select * from tenure_tx.pending_transactions p
                  where p.account_id = a.account_id and p.ended_at is null order by p.nonce limit 10) p),
        'ends', (select coalesce(jsonb_agg(jsonb_build_array(e.nonce, e.request_id, e.state, {ms}(e.ended_at), e.noop)
                order by e.nonce desc), '[]')
            from (select * from tenure_tx.pending_transactions e
                  where e.account_id = a.account_id and e.ended_at is not null
                  order by e.nonce desc limit 5) e)) order by a.role), '[]')
    from (select * from tenure_tx.account order by role limit 20) a
        cross join lateral (
            select count(*) as n, count(*) filter (where p.state not in ('in_block', 'finalized', 'finality_timeout')
                and clock_timestamp() - p.created_at > interval '2 minutes') as stuck
            from tenure_tx.pending_transactions p
            where p.account_id = a.account_id and p.ended_at is null) o
        cross join lateral (
            select coalesce(max(p.nonce) + 1, 0) as next from tenure_tx.pending_transactions p
            where p.account_id = a.account_id) n)
