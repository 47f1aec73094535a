"""The scan as a Ray Data job: the same index as the one made here, by tasks of a real cluster."""

from __future__ import annotations

import threading

import pytest
import ray
from index_samples import samples

from radioplat.data.index.build import build_index
from radioplat.data.scan import scan as scan_module
from radioplat.data.scan.ray_scan import BATCHES_PER_TASK, scan_on_ray
from radioplat.data.scan.scan import ScanBatch
from radioplat.launch.ray.scanning import scanner
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.dataset import SplitConfig, TarSource

SHARDS = 2 * BATCHES_PER_TASK + 3

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_tar, photo):
    """Nineteen shards, one cut short, and a folder of images."""
    root = tmp_path_factory.mktemp("corpus")
    for shard in range(SHARDS):
        members = [(f"{shard}-{i}.jpg", photo(40 + i, 30)) for i in range(3)]
        path = write_tar(root / f"tars/{shard:02d}.tar", members)
    path.write_bytes(path.read_bytes()[:3000])
    for i in range(3):
        (root / "images").mkdir(exist_ok=True)
        (root / f"images/{i}.png").write_bytes(photo(20, 20 + i, "PNG"))
    return root


@pytest.mark.usefixtures("ray_cluster")
def test_the_index_is_the_one_made_here(corpus, tmp_path, monkeypatch):
    split = SplitConfig(images_dir=str(corpus / "images"), tar_data_sources=[TarSource(str(corpus / "tars"))])
    here = build_index(split, "d", tmp_path / "here", max_pixels=10**9)
    seen = []
    before = ray.data.DataContext.get_current().target_max_block_size
    there = build_index(
        split, "d", tmp_path / "there", max_pixels=10**9, scan=scan_on_ray, progress=lambda *done: seen.append(done)
    )
    assert samples(there).equals(samples(here)) and there.fingerprint() == here.fingerprint()
    assert there.faults.equals(here.faults) and there.faults["reason"].to_pylist() == ["truncated_tar"]
    assert seen[-1] == (SHARDS + 3, SHARDS + 3) and len(seen) == SHARDS + 1  # streamed, a result a batch
    assert ray.data.DataContext.get_current().target_max_block_size == before

    # A run in mode `ray` takes the cluster for what is worth it.
    spec = load_spec({"cluster": {"mode": "ray", "cpus_per_decode": 0.5}})
    used = []

    def little(batches):
        used.append(len(batches))
        return scan_module.scan_here(batches)

    with scanner(spec, little) as scan:
        build_index(split, "d", tmp_path / "little", max_pixels=10**9, scan=scan)
        assert used == [SHARDS + 1]
        monkeypatch.setattr(scan_module, "LITTLE_BYTES", 0)
        again = build_index(split, "d", tmp_path / "much", max_pixels=10**9, scan=scan)
    assert used == [SHARDS + 1] and again.fingerprint() == here.fingerprint()


@pytest.mark.usefixtures("ray_cluster")
def test_no_thread_outlives_a_scan_whose_reader_fails(corpus, monkeypatch):
    """A thread that still works when the cluster is left would end this process before the error is shown."""
    monkeypatch.setattr(scan_module, "LITTLE_BYTES", 0)
    spec = load_spec({"cluster": {"mode": "ray", "cpus_per_decode": 0.5}})
    names = sorted(path.name for path in corpus.glob("tars/*"))
    batches = [ScanBatch(i, "tar", str(corpus / "tars"), (name,), 1) for i, name in enumerate(names)]
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="disk full"), scanner(spec) as scan:
        results = scan(batches)
        next(results)
        raise OSError("disk full")
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()
    assert list(results) == []
