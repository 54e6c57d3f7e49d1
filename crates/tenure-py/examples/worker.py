"""A worker with threads: one instance drains a table, and its writes carry the epoch.

Besides tenure it needs psycopg (``pip install 'psycopg[binary]'``). Start it in two terminals, then give it work:

    DATABASE_URL=postgresql://localhost/app python worker.py
    psql postgresql://localhost/app -c 'insert into job default values'
"""

import os
import signal
import threading

import psycopg

import tenure
from tenure.blocking import LeaderLock

DSN = os.environ["DATABASE_URL"]
ended = threading.Event()


def one(connection: "psycopg.Connection[object]", epoch: int) -> bool:
    """Does one job in one transaction; false if there is none."""
    with connection.transaction():
        tenure.fence(connection, "worker", epoch)  # Raises StaleEpoch if another instance leads by now.
        done = connection.execute(
            "update job set done_by = %s where id = (select id from job where done_by is null order by id limit 1)",
            (epoch,),
        )
        return done.rowcount == 1


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with psycopg.connect(DSN, autocommit=True) as connection, LeaderLock(
        DSN, role="worker", policy="fenced"
    ) as lock:
        connection.execute("create table if not exists job (id bigserial primary key, done_by bigint)")
        print("takes part; the leader does the jobs", flush=True)
        while not ended.is_set():
            if not lock.wait_for_leadership(0.2):
                continue
            try:
                token = lock.gate.require_leader()
                if one(connection, token.epoch):
                    print("did a job under epoch", token.epoch, flush=True)
                else:
                    ended.wait(0.05)
            except (tenure.NotLeader, tenure.StaleEpoch) as reason:
                print("not any more:", reason, flush=True)


if __name__ == "__main__":
    main()
