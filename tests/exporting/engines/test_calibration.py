"""What is read for TensorRT 8 to 10; handing it to the builder needs one of those and a GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.calibration import image_batches, read_ranges
from radioplat.spec.schema.engine import CalibrationConfig


def written(path, content):
    path.write_text(json.dumps(content) if not isinstance(content, str) else content)
    return path


def test_our_ranges_and_taos(tmp_path):
    ours = [
        {"tensor": "images", "amax": 1.5, "kind": "activation"},
        {"tensor": "images", "amax": 2.5, "kind": "activation"},
        {"tensor": "a.weight", "amax": [1.0, 2.0], "kind": "weight"},
        {"tensor": "b.weight", "amax": 3.0, "kind": "weight"},
    ]
    assert read_ranges(written(tmp_path / "a.json", ours)) == {"images": 2.5}
    assert read_ranges(written(tmp_path / "b.json", {"tensor_scales": {"x": 4, "y": 0.5}})) == {"x": 4.0, "y": 0.5}


@pytest.mark.parametrize(
    "content",
    ["{", "3", [], {}, {"tensor_scales": {"x": 0}}, [{"tensor": "x"}], ["x"], {"tensor_scales": {"x": "nan"}}],
)
def test_what_holds_no_ranges_is_named(tmp_path, content):
    with pytest.raises(EngineError, match="calibration.cal_json_file: .*a.json has no ranges"):
        read_ranges(written(tmp_path / "a.json", content))
    with pytest.raises(EngineError, match="has no ranges"):
        read_ranges(tmp_path / "none.json")


def png(path, *colours):
    """An image 4 x 4 whose halves have the given colours."""
    path.parent.mkdir(exist_ok=True)
    image = Image.new("RGB", (4, 4), colours[0])
    image.paste(colours[-1], (2, 0, 4, 4))
    image.save(path)


def test_images_come_sorted_in_batches_as_the_engine_takes_them(tmp_path):
    for i, name in enumerate(["b/2.png", "a.png", "c.png"]):
        png(tmp_path / name, (255, 51 * i, 0), (0, 0, 255))
    (tmp_path / "note.txt").write_text("no image")
    config = CalibrationConfig(cal_image_dir=[str(tmp_path)], cal_batch_size=2, cal_batches=1)
    (batch,) = image_batches(config, [3, 8, 4])
    assert batch.shape == (2, 3, 8, 4) and batch.dtype == np.float32
    np.testing.assert_allclose(batch[:, :, 0, 0], [[1, 0.2, 0], [1, 0, 0]], atol=1e-6)  # a.png, b/2.png
    np.testing.assert_allclose(batch[:, :, 7, 3], [[0, 0, 1]] * 2, atol=1e-6)


def test_calibration_images_that_say_nothing_are_refused(tmp_path):
    config = CalibrationConfig(cal_image_dir=[str(tmp_path)], cal_batch_size=2)
    with pytest.raises(EngineError, match="cal_image_dir: 2 images are needed and there are 0. Lower cal_batches"):
        image_batches(config, [3, 4, 4])
    for i in range(2):
        png(tmp_path / f"{i}.png", (9, 99, 199))
    with pytest.raises(EngineError, match="cal_image_dir: every image is of one colour"):
        image_batches(config, [3, 4, 4])
    (tmp_path / "0.png").write_bytes(b"no image")
    with pytest.raises(EngineError, match="0.png cannot be read"):
        image_batches(config, [3, 4, 4])
