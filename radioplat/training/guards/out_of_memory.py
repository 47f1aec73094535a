"""Out-of-memory handling: restart the worker group, and split micro-batches into smaller pieces from then on.

The data's micro-batches, the global batch, the order and the ledger do not change: only forward and backward process
a micro-batch in ``2^halvings`` pieces (:mod:`radioplat.objectives.pieces`). The number of halvings is stored in the
task folder and used by every later start.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from radioplat.common.out_of_memory import ran_out
from radioplat.errors import OutOfMemory, TrainingError
from radioplat.spec.schema.root import Spec
from radioplat.tracking.attempts.logs import cause_of
from radioplat.tracking.results import write_atomic

FILE = "memory.json"


def halvings(task_folder: Path, spec: Spec, attempt: int) -> tuple[int, str]:
    """Return the number of halvings of this start's micro-batches, and a message for the user; rank 0 calls it.

    A number stored for another ``dataset.batch_size`` is ignored. An attempt that was killed by the out-of-memory
    killer of the host or of Ray could not store anything; if its driver recorded that cause, one halving is added. The
    message is empty for 0 halvings.
    """
    size = spec.dataset.batch_size
    try:
        known = json.loads((task_folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    count = known.get("halvings", 0) if known.get("batch_size") == size else 0
    last = attempt - 1
    if known.get("attempt", 0) != last and cause_of(task_folder, last)[0] == "oom" and 2**count < size:
        count += 1
        _write(task_folder, size, count, last)
    if not count:
        return 0, ""
    pieces = min(2**count, size)
    return count, (
        f"memory ran out before: micro-batches of {size} go through the model in {pieces} pieces; the global batch of "
        f"{spec.global_batch_size} and its samples are the same ({task_folder / FILE})"
    )


@contextlib.contextmanager
def watched(task_folder: Path, spec: Spec, count: int, attempt: int, step: int) -> Iterator[None]:
    """Run forward and backward in this block: if memory runs out, store one halving more than ``count``.

    Raises:
        OutOfMemory: on this rank only; the worker group must restart.
        TrainingError: the pieces are already single samples.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        size, reason = spec.dataset.batch_size, " ".join(str(error).split())[:300] or type(error).__name__
        if 2**count >= size:
            raise TrainingError(
                f"step {step}: memory ran out with single samples: {reason}",
                where="dataset.batch_size",
                hint="Take a smaller student, train.grad_checkpointing, a higher train.zero_stage or train.offload.",
            ) from error
        _write(task_folder, size, count + 1, attempt)
        raise OutOfMemory(
            f"step {step}: memory ran out ({reason}); from the last checkpoint on micro-batches of {size} go through "
            f"the model in {min(2 ** (count + 1), size)} pieces",
            where="dataset.batch_size",
            hint="The global batch stays. A smaller dataset.batch_size with the same global batch is quicker.",
        ) from error


def _write(task_folder: Path, size: int, count: int, attempt: int) -> None:
    """Write the number of halvings; all ranks of an attempt write the same contents."""
    write_atomic(task_folder / FILE, json.dumps({"batch_size": size, "halvings": count, "attempt": attempt}) + "\n")
