"""How fast shards are indexed, against ``tar -tf`` on the same shards; and the order over a thousand million samples.

``python -m benchmarks.index [--shards DIR ...] [--rows 1000000000] [--keep DIR]``. Without ``--shards`` it writes some
of its own. The last line is one JSON object:

``images_per_s``: a fresh index, from listing to saved, with one process a core (started before); ``vs_tar_list``: that
over the images/s of ``tar -tf``; ``order_1e9_s`` and ``order_1e9_gib``: a new process opens a run's data and takes its
first slice, at position 0 and in the third pass, the worse of both.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.data.index.build import build_index
from radioplat.data.index.parquet_parts import BLOCK_ROWS
from radioplat.data.index.shard_index import SHARD_SCHEMA, ShardIndex
from radioplat.data.loading.run_data import RunData
from radioplat.data.scan.scan import scan_pool
from radioplat.data.scan.tables import FAULT_SCHEMA, SCAN_SCHEMA
from radioplat.spec.schema.dataset import SplitConfig, TarSource, WeightMode

SHARDS, REJECTED = 100_000, 0.3
SLICE = 4096


def main() -> None:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", nargs="+", help="folders of tars; default: 8 shards of 2,500 photographs, written")
    parser.add_argument("--rounds", type=int, default=5, help="paired runs")
    parser.add_argument("--rows", type=int, default=10**9, help="of the synthetic index")
    parser.add_argument("--keep", help="a folder for the synthetic index, which is used again if it is there")
    parser.add_argument("--first-slice", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--position", type=float, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first_slice:
        print(json.dumps(first_slice(Path(args.first_slice), args.position)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(f) for f in args.shards or [write_shards(Path(scratch) / "shards")]]
        found = scanning(folders, Path(scratch) / "index", args.rounds)
        home = Path(args.keep) if args.keep else Path(scratch) / "synthetic"
        if not (home / "frequency.npy").exists():
            write_synthetic(home, args.rows)
        found |= order(home)
    print(json.dumps(found))


def scanning(folders: list[Path], index_dir: Path, rounds: int) -> dict[str, float]:
    """Paired runs of both; medians. The scan's processes have started before, as in a long scan."""
    split = SplitConfig(tar_data_sources=[TarSource(str(folder)) for folder in folders])
    tars = sorted(str(path) for folder in folders for path in folder.rglob("*.tar"))
    for tar in tars:  # both sides read from memory
        subprocess.run(["cat", tar], stdout=subprocess.DEVNULL, check=True)
    ours, theirs, images = [], [], 0
    with scan_pool(os.cpu_count() or 1) as scan:
        build_index(split, "bench", index_dir / "first", max_pixels=2**62, scan=scan)
        for number in range(rounds):
            theirs.append(_seconds(lambda: _list(tars)))
            begin = time.perf_counter()
            index = build_index(split, "bench", index_dir / str(number), max_pixels=2**62, scan=scan)
            ours.append(time.perf_counter() - begin)
            images = len(index)
    rate, ratio = images / statistics.median(ours), statistics.median(t / o for t, o in zip(theirs, ours, strict=True))
    print(
        f"{images} images in {len(tars)} shards: {rate:.0f} images/s, tar -tf {images / statistics.median(theirs):.0f}"
    )
    return {"images_per_s": round(rate), "vs_tar_list": round(ratio, 3)}


def _list(tars: list[str]) -> None:
    for tar in tars:
        subprocess.run(["tar", "-tf", tar], stdout=subprocess.DEVNULL, check=True)


