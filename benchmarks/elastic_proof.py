"""The proof that losing workers and nodes changes nothing: a quiet run against one that is beaten.

``python -m benchmarks.elastic_proof --out docs/measurements/elastic.png [--steps 300] [--seed 0]``. The quiet run is
one process without Ray. The beaten one has one to three workers on as many raylets of this machine, of which it loses
workers (-9), raylets (-9) and nodes with notice, and to which nodes are added, all at random steps. Then every step's
sample ids, every step's loss, every final tensor and the ledger are compared. A few minutes on two cores.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import radioplat
from benchmarks.elastic_inputs import losses_of, make_inputs, tiny_spec
from benchmarks.ledger_rows import effective, read_consumed
from clusters.local import LocalCluster
from radioplat.tracking.attempts.attempts import AttemptEvent, Attempts
from radioplat.tracking.follow import CheckpointEvent, StepEvent
from radioplat.training.accounting.prove import prove_run

WORKERS = (1, 3)
NOTICE_S = 15.0
COLOURS = {"worker": "tab:red", "node": "tab:purple", "drain": "tab:orange", "add": "tab:green"}


@dataclass(frozen=True)
class Blow:
    """Something that was done to the cluster.

    Attributes:
        step: the newest that was done when it fell.
        what: ``worker`` or ``node`` killed, ``drain``, ``add``.
        time: seconds since the epoch.
    """

    step: int
    what: str
    time: float


class Beating:
    """A callback that deals blows.

    Args:
        schedule: what to do, by step; each falls when the run first gets there.
    """

    def __init__(self, cluster: LocalCluster, schedule: dict[int, str]) -> None:
        self._cluster, self._schedule = cluster, dict(schedule)
        self.blows: list[Blow] = []

    def __call__(self, event: StepEvent | CheckpointEvent) -> None:
        due = [step for step in self._schedule if step <= event.step]
        if isinstance(event, StepEvent) and due:
            what = self._schedule.pop(due[0])
            now = time.time()
            self._deal(what)
            self.blows.append(Blow(event.step, what, now))
            print(f"step {event.step}: {what}", file=sys.stderr, flush=True)

    def _deal(self, what: str) -> None:
        cluster = self._cluster
        if what == "add":
            cluster.add()
        else:
            # The newest node that has a worker.
            number = next(n for n in sorted(cluster.nodes, reverse=True) if cluster.workers(n))
            if what == "worker":
                cluster.kill_worker(number)
            elif what == "node":
                cluster.kill(number)
            else:
                cluster.drain(number, NOTICE_S)


def random_schedule(steps: int, seed: int) -> dict[int, str]:
    """Blows at random steps, such that between one and three nodes are left; it begins with one node.

    The first third of the run has one of each kind, and then chance decides.
    """
    chance, nodes, schedule, step = random.Random(seed), 1, {}, 0
    first = ["add", "worker", "add", "node", "drain"]
    while (step := step + chance.randint(max(1, steps // 12), max(2, steps // 8))) < 0.95 * steps:
        kinds = ["worker"] + ["node", "drain"] * (nodes > WORKERS[0]) + ["add"] * 2 * (nodes < WORKERS[1])
        what = first.pop(0) if first else chance.choice(kinds)
        nodes += {"add": 1, "worker": 0}.get(what, -1)
        schedule[step] = what
    return schedule


def beaten_run(inputs: Path, results: Path, steps: int, schedule: dict[int, str], **train: Any) -> tuple[Path, list]:
    """Run on a cluster of its own; returns the task folder and the blows."""
    import ray

    with LocalCluster(nodes=1) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        beating = Beating(cluster, schedule)
        spec = tiny_spec(inputs, results, steps, WORKERS, **train)
        spec["cluster"]["address"] = cluster.address
        result = radioplat.distill(spec, callbacks=[beating], say=lambda line: print(line, file=sys.stderr))
    return result.folder, beating.blows


def quiet_run(inputs: Path, results: Path, steps: int, **train: Any) -> Path:
    """The same in one process; returns the task folder."""
    spec = tiny_spec(inputs, results, steps, (1, 1), **train)
    spec["cluster"]["mode"] = "local"
    return radioplat.distill(spec, say=lambda line: None).folder


def compare(quiet: Path, beaten: Path) -> dict[str, Any]:
    """What differs between two task folders.

    Returns:
        ``same_ids``; the largest relative differences ``loss`` (over steps), ``first_loss`` and ``weights`` (L2, over
        tensors, with ``worst`` the name); ``ledger`` (nothing missing or repeated), ``replayed`` samples.
    """
    ours, theirs = losses_of(beaten), losses_of(quiet)
    assert ours.keys() == theirs.keys(), "both must have every step"
    apart = {step: abs(ours[step] - theirs[step]) / abs(theirs[step]) for step in theirs}
    first, second = _tensors(quiet), _tensors(beaten)
    assert first.keys() == second.keys()
    distance = {name: _relative(second[name], first[name]) for name in first}
    proof = prove_run(beaten)
    return {
        "same_ids": _ids(quiet) == _ids(beaten),
        "first_loss": apart[min(apart)],
        "loss": max(apart.values()),
        "weights": max(distance.values()),
        "worst": max(distance, key=distance.__getitem__),
        "ledger": proof.holds,
        "seen": proof.consumed,
        "replayed": proof.replayed,
    }


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """L2 distance over the expected L2 norm; a tensor of zeros must be met."""
    distance, norm = (found.double() - expected.double()).norm(), expected.double().norm()
    return float(distance / norm) if norm > 0 else float(distance)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Weights and buffers of the newest checkpoint of a task folder, without the biases of attention's keys.

    Such a bias adds the same to all scores of a query, which softmax takes away: its gradient is rounding noise, and
    Adam makes full steps of it.
    """
    newest = (folder / "model_latest").resolve()
    found: dict[str, torch.Tensor] = {}
    for name in ("student", "heads"):
        found |= safetensors.torch.load_file(newest / f"{name}.safetensors")
    tensors = {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}
    for name in (name for name in tensors if name.endswith("attn.qkv.bias")):
        query, _, value = tensors[name].chunk(3)
        tensors[name] = torch.cat([query, value])
    return tensors


