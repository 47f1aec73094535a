"""The speed of engines as OpenVINO's own ``benchmark_app`` measures it. Imports nothing of radioplat.

``python -m benchmarks.judges.engines FOLDER [--rounds 5] [--seconds 2]``. ``FOLDER`` has a folder for each family with
``fp32.engine``, ``fp16.engine`` and ``int8.engine``, files of the backend ``openvino``: the length of the XML (8 bytes,
little endian), the XML, the weights. Beside ``int8.engine`` lies its record, ``int8.engine.json``. ``benchmark_app``
runs them in turn with one request, one image, and the precision hint of the name (int8: that of the record's ``rest``,
in which the engine computes what is not quantized), with as many threads as the record's ``latency`` had, or
``--threads``; the median over the rounds of its median counts. ``branches.onnx``,
where a family has it, is the same network without fused branches.

``images.npy``, uint8 ``[N, 3, H, W]``, of the folder or of a family: the cosine of the features of ``int8.engine`` with
those of ``fp32.engine``, mean over images, least over outputs. They are computed with a batch fixed at one: OpenVINO
2026.4 gives zeros for some INT8 files with a dynamic batch. Features of zeros or NaN end the judge.

The last line on stdout is one JSON object: by family ``fp32``, ``fp16``, ``bf16`` (where the CPU has them), ``int8``
and ``branches`` in milliseconds, ``ours`` (of ``int8.engine`` by ``radioplat profile``, run in the same rounds, just
before ``int8``), ``float_over_int8`` (the fastest float of a round over ``int8``, median over the rounds),
``ours_over_theirs`` (median over the rounds of ``ours`` over ``int8``), the least and largest of both over the rounds
(``float_over_int8_range``, ``ours_over_theirs_range``), ``rounds``, ``rest`` (the float type of the record's ``rest``),
``threads``, ``cosine``.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino

HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
CAPABILITIES = {"fp16": "FP16", "bf16": "BF16"}


def main() -> None:
    """Measure every family and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--threads", type=int, help="default: those of each record")
    given = parser.parse_args()
    families = sorted(path.parent for path in given.folder.glob("*/int8.engine"))
    found = {}
    for family in families:
        found[family.name] = judged(family, given.rounds, given.seconds, given.threads)
        print(f"{family.name}: {found[family.name]}", file=sys.stderr, flush=True)
    print(json.dumps(found))


def judged(family: Path, rounds: int, seconds: int, given_threads: int | None) -> dict[str, Any]:
    """Measure one family."""
    record = json.loads((family / "int8.engine.json").read_text())
    threads = given_threads or threads_of(record)
    rest = record["rest"]["precision"]
    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    sides: dict[str, tuple[Path, str]] = {"int8": (unpacked(family / "int8.engine"), HINTS[rest])}
    for name, hint in HINTS.items():
        if name == "fp32" or CAPABILITIES[name] in able:
            sides[name] = (unpacked(family / "fp32.engine"), hint)
    if (family / "branches.onnx").is_file():
        sides["branches"] = (family / "branches.onnx", "f32")
    shape = [1, *record["input_shape"]]
    times: dict[str, list[float]] = {name: [] for name in (*sides, "ours")}
    for _ in range(rounds):
        times["ours"].append(profiled(family / "int8.engine"))
        for name, (model, hint) in sides.items():
            times[name].append(median_of(model, hint, shape, seconds, threads))
    row: dict[str, Any] = {name: statistics.median(values) for name, values in times.items()}
    # They ran one after the other in each round: the machine's speed changes by more than they differ.
    floats = [min(values) for values in zip(*(times[name] for name in HINTS if name in times), strict=True)]
    for name, above in (("float_over_int8", floats), ("ours_over_theirs", times["ours"])):
        ratios = [a / b for a, b in zip(above, times["int8"], strict=True)]
        row[name] = statistics.median(ratios)
        row[f"{name}_range"] = [round(min(ratios), 3), round(max(ratios), 3)]
    images = next(path for path in (family / "images.npy", family.parent / "images.npy") if path.is_file())
    agreement = cosine(sides["int8"], sides["fp32"], np.load(images))
    return {**row, "rounds": rounds, "rest": rest, "threads": threads, "cosine": agreement}


def threads_of(record: dict[str, Any]) -> int:
    """Return the threads that the latency in an engine's record was measured with."""
    threads = record["latency"]["threads"]
    if not threads:
        raise SystemExit("the record's latency has no threads: the engine was not measured on a CPU; give --threads")
    return int(threads)


def profiled(engine: Path) -> float:
    """Return the median milliseconds of ``radioplat profile``, by its command line."""
    out = engine.with_suffix(".profile.json")
    options = ["batch_size=1", "seconds=1", f"out={out}"]
    subprocess.run([sys.executable, "-m", "radioplat.cli", "profile", str(engine), *options], check=True, stdout=-3)
    return json.loads(out.read_text())["latency"]["p50"]


def unpacked(engine: Path) -> Path:
    """Write the model of an engine as OpenVINO reads it; return the XML."""
    data = engine.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    xml = engine.with_suffix(".xml")
    xml.write_bytes(data[8 : 8 + length])
    xml.with_suffix(".bin").write_bytes(data[8 + length :])
    return xml


def median_of(model: Path, hint: str, shape: list[int], seconds: int, threads: int) -> float:
    """Return the median milliseconds of ``benchmark_app``."""
    command = [sys.executable, "-m", "openvino.tools.benchmark.main"]
    program = Path(sys.executable).with_name("benchmark_app")
    command = [str(program)] if program.is_file() else command
    size = ",".join(map(str, shape))
    options = ["-m", str(model), "-d", "CPU", "-api", "sync", "-nireq", "1", "-nthreads", str(threads), "-hint", "none"]
    options += ["-nstreams", "1", "-infer_precision", hint, "-t", str(seconds), "-shape", f"[{size}]"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    match = re.search(r"Median:\s+([\d.]+) (ms|us)", done.stdout)  # microseconds below one millisecond
    if match is None:
        raise SystemExit(f"benchmark_app failed on {model}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return float(match[1]) * (1 if match[2] == "ms" else 1e-3)


def cosine(quantized: tuple[Path, str], plain: tuple[Path, str], images: np.ndarray) -> float:
    """Return the cosine of two models' features, mean over images, least over outputs."""
    outputs = []
    for model, hint in (quantized, plain):
        compiled = of_one_image(model, hint, images.shape[1:])
        rows = [compiled([image[None].astype(np.float32) / 255]) for image in images]
        outputs.append([np.stack([np.ravel(row[i]) for row in rows]) for i in range(len(compiled.outputs))])
    means = []
    for a, b in zip(*outputs, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        norms = [np.linalg.norm(values, axis=1) for values in (a, b)]
        for (model, _), lengths in zip((quantized, plain), norms, strict=True):
            if not (lengths > 0).all():  # also where they are NaN
                raise SystemExit(f"features of {model} are zeros or not numbers: they have no cosine")
        means.append(float(np.mean((a * b).sum(1) / (norms[0] * norms[1]))))
    return round(min(means), 5)


def of_one_image(model: Path, hint: str, shape: tuple[int, ...]) -> openvino.CompiledModel:
    """Compile a model for batches of one image of ``shape``."""
    core = openvino.Core()
    read = core.read_model(str(model))
    read.reshape([1, *shape])
    return core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": hint})


if __name__ == "__main__":
    main()
