"""``radioplat replay RUN --step N``: compute one step of a run again, compare it with what was recorded, look at it."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from radioplat.errors import RadioplatError, Stopped
from radioplat.launch.driver import run_task
from radioplat.launch.run_sources import changed_sources
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.schema.root import Spec
from radioplat.tasks.replay.recorded_step import RecordedStep, recorded_step
from radioplat.tasks.replay.step_page import write_step_page
from radioplat.tasks.shared.go_on import going_on
from radioplat.tasks.shared.run_folder import going_on_line, student_folder
from radioplat.tracking.results import EXPERIMENT
from radioplat.training.accounting.examine_step import PATH, Request, remove_files
from radioplat.training.checkpoints.checkpoint import step_of
from radioplat.training.guards.out_of_memory import FILE as MEMORY

OTHER_WORLD = 1e-5  # relative difference of a step's loss that another number of workers, or of threads, may make


@dataclass(frozen=True)
class ReplayResult:
    """A step that was computed again.

    Attributes:
        step: counted from 1.
        recorded, replayed: the loss and its terms, by name; ``recorded`` is empty if the run did not write them.
        decisions: the messages, recorded and computed again, of a step that changed no weight; empty if it did.
        from_checkpoint: the checkpoint that it began from; None: the beginning of the run.
        steps: how many steps were computed.
        ids_equal, pixels_equal: shares of the samples whose id, and pixels, are those of the ledger.
        tolerance: how far a figure may be from the recorded one, relative to the loss.
        reason: why it is not 0; empty if it is.
        page: a page that shows the samples by their part of the loss, and files beside it; None without a folder.
    """

    step: int
    recorded: dict[str, float]
    replayed: dict[str, float]
    decisions: tuple[str, str]
    from_checkpoint: Path | None
    steps: int
    ids_equal: float
    pixels_equal: float
    tolerance: float = 0.0
    reason: str = ""
    page: Path | None = None

    @property
    def difference(self) -> float:
        """The largest difference of a recorded figure, relative to the recorded loss."""
        scale = max(abs(self.recorded.get("loss", 0.0)), 1e-12)
        gaps = [abs(self.replayed.get(name, np.inf) - value) / scale for name, value in self.recorded.items()]
        return float(max(gaps, default=0.0))

    @property
    def is_same(self) -> bool:
        """Whether samples, decision and figures are the recorded ones, within the tolerance."""
        decided = self.decisions[0] == self.decisions[1]
        return decided and self.ids_equal == self.pixels_equal == 1 and self.difference <= self.tolerance


def replay(
    run: str | Path,
    step: int,
    *,
    micro_batch: int | None = None,
    debug: bool = False,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> ReplayResult:
    """Compute a step of a run again, from the newest whole checkpoint before it. The run's folder is not changed.

    With ``train.reduction: exact``, or for a run of one worker, it runs in this process; else in as many processes as
    the run had, on this machine.

    Args:
        run: a results folder, or the folder of one task in it.
        step: counted from 1, as in the run's messages.
        micro_batch: look at this one of the step alone.
        debug: open Python's debugger before the forward of its first micro-batch, or of ``micro_batch``.
        out: folder for pixels, targets, each sample's part of the loss, gradient norms by layer, and a page.
        say: called with lines for the user.

    Raises:
        RadioplatError: there is no such step, its data or weights have changed, or it cannot be computed here.

    Example:
        >>> again = radioplat.replay("results/run", 412, out="step_412")
        >>> again.is_same, again.page
    """
    folder = student_folder(run)
    if line := going_on_line(folder):
        say(line)
    recorded = recorded_step(folder, step)
    count = recorded.spec.global_batch_size // recorded.spec.dataset.batch_size
    if micro_batch is not None and not 0 <= micro_batch < count:
        hint = f"Give a number from 0 to {count - 1}."
        raise RadioplatError(f"a step has no micro-batch {micro_batch}", where="--micro-batch", hint=hint)
    workers = processes_for(recorded)
    if debug and workers > 1:
        hint = "With train.reduction=exact one process computes the same step."
        raise RadioplatError(f"the step needs {workers} processes, and a debugger one", where="--debug", hint=hint)
    start = f"step {recorded.from_step} ({recorded.checkpoint.name})" if recorded.checkpoint else "the beginning"
    say(f"step {step} of {recorded.folder}: computing {step - recorded.from_step} steps from {start}")
    if len(recorded.worlds) > 1:
        say(_other_worlds(recorded, workers))
    with _scratch(out) as home:
        folder = home / "run" / recorded.folder.name
        dump = None if out is None else Path(out).absolute()
        if dump is not None:
            remove_files(dump)
        again = compute_again(recorded, folder, Request(step - 1, micro_batch, debug, str(dump or "")))
        result = _compared(recorded, again, workers)
        if dump is None:
            return result
        return replace(result, page=write_step_page(dump, recorded, result.recorded, result.replayed))


def compute_again(recorded: RecordedStep, folder: Path, request: Request | None = None) -> RecordedStep:
    """Run from the checkpoint to the step in ``folder``, which then has a checkpoint of it; return what that records.

    Args:
        folder: its name is the task's.
        request: what to look at; default: nothing.

    Raises:
        RadioplatError: the run cannot start, or ends before the step.
    """
    (request or Request(recorded.step - 1)).write(folder)
    if problems := list(changed_sources(recorded.folder, recorded.from_step)):
        raise RadioplatError(*problems)
    keep_halvings(recorded.folder, folder)
    spec = _spec_of(recorded, folder, processes_for(recorded))
    try:
        run_task(spec, folder.name, None, (), progress=False, say=lambda line: None)
    except Stopped:  # by the hook after the step; or by SIGTERM before it
        if not any((step_of(path) or 0) >= recorded.step for path in folder.glob("model_epoch_*")):
            raise
    return recorded_step(folder, recorded.step)


def keep_halvings(run: Path, folder: Path) -> None:
    """Let a run in ``folder`` split its micro-batches as ``run`` did after memory ran out."""
    with contextlib.suppress(FileNotFoundError):
        content = (run / MEMORY).read_bytes()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MEMORY).write_bytes(content)


def processes_for(recorded: RecordedStep) -> int:
    """Return how many training processes compute the step as the run did."""
    return 1 if is_exact(recorded.spec.train) else recorded.world_size


def _spec_of(recorded: RecordedStep, folder: Path, workers: int) -> Spec:
    """Return the run's spec with another folder, from its checkpoint, with nothing that comes after a step."""
    spec = recorded.spec
    hooks = json.dumps([*spec.train.hooks, PATH])
    changes = [
        *going_on(spec, recorded.checkpoint, folder.parent),
        f"train.num_gpus={workers}",
        "train.min_workers=null",
        "train.max_workers=null",
        "train.checkpoint_minutes=null",
        f"train.hooks={hooks}",
        "train.trackers=[]",
        "train.log_interval=1",
        "wandb.enable=false",
        "wandb.sync_tensorboard=false",
        f"train.validation_interval={10**9}",
        f"cluster.mode={'local' if workers == 1 else 'ray'}",
        "cluster.address=null",
    ]
    return load_spec(recorded.folder / EXPERIMENT, changes)