def _ids(folder: Path) -> dict[int, list[int]]:
    """Sample ids of each step in the order of their positions, over what led to the final checkpoint."""
    rows, found = effective(read_consumed(folder / "ledger")), {}
    for step, position, id_ in zip(*(rows[c].to_pylist() for c in ("step", "position", "id")), strict=True):
        found.setdefault(step, []).append((position, id_))
    return {step: [id_ for _, id_ in sorted(pairs)] for step, pairs in sorted(found.items())}


def plot(quiet: Path, beaten: Path, blows: list[Blow], out: Path) -> None:
    """Both losses on one axis with the blows, and below them the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(9, 5), sharex=True, height_ratios=(4, 1), constrained_layout=True
    )
    theirs, ours = losses_of(quiet), losses_of(beaten)
    upper.plot(theirs.keys(), theirs.values(), color="black", linewidth=2.5, label="quiet, one process")
    upper.plot(ours.keys(), ours.values(), color="tab:cyan", linewidth=1, label="beaten, 1 to 3 workers")
    names = {"worker": "worker killed (-9)", "node": "raylet killed (-9)", "drain": "drained", "add": "node added"}
    for what, colour in COLOURS.items():
        for number, blow in enumerate(b for b in blows if b.what == what):
            upper.axvline(blow.step, color=colour, linestyle="--", label=None if number else names[what])
    upper.set_ylabel("loss")
    upper.legend()
    steps, sizes = sizes_by_step(Attempts(beaten).read(), max(ours))
    lower.step(steps, sizes, where="post", color="tab:cyan")
    lower.set_ylim(0, WORKERS[1] + 0.5)
    lower.set_ylabel("workers")
    lower.set_xlabel("optimizer step")
    figure.savefig(out, dpi=120)


def sizes_by_step(events: list[AttemptEvent], last: int) -> tuple[list[int], list[int]]:
    """From which step on there were how many workers."""
    starts = [event for event in events if event.event == "start"]
    steps, sizes = [e.from_step for e in starts], [e.world_size for e in starts]
    return [*steps, last], [*sizes, sizes[-1]]


def main() -> None:
    """Run both, compare, plot."""
    parser = argparse.ArgumentParser(description="A quiet run against a beaten one; see the head of the file.")
    parser.add_argument("--out", type=Path, default=Path("elastic.png"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep both runs here; default: a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elastic") as scratch:
        folder = given.folder or Path(scratch)
        make_inputs(folder)
        quiet = quiet_run(folder, folder / "quiet", given.steps)
        schedule = random_schedule(given.steps, given.seed)
        print(f"blows by step: {schedule}", file=sys.stderr)
        beaten, blows = beaten_run(folder, folder / "beaten", given.steps, schedule)
        found = compare(quiet, beaten)
        for event in Attempts(beaten).read():
            print(f"attempt {event.attempt}: {event.event}, {event.world_size} worker(s) from step {event.from_step} "
                  f"{event.cause} {event.detail[:80]}", file=sys.stderr)  # fmt: skip
        plot(quiet, beaten, blows, given.out)
    print(json.dumps(found | {"blows": len(blows)}))


if __name__ == "__main__":
    main()
