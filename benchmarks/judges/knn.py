"""Judge embeddings: kNN, linear and dense probes with 95 % intervals and noise floors. Imports nothing of radioplat.

``python -m benchmarks.judges.knn A.npz [A2.npz ...] [--against B.npz [B2.npz ...]]``: the files of a side are seeds of
one student, written by ``benchmarks.judges.embed``. With ``--against``, differences A - B from a bootstrap that is
paired over queries, and over seeds where both sides have as many: give them in the same order.

- ``<task>.knn``: top-1 of 20 neighbours by cosine, each with weight ``exp(cosine / 0.07)``, as DINO's
  (`benchmarks/judges/probes.py`);
- ``<task>.linear``: ridge regression on one-hot labels, strength picked on a fifth of the bank;
- ``<task>.dense``: the same on positions of maps; mean over classes of the share of positions that are named right.

The floor beside a figure is 1.96 standard errors of the difference of two independent draws of the same side: two
figures that are nearer are not told apart without pairing. Beside a difference it is 1.96 standard errors of the paired
difference. Intervals hold for this bank and these scenes.

``--curve``: files of several checkpoints of one run, with the step in their names (``step_125``); a table over images
seen (``--images-per-step``). ONNX files are embedded first (``--corpora``, `benchmarks/judges/embed.py`), into an
``.npz`` beside them. Several files with one step are seeds.

``--answers``: also write what the probes answered for the one given file (`benchmarks/judges/answers.py`).
Such a file is judged like the embeddings themselves.

The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judges.answers import read_answers, write_answers
from benchmarks.judges.embeddings import UnfitFile, read_alike
from benchmarks.judges.probes import Hits, probes
from benchmarks.judges.resampling import DRAWS, Interval, difference, one_side, paired_floor, unpaired_floor

NOT_WORSE = -0.01  # 'not worse' is a lower bound above it
_STEP = re.compile(r"step[-_=]?0*(\d+)", re.IGNORECASE)
Side = dict[str, list[Hits]]  # figure -> answers of each file


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the files and print; 2 where a file is unfit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="A.npz", help="one for each seed")
    parser.add_argument("--against", type=Path, nargs="+", metavar="B.npz", help="the other side, one for each seed")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the bootstrap")
    parser.add_argument("--curve", action="store_true", help="files are checkpoints of one run; the name has the step")
    parser.add_argument("--images-per-step", type=int, default=1, help="of --curve: the global batch size")
    parser.add_argument(
        "--corpora", type=Path, help="of --curve with ONNX files: the folder of benchmarks.teach.corpora"
    )
    parser.add_argument("--answers", type=Path, metavar="OUT.npz", help="write the answers of the one given file")
    given = parser.parse_args(arguments)
    if given.answers and (len(given.files) > 1 or given.against or given.curve):
        parser.error("--answers takes one file")
    if given.draws < 100 or given.images_per_step < 1:
        parser.error("--draws must be at least 100, --images-per-step at least 1")
    if given.curve and given.against:
        parser.error("--curve takes one run; judge two runs' last files with --against")
    try:
        if given.curve:
            result = _curve(given.files, given.images_per_step, given.corpora, given.draws)
        else:
            result = _judge(given.files, given.against or [], given.draws)
            if given.answers:
                write_answers(given.answers, {name: hits[0] for name, hits in judged(given.files).items()})
    except UnfitFile as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


def judged(files: Sequence[Path]) -> Side:
    """Answers of each file to each probe; the files have the same tasks and labels.

    Raises:
        UnfitFile: a file cannot be judged.
    """
    found: Side = {}
    known = {path: answers for path in files if (answers := read_answers(path))}
    tasks = iter(read_alike([path for path in files if path not in known]))
    for path in files:
        answers = known.get(path) or dict(hits for task in next(tasks) for hits in probes(task))
        for name, hits in answers.items():
            found.setdefault(name, []).append(hits)
    for name, hits in found.items():
        if len(hits) < len(files) or any(not np.array_equal(each.given, hits[0].given) for each in hits):
            raise UnfitFile(f"{name}: the files hold answers to different queries")
    return found


def _judge(files: list[Path], against: list[Path], draws: int) -> dict[str, Any]:
    both = judged([*files, *against])
    sides = {"figures": {name: hits[: len(files)] for name, hits in both.items()}}
    if against:
        sides["against"] = {name: hits[len(files) :] for name, hits in both.items()}
    result: dict[str, Any] = {"files": [str(path) for path in files]}
    for key, side in sides.items():
        paths = files if key == "figures" else against
        print(f"{'A' if key == 'figures' else 'B'}: {', '.join(map(str, paths))}")
        result[key] = {name: _figure(hits, draws) for name, hits in side.items()}
        _table(
            ["figure", "value", "95 % interval", "floor", "chance", "queries"],
            [
                [name, *_shown(f, "value", f"{f['value']:.4f}"), f"{f['chance']:.4f}", str(f["queries"])]
                for name, f in result[key].items()
            ],
        )
    if against:
        paired = len(files) == len(against)
        result["paired_seeds"] = paired and len(files) > 1
        result["differences"] = {
            name: _difference(hits, sides["against"][name], draws) for name, hits in sides["figures"].items()
        }
        print(f"A - B, paired over queries{' and seeds' if result['paired_seeds'] else ''}")
        _table(
            ["figure", "A - B", "95 % interval", "floor", "verdict"],
            [
                [name, *_shown(d, "difference", f"{d['difference']:+.4f}"), _verdict(d)]
                for name, d in result["differences"].items()
            ],
        )
    return result


def _curve(files: list[Path], per_step: int, corpora: Path | None, draws: int) -> dict[str, Any]:
    by_step: dict[int, list[Path]] = {}
    for path in files:
        by_step.setdefault(_step(path), []).append(path)
    points: list[dict[str, Any]] = []
    for step, paths in sorted(by_step.items()):
        side = judged([_embedded(path, corpora) for path in paths])
        figures = {name: _figure(hits, draws) for name, hits in side.items()}
        points.append({"step": step, "images": step * per_step, "figures": figures})
    names = list(points[0]["figures"])
    if any(list(point["figures"]) != names for point in points):
        raise UnfitFile("the files of a curve must have the same tasks: embed the same corpora")
    rows = []
    for point in points:
        cells = [f"{f['value']:.4f} [{f['lower']:.4f}, {f['upper']:.4f}]" for f in point["figures"].values()]
        rows.append([str(point["images"]), *cells])
    floors = [f"{max(p['figures'][name]['noise_floor'] for p in points):.4f}" for name in names]
    _table(["images seen", *names], [*rows, ["floor", *floors]])
    return {"images_per_step": per_step, "curve": points}


def _step(path: Path) -> int:
    found = _STEP.findall(str(path))
    if not found:
        raise UnfitFile(f"{path}: a file of a curve needs its step in its name or folder, as step_125")
    return int(found[-1])


def _embedded(path: Path, corpora: Path | None) -> Path:
    """The embeddings' file of an ONNX file, written beside it unless it is there and newer; other files as they are."""
    if path.suffix != ".onnx":
        return path
    if not path.is_file():
        raise UnfitFile(f"{path}: there is no such file")
    target = path.with_suffix(".embeddings.npz")
    if not target.is_file() or target.stat().st_mtime < path.stat().st_mtime:
        if corpora is None:
            raise UnfitFile(f"{path}: to embed an ONNX file, --corpora must name one of benchmarks.teach.corpora")
        from benchmarks.judges.embed import OnnxStudent, write_embeddings  # onnxruntime, where it is needed

        write_embeddings(OnnxStudent(path), corpora, target)
    return target


