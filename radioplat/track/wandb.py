"""One Weights & Biases run beside a task; training goes on whatever becomes of it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radioplat.spec.wandb import WandbConfig
from radioplat.track.redact import redact, redact_tree
from radioplat.track.results import write_atomic

# Every metric is plotted against this one. wandb's own step must never go back, and a run that resumes from an
# earlier checkpoint does go back.
STEP = "global_step"
_INIT_TIMEOUT = 30.0  # seconds until a server counts as out of reach


class WandbRun:
    """Logs to W&B where ``config.enable`` says so, and does nothing otherwise.

    The id of the run is kept in ``<run_dir>/wandb_run_id``: a resumed task goes on with the same run. Offline (by
    ``config.mode``, by ``WANDB_MODE``, or because the server could not be reached) each start writes
    ``<run_dir>/wandb/offline-run-*``, which ``wandb sync`` uploads into that one run. The key is read by wandb
    from the environment and never passes through here.

    Args:
        config: spec section ``wandb``.
        run_dir: the task's results folder.
        spec_dict: the whole spec as plain values; secrets are masked before it becomes the run's config.
        resume_id: the run to go on with; default the saved id, else a new one.
        fresh: begin a new run although an id is saved (the task restarted from nothing).
    """

    def __init__(
        self,
        config: WandbConfig,
        run_dir: str | os.PathLike,
        spec_dict: Mapping[str, Any] | None = None,
        resume_id: str | None = None,
        fresh: bool = False,
    ) -> None:
        self.id: str | None = None
        self.dir: Path | None = None  # the offline-run-* or run-* folder
        self._run: Any = None
        self._warned = False
        if not config.enable or _mode(config) == "disabled":
            return
        run_dir = Path(run_dir).absolute()
        id_file = run_dir / "wandb_run_id"
        self.id = resume_id or (None if fresh else _saved_id(id_file)) or secrets.token_hex(4)
        write_atomic(id_file, self.id + "\n")
        self._start(config, run_dir, redact_tree(dict(spec_dict or {})))

    def __bool__(self) -> bool:
        """True while a run is open."""
        return self._run is not None

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log numbers by name at optimizer step ``step``. Never raises: the first failure is told in one line."""
        if self._run is None:
            return
        try:
            self._run.log({**values, STEP: step})
        except Exception as error:  # a tracker must not stop the training it tracks
            self._warn("logging failed and goes on without the lost values", error)

    def picture(self, name: str, path: str | os.PathLike) -> None:
        """Log the PNG at ``path``. Never raises, as :meth:`log`."""
        if self._run is None:
            return
        try:
            import wandb

            self._run.log({name: wandb.Image(str(path))})
        except Exception as error:
            self._warn("logging failed and goes on without the lost values", error)

    def finish(self, exit_code: int = 0) -> None:
        """Close the run; later calls do nothing."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.finish(exit_code=exit_code)
        except Exception as error:
            self._warn("the run could not be closed", error)

    def __enter__(self) -> WandbRun:
        return self

    def __exit__(self, kind: type | None, *rest: object) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    def _start(self, config: WandbConfig, run_dir: Path, spec: dict) -> None:
        mode = _mode(config)
        try:
            self._run = self._init(config, run_dir, spec, mode, self.id)
        except Exception as error:
            if mode == "offline":
                self._warn("cannot start a run, so nothing is logged", error)
                return
            hint = f"; later: wandb sync --id {self.id} {run_dir / 'wandb'}/offline-run-*"
            self._warn(f"cannot start a run online, so this part of it is kept offline{hint}", error)
            try:
                # wandb holds the id of a start that failed until the process ends, so this part has one of its own.
                self._run = self._init(config, run_dir, spec, "offline", f"{self.id}-{secrets.token_hex(2)}")
            except Exception:  # told already that W&B is not to be had
                return
        self.dir = Path(self._run.dir).parent

    @staticmethod
    def _init(config: WandbConfig, run_dir: Path, spec: dict, mode: str, run_id: str | None) -> Any:
        import wandb

        run = wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            name=config.name,
            tags=list(config.tags) or None,
            id=run_id,
            # Offline fragments of one id are joined by `wandb sync`; wandb warns if asked to resume offline.
            resume=None if mode == "offline" else "allow",
            dir=str(run_dir),
            mode=mode,
            config=spec,
            save_code=config.save_code,
            sync_tensorboard=config.sync_tensorboard or None,
            # "create_new" leaves the runs of other tasks in this process alone.
            reinit="finish_previous" if config.reinit or config.sync_tensorboard else "create_new",
            settings=wandb.Settings(silent=True, console="off", init_timeout=_INIT_TIMEOUT, login_timeout=30.0),
        )
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        return run

    def _warn(self, what: str, error: Exception) -> None:
        if not self._warned:
            reason = redact(" ".join(str(error).split())) or type(error).__name__
            print(f"wandb: {what} ({reason})", file=sys.stderr, flush=True)
        self._warned = True


def _mode(config: WandbConfig) -> str:
    return config.mode or os.environ.get("WANDB_MODE") or "online"


def _saved_id(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
