"""Micro-batches that several groups of workers of one run read: each is decoded once, and kept for a while."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MOST_BYTES = 512 * 2**20  # of the micro-batches that are kept for groups that have not read them
_READ_S = 60.0  # how long a micro-batch that another group reads is waited for
_SILENT_S = 120.0  # a group that has begun no step for so long is not waited for
_LOOK_S = 0.02


@dataclass
class _Kept:
    """A micro-batch that one group reads, or has read.

    Attributes:
        reader: the group that reads it.
        table: in the object store; None until it has been read.
        taken: by how many other groups.
    """

    reader: str
    there: asyncio.Event = field(default_factory=asyncio.Event)
    table: ray.ObjectRef | None = None
    size: int = 0
    taken: int = 0


class _Actor:
    """The actor behind :class:`SharedReads`."""

    def __init__(self, groups: Sequence[str], most: int) -> None:
        now = time.monotonic()
        self._begun = {name: (-1, now) for name in groups}  # the newest step of each, and when it began
        self._waiting: set[str] = set()
        self._most, self._bytes = most, 0
        self._kept: dict[int, _Kept] = {}
        self._counts = {"read": 0, "shared": 0}

    async def take(self, group: str, micro_batch: int) -> list[ray.ObjectRef] | None:
        """Return a micro-batch that another group has read, or None: then the caller reads it and calls ``give``."""
        kept = self._kept.get(micro_batch)
        if kept is not None and kept.table is None and kept.reader != group:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(kept.there.wait(), _READ_S)
        if kept is None or kept.table is None:  # nobody reads it, or who did was lost
            if kept is None:
                self._kept[micro_batch] = _Kept(group)
            else:
                kept.reader = group
            self._counts["read"] += 1
            return None
        table = kept.table
        kept.taken += 1
        self._counts["shared"] += 1
        if kept.taken >= len(self._begun) - 1:
            self._drop(micro_batch)
        return [table]

    async def give(self, group: str, micro_batch: int, table: pa.Table) -> None:
        """Keep a micro-batch that was read; the oldest ones are dropped if all are too large."""
        kept = self._kept.setdefault(micro_batch, _Kept(group))
        if kept.table is None:
            # Put here: what a reading process puts into the object store ends with that process.
            kept.table, kept.size = ray.put(table), table.nbytes
            self._bytes += kept.size
        kept.there.set()
        for number in [n for n, one in self._kept.items() if one.table is not None and n != micro_batch]:
            if self._bytes <= self._most:
                break
            self._drop(number)

    async def begin(self, group: str, step: int) -> None:
        """Wait until no other group is more than a step behind, unless it has been silent for long."""
        self._begun[group] = (step, time.monotonic())
        self._waiting.add(group)
        try:
            while any(self._is_behind(name, step) for name in self._begun if name != group):
                await asyncio.sleep(_LOOK_S)
        finally:
            self._waiting.discard(group)
            if self._begun.get(group, (None,))[0] == step:  # else it has left, or was started again meanwhile
                self._begun[group] = (step, time.monotonic())

    async def leave(self, group: str) -> None:
        """Do not wait for a group any more."""
        self._begun.pop(group, None)

    async def counts(self) -> dict[str, int]:
        """Return how many micro-batches were read, and how many were taken from another group."""
        return dict(self._counts)

    def _is_behind(self, group: str, step: int) -> bool:
        at, since = self._begun[group]
        silent = group not in self._waiting and time.monotonic() - since > _SILENT_S
        return at < step - 1 and not silent

    def _drop(self, micro_batch: int) -> None:
        kept = self._kept.pop(micro_batch)
        self._bytes -= kept.size


class SharedReads:
    """Handle of a run's groups for one another: who reads a micro-batch, and who is how far; picklable.

    The actor behind it runs on the driver's node. If it dies, each group reads everything itself.

    Args:
        groups: their names.
        most: bytes of micro-batches that are kept.
    """

    def __init__(self, groups: Sequence[str], most: int = MOST_BYTES) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "max_concurrency": 1000, "max_restarts": 0, "scheduling_strategy": here}
        self._group = ""
        self._actor = ray.remote(_Actor).options(**options).remote(list(groups), most)

    def of(self, group: str) -> SharedReads:
        """Return the handle of one group."""
        own = copy.copy(self)
        own._group = group
        return own

    def read(self, micro_batch: int, read: Callable[[], pa.Table]) -> pa.Table:
        """Return a micro-batch that another group has read, else that of ``read``, which the others then get."""
        try:
            table = ray.get(self._actor.take.remote(self._group, micro_batch))
            if table is not None:
                return ray.get(table[0], timeout=_READ_S)
        except ray.exceptions.RayError:  # the actor, or the node with the micro-batch, is lost
            return read()
        own = read()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.give.remote(self._group, micro_batch, own))
        return own

    def begin(self, step: int, closed: Callable[[], bool]) -> bool:
        """Wait until the other groups have begun the step before ``step``, or until ``closed`` returns True.

        Returns:
            False if the actor has died: no group waits for another any more.
        """
        waits = self._actor.begin.remote(self._group, step)
        while not closed():
            try:
                ray.get(waits, timeout=0.5)
                return True
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.ActorDiedError:
                return False
            except ray.exceptions.RayError:  # it passes: the next step waits again
                return True
        return True

    def leave(self) -> None:
        """Let the others go on without this group, which has ended."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.leave.remote(self._group))

    def counts(self) -> dict[str, int] | None:
        """Return how many micro-batches were ``read``, and how many ``shared``: taken from another group.

        None if the actor is lost.
        """
        with contextlib.suppress(ray.exceptions.RayError):
            return ray.get(self._actor.counts.remote())
        return None

    def end(self) -> None:
        """End the actor."""
        ray.kill(self._actor)