def _figure(hits: list[Hits], draws: int) -> dict[str, Any]:
    interval = one_side(hits, draws)
    return {
        "value": _rounded(interval.value),
        **_bounds(interval),
        "noise_floor": _rounded(unpaired_floor(interval)),
        "chance": _rounded(hits[0].chance),
        "queries": len(hits[0].right),
        "by_file": [_rounded(each.figure) for each in hits],
    }


def _difference(ours: list[Hits], theirs: list[Hits], draws: int) -> dict[str, Any]:
    interval = difference(ours, theirs, draws)
    return {
        "difference": _rounded(interval.value),
        **_bounds(interval),
        "noise_floor": _rounded(paired_floor(interval)),
        "not_worse": interval.lower > NOT_WORSE,
        "better": interval.lower > 0,
    }


def _bounds(interval: Interval) -> dict[str, float]:
    return {"lower": _rounded(interval.lower), "upper": _rounded(interval.upper)}


def _rounded(value: float) -> float:
    return round(value, 5)


def _shown(figure: dict[str, Any], key: str, value: str) -> list[str]:
    sign = "+" if key == "difference" else ""
    interval = f"[{figure['lower']:{sign}.4f}, {figure['upper']:{sign}.4f}]"
    return [value, interval, f"{figure['noise_floor']:.4f}"]


def _verdict(found: dict[str, Any]) -> str:
    if found["better"]:
        return "better"
    if found["upper"] < 0:
        return "worse" if not found["not_worse"] else "worse, by less than 0.01"
    return "not worse" if found["not_worse"] else "undecided"


def _table(header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
