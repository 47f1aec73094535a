"""Ray Train's trainer with our own scaling policy (number of workers) and failure policy (which failures count).

The controller of the worker group runs this module in an actor on the driver's node, so it imports nothing heavy. Ray
Train does placement, ranks, health checks, drain notices and restarts. The policies add:

- The number of workers follows from the free resources of live nodes (:mod:`radioplat.cluster.capacity`); Ray Train
  uses the total resources.
- Before a restart they wait until Ray has noticed a lost node. Otherwise the restart would request resources of that
  node and wait for them until the start timeout (one minute by default).
- When more workers could run, the running workers are asked to pause (:mod:`radioplat.training.guards.pause`);
  Ray Train would kill them.
- They write the cause of each end to ``attempts.jsonl``.
- When the command is asked to stop, the workers are asked to pause and are not restarted.
- A group whose start failed after its workers existed is ended (:mod:`radioplat.launch.ray.unfinished_group`).
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
from radioplat.launch.ray.unfinished_group import UnfinishedGroup
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.training.guards.pause import Paused, ask_to_pause, ask_to_stop

logger = logging.getLogger(__name__)

# How long ranks wait for a dead one; Ray's default is 30 s. The controller's process reads it.
SHUTDOWN_TIMEOUT = ("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "3")
_NOTICE_S = 45.0  # how long Ray may take to notice a lost node
_SETTLE_S = 3.0  # how long Ray may take to report freed resources
_STOPPED = ("stopped", "SIGTERM")  # cause and detail
_ABORT_S = 5.0  # after Ctrl-C
_IDLE_S = 0.25  # between two decisions while no worker runs; Ray Train's loop does not pause by itself


class ElasticTrainer(TorchTrainer):
    """A ``TorchTrainer`` with :class:`GroupSize` and :class:`Restarts` as its policies.

    Args:
        folder: the task's results folder.
        others: resources of teachers and decoding, which the workers must leave free.
        arguments: of ``TorchTrainer``.
    """

    def __init__(self, *arguments: Any, folder: Path, others: Mapping[str, float], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._folder, self._others = folder, dict(others)
        self._stop_file = folder / f".stop.{uuid.uuid4().hex}"
        self._ended = False

    def stop(self) -> None:
        """Ask :meth:`fit` to save a checkpoint and raise an error soon; returns at once.

        The request is a file, because the controller, which runs on this node, answers no calls while it waits for
        resources.
        """
        if not self._ended:
            self._stop_file.touch()

    def fit(self) -> Any:
        """Run the workers, like ``TorchTrainer.fit``, and remove the stop file."""
        try:
            return super().fit()
        finally:
            self._ended = True
            self._stop_file.unlink(missing_ok=True)

    def _register_sigint_handler(self, controller: Any) -> None:
        """End the run on Ctrl-C. Ray Train's own handler waits for the controller without a limit; here a controller
        that does not answer is killed, which also ends its workers."""

        def interrupt(number: int, frame: Any) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                ray.get(controller.abort.remote(), timeout=_ABORT_S)
            except ray.exceptions.RayError:  # the controller has ended or does not answer
                ray.kill(controller)
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)

    def _initialize_and_run_controller(self, **named: Any) -> Any:
        named["scaling_policy"] = GroupSize(self.scaling_config, self._folder, self._others, self._stop_file)
        named["failure_policy"] = Restarts(self.run_config.failure_config, self._folder, self._stop_file)
        named["callbacks"] = [UnfinishedGroup(), *named["callbacks"]]  # the first, so that it knows of each start
        return super()._initialize_and_run_controller(**named)


class GroupSize(ElasticScalingPolicy):
    """Scaling policy: the number of workers of a start, pauses of running workers, the cause of the last end.

    Args:
        scaling: a fixed number of workers, or a minimum and a maximum.
        folder: the task's results folder.
        others: see :func:`~radioplat.cluster.capacity.worker_capacity`.
        stop_file: exists once the run should stop.
    """

    _latest_reserved_resources_query_time: float  # attributes of Ray's class
    _latest_monitor_time: float

    def __init__(self, scaling: ScalingConfig, folder: Path, others: Mapping[str, float], stop_file: Path) -> None:
        super().__init__(scaling)
        self._folder, self._others, self._stop_file = folder, dict(others), stop_file
        self._starting = 0  # number of workers of a start that has not yet been observed to run
        self._group: WorkerGroupState | None = None  # the newest group that was observed to run
        self._capacities: list[int] = []  # possible numbers of workers, measured since the last decision
        self._pause_requested = False
        self._ended_at = 0.0
        self._waiting_since: float | None = None

    # -- called by Ray Train ------------------------------------------------------------------------------------

    def after_controller_start(self, train_run_context: Any) -> None:
        """Set the timeout in the controller's process before anything reads it."""
        os.environ.setdefault(*SHUTDOWN_TIMEOUT)
        super().after_controller_start(train_run_context)

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        """Start as many workers as there are resources for, once Ray has noticed lost nodes."""
        if self._stop_file.exists():
            raise Paused(*_STOPPED)
        self._maybe_send_resource_request()
        if self._starting:  # its resources are unknown, and no loss is known: try the same size again
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
            self._log_wait(size, fewest)
            return self._wait()
        self._capacities, self._pause_requested, self._waiting_since = [], False, None
        self._group, self._starting = None, size
        return self._get_resize_decision(size)

    def make_decision_for_running_worker_group(
        self, worker_group_state: WorkerGroupState, worker_group_status: WorkerGroupPollStatus
    ) -> ScalingDecision:
        """Ask the workers to pause when more could run for some time. A resize by Ray Train would kill them."""
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
            detail = f"resources for {size} workers instead of {worker_group_state.num_workers}"
            for worker in worker_group_state.workers:
                worker.execute_async(ask_to_pause, "resized", detail)
        return NoopDecision()

    def after_controller_state_update(
        self, previous_state: TrainControllerState, current_state: TrainControllerState
    ) -> None:
        """Record why a group ended. Its placement group and its remaining workers still exist at this moment."""
        if isinstance(current_state, ShuttingDownState):
            current_state = current_state.next_state
        ended = isinstance(current_state, (RestartingState, ReschedulingState, ErroredState))
        if not ended or type(previous_state) is type(current_state) or isinstance(previous_state, ShuttingDownState):
            return
        self._ended_at = time.monotonic()
        error = current_state.training_failed_error
        why = _STOPPED if self._stop_file.exists() else cause_of(error, *self._losses(error))
        Attempts(self._folder).end(*why)
        if isinstance(current_state, ReschedulingState):  # it never ran and has no resources
            UnfinishedGroup.end()
            self._group, self._starting = None, 0

    # -- parts --------------------------------------------------------------------------------------------------

    def _room(self, nodes: list[Node]) -> int:
        need = self.scaling_config._resources_per_worker_not_none
        return worker_capacity(nodes, need, self._others, self.scaling_config.max_workers)

    def _held(self) -> Mapping[str, int]:
        """Return the number of workers by node of the group to be replaced; it still has their resources."""
        return Counter(worker.metadata.node_id for worker in self._group.workers) if self._group else {}

    def _losses(self, error: BaseException | None) -> tuple[list[str], list[int]]:
        """Return the lost nodes and ranks of the last group; none if the workers ended on request."""
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
        # Ray may report broken connections of other workers before the death that broke them.
        calls = {worker.actor.get_metadata.remote(): rank for rank, worker in enumerate(workers)}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=2.0)
        dead = []
        for call in ready:
            try:
                ray.get(call)
            except ray.exceptions.RayActorError:
                dead.append(calls[call])
        return [], dead

    def _log_wait(self, size: int, fewest: int) -> None:
        """Log the wait for resources, at most every 30 s."""
        now = time.monotonic()
        if self._waiting_since is None or now - self._waiting_since > 30:
            self._waiting_since = now
            logger.warning("waiting for resources for %d training worker(s); they are enough for %d now", fewest, size)

    @staticmethod
    def _wait() -> ScalingDecision:
        time.sleep(_IDLE_S)
        return NoopDecision()


class Restarts(DefaultFailurePolicy):
    """Failure policy: only failures in a row without a new checkpoint count towards the limit; pauses never count."""

    def __init__(self, failures: FailureConfig, folder: Path, stop_file: Path) -> None:
        super().__init__(failures)
        self._folder, self._stop_file, self._step = folder, stop_file, -1

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        """Return whether Ray Train restarts the workers or raises the error."""
        if self._stop_file.exists():
            return FailureDecision.RAISE
        if is_planned(training_failed_error):
            return FailureDecision.RETRY
        causes = {getattr(failure, "restart_cause", None) for _, failure in failures(training_failed_error)}
        if StorageError.restart_cause in causes:  # restarted workers would wait for storage as long again
            return FailureDecision.RAISE
        if isinstance(training_failed_error, WorkerGroupError):
            step = max((event.from_step for event in Attempts(self._folder).read()), default=-1)
            if step > self._step:
                self._step, self._worker_group_failures = step, 0
        return super().make_decision(training_failed_error)
