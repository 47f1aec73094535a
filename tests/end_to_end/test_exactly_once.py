"""Every sample exactly once: after a killed reader and a resume on other workers, and after a fuzzed shard."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray

import radioplat
from radioplat.cli import main as cli
from radioplat.data.ledger.ledger import read_rejected
from radioplat.data.loading.run_data import RunData
from radioplat.data.scan.shard import scan_tar
from radioplat.spec.loading.load import load_spec
from radioplat.tracking.follow import StepEvent
from radioplat.training.accounting.prove import prove_run

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(ray_environment):
    before = dict(os.environ)
    os.environ.update(ray_environment)
    ray.init(
        address="local", num_cpus=6, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


class Killer:
    """A callback that kills each process that reads shards, for the first steps that it sees."""

    def __init__(self) -> None:
        self.killed: dict[int, int] = {}  # process: step

    def __call__(self, event) -> None:
        if isinstance(event, StepEvent) and event.step < 30:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_bytes()
                except OSError:  # it has ended meanwhile
                    continue
                if command.startswith(b"ray::") and b"_ReadSpan" in command:
                    os.kill(int(process.name), signal.SIGKILL)
                    self.killed[int(process.name)] = event.step


@pytest.mark.proof
def test_killed_readers_and_other_workers_lose_no_sample(cluster, make_spec, ids_by_step, distil, tmp_path, capfd):
    long = {"num_gpus": 2, "zero_stage": 2, "num_epochs": 25, "checkpoint_interval": 10}
    spec = make_spec(tmp_path / "run", {"train": long | {"max_steps": 60}, "cluster": {"mode": "ray"}})
    spec["dataset"]["prefetch_batches"] = 1
    killer = Killer()
    first = radioplat.distill(spec, callbacks=[killer], say=lambda line: None)
    assert killer.killed, "no reader was at work while a step ended"
    assert first.global_step == 60 and prove_run(first.folder).holds
    spec["train"] |= {"num_gpus": 1, "max_steps": 90}
    then = radioplat.distill(spec, say=lambda line: None)
    assert then.resumed_from == 60 and then.global_step == 90
    proof = prove_run(then.folder)
    assert proof.holds and proof.consumed == 6 * 90 and len(proof.attempts) == 2
    quiet = distil(make_spec(tmp_path / "quiet", {"train": {**long, "num_gpus": 1, "max_steps": 90}}))
    assert ids_by_step(then.folder) == ids_by_step(quiet.folder)
    assert cli.main(["ledger", str(tmp_path / "run")]) == 0
    with capfd.disabled():
        print(f"\n{len(killer.killed)} readers killed in steps {sorted(set(killer.killed.values()))}")


def fuzz(shard: Path, seed: int) -> dict[str, str]:
    """Damage a tar of PNG images at random; what was done to each key."""
    rng, data, done = np.random.default_rng(seed), bytearray(shard.read_bytes()), {}
    rows = scan_tar(str(shard)).rows.to_pylist()
    for row in rows[:-1]:
        what = rng.choice(["whole", "bytes", "zeros", "signature"])
        start, length = row["offset"], row["length"]
        if what == "bytes":  # inside the compressed pixels, whose checksum then fails
            data[start + length // 2] ^= 0xFF
        elif what == "zeros":
            data[start + length // 3 : start + length] = bytes(length - length // 3)
        elif what == "signature":
            data[start : start + 8] = rng.bytes(8)
        done[row["key"]] = str(what)
    # The header of the last image: nothing behind it can be found.
    data[rows[-1]["offset"] - 512 : rows[-1]["offset"]] = rng.bytes(512)
    done[rows[-1]["key"]] = "header"
    shard.write_bytes(bytes(data))
    return done


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_every_damaged_member_is_accounted_for(make_spec, distil, crops, encode, write_shard, tmp_path, seed):
    members = [(f"{i:02}.png", encode(pixels, "PNG")) for i, (_, pixels) in enumerate(crops(16, 80, 30 + seed))]
    shard = write_shard(tmp_path / "tars" / "0.tar", members)
    damage = fuzz(shard, seed)
    sources = [{"root_dir": str(tmp_path / "tars"), "steps_per_epoch": 10}]
    trail = distil(make_spec(tmp_path / "results"),
                   f"dataset.train_dataset.tar_data_sources={json.dumps(sources)}", "train.num_epochs=1",
                   "dataset.max_bad_fraction=1")  # fmt: skip
    proof = prove_run(trail.folder)
    assert proof.holds and proof.consumed == 60
    rows = pq.read_table(trail.folder / "ledger" / "rejects.parquet").to_pylist()
    scanned = {row["key"]: row["reason"] for row in rows}
    split = load_spec(trail.folder / "experiment.yaml").dataset.train_dataset
    found = RunData.load(trail.folder / "data", split).index
    index = [found.key(row) for row in range(len(found))]
    undecoded = {index[i] for i in read_rejected(trail.folder / "ledger")["id"].to_pylist()}
    for key, what in damage.items():
        if what == "whole":
            assert key in index and key not in undecoded
        elif what == "signature":
            assert scanned[key] == "not_an_image"
        elif what == "header":
            assert key not in index and scanned[""] == "corrupt_tar"
        else:
            assert key in index and key in undecoded, (key, what)
    assert set(proof.unlearned) - {"skipped_step"} == {"corrupt_image"}  # a step of damaged samples alone is skipped
