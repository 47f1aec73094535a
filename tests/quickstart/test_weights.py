from pathlib import Path

import numpy as np
import pytest
import skimage
import timm
import torch
from PIL import Image, ImageOps

from radioplat.errors import WeightsError
from radioplat.quickstart import weights
from radioplat.quickstart.weights import teacher_weights

TEACHERS = ("tf_efficientnet_lite0", "tf_efficientnet_lite2")
# ImageNet-1k classes that a person would accept
PICTURES = {
    "chelsea.png": {281, 282, 283, 284, 285},  # tabby, tiger cat, Persian, Siamese, Egyptian cat
    "coffee.png": {504, 967, 968},  # coffee mug, espresso, cup
    "camera.png": {732, 759, 872},  # Polaroid camera, reflex camera, tripod
    "motorcycle_left.png": {665, 670},  # moped, motor scooter
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


def picture(file: str, size: int) -> torch.Tensor:
    image = Image.open(Path(skimage.__file__).parent / "data" / file).convert("RGB")
    pixels = torch.from_numpy(np.array(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)))
    mean, std = torch.tensor(weights.MEAN).view(3, 1, 1), torch.tensor(weights.STD).view(3, 1, 1)
    return (pixels.permute(2, 0, 1) / 255 - mean) / std


@pytest.mark.parametrize("name", TEACHERS)
def test_the_converted_weights_name_what_photographs_show(name, folder):
    model = timm.create_model(name, checkpoint_path=str(teacher_weights(name, folder))).eval()
    assert (model.pretrained_cfg["mean"], model.pretrained_cfg["std"]) == (weights.MEAN, weights.STD)
    size = model.pretrained_cfg["input_size"][-1]
    with torch.inference_mode():
        answers = model(torch.stack([picture(file, size) for file in PICTURES])).argmax(1).tolist()
    for (file, right), answer in zip(PICTURES.items(), answers, strict=True):
        assert answer in right, file


def test_a_second_call_converts_nothing(folder):
    path = teacher_weights(TEACHERS[0], folder)
    before = path.stat().st_mtime_ns
    assert teacher_weights(TEACHERS[0], folder) == path
    assert path.stat().st_mtime_ns == before
    assert not list(folder.glob("*.part"))


def test_an_unknown_teacher_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(WeightsError, match="tf_efficientnet_lite0, tf_efficientnet_lite2"):
        teacher_weights("tf_efficientnet_lite9", tmp_path)
