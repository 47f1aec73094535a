"""Speed of a distillation on GPUs, rung by rung beside a loop written by hand, with random weights.

    python -m benchmarks.gpu [--gpus N] [--student vit_large] [--teachers clip_h,dinov2_g] [--seconds 300] [--out FILE]

Needs torch and timm; a rung that needs more says so where it is missing. On a machine without a GPU it runs a tiny
ladder, to test its code: those figures say nothing of a GPU. docs/measurements/gpu.md explains the figures. The last
line on stdout is one JSON object; ``--out`` also writes it to a file after each rung, so a killed run is not lost.

Exit status: 0; 1 if the MFU of the rung ``inline``, or of ``ddp`` where that was not measured, is below
``--mfu-floor``, or neither was measured while there is a floor.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.ladder import NAMES, ON_RAY, climb
from benchmarks.gpu.setting import MODELS, Setting, model_of

LADDER = ("student", "losses", "ddp", "zero2", "copies", "inline", "store", "nixl", "decoding")  # rungs with a rate
JUDGED = ("inline", "ddp")  # the first that has a figure: with teachers, or on a bare image the student alone
MFU_FLOOR = 0.5  # on a GPU, unless another is given
LIMIT_S = 580.0  # under ten minutes; a busy machine needs more
CPU_SECONDS, CPU_MOST, GPU_MOST = 30.0, 8, 256


def main() -> int:
    """Measure, print, and return the exit status."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the ranks end, too
    gpu = _has_gpu() and not given.cpu
    floor = given.mfu_floor if given.mfu_floor is not None else (MFU_FLOOR if gpu else 0.0)
    names = given.only and ["device", "batch", *given.only] or [name for name in NAMES if gpu or name not in ON_RAY]
    begin = time.monotonic()
    found: dict[str, Any] = {
        "benchmark": "gpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "given": {key: value for key, value in vars(given).items() if key != "out"},
    }
    with tempfile.TemporaryDirectory(prefix="gpu") as scratch:
        setting = _setting(given, gpu, scratch)
        found["setting"] = {k: v for k, v in dataclasses.asdict(setting).items() if k not in ("scratch", "gflop")}

        def write(results: dict[str, Any]) -> None:
            """Write the results so far."""
            found["rungs"] = _with_left_out(results, names)
            if given.out:
                aside = given.out.with_suffix(f"{given.out.suffix}.part")
                aside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                aside.replace(given.out)

        write(climb(setting, [name for name in NAMES if name in names], given.limit, write))
    found["wall_s"] = round(time.monotonic() - begin, 1)
    found["judged"] = judge(found["rungs"], floor)
    write(found["rungs"])
    show(found)
    print(json.dumps(found))
    return 0 if found["judged"]["passed"] else 1


def judge(rungs: dict[str, Any], floor: float) -> dict[str, Any]:
    """Return whether the MFU of the first rung of :data:`JUDGED` that has one reaches ``floor``; 0 is no floor."""
    values = {name: rungs.get(name, {}).get("ours", {}).get("mfu") for name in JUDGED}
    name = next((name for name in JUDGED if values[name] is not None), JUDGED[-1])
    value = values[name]
    return {"rung": name, "mfu": value, "floor": floor, "passed": not floor or (value is not None and value >= floor)}


def show(found: dict[str, Any]) -> None:
    """Print a table of the ladder on stderr."""
    print(f"{'rung':10} {'images/s':>9} {'by hand':>9} {'ratio':>6} {'MFU':>6}", file=sys.stderr)
    for name in LADDER:
        rung = found["rungs"].get(name, {})
        ours = rung.get("ours")
        if ours is None:
            print(f"{name:10} {rung.get('unmeasured') or rung.get('error') or 'not asked for'}", file=sys.stderr)
            continue
        hand, ratio, mfu = rung.get("by_hand", {}), rung.get("ratio", {}), ours["mfu"]
        shown = f"{name:10} {ours['images_per_s']:9.1f} {hand.get('images_per_s', float('nan')):9.1f}"
        print(
            f"{shown} {ratio.get('median', float('nan')):6.2f} {'-' if mfu is None else f'{mfu:.1%}':>6}",
            file=sys.stderr,
        )


def _with_left_out(results: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return an entry for each rung, in order; of those that were not asked for with the reason."""
    left_out = {}
    for name in NAMES:
        if name not in names and name not in results:
            ray = "it starts a Ray cluster; ask for it by --only" if name in ON_RAY else "not asked for"
            left_out[name] = {"unmeasured": ray}
    every = results | left_out
    return {name: every[name] for name in NAMES if name in every}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, help="ranks of one machine; on a CPU processes")
    parser.add_argument("--student", help=f"{', '.join(MODELS)}, or any of timm's; default: vit_large, tiny on a CPU")
    parser.add_argument("--teachers", help="separated by commas; default: clip_h,dinov2_g")
    parser.add_argument("--seconds", type=float, help="to measure, divided among the rungs; default: 300, 30 on a CPU")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds of the whole command; default: %(default)s"
    )
    parser.add_argument("--batch", type=int, default=0, help="images of a micro-batch; default: searched")
    parser.add_argument("--micro-batches", type=int, default=2, help="of a step and a rank")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="rungs; device and batch always run")
    parser.add_argument("--engine", choices=("ddp", "zero2"), default="ddp", help="of the rungs from copies on")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--mfu-floor", type=float, help=f"default: {MFU_FLOOR} on a GPU, none on a CPU; 0: none")
    parser.add_argument("--out", type=Path, help="file for the JSON, written after each rung")
    given = parser.parse_args()
    if given.gpus < 1 or given.micro_batches < 1 or given.batch < 0:
        parser.error("--gpus and --micro-batches begin at 1, --batch at 0")
    if given.seconds is not None and given.seconds <= 0:
        parser.error("--seconds is above 0")
    return given


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _setting(given: argparse.Namespace, gpu: bool, scratch: str) -> Setting:
    teachers = given.teachers or ("clip_h,dinov2_g" if gpu else "tiny_a,tiny_b")
    why = "--eager" if given.eager else _no_compiler(gpu)
    return Setting(
        device="cuda" if gpu else "cpu",
        gpus=given.gpus,
        student=model_of(given.student or ("vit_large" if gpu else "tiny")),
        teachers=tuple(model_of(name) for name in teachers.split(",")),
        seconds=given.seconds or (300.0 if gpu else CPU_SECONDS),
        micro_batches=given.micro_batches,
        batch=given.batch,
        most=GPU_MOST if gpu else CPU_MOST,
        precision="bf16" if gpu else "fp32",
        compiles=not why,
        why_eager=why,
        engine=given.engine,
        scratch=scratch,
    )


def _no_compiler(gpu: bool) -> str:
    """Return why nothing is compiled; empty if something can be."""
    if gpu:
        return "" if importlib.util.find_spec("triton") else "triton is not installed"
    return "" if shutil.which("g++") or shutil.which("clang++") else "there is no C++ compiler"


if __name__ == "__main__":
    sys.exit(main())