def _seconds(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def order(home: Path) -> dict[str, float]:
    """First slices, each by a new process."""
    worst_s, worst_gib = 0.0, 0.0
    for passes in (0.0, 2.5):
        command = [sys.executable, "-m", "benchmarks.index", "--first-slice", str(home), "--position", str(passes)]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        print(f"first slice after {passes} passes, at position {answer['position']}: {answer['s']:.2f} s, "
              f"{answer['gib']:.2f} GiB at most")  # fmt: skip
        worst_s, worst_gib = max(worst_s, answer["s"]), max(worst_gib, answer["gib"])
    return {"order_1e9_s": round(worst_s, 2), "order_1e9_gib": round(worst_gib, 3)}


def first_slice(home: Path, passes: float) -> dict[str, float]:
    """Open the run's data and take one global batch; seconds, and the most memory this process ever held."""
    begin = time.perf_counter()
    data = RunData.load(home, _split())
    position = int(passes * data.order.pass_length(0))
    ids = data.order.slice(position, position + SLICE).sample_id
    taken = time.perf_counter() - begin
    assert len(np.unique(ids)) == SLICE and (data.frequency[ids] > 0).all()
    status = Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    return {"s": taken, "gib": peak / 2**20, "position": position, "rows": len(data.index)}


def _split() -> SplitConfig:
    return SplitConfig(tar_data_sources=[TarSource("/synthetic")], data_weight_mode=WeightMode.inv_frequency, seed=7)


def write_synthetic(home: Path, rows: int) -> None:
    """A run's data as ``RunData.save`` leaves it: its index of ``rows`` rows in 1e5 shards, 30% of them filtered.

    The parts are one file under many names; the frequencies differ from row to row.
    """
    home.mkdir(parents=True, exist_ok=True)
    per_shard, per_part = rows // SHARDS, 250
    count = per_shard * per_part
    columns = {f.name: pa.nulls(count, f.type) for f in SCAN_SCHEMA}
    rng = np.random.default_rng(0)
    for name, values in {
        "offset": np.tile(np.arange(per_shard) * 100_000, per_part), "length": rng.integers(20_000, 99_000, count),
        "width": rng.integers(200, 2000, count), "height": rng.integers(200, 2000, count),
        "hash_key": rng.integers(1, 2**62, count), "given_label": np.full(count, -1),
    }.items():  # fmt: skip
        columns[name] = pa.array(values, SCAN_SCHEMA.field(name).type)
    columns["key"] = pa.array([f"{i:09d}" for i in range(count)], pa.large_string())
    pq.write_table(pa.table(columns, schema=SCAN_SCHEMA), home / "part-0.parquet", row_group_size=BLOCK_ROWS)
    parts = SHARDS // per_part
    for part in range(1, parts):
        os.link(home / "part-0.parquet", home / f"part-{part}.parquet")
    number = np.arange(SHARDS)
    shards = pa.table(
        [
            np.zeros(SHARDS, np.int32), ["tar"] * SHARDS, ["/synthetic"] * SHARDS, [f"{i:06d}.tar" for i in number],
            number, number, np.full(SHARDS, per_shard), [hashlib.sha256(b"%d" % i).hexdigest() for i in number],
            [f"part-{p}" for p in number // per_part], number % per_part * per_shard,
        ],
        schema=SHARD_SCHEMA,
    )  # fmt: skip
    ShardIndex(shards, FAULT_SCHEMA.empty_table(), [], home).save(home)
    total = per_shard * SHARDS
    codes = np.lib.format.open_memmap(home / "reasons.npy", "w+", np.uint8, (total,))
    frequency = np.lib.format.open_memmap(home / "frequency.npy", "w+", np.uint32, (total,))
    sums = np.empty(SHARDS)
    step = per_shard * per_part
    some = np.minimum(rng.zipf(2.0, step), 10**6).astype(np.uint32)
    some[rng.random(step) < REJECTED] = 0
    for start in range(0, total, step):
        seen = np.roll(some, int(rng.integers(step)))
        frequency[start : start + step], codes[start : start + step] = seen, seen == 0
        weight = np.divide(1.0, seen, out=np.zeros(step), where=seen > 0)
        sums[start // per_shard : (start + step) // per_shard] = weight.reshape(per_part, per_shard).sum(1)
    np.save(home / "shard_weights.npy", sums)


def write_shards(folder: Path, shards: int = 8, each: int = 2500) -> Path:
    """Photographs of 20 to 150 KB with JSON sidecars, as webdataset writes them."""
    import skimage
    import webdataset
    from PIL import Image

    folder.mkdir(parents=True)
    rng, images = np.random.default_rng(0), []
    for i in range(64):
        name = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg")[i % 4]
        with Image.open(Path(skimage.__file__).parent / "data" / name) as image:
            size = int(rng.integers(400, 1000)), int(rng.integers(300, 800))
            buffer = io.BytesIO()
            image.convert("RGB").resize(size).save(buffer, "JPEG", quality=88)
        images.append(buffer.getvalue())
    for shard in range(shards):
        with webdataset.TarWriter(str(folder / f"{shard:05d}.tar")) as tar:
            for i in range(shard * each, (shard + 1) * each):
                sidecar = {
                    "sha256": hashlib.sha256(b"%d" % i).hexdigest(),
                    "label": i % 1000,
                    "caption": "a photograph",
                }
                tar.write({"__key__": f"{i:09d}", "jpg": images[i % len(images)], "json": sidecar})
    return folder


if __name__ == "__main__":
    main()
