import numpy as np
import pytest
import torch
import torch.nn.functional as F

from radioplat.data.loading.image_files import given_images
from radioplat.errors import DataError, EngineError
from radioplat.evaluation.measure.sample_maps import POSITIONS, SampleMaps, Shown
from radioplat.evaluation.metrics.metric import Setup
from radioplat.evaluation.models.evaluated_model import EvaluatedModel, NamedHeads
from radioplat.evaluation.pictures.pca import PcaBasis
from radioplat.models.features import Features
from radioplat.spec.loading.load import load_spec

PATCH = 8


def model(size: int, seed: int = 0, heads: NamedHeads | None = None, named: bool = False) -> EvaluatedModel:
    """A linear layer on patches, built for one size as an engine is."""
    weights = torch.randn(3 * PATCH * PATCH, 6, generator=torch.Generator().manual_seed(seed))

    def encode(images: torch.Tensor) -> Features:
        if images.shape[-1] != size:
            raise EngineError(f"it takes {size} pixels, not {images.shape[-1]}")
        patches = F.unfold(images.float() / 255, PATCH, stride=PATCH).transpose(1, 2)
        side = size // PATCH
        spatial = (patches @ weights).reshape(len(images), side, side, -1)
        return Features(spatial.mean((1, 2)), spatial, {"clip.spatial": spatial.clone()} if named else {})

    return EvaluatedModel(encode, size, heads)


def sample(models: dict[str, EvaluatedModel], kinds: dict | None = None) -> SampleMaps:
    setup = Setup(load_spec({}), models, kinds or {}, 2, batch_size=5)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 90, 120, 3), dtype=np.uint8)
    return SampleMaps.of(setup, models, Shown(given_images(list(pixels)), list(models), "").views)


def test_every_model_has_enough_positions_at_its_own_fixed_size():
    found = sample({"coarse": model(24), "fine": model(PATCH * 16)})
    assert found.maps["coarse"].shape == (2, POSITIONS, POSITIONS, 6)
    assert found.maps["fine"].shape == (2, 16, 16, 6)  # as it is: one window
    assert found.images.shape == (2, 3, PATCH * 16, PATCH * 16)
    for maps in found.maps.values():
        torch.testing.assert_close(maps.norm(dim=-1), torch.ones(maps.shape[:3]))


def test_a_student_equal_to_its_teacher_gets_the_teacher_s_colours():
    heads = NamedHeads({("clip", "spatial"): 6})
    models = {"student": model(24, 1, heads, named=True), "clip": model(24, 1), "other": model(24, 2)}
    found = sample(models, {"clip": ["spatial"]})
    assert list(found.maps) == ["student", "student/clip", "clip", "other"]
    basis = PcaBasis.fit(found.maps["clip"])
    colours = {name: basis.colours(maps).astype(int) for name, maps in found.maps.items()}
    assert (colours["student/clip"] == colours["clip"]).all()
    assert np.abs(colours["other"] - colours["clip"]).mean() > 30


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a\.png"):
        Shown(given_images([tmp_path / "a.png"]), (), "").views(16)
