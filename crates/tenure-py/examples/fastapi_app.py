"""A web service whose instances elect one that does the background work.

Besides tenure it needs ``pip install fastapi uvicorn``. Ask it repeatedly: another worker may answer.

    DATABASE_URL=postgresql://localhost/app uvicorn fastapi_app:app --workers 4
    curl localhost:8000/leader
"""

import asyncio
import os
from contextlib import asynccontextmanager
from typing import AsyncIterator, Dict

from fastapi import FastAPI, HTTPException

import tenure

# Made at import, before any fork; started in each worker, by the lifespan.
lock = tenure.LeaderLock(os.environ["DATABASE_URL"], role="background")
rounds = 0


@tenure.while_leading(lock)
async def background(token: tenure.LeaderToken) -> None:
    """Runs in the leader alone, and is cancelled when it stops leading."""
    global rounds
    while True:
        with lock.gate.begin_act(within_s=1):  # Raises unless this process leads for a second more.
            rounds += 1
        await asyncio.sleep(0.1)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with lock:
        work = asyncio.create_task(background())
        yield
        work.cancel()


app = FastAPI(lifespan=lifespan)


@app.get("/leader")
async def leader() -> Dict[str, object]:
    """Any instance knows which one leads."""
    found = await lock.leader()
    return {"here": lock.is_leader, "leader": found and found.identity, "rounds": rounds}


@app.post("/only-leader")
def only_leader() -> Dict[str, int]:
    """An endpoint that only the leader serves. The check is a plain call, also from a thread."""
    try:
        return {"epoch": lock.gate.require_leader().epoch}
    except tenure.NotLeader as refusal:
        raise HTTPException(503, str(refusal)) from None
