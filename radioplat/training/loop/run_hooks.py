"""Build the step hooks of a run, in the order in which they are called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from radioplat.data.ledger.ledger import Ledger
from radioplat.data.loading.run_data import RunData
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.run import Run
from radioplat.models.modifiers import spectral
from radioplat.objectives.objective import Objective
from radioplat.spec.resolved.reduction import is_exact
from radioplat.training.accounting.ledger_rows import LedgerRows
from radioplat.training.accounting.reporter import Reporter
from radioplat.training.checkpoints.persistence import trainable
from radioplat.training.checkpoints.run_state import RunState
from radioplat.training.engine.batchnorm_state import BatchNormStatistics
from radioplat.training.engine.ema import Ema
from radioplat.training.engine.engine import Engine
from radioplat.training.engine.loss_statistics import LossStatistics
from radioplat.training.guards.bad_samples import BadSamples
from radioplat.training.guards.loss_spikes import SpikeGuard
from radioplat.training.guards.non_finite import NonFiniteGuard
from radioplat.training.guards.same_hardware import SameHardware
from radioplat.training.hooks.own_hook import HookContext, OwnHook
from radioplat.training.hooks.step_hook import StepHook, StepHooks
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.hooks.step_sums import StepSums
from radioplat.training.loop.micro_batch_costs import MicroBatchCosts
from radioplat.training.targets.running_norm import RunningNorm
from radioplat.training.watch.rank_context import RankContext


class SpectralVectors(StepHook):
    """Run one power iteration for each spectrally reparametrized matrix, after each step that was not skipped."""

    name = "spectral"

    def __init__(self, objective: Objective) -> None:
        self._layers = spectral.layers_of(objective)

    def end_step(self, record: StepRecord) -> None:
        """Run the power iterations, unless the step was skipped."""
        if not record.skipped:
            spectral.follow_layers(self._layers)


class RunHooks(StepHooks):
    """All hooks of a run on this rank; the training loop also uses some of them as attributes.

    Args:
        objective: the module with the checkpoint's weights, before an engine wraps it.
        data: data of the run.
        state: training progress, from the checkpoint.
        schedule: which rank has which micro-batch; changed by what they are measured to cost. None: it is another
            student's to change.
        outer: hooks that are kept at a roll-back; they are called before users' hooks and the reporter, after all
            others.
    """

    def __init__(
        self,
        run: Run,
        context: RankContext,
        objective: Objective,
        data: RunData,
        state: RunState,
        schedule: MicroBatchSchedule | None,
        outer: Sequence[StepHook],
    ) -> None:
        spec, device, start = run.spec, context.device, state.global_step
        exact = is_exact(spec.train)
        self.step_sums = StepSums(device, exact)
        self.non_finite = NonFiniteGuard(spec.train, objective)
        hook_context = HookContext(spec, objective, context.rank, context.world_size, device, run.folder)
        own = [OwnHook(path, f"train.hooks[{i}]", hook_context) for i, path in enumerate(spec.train.hooks)]
        ledger = Ledger(run.folder / "ledger", context.rank, state.attempt)
        self.ledger = LedgerRows(ledger, context.rank, self.step_sums)
        self.spikes = SpikeGuard(spec.train.spike, device)
        self.batchnorm = BatchNormStatistics(objective, exact)
        self.targets = RunningNorm(objective.student, run.teachers, spec.distill.target_norm, device, start)
        self.bad_samples = BadSamples(data.index, spec.dataset.max_bad_fraction)
        self.reporter = Reporter(run, context.rank, start)
        costs = [] if schedule is None else [MicroBatchCosts(spec, context, schedule, self.reporter.note)]
        self._objective, self._decay = objective, spec.train.ema_decay if spec.train.enable_ema else None
        self._losses = LossStatistics(objective, exact)
        followers: list[StepHook] = [SpectralVectors(objective), self.batchnorm, self._losses, self.targets]
        if exact:
            followers.append(SameHardware(device, self.reporter.warn))
        super().__init__(
            [
                *costs,
                self.ledger,
                self.non_finite,
                self.spikes,
                *followers,
                self.bad_samples,
                *outer,
                *own,
                self.reporter,
            ]
        )

    def attach(self, engine: Engine) -> Ema | None:
        """Connect the hooks to the engine, after the optimizer is restored; return the EMA hook, if EMA is enabled."""
        self.batchnorm.sync()
        if self._decay is None:
            return None
        ema = Ema(engine, trainable(self._objective), self._statistics, self._decay)
        self.add_before(ema, self.bad_samples)
        return ema

    @contextlib.contextmanager
    def statistics_kept(self) -> Iterator[None]:
        """During the block, forwards change no statistics: their micro-batches are computed a second time."""
        for hook in (self.batchnorm, self._losses):
            hook.pause(True)
        try:
            yield
        finally:
            for hook in (self.batchnorm, self._losses):
                hook.pause(False)

    def _statistics(self) -> dict[str, torch.Tensor]:
        """Return BatchNorm statistics in fp32 by the student's names, on the device."""
        prefix = "student."
        mine = self.batchnorm.values().items()
        return {name.removeprefix(prefix): value for name, value in mine if name.startswith(prefix)}
