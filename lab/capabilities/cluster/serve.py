"""dask's scheduler and worker as processes of the lab; each serves until it is ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from lab.capabilities.cluster import tls as cluster_tls
from lab.capabilities.cluster.client import Door, load
from lab.capabilities.cluster.files import Shelf
from lab.capabilities.cluster.model import HostFacts
from lab.capabilities.cluster.strangers import limit_strangers
from lab.capabilities.cluster.worker import ClusterHost, Wire
from lab.core.errors import HostError, InputError, TroubleError
from lab.host.system import paths

CLOSING: Final = 10.0
"""Timeout in seconds for closing a worker."""
LEAVING: Final = 5.0
"""Seconds that a leaving host waits for the scheduler's reply; the scheduler may be gone too."""
JOINING: Final = 20.0
"""Timeout in seconds for a scheduler to accept a worker."""

Ready = Callable[[str], None]
"""Called with the address once the process serves."""


def serve_scheduler(host: str, port: int, door: Door, ready: Ready, *, lifeline: bool) -> None:
    """Run a scheduler until a signal; with ``lifeline`` also until standard input closes.

    ``HostError``: the port is in use, or this machine does not have the address.
    """
    asyncio.run(_scheduler(host, port, door, ready, lifeline))


async def _scheduler(host: str, port: int, door: Door, ready: Ready, lifeline: bool) -> None:
    distributed = load()
    limit_strangers()
    shelf = Shelf()

    async def has(image: str, sums: dict[str, str]) -> bool:
        return await asyncio.to_thread(shelf.has, image, sums)

    async def read(image: str, file: str, offset: int) -> bytes:
        return await asyncio.to_thread(shelf.read, image, file, offset)

    try:
        scheduler = _without_http(distributed.Scheduler)(
            host=host, port=port, protocol="tls", security=door.security(), dashboard=False
        )
        scheduler.handlers |= {"lab_has_image": has, "lab_read_image": read}
        async with scheduler, _until_ended(lifeline) as ended:
            ready(scheduler.address)
            await ended.wait()
    except (OSError, ValueError, RuntimeError) as error:
        raise HostError(f"no scheduler can listen at {host}:{port}: {error}") from error


def serve_worker(
    door: Door,
    facts: HostFacts,
    offer: Mapping[str, float],
    ready: Ready,
    *,
    lifeline: bool,
    hosted: Callable[[HostFacts, Wire], ClusterHost] = ClusterHost,
) -> None:
    """Run a worker until a signal; with ``lifeline`` also until standard input closes.

    ``hosted`` creates the object that runs the cells.
    ``HostError``: no scheduler answers. ``InputError``: it already has a host of that name.
    ``TroubleError``: the host left the cluster because it failed by itself.
    """
    asyncio.run(_worker(door, facts, offer, ready, lifeline, hosted))


async def _worker(
    door: Door,
    facts: HostFacts,
    offer: Mapping[str, float],
    ready: Ready,
    lifeline: bool,
    make: Callable[[HostFacts, Wire], ClusterHost],
) -> None:
    distributed = load()
    limit_strangers()
    scratch = paths.outposts() / f".dask.{os.getpid()}"
    scratch.mkdir(parents=True, exist_ok=True)
    worker = _without_http(distributed.Worker)(
        door.address,
        name=facts.name,
        nthreads=facts.guests,
        resources=dict(offer),
        memory_limit=0,
        local_directory=str(scratch),
        host=_address_towards(door),
        security=door.security(),
        dashboard=False,
        death_timeout=JOINING,
    )
    hosted = make(facts, Wire(worker))
    worker.lab_hosted = hosted
    try:
        async with _until_ended(lifeline) as ended:
            await _join(worker, door, facts)
            ready(worker.address)
            over = [asyncio.create_task(t) for t in (ended.wait(), worker.finished())]
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            asked = ended.is_set()
            if asked:
                await _take_leave(worker)
            await asyncio.to_thread(hosted.end_all)
            await worker.close(timeout=CLOSING)
            for task in over:
                task.cancel()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not asked:
        raise TroubleError(f"the host '{facts.name}' has left the cluster", hint=hosted.why)


def _without_http(kind: Any) -> Any:
    """Return the dask server class without its HTTP server.

    The HTTP server requires no certificate, and dask has no setting to disable it.
    """
    return type(kind.__name__, (kind,), {"start_http_server": lambda *_, **__: None})


def _address_towards(door: Door) -> str:
    """Return this machine's address on the route to the scheduler; no packet is sent.

    Without it dask's worker would listen on all addresses of the machine.
    """
    parts = urlsplit(door.address)
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            parts.hostname, parts.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as way:
            way.connect(address)
            return str(way.getsockname()[0])
    except OSError as error:
        raise HostError(f"there is no way to {door.address}: {error.strerror}") from error


async def _take_leave(worker: Any) -> None:
    """Make the scheduler reassign this host's cells without counting it as a failure of theirs."""
    leave = worker.scheduler.retire_workers(
        workers=[worker.address], close_workers=False, remove=True, stimulus_id="lab-leaves"
    )
    with suppress(OSError, TimeoutError, RuntimeError):
        await asyncio.wait_for(leave, LEAVING)


async def _join(worker: Any, door: Door, facts: HostFacts) -> None:
    args = door.security().get_connection_args("worker")
    try:
        # The worker itself would retry a refused certificate for `JOINING` seconds.
        comm = await load().core.connect(door.address, timeout=JOINING, **args)
        await comm.close()
        await worker
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        cause = error.__cause__ or error
        if "name taken" in str(cause):
            raise InputError(
                f"the cluster has a host '{facts.name}' already", hint="--name gives another name"
            ) from error
        raise cluster_tls.refused(door.address, door.tls, error) from error


@asynccontextmanager
async def _until_ended(lifeline: bool) -> AsyncIterator[asyncio.Event]:
    """Yield an event that Ctrl-C, SIGTERM, SIGHUP or the end of standard input sets."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for kind in kinds:
        loop.add_signal_handler(kind, ended.set)

    def watch() -> None:
        while os.read(0, 4096):  # a buffered reader would hold a lock at the interpreter's exit
            pass
        loop.call_soon_threadsafe(ended.set)

    if lifeline:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield ended
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)
