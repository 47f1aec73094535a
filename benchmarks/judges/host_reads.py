"""How often does a training loop wait for its device, and what does it send? Imports nothing of radioplat.

``python -m benchmarks.judges.host_reads MODULE:FUNCTION [ARGUMENT ...]`` calls the function, a command line's entry
point, with these arguments on a CPU and counts, in the thread that calls the optimizer, what would wait for a GPU:
numbers and arrays that Python reads out of tensors (``item``, ``tolist``, ``numpy``, ``cpu``, comparisons in an ``if``)
and operators whose result has a size that depends on the data (``nonzero``, boolean masks). It also counts collectives
of torch.distributed.

Steps are counted by the optimizer, micro-batches by calls of ``backward``; the first two steps and the last are left
out. A read belongs to the innermost frame of a package; ``--own`` names the package whose reads are judged (default:
the first part of MODULE). A tensor that is always on the host counts too: the list of places shows which those are.

The last line on stdout is one JSON object: for reads and collectives the number a step of the package and of others,
and the places with their numbers a step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

LEFT_OUT = 2  # first steps
_DEPENDING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero"}
_READS = ("tolist", "numpy", "cpu")
_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "reduce_scatter_tensor",
    "gather_object",
    "barrier",
    "all_to_all_single",
)
_HERE = str(Path(__file__).resolve())
_TORCH = str(Path(torch.__file__).resolve().parent)


class Counts:
    """Reads, collectives and micro-batches of each step, by thread.

    Attributes:
        steps: for each thread that called an optimizer, the counters of its finished steps.
    """

    def __init__(self) -> None:
        self.steps: dict[int, list[Counter[str]]] = {}
        self._now: dict[int, Counter[str]] = {}

    def add(self, kind: str, what: str) -> None:
        """Count one event of ``kind`` in this thread, at the innermost frame outside torch and this file."""
        frames = traceback.extract_stack(sys._getframe(1), limit=40)
        place = next((f for f in reversed(frames) if f.filename != _HERE and not f.filename.startswith(_TORCH)), None)
        where = "?" if place is None else f"{_short(place.filename)}:{place.lineno}"
        self._counter()[f"{kind} {what} {where}"] += 1

    def micro_batch(self) -> None:
        """Count a call of ``backward``."""
        self._counter()["micro_batch"] += 1

    def stepped(self) -> None:
        """End a step of this thread; an optimizer that takes one group of parameters at a time ends it repeatedly."""
        thread = threading.get_ident()
        steps, now = self.steps.setdefault(thread, []), self._now.pop(thread, Counter())
        if now["micro_batch"] or not steps:
            steps.append(now)
        else:
            steps[-1] += now

    def _counter(self) -> Counter[str]:
        return self._now.setdefault(threading.get_ident(), Counter())


class _Operators(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put_", "_index_put_impl_") and _has_mask(args)
        if name in _DEPENDING or masked:
            self._counts.add("read", name)
        return func(*args, **(kwargs or {}))


def _has_mask(arguments: tuple[Any, ...]) -> bool:
    indices = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], (list, tuple)) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def counting(entry: str, arguments: list[str]) -> Counts:
    """Call ``entry``, a MODULE:FUNCTION, with ``arguments`` as its command line; return what was counted."""
    counts = Counts()
    for name in _READS:
        setattr(torch.Tensor, name, _counted(getattr(torch.Tensor, name), counts, "read", name))
    count_collectives(counts)
    mark_steps(counts)
    with _Operators(counts):
        call(entry, arguments)
    return counts


def count_collectives(counts: Counts) -> None:
    """From now on, count the collectives of this process."""
    for name in _COLLECTIVES:
        counted = _counted(getattr(dist, name), counts, "collective", name)
        setattr(dist, name, counted)
        setattr(dist.distributed_c10d, name, counted)


def mark_steps(counts: Counts) -> None:
    """From now on, tell ``counts`` of each backward pass and of each step of an optimizer."""
    backward = torch.Tensor.backward

    def counted_backward(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        counts.micro_batch()
        return backward(*given, **named)

    torch.Tensor.backward = counted_backward  # type: ignore[method-assign]
    register_optimizer_step_post_hook(lambda *_: counts.stepped())


def call(entry: str, arguments: list[str]) -> None:
    """Call ``entry``, a MODULE:FUNCTION, with ``arguments`` as its command line; exit if it returns a status."""
    module, _, function = entry.partition(":")
    sys.argv = [module, *arguments]
    if status := getattr(importlib.import_module(module), function)():
        sys.exit(status)


def summary(counts: Counts, own: str, kinds: tuple[str, ...] = ("read", "collective")) -> dict[str, Any]:
    """Return the figures of the thread with most steps, for events of ``kinds`` at frames in package ``own``."""
    steps = max(counts.steps.values(), key=len)[LEFT_OUT:-1]
    total: Counter[str] = sum(steps, Counter())
    micro_batches = total.pop("micro_batch", 0)
    found: dict[str, Any] = {"steps": len(steps), "micro_batches_a_step": micro_batches / len(steps)}
    for kind in kinds:
        events = {what.removeprefix(f"{kind} "): n / len(steps) for what, n in total.items() if what.startswith(kind)}
        mine = {what: n for what, n in events.items() if f" {own}/" in what}
        found[f"{kind}s_a_step"] = round(sum(mine.values()), 3)
        found[f"{kind}s_a_step_of_others"] = round(sum(events.values()) - sum(mine.values()), 3)
        found[f"{kind}s_at"] = dict(sorted(mine.items(), key=lambda item: -item[1]))
        found[f"{kind}s_of_others_at"] = dict(sorted(events.items() - mine.items(), key=lambda item: -item[1])[:12])
    return found


def _counted(function: Any, counts: Counts, kind: str, what: str) -> Any:  # noqa: ANN401
    def counted(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        counts.add(kind, what)
        return function(*given, **named)

    return counted


def _short(path: str) -> str:
    parts = Path(path).parts
    start = parts.index("site-packages") + 1 if "site-packages" in parts else 0
    found = parts[start:]
    for i in range(len(found) - 1, -1, -1):
        if (
            not start
            and (Path(*found[: i + 1]) / "__init__.py").exists()
            and not (Path(*found[:i]) / "__init__.py").exists()
        ):
            return "/".join(found[i:])
    return "/".join(found)


def main() -> None:
    """Count, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--own", help="the package whose reads are judged; default: the first part of MODULE")
    parser.add_argument("entry", metavar="MODULE:FUNCTION")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    found = summary(counting(given.entry, given.arguments), given.own or given.entry.split(".")[0])
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
