"""A mosaic's map, cut back, says of each image what a teacher without attention says of it alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from radioplat.data.batch import Batch, View
from radioplat.data.views.mosaic import make_mosaic
from radioplat.models.features import Features
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.serving.transport import Packed, pack, to_host, unpack
from radioplat.training.feed.feeder import Feeder
from radioplat.training.feed.mosaic_client import cut

PATCH = 4


def patch_means(pixels: np.ndarray) -> torch.Tensor:
    """``[B, h, w, 3]``: what a teacher of patches of 4 pixels that sees nothing else says."""
    return F.avg_pool2d(torch.from_numpy(pixels).float(), PATCH).permute(0, 2, 3, 1).to(torch.bfloat16)


class Means:
    """A client that answers patch means, as tensors or as arrays, and notes what it was shown."""

    name = "sam"

    def __init__(self, arrays: bool) -> None:
        self.arrays, self.shown = arrays, []

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        return pixels

    def submit(self, shared: np.ndarray, micro_batch: int):
        self.shown.append(shared.shape)
        packed = pack(Features(spatial=patch_means(shared)), 0.5)
        return lambda: to_host(packed) if self.arrays else packed


def teachers():
    entry = {"name": "sam", "mode": "spatial", "loss_type": "MSE", "input_size": 28, "mosaic": 3}
    return resolve_teachers(load_spec({"dataset": {"img_size": 8, "batch_size": 11}, "distill": {"teacher": [entry]}}))


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("count", [1, 9, 11])
def test_every_image_gets_its_own_map_back(arrays, count):
    rng = np.random.default_rng(count)
    pixels = rng.integers(0, 256, (count, 3, 8, 8), np.uint8)
    valid = np.ones((count, 8, 8), bool)
    valid[0, :4] = False
    view = View(pixels, np.tile(np.eye(3, dtype=np.float32), (count, 1, 1)), valid)
    numbers = np.arange(count)
    batch = Batch(5, {"8": view}, numbers, numbers, np.ones(count, np.float32), numbers)
    client = Means(arrays)
    [(_, answers)] = list(Feeder(iter([batch]), {"sam": client}, teachers(), 1))
    found = answers["sam"]()
    assert client.shown == [(-(-count // 9), 3, 28, 28)] and len(found) == count and found.seconds == 0.5
    assert found is answers["sam"](), "a batch that statistics are taken of is asked for twice"
    assert torch.equal(unpack(found).spatial, patch_means(view.shown)), "what a mask hides is black there too"


def test_images_between_positions_are_refused():
    view = View(np.zeros((4, 3, 6, 6), np.uint8), np.tile(np.eye(3, dtype=np.float32), (4, 1, 1)))
    mosaic = make_mosaic(view, 12, 2)
    with pytest.raises(ValueError, match="no whole positions of 4 pixels"):
        cut(Packed(None, patch_means(mosaic.pixels), {}, 0.0), mosaic, 6, 6)