def _compared(recorded: RecordedStep, again: RecordedStep, workers: int) -> ReplayResult:
    known, now = _by_position(recorded), _by_position(again)
    count = max(1, len(known | now))
    ids = sum(position in now and now[position][0] == known[position][0] for position in known) / count
    pixels = sum(now.get(position) == value for position, value in known.items()) / count
    tolerance, reason = 0.0, ""
    exact = is_exact(recorded.spec.train)
    if not exact and max(recorded.worlds) > 1:
        tolerance = OTHER_WORLD * (recorded.step - recorded.from_step)
        reason = f"{workers} processes add up gradients in an order that may differ each time (train.reduction: fast)"
        if len(recorded.worlds) > 1:
            reason = f"steps before it ran on {_listed(recorded.worlds[:-1])} workers, which add up gradients otherwise"
    return ReplayResult(
        step=recorded.step,
        recorded=recorded.figures,
        replayed=again.figures,
        decisions=(recorded.decision, again.decision),
        from_checkpoint=recorded.checkpoint,
        steps=recorded.step - recorded.from_step,
        ids_equal=ids,
        pixels_equal=pixels,
        tolerance=tolerance,
        reason=reason,
    )


def _other_worlds(recorded: RecordedStep, workers: int) -> str:
    """Return a line for a step of an elastic run that had other workers since the checkpoint."""
    line = f"since then the run had {_listed(recorded.worlds)} workers"
    if is_exact(recorded.spec.train):
        return f"{line}; one process computes the same sums (train.reduction: exact)"
    return f"{line}; all steps are computed by {workers}, as the last one was"


def _listed(worlds: tuple[int, ...]) -> str:
    return ", then ".join(map(str, worlds))


def _by_position(step: RecordedStep) -> dict[int, tuple[int, int]]:
    """Return id and checksum of each sample."""
    rows = zip(step.positions.tolist(), step.ids.tolist(), step.checksums.tolist(), strict=True)
    return {position: (sample, checksum) for position, sample, checksum in rows}


@contextlib.contextmanager
def _scratch(out: str | Path | None) -> Iterator[Path]:
    """Give a folder that is removed; beside ``out``, if that is given, since checkpoints may be large."""
    above = None
    if out is not None:
        above = Path(out).absolute().parent
        above.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".replay-", dir=above) as home:
        yield Path(home)
