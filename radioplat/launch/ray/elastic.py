"""Ray Train's trainer with our say in two of its decisions: how many workers, and which failures count.

The controller of the worker group runs this, in an actor beside the driver: nothing heavy is imported. What Ray Train
does itself stays its own: placement, ranks, health checks, notices of drained nodes, restarts. What is added:

- The group's size follows from free resources of live nodes, not from their totals (:mod:`radioplat.cluster.capacity`).
- Before it starts again it waits until the cluster has noticed a node that is gone; else it would ask for a place on
  it, and wait for that place until the start timeout (a minute, by default) is over.
- A running group that could be larger is asked to pause (:mod:`radioplat.training.guards.pause`) instead of
  being killed.
- ``attempts.jsonl`` gets the cause.
- When the command is asked to stop, its group is asked to pause and is not started again.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from radioplat.cluster.capacity import Node, live_nodes, worker_capacity
from radioplat.common.ray_internals import (
    DefaultFailurePolicy,
    ElasticScalingPolicy,
    ErroredState,
    FailureDecision,
    NoopDecision,
    ReschedulingState,
    RestartingState,
    ScalingDecision,
    ShuttingDownState,
    TrainControllerState,
    WorkerGroupPollStatus,
    WorkerGroupState,
)
from radioplat.errors import StorageError
from radioplat.launch.ray.causes import cause_of, failures, has_died, is_planned
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.training.guards.pause import Paused, ask_to_pause, ask_to_stop

logger = logging.getLogger(__name__)

# For ranks that wait for a dead one, instead of Ray's 30 s; read in the controller's process.
SHUTDOWN_TIMEOUT = ("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "3")
_NOTICE_S = 45.0  # how long a cluster may take to see that a node is gone
_SETTLE_S = 3.0  # how long freed resources may take to be seen
_STOPPED = ("stopped", "SIGTERM")  # cause and detail
_ABORT_S = 5.0  # after Ctrl-C
_IDLE_S = 0.25  # between looks while nothing runs; Ray Train's loop does not pause by itself


class ElasticTrainer(TorchTrainer):
    """A ``TorchTrainer`` with our policies.

    Args:
        folder: the task's results folder.
        others: resources that teachers and decoding need beside the workers.
        arguments: as ``TorchTrainer`` has them.
    """

    def __init__(self, *arguments: Any, folder: Path, others: Mapping[str, float], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._folder, self._others = folder, dict(others)
        self._stop_file = folder / f".stop.{uuid.uuid4().hex}"

    def stop(self) -> None:
        """Have :meth:`fit` end soon with an error, after a checkpoint; returns at once.

        By a file: while the controller waits for room, its event loop takes no calls. It runs on this node.
        """
        self._stop_file.touch()

    def fit(self) -> Any:
        """As ``TorchTrainer.fit``."""
        try:
            return super().fit()
        finally:
            self._stop_file.unlink(missing_ok=True)

    def _register_sigint_handler(self, controller: Any) -> None:
        """Ctrl-C ends the run. Ray Train's handler asks the controller and waits for it, for ever while that waits for
        room; one that does not answer is killed, and its workers end with it."""

        def interrupt(number: int, frame: Any) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                ray.get(controller.abort.remote(), timeout=_ABORT_S)
            except ray.exceptions.RayError:  # it has ended, or does not answer
                ray.kill(controller)
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)

    def _initialize_and_run_controller(self, **named: Any) -> Any:
        named["scaling_policy"] = GroupSize(self.scaling_config, self._folder, self._others, self._stop_file)
        named["failure_policy"] = Restarts(self.run_config.failure_config, self._folder, self._stop_file)
        return super()._initialize_and_run_controller(**named)


class GroupSize(ElasticScalingPolicy):
    """The number of workers that start, pauses of a running group, and the cause of the last end.

    Args:
        scaling: with a fixed or an elastic number of workers.
        folder: the task's results folder.
        others: see :func:`~radioplat.cluster.capacity.worker_capacity`.
        stop_file: exists once the run is to stop.
    """

    _latest_reserved_resources_query_time: float  # Ray's own, as is the next
    _latest_monitor_time: float

    def __init__(self, scaling: ScalingConfig, folder: Path, others: Mapping[str, float], stop_file: Path) -> None:
        super().__init__(scaling)
        self._folder, self._others, self._stop_file = folder, dict(others), stop_file
        self._starting = 0  # size of a group that was started, and ended before we saw it run
        self._group: WorkerGroupState | None = None  # the newest that was seen to run
        self._capacities: list[int] = []  # sizes that there was room for since the last decision
        self._pause_requested = False
        self._ended_at = 0.0
        self._waiting_since: float | None = None

    # -- what Ray Train asks ------------------------------------------------------------------------------------

    def after_controller_start(self, train_run_context: Any) -> None:
        """Runs first in the controller's process."""
        os.environ.setdefault(*SHUTDOWN_TIMEOUT)
        super().after_controller_start(train_run_context)

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        """Start as many as there is room for, once the cluster knows what it has lost."""
        if self._stop_file.exists():
            raise Paused(*_STOPPED)
        self._maybe_send_resource_request()
        if self._starting:  # what it holds is not known; nor is anything known to be lost
            return self._get_resize_decision(self._starting)
        since_end = time.monotonic() - self._ended_at
        nodes = live_nodes(self._held())
        ours = {worker.metadata.node_id for worker in self._group.workers} if self._group else set()
        if since_end < _NOTICE_S and any(node.id in ours and not node.answers() for node in nodes):
            return self._wait()
        size = self._room(nodes)
        fewest = self.scaling_config.min_workers
        shrunk = self._group is not None and size < self._group.num_workers and since_end < _SETTLE_S
        if size < fewest or (shrunk and {node.id for node in nodes} >= ours):
            self._tell_wait(size, fewest)
            return self._wait()
        self._capacities, self._pause_requested, self._waiting_since = [], False, None
        self._group, self._starting = None, size
        return self._get_resize_decision(size)

    def make_decision_for_running_worker_group(
        self, worker_group_state: WorkerGroupState, worker_group_status: WorkerGroupPollStatus
    ) -> ScalingDecision:
        """Never a resize, which would kill: where there is lasting room for more they are asked to pause."""
        self._maybe_send_resource_request()
        self._group, self._starting = worker_group_state, 0
        if self._stop_file.exists():
            for worker in worker_group_state.workers:
                worker.execute_async(ask_to_stop, _STOPPED[1])
            return NoopDecision()
        now = time.monotonic()
        if self._pause_requested or worker_group_state.num_workers >= self.scaling_config.max_workers:
            return NoopDecision()
        if now - self._latest_reserved_resources_query_time < self.GET_RESERVED_RESOURCES_INTERVAL_S:
            return NoopDecision()
        self._latest_reserved_resources_query_time = now
        self._capacities.append(self._room(live_nodes(self._held())))
        since = now - max(worker_group_state.start_time, self._latest_monitor_time)
        if since < self.scaling_config.elastic_resize_monitor_interval_s:
            return NoopDecision()
        size, self._capacities, self._latest_monitor_time = min(self._capacities[-5:]), [], now
        if size > worker_group_state.num_workers:
            self._pause_requested = True
            detail = f"room for {size} workers instead of {worker_group_state.num_workers}"
            for worker in worker_group_state.workers:
                worker.execute_async(ask_to_pause, "resized", detail)
        return NoopDecision()

    def after_controller_state_update(
        self, previous_state: TrainControllerState, current_state: TrainControllerState
    ) -> None:
        """Note why a group ended; its placement group is still there, and so is what is left of it."""
        if isinstance(current_state, ShuttingDownState):
            current_state = current_state.next_state
        ended = isinstance(current_state, (RestartingState, ReschedulingState, ErroredState))
        if not ended or type(previous_state) is type(current_state) or isinstance(previous_state, ShuttingDownState):
            return
        self._ended_at = time.monotonic()
        error = current_state.training_failed_error
        why = _STOPPED if self._stop_file.exists() else cause_of(error, *self._losses(error))
        Attempts(self._folder).end(*why)
        if isinstance(current_state, ReschedulingState):  # it never ran, and holds nothing
            self._group, self._starting = None, 0

    # -- what it is made of -------------------------------------------------------------------------------------

    def _room(self, nodes: list[Node]) -> int:
        need = self.scaling_config._resources_per_worker_not_none
        return worker_capacity(nodes, need, self._others, self.scaling_config.max_workers)

    def _held(self) -> Mapping[str, int]:
        """Workers of the group that is to be replaced, by node: their resources are still theirs."""
        return Counter(worker.metadata.node_id for worker in self._group.workers) if self._group else {}

    def _losses(self, error: BaseException | None) -> tuple[list[str], list[int]]:
        """Nodes and ranks of the last group that are gone. Not asked where the workers left on purpose."""
        if self._group is None or error is None or is_planned(error):
            return [], []
        workers = self._group.workers
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        lost = []
        for node_id in dict.fromkeys(worker.metadata.node_id for worker in workers):
            node = alive.get(node_id)
            if node is None or not Node(node_id, node["NodeManagerAddress"], node["NodeManagerPort"]).answers():
                lost.append(node_id)
        if lost or has_died(error):
            return lost, []
        # Others' broken connections are heard of before the death that broke them.
        calls = {worker.actor.get_metadata.remote(): rank for rank, worker in enumerate(workers)}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=2.0)
        dead = []
        for call in ready:
            try:
                ray.get(call)
            except ray.exceptions.RayActorError:
                dead.append(calls[call])
        return [], dead

    def _tell_wait(self, size: int, fewest: int) -> None:
        """A line in the driver's output every half minute."""
        now = time.monotonic()
        if self._waiting_since is None or now - self._waiting_since > 30:
            self._waiting_since = now
            logger.warning("waiting for room for %d training worker(s); there is room for %d now", fewest, size)

    @staticmethod
    def _wait() -> ScalingDecision:
        time.sleep(_IDLE_S)
        return NoopDecision()


class Restarts(DefaultFailurePolicy):
    """Which failures end the run: those in a row without a checkpoint between them count, pauses do not."""

    def __init__(self, failures: FailureConfig, folder: Path, stop_file: Path) -> None:
        super().__init__(failures)
        self._folder, self._stop_file, self._step = folder, stop_file, -1

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        """Retry, or give up."""
        if self._stop_file.exists():
            return FailureDecision.RAISE
        if is_planned(training_failed_error):
            return FailureDecision.RETRY
        causes = {getattr(failure, "restart_cause", None) for _, failure in failures(training_failed_error)}
        if StorageError.restart_cause in causes:  # a group that starts again would wait as long again
            return FailureDecision.RAISE
        if isinstance(training_failed_error, WorkerGroupError):
            step = max((event.from_step for event in Attempts(self._folder).read()), default=-1)
            if step > self._step:
                self._step, self._worker_group_failures = step, 0
        return super().make_decision(training_failed_error)
