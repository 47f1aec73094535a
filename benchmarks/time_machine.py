"""Is a step computed again the recorded one, and do arms of a fork begin alike and see the same samples?

``python -m benchmarks.time_machine [--folder DIR]``. Three runs of 30 steps with two teachers, in fp32: of one worker,
of two with ``train.reduction: exact``, of two without. `benchmarks.judges.time_machine`, which imports nothing of
radioplat, gives ``radioplat replay`` and ``radioplat fork`` for them and compares files; both once more after a kill of
the first try in the middle.

The last line on stdout is one JSON object: ``replay_loss_difference`` (one worker; relative to the loss),
``replay_across_world_sizes`` (two workers with exact sums, computed by one process), ``replay_fast_per_step`` (two
workers without, for each step since the checkpoint), ``pixels_equal`` (least of all), ``fork_ids_equal``,
``fork_control_equal``, ``lineage_images_vs_ledger`` (images that `radioplat lineage` names and the ledger has, over
those of either, by `benchmarks.judges.lineage`), ``teacher_removed_and_added`` (an arm without a teacher goes on with
it again, by the heads in its files), ``after_kill`` (the first figures of a replay and a fork that were killed and
given again), ``runs_unchanged``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors import safe_open

from benchmarks.elastic_inputs import make_inputs, tiny_spec
from benchmarks.folder import kept_or_scratch
from benchmarks.teach.programs import last_line, radioplat

STEPS, STEP = 30, 17  # a checkpoint every tenth step
KILL_AFTER_S = 9.0  # of a command that takes longer


def main() -> None:
    """Train, replay, fork and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="for what the programs leave; default: a temporary one")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "time_machine") as home:
        print(json.dumps(measured(home.resolve())))


def measured(home: Path) -> dict[str, Any]:
    """Return all figures."""
    make_inputs(home / "inputs")
    one = trained(home, "one", 1)
    exact = trained(home, "exact", 2, reduction="exact", engine="ddp", zero_stage=0)
    fast = trained(home, "fast", 2)
    replays = {name: judged("replay", run, home / f"again_{name}") for name, run in runs(one, exact, fast).items()}
    arms = ["--arm", "train.optim.lr=0.01", "--arm", "without=second"]
    fork = judged("fork", one, home / "fork", *arms)
    again = judged("replay", one, home / "again_killed", "--kill", KILL_AFTER_S)
    fork_again = judged("fork", one, home / "fork_killed", "--kill", 2 * KILL_AFTER_S, *arms)
    traced = lineage(one, home / "lineage")
    everything = [*replays.values(), again, fork, fork_again]
    for name, row in {**replays, "killed": again, "fork": fork, "fork killed": fork_again}.items():
        print(f"{name}: {row}", file=sys.stderr, flush=True)
    return {
        "replay_loss_difference": replays["one"]["difference"],
        "replay_across_world_sizes": replays["exact"]["difference"],
        "replay_fast_per_step": replays["fast"]["difference"] / (STEP % 10),
        "pixels_equal": min(row["pixels_equal"] for row in (*replays.values(), again)),
        "fork_ids_equal": min(fork["ids_equal"], fork_again["ids_equal"]),
        "fork_control_equal": min(fork["control_equal"], fork_again["control_equal"]),
        "teacher_removed_and_added": came_back(home),
        "lineage_images_vs_ledger": traced["lineage_images_vs_ledger"],
        "lineage": traced,
        "after_kill": {"replay": again["difference"], "fork_ids_equal": fork_again["ids_equal"]},
        "runs_unchanged": min(row["run_unchanged"] for row in everything),
        "exit_statuses": [row["exit_status"] for row in everything],
    }


def runs(one: Path, exact: Path, fast: Path) -> dict[str, Path]:
    """The runs by name."""
    return {"one": one, "exact": exact, "fast": fast}


def trained(home: Path, name: str, workers: int, **train: Any) -> Path:
    """Train with two teachers; return the task's folder."""
    spec = spec_of(home, home / name, workers, **train)
    radioplat("distill", home / name, spec)
    return home / name / "distill"


def spec_of(home: Path, results: Path, workers: int, **train: Any) -> dict[str, Any]:
    """A spec with two teachers; one worker is this process."""
    spec = tiny_spec(home / "inputs", results, STEPS, (workers, workers), num_gpus=workers, **train)
    first = spec["distill"]["teacher"][0]
    spec["distill"]["teacher"] = [first, {**first, "name": "second", "mode": "spatial"}]
    del spec["distill"]["teacher"][1]["summary_loss_type"]
    spec["teachers"]["second"] = spec["teachers"]["vit"]
    if workers == 1:
        spec["cluster"] = {"mode": "local"}
        del spec["train"]["min_workers"], spec["train"]["max_workers"]
    return spec


def judged(what: str, run: Path, out: Path, *options: object) -> dict[str, float]:
    """Have the judge give a command for step :data:`STEP` and look at what it leaves."""
    return last_line("benchmarks.judges.time_machine", what, run, STEP, out, *options)


def lineage(run: Path, out: Path) -> dict[str, float]:
    """Trace the run's last checkpoint to its images; return what the judge says of them."""
    command = ["-m", "radioplat.cli", "lineage", str(run / "model_latest"), "--out", str(out)]
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    return last_line("benchmarks.judges.lineage", out)


def came_back(home: Path) -> bool:
    """Go on with an arm that has lost its second teacher with both again; return whether its files say so."""
    arm = home / "fork" / "without=second"
    before = heads(arm / "distill")
    spec = spec_of(home, arm, 1, allow_teacher_change=True, num_epochs=2)
    radioplat("distill", arm, spec)
    return (before, heads(arm / "distill")) == ({"vit"}, {"vit", "second"})


def heads(run: Path) -> set[str]:
    """The teachers that the newest checkpoint has a head for, by the names of its tensors."""
    with safe_open(run / "model_latest" / "heads.safetensors", "np") as file:
        return {name.split(".")[1] for name in file.keys()}  # noqa: SIM118 - it is no mapping


if __name__ == "__main__":
    main()
