"""Captions are read by offset, when asked."""

from __future__ import annotations

import json
import pickle

import pytest

from radioplat.data.captions import CaptionReader
from radioplat.data.index.build import build_index
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig, TarSource


def test_captions_of_any_rows(tmp_path, write_tar, photo):
    texts = {"0": "a cup", "1": None, "2": "d\u00e9j\u00e0 vu \N{CAT FACE}"}
    members = [(f"{k}.jpg", photo()) for k in texts]
    members += [(f"{k}.json", json.dumps({"caption": text, "label": 1}).encode()) for k, text in texts.items()]
    path = write_tar(tmp_path / "a/1.tar", members)
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    reader = CaptionReader(build_index(split, "d", tmp_path / "index", max_pixels=10**9))
    assert reader.read([2, 1, 0, 0]) == [texts["2"], None, "a cup", "a cup"]
    assert pickle.loads(pickle.dumps(reader)).read([0]) == ["a cup"]
    path.write_bytes(path.read_bytes() + b"\0" * 512)
    with pytest.raises(DataError, match="shard changed"):
        pickle.loads(pickle.dumps(reader)).read([0])
