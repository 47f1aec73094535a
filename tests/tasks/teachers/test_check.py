"""What is wrong with a teacher is said, and what is right is left alone."""

from __future__ import annotations

import pytest
import skimage.data
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images

from radioplat.quickstart.weights import MEAN, STD, teacher_weights
from radioplat.tasks.teachers.check import check_teachers


@pytest.fixture
def spec(tmp_path):
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    photographs = [skimage.data.astronaut(), skimage.data.coffee(), skimage.data.rocket(), *load_sample_images().images]
    for number, photograph in enumerate(photographs):
        for y in range(0, photograph.shape[0] - 200, 200):
            for x in range(0, photograph.shape[1] - 200, 200):
                Image.fromarray(photograph[y : y + 200, x : x + 200]).save(folder / f"{number}_{y}_{x}.png")
    weights = teacher_weights("tf_efficientnet_lite0", tmp_path)

    def make(path=weights, mean=MEAN, std=STD):
        teacher = {
            "name": "lite0",
            "model": {"backbone": {"type": "tf_efficientnet_lite0"}},
            "pretrained_teacher_model_path": str(path),
            "mode": "spatial",
            "loss_type": "MSE",
            "input_size": 224,
            "norm_mean": list(mean),
            "norm_std": list(std),
        }
        return {
            "results_dir": str(tmp_path / "results"),
            "dataset": {"train_dataset": {"images_dir": str(folder.parent)}, "img_size": 224, "workers": 1},
            "distill": {"teacher": [teacher]},
        }

    return make


def test_a_good_teacher_and_the_page(spec):
    result = check_teachers(spec())
    (found,) = result.teachers
    assert not found.flags, found.flags
    assert found.facts["dead channels"] == 0 and len(found.agreement) >= 4
    page = result.report.read_text()
    assert "Problems" in page and "data:image/png" in page and "lite0" in page


def test_wrong_normalisation_and_dead_channels(spec, tmp_path):
    state = load_file(teacher_weights("tf_efficientnet_lite0", tmp_path))
    for name in ("weight", "bias"):
        state[f"bn2.{name}"][:300] = 0
    save_file(state, tmp_path / "dead.safetensors")
    (found,) = check_teachers(spec(tmp_path / "dead.safetensors", (0.0,) * 3, (1.0,) * 3)).teachers
    assert any("trained with mean 0.5" in flag for flag in found.flags)
    assert any("never change" in flag for flag in found.flags) and found.facts["dead channels"] >= 300 / 1280
