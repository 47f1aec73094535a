"""``image_extension`` of a source is checked when a spec is read, and has one form."""

from __future__ import annotations

import pytest

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.image_extension import image_extension
from radioplat.spec.schema.dataset import TarSource


def spec_with(extension: str | None, split: str = "train_dataset"):
    sources = [{"root_dir": "/a"}, {"root_dir": "/b", "image_extension": extension}]
    return load_spec({"dataset": {split: {"tar_data_sources": sources}}})


@pytest.mark.parametrize(
    ("extension", "says"),
    [
        ("", "the extension is empty"),
        ("  ", "the extension is empty"),
        (".", "the extension is empty"),
        (" jpg", "' jpg' is no extension"),
        ("jpg\n", "is no extension"),
        ("a/0.jpg", "'a/0.jpg' is no extension"),
        ("json", "'json' is of sidecars, not of images"),
        (".TXT", "'txt' is of sidecars"),
        ("rgb.cls", "'rgb.cls' is of sidecars"),
    ],
)
@pytest.mark.parametrize("split", ["train_dataset", "val_dataset", "test_dataset", "quant_calibration_dataset"])
def test_what_no_image_can_have_is_refused(extension, says, split):
    with pytest.raises(SpecError, match=says) as caught:
        spec_with(extension, split)
    (problem,) = caught.value.problems
    assert problem.where == f"dataset.{split}.tar_data_sources[1].image_extension" and "rgb.jpg" in problem.hint


@pytest.mark.parametrize("extension", ["rgb.jpg", ".rgb.jpg", "RGB.JPG", ".Rgb.jpg"])
def test_one_form(extension):
    source = spec_with(extension).dataset.train_dataset.tar_data_sources[1]
    assert image_extension(source) == "rgb.jpg"
    assert image_extension(TarSource("/a")) is None and spec_with(None)
