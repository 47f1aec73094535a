import hashlib
import io
import json
from collections import Counter
from dataclasses import astuple

import pytest
import webdataset
from PIL import Image

from radioplat.quickstart.corpora import pack_corpora
from radioplat.quickstart.photographs import PHOTOGRAPHS

SMALL = 6  # training crops a photograph


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("100% corpora")
    pack_corpora(folder, SMALL)
    return folder


def read(root) -> list[dict]:
    shards = [str(shard) for shard in sorted(root.glob("*.tar"))]
    return list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))


def state(folder) -> dict:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_samples_follow_the_convention(folder):
    for root in astuple(pack_corpora(folder, SMALL)):
        samples = read(root)
        assert len({sample["__key__"] for sample in samples}) == len(samples) > 0
        for sample in samples:
            sidecar = json.loads(sample["json"])
            image = sample.get("jpg") or sample["png"]
            assert sidecar["sha256"] == hashlib.sha256(image).hexdigest()
            assert sidecar["caption"] and sidecar["label"]
            Image.open(io.BytesIO(image)).load()


def test_training_corpora_have_misfits_and_duplicates_and_held_out_ones_do_not(folder):
    corpora = pack_corpora(folder, SMALL)
    for root in astuple(corpora):
        samples = read(root)
        sizes = [Image.open(io.BytesIO(sample.get("jpg") or sample["png"])).size for sample in samples]
        misfits = sum(min(size) < 64 or max(size) > 3 * min(size) for size in sizes)
        hashes = Counter(json.loads(sample["json"])["sha256"] for sample in samples)
        training = root in (corpora.photographs, corpora.labelled)
        assert (misfits > 0) == training
        assert misfits < len(samples) / 2
        assert (max(hashes.values()) > 1) == training


def test_held_out_labels_are_the_photographs_and_no_image_is_in_both(folder):
    corpora = pack_corpora(folder, SMALL)
    for train, held_out in ((corpora.photographs, corpora.held_out), (corpora.labelled, corpora.labelled_held_out)):
        a, b = ([json.loads(sample["json"]) for sample in read(root)] for root in (train, held_out))
        assert {x["label"] for x in b} <= {x["label"] for x in a}
        assert not {x["sha256"] for x in a} & {x["sha256"] for x in b}
    assert {json.loads(s["json"])["label"] for s in read(corpora.held_out)} == {p.name for p in PHOTOGRAPHS}


def test_packing_again_is_a_no_op(folder):
    before = state(folder)
    pack_corpora(folder, SMALL)
    assert state(folder) == before


def test_a_half_finished_packing_is_redone_to_the_same_bytes_and_nothing_else_is_touched(tmp_path):
    corpora = pack_corpora(tmp_path, 2)
    before = {path: content for path, (_, content) in state(tmp_path).items()}
    shard = next(corpora.photographs.glob("*.tar"))
    shard.write_bytes(shard.read_bytes()[:5000])
    stale = corpora.photographs / "photographs-000099.tar"
    stale.write_bytes(b"")
    users = corpora.photographs / "mine.tar"
    users.write_bytes(b"mine")
    pack_corpora(tmp_path, 2)
    after = {path: content for path, (_, content) in state(tmp_path).items()}
    assert after.pop(users) == b"mine"
    assert after == before
