"""A student taught by a loop as one writes it by hand, with care. Imports nothing of radioplat.

``python -m benchmarks.teach.peer_loop SHARDS WEIGHTS.safetensors OUT.safetensors --steps N [--seed 1]``: AdamW with
warm-up and a cosine schedule, new random crops in each pass, linear heads for the pooled features and for the map, and
the cosine to the teacher's (features normalised to length one). Of this, squared errors to standardised features, to
features centred and divided by one number, and cosines to standardised ones, in trials of 750 steps, it taught most.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
import webdataset
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

STUDENT, TEACHER = "mobilenetv3_small_100", "tf_efficientnet_lite0"
SIDE, DECAY, WARM_UP, CLIP = 96, 0.02, 0.05, 2.0
IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])  # of the student
HALF = torch.full((2, 3), 0.5)  # mean and standard deviation of the teacher's images


class Crops(Dataset):
    """Random crops of the images of a folder of tar files, uint8 ``[3, SIDE, SIDE]``."""

    def __init__(self, shards: Path) -> None:
        files = sorted(str(path) for path in shards.glob("*.tar"))
        self._jpegs = [sample["jpg"] for sample in webdataset.WebDataset(files, shardshuffle=False)]
        crop = v2.RandomResizedCrop(SIDE, (0.25, 1.0), interpolation=v2.InterpolationMode.BICUBIC, antialias=True)
        self._augment = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()])

    def __len__(self) -> int:
        return len(self._jpegs)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self._augment(Image.open(io.BytesIO(self._jpegs[place])).convert("RGB"))


def batches(shards: Path, size: int) -> Iterator[torch.Tensor]:
    """Batches without end, in another order in each pass."""
    loader = DataLoader(Crops(shards), size, shuffle=True, num_workers=1, drop_last=True, persistent_workers=True)
    while True:
        yield from loader


def features(model: nn.Module, images: torch.Tensor, card: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled features ``[B, D]`` and map ``[B, h, w, D']``."""
    mean, std = card.view(2, 1, 3, 1, 1)
    raw = model.forward_features((images.float() / 255 - mean) / std)
    return model.forward_head(raw, pre_logits=True), raw.permute(0, 2, 3, 1)


def main() -> None:
    """Train, and write the student as timm's weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-teacher", action="store_true", help="teach random features, for timings")
    given = parser.parse_args()
    begin = time.monotonic()
    torch.manual_seed(given.seed)
    student, teacher = timm.create_model(STUDENT), timm.create_model(TEACHER).eval().requires_grad_(False)
    teacher.load_state_dict(load_file(given.weights))
    blank = torch.zeros(2, 3, SIDE, SIDE)
    with torch.no_grad():
        pairs = zip(features(student, blank, IMAGENET), features(teacher, blank, HALF), strict=True)
    heads = nn.ModuleList(nn.Linear(ours.shape[-1], theirs.shape[-1]) for ours, theirs in pairs)
    parameters = [*student.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, given.rate, weight_decay=DECAY)
    warm_up = WARM_UP * given.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (1 + math.cos(math.pi * step / given.steps)) / 2)
    )
    random = features(teacher, 255 * torch.rand(given.batch, 3, SIDE, SIDE), HALF)
    clock = [time.monotonic()]
    for _, images in zip(range(given.steps), batches(given.shards, given.batch), strict=False):
        with torch.no_grad():
            targets = random if given.without_teacher else features(teacher, images, HALF)
        found = features(student, images, IMAGENET)
        loss = sum(
            1 - F.cosine_similarity(head(x), y, dim=-1).mean() for head, x, y in zip(heads, found, targets, strict=True)
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        schedule.step()
        clock.append(time.monotonic())
    save_file({name: tensor.contiguous() for name, tensor in student.state_dict().items()}, given.out)
    steps = [later - earlier for earlier, later in itertools.pairwise(clock[given.steps // 2 :])]
    print(json.dumps({"seconds": round(time.monotonic() - begin, 1), "step": statistics.median(steps)}))


if __name__ == "__main__":
    main()
