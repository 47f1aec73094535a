"""Run one training worker; the same in local mode and under Ray Train."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.data.loading.run_data import RunData
from radioplat.data.order.dealing import Costs
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.run import Run
from radioplat.models.fp32_arithmetic import set_fp32_arithmetic
from radioplat.spec.resolved.precision import fp32_arithmetic_of
from radioplat.teachers.serving.client import TeacherClient
from radioplat.training.accounting.accounts import Accounts
from radioplat.training.accounting.attempt_clock import AttemptClock
from radioplat.training.accounting.cost_meter import CostMeter
from radioplat.training.checkpoints.persistence import Persistence, last_attempt
from radioplat.training.checkpoints.run_state import RunState
from radioplat.training.feed.feeder import Feeder, prefetch_depth
from radioplat.training.feed.prefetch import Prefetch
from radioplat.training.feed.stage_rests import StageRests
from radioplat.training.feed.step_feed import StepFeed
from radioplat.training.guards import out_of_memory
from radioplat.training.guards.pause import Pauses
from radioplat.training.loop.ended_student import EndedStudent
from radioplat.training.loop.garbage import free_memory
from radioplat.training.loop.students import Students
from radioplat.training.loop.trainer import Common, Trainer
from radioplat.training.targets.first_pass import FirstPass, measure_together
from radioplat.training.targets.head_fit import HeadFitted
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
    held: Callable[[], float] = float,
) -> None:
    """Train the students of ``run`` from their newest checkpoints, or from the beginning, to the last step.

    The process group must be initialized.

    Args:
        pauses: checked after each step for a request to save and stop; default: a new :class:`Pauses`.
        held: returns the seconds so far in which the stream has waited for other students; default: 0.

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
    ended = collectives.from_first(lambda: [one for r in run.family if (one := EndedStudent.read(r.folder, r.lease))])
    places = [place for place, each in enumerate(run.students) if each.name not in {one.name for one in ended}]
    persistences = {place: Persistence(run.students[place], context.rank, context.world_size) for place in places}
    states = [each.state for each in persistences.values()]
    attempt = _same_attempt(run, states)
    with contextlib.ExitStack() as stack:
        phases = stack.enter_context(monitored_worker(run, attempt, context))
        pauses = pauses or Pauses()
        halvings = collectives.from_first(lambda: out_of_memory.halvings(run.folder, run.spec, attempt))
        meters = {
            p: CostMeter(clients, run.spec.cluster, persistences[p].state.teacher_cost, run.groups) for p in places
        }
        behind = min(states, key=lambda state: state.global_step)
        clock.begin(behind)
        start, stop = behind.global_step, run.total_steps
        costs = Costs.measured(states[0].micro_batch_seconds)
        schedule = run.micro_batch_schedule(context.world_size, costs)
        firsts = {
            p: FirstPass(run.students[p], context, schedule, persistences[p].state.global_step, meters[p])
            for p in places
        }
        taught = [meter.costs for meter in meters.values()]
        accounts = Accounts(run, context.rank, context.world_size, attempt, start, context.on_cluster, taught)

        def feed(stop: int, begin: int = start) -> contextlib.closing[Feeder]:
            """Return a feeder of this rank's batches up to step ``stop``, which sends them to the teachers ahead."""
            batches, depth = open_batches(begin, stop, schedule), prefetch_depth(run.spec)
            feeder = Feeder(batches, clients, run.frozen_teachers, depth, run.partitions, context.device)
            return contextlib.closing(feeder)

        def ahead_from(step: int) -> Prefetch:
            """Return the micro-batches from ``step`` on, which a thread brings to the device."""
            return Prefetch(stack.enter_context(feed(stop, step)), run, context.device, context.on_cluster)

        # The stream needs seconds to start; it does so while the student is built.
        consumers = [place for place in places if firsts[place].consumes]
        feeder = stack.enter_context(feed(max((firsts[place].first_stop for place in consumers), default=stop)))
        data = RunData.load(run.data_dir, run.spec.dataset.train_dataset)
        rests = StageRests(run, clients)
        common = Common(run.folder, data, clock, accounts, pauses, phases, halvings, schedule, rests, held)
        students: Students | None = None
        ahead: StepFeed | None = None

        def close() -> None:
            """Close the students, which ends their writes, before the stream, which may wait."""
            try:
                if students is not None:
                    students.close()
            finally:
                if ahead is not None:
                    ahead.close()

        def build(place: int) -> Trainer:
            """Return the trainer of a student at the checkpoint of its persistence, which it takes over."""
            return Trainer(run.students[place], place, context, persistences.pop(place), meters[place], common)

        def rebuild(place: int) -> Trainer:
            """Return the trainer of a student at its newest checkpoint."""
            persistences[place] = Persistence(run.students[place], context.rank, context.world_size, attempt)
            free_memory(context.device)
            return build(place)

        stack.callback(close)
        students = Students(run, common, places, build, rebuild, ended)
        if consumers:
            passes = [(firsts[place], students[place].objective.student) for place in consumers]
            for place, fitted in zip(consumers, measure_together(passes, feeder), strict=True):
                _begin(students[place], firsts[place], fitted)
            feeder = stack.enter_context(feed(stop))
        for place in places:
            if place not in consumers:
                _begin(students[place], firsts[place], firsts[place].measure(students[place].objective.student, feeder))
        # It stays at a roll-back: what it has brought to the device are the micro-batches of the steps that follow.
        ahead = StepFeed(Prefetch(feeder, run, context.device, context.on_cluster), start, ahead_from)
        students.train(ahead)


def _same_attempt(run: Run, states: list[RunState]) -> int:
    """Return the number of this start, and give it to all students of a family."""
    if run.family:
        last = collectives.from_first(lambda: last_attempt(run.folder))
        number = max(last + 1, *(state.attempt for state in states))
        for state in states:
            state.begin(number)
    return states[0].attempt


def _begin(trainer: Trainer, first: FirstPass, fitted: Sequence[HeadFitted]) -> None:
    """Report what became of a student's heads in its first pass, and build its engine."""
    for head in fitted:
        trainer.reporter.note(head.message, warns=head.r2 is None)
    trainer.hooks.targets.begin_with(first.moments)
    trainer.build_engine()
