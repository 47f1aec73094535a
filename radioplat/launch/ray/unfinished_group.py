"""Ends a worker group whose start failed after its workers existed.

Ray Train 2.60 cleans up after a start that fails while workers are created. If a worker dies between that and the call
of the training function, it forgets the group and keeps its placement group: the resources of all its workers are held
until the command ends, and the next start waits for them for ever.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from radioplat.common.ray_internals import WorkerGroupCallback

logger = logging.getLogger(__name__)


class UnfinishedGroup(WorkerGroupCallback):
    """Remembers the group whose start is going on; there is one controller in a process, and one group at a time."""

    _group: ClassVar[Any] = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Remember a group whose workers exist."""
        UnfinishedGroup._group = worker_group

    def after_worker_group_training_start(self, worker_group: Any) -> None:
        """Forget a group that trains: Ray Train ends it."""
        UnfinishedGroup._group = None

    @classmethod
    def end(cls) -> None:
        """End the group whose start failed, if there is one, and free its resources."""
        group, cls._group = cls._group, None
        if group is not None and group.has_started():
            logger.warning("a start failed after its workers existed: they are ended, and their resources are free")
            group.shutdown()
