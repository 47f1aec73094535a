"""Free the resources of teachers in stages that are taught without them."""

from __future__ import annotations

from collections.abc import Mapping

from radioplat.design.run import Run
from radioplat.design.stages import resting
from radioplat.teachers.serving.client import TeacherClient


class StageRests:
    """Lets clients rest and wake by the step of training.

    Args:
        clients: of the frozen teachers, by name.
    """

    def __init__(self, run: Run, clients: Mapping[str, TeacherClient]) -> None:
        self._away, self._total, self._clients = run.partitions.away, run.total_steps, clients
        self._resting: frozenset[str] | None = None

    def at(self, step: int) -> None:
        """Let those rest that are away at ``step``; called when all ranks have the answers of the steps before."""
        if not self._away:
            return
        now = resting(self._away, self._total, step) & self._clients.keys()
        before = self._resting
        for name in sorted(self._clients):
            if name in now and (before is None or name not in before):
                self._clients[name].rest()
            elif name not in now and (before is None or name in before):
                self._clients[name].wake()
        self._resting = now
