"""Read a run's ledger with pyarrow alone: is each position of the order there once, and does the chain hold?

``python -m benchmarks.judges.ledger LEDGER --samples N [--ids M]``; imports nothing of radioplat. The files that
``windows.jsonl`` names and the workers' own files are read row by row. It counts positions from 0 to N that are missing
or there more than once, the number of files, and, with ``--ids``, whether whole passes over M images saw each image
equally often. Each line of ``windows.jsonl`` must have the hash of its own content and name the hash of the line
before; a block of a file must have the digest that its line gives. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

COLUMNS = ("attempt", "step", "rank", "position", "id", "checksum")


def main() -> None:
    """Print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--samples", type=int, required=True, help="positions that the run has consumed")
    parser.add_argument("--ids", type=int, help="images in a pass of the order, for a run of one source")
    given = parser.parse_args()
    print(json.dumps(judged(given.ledger, given.samples, given.ids)))


def judged(ledger: Path, samples: int, ids: int | None = None) -> dict[str, int | None]:
    """What was counted."""
    lines, links = _chain(ledger / "windows.jsonl")
    windows = _standing(lines)
    times = np.zeros(samples, np.int32)
    images = np.zeros(ids or 0, np.int64)
    blocks_wrong = 0
    for window in windows:
        file = pq.ParquetFile(ledger / window["file"])
        for number, digest in enumerate(window["blocks"]):
            rows = file.read_row_group(number)
            columns = [rows[name].to_numpy().astype("<i8").tobytes() for name in COLUMNS]
            blocks_wrong += hashlib.sha256(b"".join(columns)).hexdigest()[:32] != digest
            _count(times, images, rows["position"].to_numpy(), rows["id"].to_numpy())
    end = windows[-1]["stop"] if windows else 0
    named = {window["file"] for window in lines if "file" in window}
    rest = [path for path in ledger.glob("consumed-a*.parquet") if path.name not in named]
    for path in rest:
        table = pq.read_table(path, columns=["position", "id", "step"], partitioning=None)
        later = table["step"].to_numpy() >= end
        _count(times, images, table["position"].to_numpy()[later], table["id"].to_numpy()[later])
    return {
        "samples": samples,
        "missing": int((times == 0).sum()),
        "repeated": int((times > 1).sum()),
        "windows": len(windows),
        "files": len(list(ledger.iterdir())),
        "links_wrong": links,
        "blocks_wrong": blocks_wrong,
        "uneven": int(images.max() - images.min()) if ids else None,
    }


def _chain(path: Path) -> tuple[list[dict], int]:
    """All lines, and how many of them do not hold."""
    lines, wrong, before = [], 0, ""
    for text in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:  # half a line of a killed writer: the links show whether one is missing
            continue
        own = {name: value for name, value in line.items() if name != "hash"}
        canonical = json.dumps(own, sort_keys=True, separators=(",", ":"))
        wrong += line["hash"] != hashlib.sha256(canonical.encode()).hexdigest()[:32]
        wrong += line["previous"] != before
        before = line["hash"]
        lines.append(line)
    return lines, wrong


def _standing(lines: list[dict]) -> list[dict]:
    """The windows that no later line has taken back."""
    windows: list[dict] = []
    for line in lines:
        if line["kind"] == "reopened":
            windows = [window for window in windows if window["stop"] <= line["step"]]
        elif line["kind"] == "window":
            windows.append(line)
    return windows


def _count(times: np.ndarray, images: np.ndarray, positions: np.ndarray, ids: np.ndarray) -> None:
    inside = positions[(positions >= 0) & (positions < len(times))]
    np.add.at(times, inside, 1)
    if len(images):
        np.add.at(images, ids[ids < len(images)], 1)


if __name__ == "__main__":
    main()
