"""Does a pipeline that is killed in the middle run a finished node again?

``python -m benchmarks.pipeline [--short] [--folder DIR]``. A pipeline of five tiny distillations: experts' proxy, two
students of it side by side, and each of these once more at several sizes. Its command is killed with SIGKILL while the
two students train: first the command alone, whose nodes then save and end; the second time the command with all its
processes. The same command is given again after each kill, and once more after the end. `benchmarks.judges.pipeline`,
which imports nothing of radioplat, says from the files which nodes ran in which start. ``--short``: two nodes, one
kill of all processes.

The last line on stdout is one JSON object: ``dag_nodes_rerun_after_kill``, ``ran`` (nodes by start),
``products_unchanged`` and ``record_agrees`` (see the judge), ``folders_unchanged`` (whether every file of the nodes
that were done at a kill has the same bytes at the end), ``went_on_at`` (steps from which killed nodes went on).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.elastic_inputs import make_inputs, tiny_spec
from benchmarks.folder import kept_or_scratch
from benchmarks.teach.programs import last_line

STEPS = 80
LIMIT_S = 600.0  # of a start; only a hang reaches it
TAUGHT = "distill.teacher=[{name: proxy, mode: combo, pretrained_teacher_model_path: '${nodes.proxy.student}'}]"
SIZES = ["dataset.augmentation.multi_scales=[64,96]", "train.max_steps=20"]


def main() -> None:
    """Run, kill, run again and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="two nodes and one kill")
    parser.add_argument("--folder", type=Path, help="for what the programs leave; default: a temporary one")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "pipeline") as home:
        print(json.dumps(measured(home, given.short)))


def measured(home: Path, short: bool) -> dict[str, Any]:
    """Return all figures."""
    make_inputs(home / "inputs")
    kills = [(["student"], True)] if short else [(["vit_a", "vit_b"], False), (["vit_a_sizes", "vit_b_sizes"], True)]
    return run_with_kills(written(home, short), home / "results", kills)


def run_with_kills(dag: Path, results: Path, kills: list[tuple[list[str], bool]]) -> dict[str, Any]:
    """Run the pipeline ``dag`` to its end; return all figures.

    Args:
        results: its results folder.
        kills: for each kill, the nodes that have a checkpoint then, and whether all processes are killed.
    """
    begin, finished = time.monotonic(), dict[str, str]()
    for nodes, whole in kills:
        killed(dag, results, nodes, whole)
        finished |= content(results)
    for _ in range(2):  # the second time everything is done
        subprocess.run(command(dag), check=True, stdout=sys.stderr, timeout=LIMIT_S)
    figures = last_line("benchmarks.judges.pipeline", results)
    logs = "\n".join(path.read_text(errors="replace") for path in results.glob("*/output.log"))
    return {
        **figures,
        "folders_unchanged": all(hash_of(Path(path)) == value for path, value in finished.items()) and bool(finished),
        "went_on_at": [int(step) for step in re.findall(r"goes on from \S+ at step (\d+) of", logs)],
        "kills": len(kills),
        "seconds": round(time.monotonic() - begin),
    }


def written(home: Path, short: bool) -> Path:
    """Write the pipeline and its spec; return the path of the pipeline."""
    spec = tiny_spec(home / "inputs", home, STEPS, (1, 1), num_gpus=1)
    for name in ("results_dir", "teachers"):
        del spec[name]
    for name in ("min_workers", "max_workers"):
        del spec["train"][name]
    spec["train"]["checkpoint_interval"] = 4
    spec["cluster"] = {"mode": "local"}
    students = ["student"] if short else ["vit_a", "vit_b"]
    nodes: dict[str, Any] = {"proxy": {"changes": ["train.max_steps=20"]}}
    nodes |= {name: {"changes": [TAUGHT, f"train.seed={i}"]} for i, name in enumerate(students)}
    for name in () if short else students:
        start = f"train.pretrained_model_path=${{nodes.{name}.student}}"
        nodes[f"{name}_sizes"] = {"changes": [TAUGHT, start, *SIZES]}
    tree = {"results_dir": str(home / "results"), "concurrent": 2, "spec": "spec.yaml", "nodes": nodes}
    (home / "spec.yaml").write_text(yaml.safe_dump(spec))
    (home / "dag.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return home / "dag.yaml"


def command(dag: Path) -> list[str]:
    """The command of the pipeline."""
    return [sys.executable, "-m", "radioplat.cli", "pipeline", "-e", str(dag)]


def killed(dag: Path, results: Path, nodes: list[str], whole: bool) -> None:
    """Start the command, and kill it once each of ``nodes`` has a checkpoint; ``whole``: with all its processes."""
    with subprocess.Popen(command(dag), stdout=sys.stderr, env=os.environ) as process:
        end = time.monotonic() + LIMIT_S
        while not all(list(results.glob(f"{name}/distill/model_epoch_*")) for name in nodes):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"no checkpoint of {', '.join(nodes)}: the command ended with {process.poll()}")
            time.sleep(0.02)
        members = psutil.Process(process.pid).children(recursive=True) if whole else []
        for member in (process, *members):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)


def content(results: Path) -> dict[str, str]:
    """The hash of each file of the nodes that are done, by path."""
    record = json.loads((results / "pipeline.json").read_text())
    done = [node["name"] for node in record["nodes"] if node["state"] == "done"]
    files = [path for name in done for path in sorted((results / name).rglob("*")) if path.is_file()]
    # The checks of a start may touch the index; a lease is of the moment.
    return {str(path): hash_of(path) for path in files if "index" not in path.parts and path.name != "lease.json"}


def hash_of(path: Path) -> str:
    """The hash of a file; empty if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


if __name__ == "__main__":
    main()
