"""A student taught by LightlyTrain's ``distillationv3``; runs in an environment of its own, as a program.

``python peer_lightly.py IMAGES WEIGHTS.safetensors FOLDER --epochs N [--rate R] [--seed 1]``: settings are
LightlyTrain's, but for the size and normalisation of the images, and the learning rate with ``--rate``. The teacher is
wrapped, because LightlyTrain 0.18 takes features before the last convolution from timm's EfficientNet and their number
from behind it. Writes ``FOLDER/student.safetensors``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import lightly_train
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

STUDENT, TEACHER = "mobilenetv3_small_100", "tf_efficientnet_lite0"
SIDE, USUAL_BATCH = 96, 1536


class Teacher(nn.Module):
    """timm's model in LightlyTrain's interface for models."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        self._model = timm.create_model(TEACHER)
        self._model.load_state_dict(load_file(weights))

    def feature_dim(self) -> int:
        """Channels of the map."""
        return self._model.num_features

    def forward_features(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Map ``[B, D, h, w]``."""
        return {"features": self._model.forward_features(x)}

    def forward_pool(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Its mean, ``[B, D, 1, 1]``."""
        return {"pooled_features": x["features"].mean((2, 3), keepdim=True)}

    def get_model(self) -> nn.Module:
        """The model inside."""
        return self._model

    def architecture_info(self) -> dict[str, str]:
        """What it is made of."""
        return {"model_type": "convolutional", "norm_type": "batchnorm"}


def main() -> None:
    """Train, and write the student as timm's weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, help="learning rate of the run")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # LightlyTrain takes the rate of a batch of its usual size, and scales it by the square root.
    rate = {} if given.rate is None else {"optim_args": {"lr": given.rate * (USUAL_BATCH / given.batch) ** 0.5}}
    torch.manual_seed(given.seed)
    student = timm.create_model(STUDENT)
    begin = time.monotonic()
    lightly_train.pretrain(
        out=str(given.folder),
        data=str(given.images),
        model=student,
        method="distillationv3",
        method_args={"teacher": Teacher(given.weights)},
        epochs=given.epochs,
        batch_size=given.batch,
        num_workers=1,
        accelerator="cpu",
        devices=1,
        precision="32-true",
        seed=given.seed,
        overwrite=True,
        **rate,
        transform_args={
            "image_size": (SIDE, SIDE),
            "normalize": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
        },
    )
    seconds = time.monotonic() - begin
    trained = torch.load(given.folder / "exported_models" / "exported_last.pt", weights_only=True)
    student.load_state_dict(trained)
    tensors = {name: tensor.contiguous() for name, tensor in student.state_dict().items()}
    save_file(tensors, given.folder / "student.safetensors")
    print(json.dumps({"seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
