"""Run one training worker; the same in local mode and under Ray Train."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.data.order.dealing import Costs
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.run import Run
from radioplat.models.fp32_arithmetic import set_fp32_arithmetic
from radioplat.spec.resolved.precision import fp32_arithmetic_of
from radioplat.teachers.serving.client import TeacherClient
from radioplat.training.accounting.accounts import Accounts
from radioplat.training.accounting.attempt_clock import AttemptClock
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.checkpoints.persistence import Persistence
from radioplat.training.feed.feeder import Feeder, prefetch_depth
from radioplat.training.feed.prefetch import Prefetch
from radioplat.training.guards import out_of_memory
from radioplat.training.guards.pause import Pauses
from radioplat.training.loop.garbage import free_memory
from radioplat.training.loop.trainer import Trainer
from radioplat.training.targets.first_pass import FirstPass
from radioplat.training.watch.rank_context import RankContext
from radioplat.training.watch.worker_monitor import monitored_worker

# (first step, stop, which rank has which) -> this rank's micro-batches of those steps
OpenBatches = Callable[[int, int, MicroBatchSchedule], Iterator[Batch]]


def run_worker(
    run: Run,
    context: RankContext,
    clients: dict[str, TeacherClient],
    open_batches: OpenBatches,
    pauses: Pauses | None = None,
) -> None:
    """Train from the newest checkpoint, or from the beginning, to the last step.

    The process group must be initialized.

    Args:
        pauses: checked after each step for a request to save and stop; default: a new :class:`Pauses`.

    Raises:
        TrainingError: the data differed from the sample order, non-finite losses or spikes ended the run, or another
            run took over the folder.
        OutOfMemory: on this rank only; the next start uses smaller pieces.
        Paused: the workers were asked to stop, and have saved a checkpoint.
    """
    set_fp32_arithmetic(
        fp32_arithmetic_of(run.spec.train), context.device
    )  # before inline teachers compute, in the feeder's thread
    clock = AttemptClock(run, context.rank)
    persistence = Persistence(run, context.rank, context.world_size)
    with contextlib.ExitStack() as stack:
        phases = stack.enter_context(monitored_worker(run, persistence.state.attempt, context))
        pauses = pauses or Pauses()
        attempt = persistence.state.attempt
        halvings = collectives.from_first(lambda: out_of_memory.halvings(run.folder, run.spec, attempt))
        meter = CostMeter(clients, run.spec.cluster, persistence.state.teacher_cost)
        clock.begin(persistence.state)
        start, stop = persistence.state.global_step, run.total_steps
        costs = Costs.measured(persistence.state.micro_batch_seconds)
        schedule = run.micro_batch_schedule(context.world_size, costs)
        first = FirstPass(run, context, schedule, start, meter)
        accounts = Accounts(run, context.rank, context.world_size, attempt, start, context.on_cluster, meter.costs)

        def feed(stop: int) -> contextlib.closing[Feeder]:
            """Return a feeder of this rank's batches up to step ``stop``, which sends them to the teachers ahead."""
            batches, depth = open_batches(start, stop, schedule), prefetch_depth(run.spec)
            feeder = Feeder(batches, clients, run.frozen_teachers, depth, run.partitions, context.device)
            return contextlib.closing(feeder)

        # The stream needs seconds to start; it does so while the student is built.
        feeder = stack.enter_context(feed(first.first_stop))
        outer = (clock, meter, accounts, pauses, phases, halvings, schedule)
        worker: Trainer | None = None
        ahead: Prefetch | None = None

        def close() -> None:
            """Close the worker, which ends its writes, before the stream, which may wait."""
            try:
                if worker is not None:
                    worker.close()
            finally:
                if ahead is not None:
                    ahead.close()

        stack.callback(close)
        worker = Trainer(run, context, persistence, *outer)
        for head in first.measure(worker.objective.student, feeder):
            worker.reporter.note(head.message, warns=head.r2 is None)
        worker.hooks.targets.begin_with(first.moments)
        worker.build_engine()
        if first.first_stop < stop:
            feeder = stack.enter_context(feed(stop))
        # It stays at a roll-back: what it has brought to the device are the micro-batches of the steps that follow.
        ahead = Prefetch(feeder, run, context.device, context.on_cluster)
        while (back := worker.train(ahead)) is not None:
            worker.close()
            worker.engine.close()
            worker = None
            persistence = Persistence(run, context.rank, context.world_size, attempt)  # the last one held the model
            free_memory(context.device)
            worker = Trainer(run, context, persistence, *outer)
            worker.build_engine()
            worker.go_on_at(back)
