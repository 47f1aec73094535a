"""What each of section ``quantize``'s means gives on images that were not calibrated on.

``python -m benchmarks.quantization_accuracy``. Students are quantized by :func:`quantize_model` on crops of the
training parts of the bundled photographs; features on crops of the held-out parts are compared with those before.

- EfficientNet-Lite0 and -Lite2 with their pretrained weights (ReLU6 between convolutions): INT8, and the same with
  ``equalize``, with ``reestimate_batchnorm`` and with both; with a scale for each channel and (Lite0) for each layer.
- A drawn ResNet whose channels were made uneven by 1/16 to 16 where only a ReLU follows (the features stay): the same.
- A drawn ViT-Small: INT8; with ``attention`` in INT8 and in FP8; 4-bit weights in blocks of 128 and of 64 with float
  activations, and by channel with INT8 activations.

The last line on stdout is one JSON object: ``cosine`` (mean over the images of the cosine of spatial features, and its
standard error, by student and by means), ``reestimate_gain`` (of 1 - cosine: the least share that re-estimation removes
from the two pretrained students, scales by channel), ``images``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.engines import CALIBRATION, FAMILIES, HELD_OUT, SIZE, drawn, load_pretrained, photographs
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.quantize import QuantizeConfig, QuantizeMode

BATCH, UNEVEN = 16, 16.0
PRETRAINED = ("efficientnet_lite0", "efficientnet_lite2")
MEANS: dict[str, dict[str, Any]] = {
    "int8": {},
    "equalize": {"equalize": True},
    "reestimate": {"reestimate_batchnorm": True},
    "both": {"equalize": True, "reestimate_batchnorm": True},
}
OF_CNNS = {**MEANS, **{f"{name}, per layer": {**fields, "per_channel": False} for name, fields in MEANS.items()}}
IN_BLOCKS = {"mode": QuantizeMode.weight_only_ptq, "default_layer_dtype": "int4"}
OF_VITS: dict[str, dict[str, Any]] = {
    "int8": {},
    "attention in int8": {"attention": "int8"},
    "attention in fp8": {"attention": "fp8_e4m3fn"},
    "int4, blocks of 128": {**IN_BLOCKS, "block_size": 128},
    "int4, blocks of 64": {**IN_BLOCKS, "block_size": 64},
    "int4 by channel beside int8": {"default_layer_dtype": "int4"},
}


FORMS = {
    "vit_small": OF_VITS,
    "efficientnet_lite2": {name: MEANS[name] for name in ("int8", "reestimate")},
    "uneven resnet18": {name: OF_CNNS[name] for name in OF_CNNS if name in ("int8", "reestimate") or "layer" in name},
}


def main() -> None:
    """Quantize, compare, print."""
    calibration, held_out = batches(False, CALIBRATION), batches(True, HELD_OUT)
    students = {name: Student(StudentArchitecture(f"tf_{name}", img_size=SIZE)).eval() for name in PRETRAINED}
    with TemporaryDirectory() as folder:
        for student in students.values():
            load_pretrained(student, Path(folder))
    students |= {"uneven resnet18": uneven(drawn(FAMILIES["resnet18"])), "vit_small": drawn(FAMILIES["vit_small"])}
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, student in students.items():
        found[name] = {}
        for means, fields in FORMS.get(name, OF_CNNS).items():
            made = quantize_model(student, QuantizeConfig(**fields), calibration).model
            found[name][means] = cosine(made, student, held_out)
            mean, error = found[name][means]
            print(f"{name}, {means}: {mean:.4f} (standard error {error:.4f})", flush=True)
    removed = [1 - (1 - found[name]["reestimate"][0]) / (1 - found[name]["int8"][0]) for name in PRETRAINED]
    figures = {"cosine": found, "reestimate_gain": round(min(removed), 3)}
    print(json.dumps({**figures, "images": sum(len(batch) for batch in held_out)}))


@torch.no_grad()
def uneven(student: Student) -> Student:
    """Multiply the channels between the two convolutions of each block of a ResNet by 1/UNEVEN to UNEVEN."""
    for block in (m for m in student.modules() if hasattr(m, "conv2") and hasattr(m, "bn1")):
        by = UNEVEN ** torch.linspace(-1, 1, block.conv1.out_channels)
        block.bn1.weight.mul_(by)
        block.bn1.bias.mul_(by)
        block.conv2.weight.div_(by.reshape(1, -1, 1, 1))
    return student


def batches(held_out: bool, count: int) -> list[torch.Tensor]:
    """Return ``count`` crops of each photograph, uint8 ``[B, 3, SIZE, SIZE]`` each."""
    made = [np.asarray(image).transpose(2, 0, 1) for _, image in photographs(held_out, count)]
    return list(torch.from_numpy(np.stack(made)).split(BATCH))


@torch.no_grad()
def cosine(made: nn.Module, before: nn.Module, held_out: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Return the mean over the images of the cosine of their spatial features, and its standard error."""
    each = torch.cat(
        [F.cosine_similarity(made(images).spatial, before(images).spatial, dim=-1).mean((1, 2)) for images in held_out]
    )
    return round(float(each.mean()), 5), round(float(each.std() / len(each) ** 0.5), 5)


if __name__ == "__main__":
    main()
