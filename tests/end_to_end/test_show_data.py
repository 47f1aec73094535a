"""The page of a run's first batches shows what the run then consumes."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import yaml
from PIL import Image

from radioplat.cli import main as cli
from radioplat.data.loading.run_data import RunData
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.inspect.show_data import outline

TARS = "dataset.train_dataset.tar_data_sources"


@pytest.fixture(scope="module")
def page(make_spec, tmp_path_factory, write_shard, crops, encode):
    """The first two batches of a run whose second corpus has images that no run can use."""
    folder = tmp_path_factory.mktemp("show")
    images = [(f"{i}.png", encode(pixels, "PNG")) for i, (_, pixels) in enumerate(crops(6, 80, 21))]
    torn = [(f"torn{i}.png", data[: len(data) // 2]) for i, (_, data) in enumerate(images[:3])]
    small = [("small.png", encode(crops(1, 40, 22)[0][1], "PNG")), ("words.jpg", b"no image")]
    write_shard(folder / "odd" / "0.tar", [*images, *torn, *small])
    spec = make_spec(folder / "results", {"distill": {}})
    spec["distill"]["teacher"][1] |= {"input_size": 48}
    spec["dataset"]["train_dataset"]["native_resolution_filter"] = {"min_short_side": 60}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    command = ["show", "data", "-e", str(folder / "spec.yaml"), "2", f"{TARS}[1].root_dir={folder / 'odd'}"]
    assert cli.main([*command, f"{TARS}[1].scale_factor=2.0"]) == 0
    return folder / "results" / "show", (folder / "results" / "show" / "data.html").read_text()


def test_it_shows_the_order_of_the_run(page):
    folder, text = page
    spec = load_spec(folder / "experiment.yaml")
    order = RunData.load(folder / "data", spec.dataset.train_dataset).order.slice(0, 12)
    shown = re.findall(r"position (\d+), sample (\d+),", text)
    assert [(int(p), int(s)) for p, s in shown] == list(
        zip(order.position.tolist(), order.sample_id.tolist(), strict=True)
    )
    assert text.count("<h2>Global batch") == 2 and text.count("<h3>Micro-batch") == 6


def test_every_view_of_every_sample_and_who_sees_it(page):
    _, text = page
    bad = text.count("card sample bad")
    assert bad > 0 and "corrupt_image" in text
    for words in ("64x64: student, lite0", "48x48: vit"):
        assert text.count(words) == 12 - bad
    sizes = [Image.open(io.BytesIO(base64.b64decode(data))).size for data in re.findall(r"base64,([\w+/=]+)", text)]
    assert sizes.count((64, 64)) == sizes.count((48, 48)) == 12 - bad and sizes.count((80, 80)) == 12 - bad


def test_the_rejects_and_where_samples_come_from(page):
    _, text = page
    assert re.search(r"min_short_side</th><td class=\"number\">1</td><td>small 40x40", text)
    assert re.search(r"not_an_image</th><td class=\"number\">1</td><td>0.tar words", text)
    assert "shard-000.tar" in text and "/odd" in text and "label" in text


def test_the_page_stands_alone_and_leaves_the_run_alone(page):
    folder, text = page
    assert not re.search(r"(src|href)=\"(?!data:)", text) and "<script" not in text
    assert not (folder.parent / "distill").exists()


def test_an_outline_is_where_the_view_was_cut():
    turned = np.array([[0, -2, 100], [3, 0, 10], [0, 0, 1]])
    np.testing.assert_allclose(outline(turned, 4, 8), [[100, 10], [100, 34], [92, 34], [92, 10]])
    np.testing.assert_allclose(outline(turned * 5, 4, 8), outline(turned, 4, 8))
