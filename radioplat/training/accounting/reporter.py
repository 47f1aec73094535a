"""Write the figures of each step to status.json, W&B and TensorBoard, on rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from radioplat.common import terminal
from radioplat.design.run import Run
from radioplat.spec.schema.train import Tracker
from radioplat.tracking.report.curves import curves_from_status, draw_curves, group_curves
from radioplat.tracking.status import StatusLog
from radioplat.tracking.teacher_cost import TeacherCosts
from radioplat.tracking.tensorboard import EventFiles
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.session import WandbRun
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class Reporter(StepHook):
    """Write each step's figures to ``status.json``, W&B and TensorBoard on rank 0; do nothing on other ranks.

    Args:
        begins_at: number of completed steps; TensorBoard discards events that an earlier start wrote for later steps.
    """

    name = "reporter"

    def __init__(self, run: Run, rank: int, begins_at: int = 0) -> None:
        self._run, self._active = run, rank == 0
        self._mean_seconds = 0.0
        self._still = 0  # steps in a row that changed no weight
        self._checkpoint: tuple[Path, int] | None = None
        if self._active:
            self._status = StatusLog(run.folder / "status.json")
            config = replace(run.spec.wandb, enable=run.spec.tracked_by(Tracker.wandb))
            self._wandb = WandbRun(config, run.folder, asdict(run.spec), job_type=run.task)
            self._events = EventFiles(run.folder, run.spec.tracked_by(Tracker.tensorboard), begins_at + 1)
            for path in self._made_of():
                self._wandb.used(Product(path, "checkpoint"))

    def after_step(self, record: StepRecord) -> None:
        """Write the figures of the step and of earlier hooks, and a warning if the step did not change the weights."""
        if not self._active:
            return
        run, step = self._run, record.step
        self._mean_seconds = record.period if not self._mean_seconds else 0.9 * self._mean_seconds + 0.1 * record.period
        kpi = {
            **record.values,
            "lr": record.learning_rate,
            "images_per_s": run.spec.global_batch_size / record.period,
            "seconds/step": record.period,
            "seconds/wait": record.wait,
            "seconds/wait/data": record.wait_data,
            "seconds/wait/teachers": record.wait_teachers,
            **({"seconds/wait/students": record.wait_students} if run.groups > 1 else {}),
            **{f"seconds/teacher/{name}": value for name, value in record.teacher_seconds.items()},
            **{f"cache/{name}/hits": hits / max(1, hits + misses) for name, (hits, misses) in record.cached.items()},
            **record.figures,
        }
        if record.skipped:
            self._warn_of_step(f"step {step + 1} was skipped: {record.decision.skip}")
        elif not record.moved:
            self._warn_of_step(f"step {step + 1} moved no weight: its gradients were not finite")
        else:
            self._still = 0
        if (step + 1) % run.spec.train.log_interval == 0 or step + 1 == run.total_steps:
            self._status.progress(
                epoch=step // run.steps_per_epoch,
                max_epoch=-(-run.total_steps // run.steps_per_epoch),
                step=step + 1,
                max_step=run.total_steps,
                seconds_per_step=self._mean_seconds,
                steps_per_epoch=run.steps_per_epoch,
                kpi=kpi,
            )
            self._wandb.log(step + 1, kpi)
            self._events.log(step + 1, kpi)

    def checkpoint(self, path: Path, step: int, costs: TeacherCosts) -> None:
        """Report a committed checkpoint, and write the teachers' costs so far to the task folder.

        Args:
            costs: the teachers' costs at the step of the checkpoint.
        """
        if self._active:
            self._checkpoint = path, step
            self._status.write(f"checkpoint {path.name}", step=step, checkpoint=path.name)
            if costs.teachers:
                costs.write(self._run.folder)

    def validation(self, kpi: dict[str, float], step: int, notes: Sequence[str] = ()) -> None:
        """Report the figures of a validation.

        Args:
            notes: sentences that say how the figures were measured.
        """
        if self._active:
            self._status.write("; ".join([f"validation at step {step}", *notes]), kpi=kpi, step=step)
            self._wandb.log(step, kpi)
            self._events.log(step, kpi)

    def warn(self, message: str) -> None:
        """Write a status line with verbosity WARNING."""
        if self._active:
            self._status.write(message, verbosity="WARNING")

    def _warn_of_step(self, message: str) -> None:
        """Warn of a step that changed nothing; of a row of them the 1st, 2nd, 4th, 8th, ... also on the terminal."""
        self.warn(message)
        self._still += 1
        if self._still & (self._still - 1) == 0:
            terminal.note(message)

    def note(self, message: str, warns: bool) -> None:
        """Write a status line, with verbosity WARNING if it ``warns``."""
        if self._active:
            self._status.write(message, verbosity="WARNING" if warns else "INFO")

    def close(self) -> None:
        """Close the files, and log loss curves and the last checkpoint to W&B."""
        if not self._active:
            return
        self._status.close()
        self._events.close()
        if self._run.spec.wandb.sync_tensorboard:
            self._wandb.event_files(self._events.folder)
        if self._wandb and self._checkpoint is not None:
            path, step = self._checkpoint
            charts = group_curves(curves_from_status(self._run.folder / "status.json"))
            for title, lines in charts.items():
                if title.startswith("loss"):
                    name = f"curves/{title.replace(', teacher ', '/')}"
                    self._wandb.picture(name, partial(draw_curves, title, lines), step)
            self._wandb.made(Product(path, "checkpoint", self._made_of(), [f"step-{step}"]))
        self._wandb.finish()

    def _made_of(self) -> list[Path]:
        """Return the path of the pretrained student that the spec names, in a list; [] if there is none."""
        named = self._run.spec.train.pretrained_model_path
        path = Path(named) if named else None
        return [path] if path is not None and path.exists() else []
