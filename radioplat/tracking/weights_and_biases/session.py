"""One Weights & Biases run for a task; its failures never affect the training."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from radioplat.common.redact import redact, redact_tree
from radioplat.spec.schema.wandb import WandbConfig
from radioplat.tracking.results import write_atomic
from radioplat.tracking.weights_and_biases.artifacts import Product, log_product, use_product

# Every metric is plotted against this one. wandb's own step must never go back, and a run that resumes from an
# earlier checkpoint does go back.
STEP = "global_step"
ID_FILE = "wandb_run_id"
_INIT_TIMEOUT = 30.0  # seconds until a server counts as out of reach
_EXIT_S = 2.0  # for W&B's service at the end of the process, if the server does not answer
_WAITING = 10_000  # lines in the queue for W&B; further ones are lost


class WandbRun:
    """Log to W&B if ``config.enable`` is set; do nothing otherwise.

    A thread communicates with W&B, so that a slow or unreachable server never blocks the caller: lines wait in a queue,
    and at the end :meth:`finish` waits at most ``config.finish_s``.

    The id of the run is stored in ``<run_dir>/wandb_run_id``: a resumed task continues the same run. Offline (by
    ``config.mode``, by ``WANDB_MODE``, or because the server could not be reached) each start writes
    ``<run_dir>/wandb/offline-run-*``, which ``wandb sync`` uploads into that run. wandb reads the key from the
    environment.

    Args:
        config: spec section ``wandb``.
        run_dir: the task's results folder.
        spec_dict: the whole spec as plain values; secrets are masked before it becomes the run's config.
        resume_id: the run to continue; default ``config.id``, the saved id, else a new one.
        fresh: start a new run even if an id is saved (the task restarted from scratch).
        job_type: the task, by which W&B groups runs.
    """

    def __init__(
        self,
        config: WandbConfig,
        run_dir: str | os.PathLike[str],
        spec_dict: Mapping[str, Any] | None = None,
        resume_id: str | None = None,
        fresh: bool = False,
        job_type: str | None = None,
    ) -> None:
        self.id: str | None = None
        self._run: Any = None
        self._dir: Path | None = None
        self._config, self._job = config, job_type
        self._warned: set[str] = set()
        self._open = bool(config.enable and _mode(config) != "disabled")
        if not self._open:
            return
        run_dir = Path(run_dir).absolute()
        id_file = run_dir / ID_FILE
        self.id = resume_id or config.id or (None if fresh else saved_id(run_dir)) or secrets.token_hex(4)
        write_atomic(id_file, self.id + "\n")
        self._queue: queue.Queue[Callable[[Any], None] | None] = queue.Queue(_WAITING)
        self._started = threading.Event()
        self._exit_code = 0
        spec = redact_tree(dict(spec_dict or {}))
        self._thread = threading.Thread(target=self._talk, args=(run_dir, spec), name="wandb", daemon=True)
        self._thread.start()

    def __bool__(self) -> bool:
        """True while a run is open."""
        return self._open

    @property
    def dir(self) -> Path | None:
        """The offline-run-* or run-* folder, after W&B has created it; None if there is none."""
        if self.id is not None:
            self._started.wait()
        return self._dir

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log numbers by name at optimizer step ``step``. Never raises or waits: a failure is reported in one line."""
        line = {**values, STEP: step}
        self._later(lambda run: run.log(line))

    def picture(self, name: str, png: bytes | Callable[[], bytes], step: int | None = None) -> None:
        """Log a PNG, or the result of a function that draws one. Never raises or waits, as :meth:`log`."""
        self._later(lambda run: _log_picture(run, name, png, step))

    def made(self, product: Product) -> None:
        """Log a checkpoint, an ONNX file or an engine as an artifact that this run created. As :meth:`log`."""
        if self._config.artifacts.value != "none":
            self._later(lambda run: log_product(run, product, self._config.artifacts.value == "upload"))

    def used(self, product: Product) -> None:
        """Log that the run used another run's artifact, for W&B's lineage graph. As :meth:`log`."""
        if self._config.artifacts.value != "none":
            self._later(lambda run: use_product(run, product, self._config.artifacts.value == "upload"))

    def event_files(self, folder: Path) -> None:
        """Store the TensorBoard event files of ``folder`` in W&B. As :meth:`log`."""
        self._later(lambda run: run.save(str(folder / "*tfevents*"), base_path=str(folder.parent), policy="end"))

    def finish(self, exit_code: int = 0) -> None:
        """Close the run; later calls do nothing. Wait at most ``config.finish_s`` for the server."""
        if not self._open:
            return
        self._open, self._exit_code = False, exit_code
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # W&B has not answered for thousands of lines; the thread ends with the process
        self._thread.join(self._config.finish_s)
        if self._thread.is_alive():
            where = self._dir or "wandb/run-*"
            self._warn(f"the server does not answer, and the run ends without it; later: wandb sync {where}")
            _exit_soon()

    def __enter__(self) -> WandbRun:
        return self

    def __exit__(self, kind: type | None, *rest: object) -> None:
        self.finish(exit_code=0 if kind is None else 1)

    def _later(self, action: Callable[[Any], None]) -> None:
        if not self._open:
            return
        try:
            self._queue.put_nowait(action)
        except queue.Full:
            self._warn("the server does not keep up; lines are lost")

    def _talk(self, run_dir: Path, spec: dict[str, Any]) -> None:
        """Run the thread: start W&B, execute queued actions in order, close the run."""
        try:
            self._start(run_dir, spec)
        finally:
            self._started.set()
        while (action := self._queue.get()) is not None:
            if self._run is None:
                continue
            try:
                action(self._run)
            except Exception as error:  # failures of the tracker must not end the training
                self._warn("logging failed and continues without the lost values", error)
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.finish(exit_code=self._exit_code)
        except Exception as error:
            self._warn("the run could not be closed", error)

    def _start(self, run_dir: Path, spec: dict[str, Any]) -> None:
        mode = _mode(self._config)
        try:
            self._run = self._init(run_dir, spec, mode, self.id)
        except Exception as error:
            if mode == "offline":
                self._warn("cannot start a run, so nothing is logged", error)
                return
            hint = f"; later: wandb sync --id {self.id} {run_dir / 'wandb'}/offline-run-*"
            self._warn(f"cannot start a run online, so this part of it is stored offline{hint}", error)
            _exit_soon()
            try:
                # wandb reserves the id of a failed start until the process ends, so this part gets another one.
                self._run = self._init(run_dir, spec, "offline", f"{self.id}-{secrets.token_hex(2)}")
            except Exception:  # already reported that W&B cannot be reached
                return
        self._dir = Path(self._run.dir).parent

    def _init(self, run_dir: Path, spec: dict[str, Any], mode: str, run_id: str | None) -> Any:
        import wandb

        with contextlib.suppress(Exception):  # wandb's metrics about itself, for which its exit would wait
            from wandb.analytics.opentelemetry import opentelemetry_proxy

            opentelemetry_proxy.disable()
        # The run's own setting does not keep artifacts quiet: wandb would print a line for each checksum.
        wandb.setup(wandb.Settings(silent=True))
        config = self._config
        # Half of the time limit of the end, so that a short run can still store its lines offline.
        timeout = min(_INIT_TIMEOUT, config.finish_s / 2)
        run = wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            name=config.name,
            job_type=self._job,
            tags=list(config.tags) or None,
            id=run_id,
            resume="allow",  # offline, too: `wandb sync` then joins the parts of one id and overwrites none
            dir=str(run_dir),
            mode=cast(Any, mode),  # wandb reports an invalid WANDB_MODE
            config=spec,
            save_code=config.save_code,
            # "create_new" does not change the runs of other tasks in this process.
            reinit="finish_previous" if config.reinit else "create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=timeout,
                login_timeout=timeout,
                finish_timeout=config.finish_s,
            ),
        )
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        return run

    def _warn(self, message: str, error: Exception | None = None) -> None:
        if message in self._warned:
            return
        self._warned.add(message)
        reason = f" ({redact(' '.join(str(error).split())) or type(error).__name__})" if error is not None else ""
        print(f"wandb: {message}{reason}", file=sys.stderr, flush=True)


