"""Record a tiny run of this version: ``python tests/recorded/record.py`` writes ``tests/recorded/schema_N/run.tar.gz``.

A release that changes the schema of a record adds a folder; the folders of former schemas stay, and
``test_recorded_runs.py`` goes on from each of them. Images are in the archive, since their bytes depend on the versions
of libraries; the teacher is not, it is made from a seed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCHEMA = 1  # of the folder that is written
STEPS, LAST_STEPS = 4, 6  # of the recorded run, and of the run that goes on from it
PLACE = Path("/tmp/radioplat_recorded")  # the index names the folder of its shards; no name of a user or a machine


def spec(steps: int) -> dict[str, Any]:
    """Return the spec of the run, with paths relative to the folder that contains ``inputs`` and ``results``."""
    from benchmarks.elastic_inputs import SIZE, tiny_spec

    tree = tiny_spec(Path("inputs"), Path("results"), 8, (1, 1), max_steps=steps, keep_last=1)
    tree["model"]["backbone"]["kwargs"] = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    tree["model"]["backbone"]["cpe_max_size"] = SIZE
    tree["train"] |= {"global_batch_size": 4, "checkpoint_interval": 2}
    tree["distill"]["mlp_hidden_size"] = 16
    tree["cluster"]["mode"] = "local"
    return tree


def make_teacher(folder: Path) -> None:
    """Write the teacher's weights to ``folder/inputs``, beside the shards that are there."""
    from benchmarks.elastic_inputs import make_inputs

    make_inputs(folder / "again")
    (folder / "inputs").mkdir(exist_ok=True)
    shutil.move(folder / "again" / "teacher.safetensors", folder / "inputs" / "teacher.safetensors")
    shutil.rmtree(folder / "again")


def main() -> None:
    """Run, and pack the shards and the results."""
    import radioplat
    from benchmarks.elastic_inputs import make_inputs

    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    os.chdir(PLACE)
    make_inputs(Path("inputs"), images=16, shards=2)
    radioplat.distill(spec(STEPS))
    target = HERE / f"schema_{SCHEMA}" / "run.tar.gz"
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for name in ("inputs/shards", "results"):
            archive.add(name, filter=_anonymous)
    print(f"{target}: {target.stat().st_size:,} bytes")
    shutil.rmtree(PLACE)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Drop owners, and logs, which name machines and paths and which no start reads."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if "logs" in Path(member.name).parts else member


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))
    main()
