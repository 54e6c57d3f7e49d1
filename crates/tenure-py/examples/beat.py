"""A scheduler in the manner of a beat: many instances run, each slot is fired once.

The slot is a row with a unique key, written in a transaction that carries the leader's epoch. An
instance that was frozen in the middle of it cannot commit after another one has taken over.

Besides tenure it needs psycopg (``pip install 'psycopg[binary]'``). Start it in two terminals, and kill the one
that fires:

    DATABASE_URL=postgresql://localhost/app python beat.py
"""

import asyncio
import os
import signal
import time

import psycopg

import tenure

EVERY_S = float(os.environ.get("EVERY_S", "1"))
DSN = os.environ["DATABASE_URL"]
lock = tenure.LeaderLock(DSN, role="beat", policy="fenced")


@tenure.while_leading(lock)
async def beat(token: tenure.LeaderToken) -> None:
    async with await psycopg.AsyncConnection.connect(DSN) as connection:
        while True:
            slot = int(time.time() // EVERY_S)
            await fire(connection, token.epoch, slot)
            await asyncio.sleep((slot + 1) * EVERY_S - time.time())


async def fire(connection: "psycopg.AsyncConnection[object]", epoch: int, slot: int) -> None:
    async with connection.transaction():
        await tenure.fence(connection, "beat", epoch)
        fired = await connection.execute(
            "insert into beat (slot, epoch) values (%s, %s) on conflict do nothing returning slot", (slot, epoch)
        )
        if await fired.fetchone():
            # Enqueue the job in the same transaction, and it is enqueued exactly once.
            print("fired", slot, "epoch", epoch, flush=True)


async def main() -> None:
    async with await psycopg.AsyncConnection.connect(DSN, autocommit=True) as setup:
        await setup.execute("create table if not exists beat (slot bigint primary key, epoch bigint not null)")
    async with lock:
        work = asyncio.ensure_future(beat())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