@functools.cache
def _exit_soon() -> None:
    """Let the process end although W&B's service still waits for a server; everything is on disk by then.

    wandb's exit handler waits for the service without a time limit; it ignores ``finish_timeout`` there.
    """
    import psutil

    def end() -> None:
        time.sleep(_EXIT_S)
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.name().startswith("wandb-core"):
                    child.kill()

    atexit.register(lambda: threading.Thread(target=end, daemon=True).start())


def end_service(seconds: float) -> None:
    """End W&B's service process; for a process whose children are killed before its exit, which W&B would report.

    Args:
        seconds: maximum time to wait, since a server that does not answer may delay it.
    """
    import wandb

    thread = threading.Thread(target=wandb.teardown, name="wandb end", daemon=True)
    thread.start()
    thread.join(seconds)


def saved_id(folder: Path) -> str | None:
    """Read the id of the run of a task's folder; None if there is none."""
    try:
        return (folder / ID_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _log_picture(run: Any, name: str, png: bytes | Callable[[], bytes], step: int | None) -> None:
    import wandb
    from PIL import Image

    with Image.open(io.BytesIO(png if isinstance(png, bytes) else png())) as image:
        image.load()
        run.log({name: wandb.Image(image), **({} if step is None else {STEP: step})})


def _mode(config: WandbConfig) -> str:
    return config.mode or os.environ.get("WANDB_MODE") or "online"
