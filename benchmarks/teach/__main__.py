"""Do students become good, by the platform's defaults? Judged from outside, on corpora of `benchmarks.teach.corpora`.

``python -m benchmarks.teach [--only PART ...] [--seeds 1] [--folder results/teach]``. Parts:

- ``start``: tf_efficientnet_lite0 begins with its own weights and is taught by itself and tf_efficientnet_lite2, by the
  spec's defaults, at the quickstart's length: does it keep its kNN (``start_as_teacher_*``), and does its backbone
  learn from the second teacher: is its head nearer to it than one on a frozen backbone
  (``second_teacher_fidelity_gain``, the lower bound)? ``start_long``: the same, and at ten times the length.
- ``fit``: the same student at the quickstart's length, with random heads: which share of the steps do fitted ones save
  until they are as near to the second teacher (``head_fit_steps_saved``)?
- ``scratch``: mobilenetv3_small from random weights is taught by tf_efficientnet_lite0 for less than five minutes: how
  far is its kNN above that of untrained ones (``scratch_gain``)?
- ``half``: tf_efficientnet_lite0, cut to half of its multiply-accumulates by ``radioplat prune``, is taught by what it
  was, for less than ten minutes: kNN over that of the pruned student (``gain_over_start_lower_bound``), and as a share
  of its teacher's (``pruned_half_kept``).
- ``lightly``, ``loop``: mobilenetv3_small from random weights, taught by tf_efficientnet_lite0 on the same crops by us,
  by LightlyTrain (``vs_lightly_equal_images_lower_bound``, ``vs_lightly_equal_time_lower_bound``) and by a loop written
  by hand (``vs_loop_equal_images_lower_bound``).
- ``repeated``: images a second in a pass whose views the teacher has seen, over those of a loop without teacher
  (``repeated_pass_ratio``).
- ``sequence``: kNN and nearness to the teacher of a radio1d_vit_* of which so many tokens are kept.

Weights and ONNX files are read by `benchmarks/judges/embed.py` and judged by `benchmarks/judges/knn.py`, which import
nothing of radioplat. What ``--folder`` has is not run again, and what was interrupted goes on. The last line on stdout
is one JSON object: for each comparison the differences with their 95 % intervals, paired over queries and seeds.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.teach import beside_lightly, beside_loop, fit, half, repeated, scratch, sequence, start
from benchmarks.teach.programs import last_line
from radioplat.common import terminal

FOLDER = Path("results/teach")
PARTS: dict[str, Callable[[Path, list[int]], dict[str, Any]]] = {
    "start": start.run,
    "start_long": start.run_long,
    "fit": fit.run,
    "scratch": scratch.run,
    "half": half.run,
    "lightly": beside_lightly.run,
    "loop": beside_loop.run,
    "repeated": repeated.run,
    "sequence": sequence.run,
}


def main() -> None:
    """Run the parts and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    terminal.note("corpora")
    last_line("benchmarks.teach.corpora", "--folder", given.folder / "corpora")
    found: dict[str, Any] = {"seeds": given.seeds}
    for part in given.only:
        terminal.note(f"part {part}")
        found |= PARTS[part](given.folder.absolute(), given.seeds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
