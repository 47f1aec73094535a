"""Do 50 optimizer steps with TAO's loss modules and with ours give the same losses? Imports nothing of radioplat.

``python -m benchmarks.judges.tao_steps record TAO OUT.npz``: TAO is a checkout of NVIDIA-TAO/tao-pytorch. Its own
``DistillationLoss`` trains, for each of :data:`CASES`, a small ConvNeXt of timm and the heads that it makes; its
``DINODistiller`` and ``RtdetrDistiller`` train the small student of :mod:`benchmarks.judges.tao_detectors`. OUT gets
the initial weights, the loss of each step, and the gradients of some. What TAO's modules import and losses do not need
(backbones, data loaders, Lightning) is replaced by empty modules; einops has to be installed.

``python -m benchmarks.judges.tao_steps compare REFERENCE.npz OURS.npz``: the second file has the losses and gradients
of another program, under the same names. The last line on stdout is one JSON object: for each case the largest
difference of a step's loss and the smallest cosine of two gradients; the exit status is 1 if a difference is above 1e-5
or a cosine below 0.9999.

Images and teachers' features of a step come from :func:`inputs`, for detectors from
:func:`benchmarks.judges.tao_detectors.detector_inputs`: functions of case and step. Features are numbers that bf16 has.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from benchmarks.judges.tao_detectors import DETECTORS, detector_reference

STEPS, RECORDED = 50, (0, 49)
BATCH, SIDE, GRID = 4, 96, 3
STUDENT: dict[str, Any] = {"model_name": "convnext_atto", "depths": (1, 1, 1, 1), "dims": (8, 8, 16, 24)}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HIDDEN, WIDTH = 48, 32
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.05
LARGEST_DIFFERENCE, SMALLEST_COSINE = 1e-5, 0.9999
_CORE = ("callbacks", "cookbooks", "lightning", "loggers", "utilities", "utils.ptm_utils")
_DETECTION = (
    *("deformable_detr.dataloader", "deformable_detr.utils.coco", "deformable_detr.utils.coco_eval"),
    *("dino.model.build_nn_model", "dino.model.fan", "dino.model.utils", "dino.model.vision_transformer"),
    *("rtdetr.dataloader", "rtdetr.model.build_nn_model", "rtdetr.model.utils"),
)
EMPTY = (
    "nvidia_tao_pytorch.cv.backbone_v2",
    "nvidia_tao_pytorch.multimodal.radio.dataloader",
    *(f"nvidia_tao_pytorch.core.{name}" for name in _CORE),
    *(f"nvidia_tao_pytorch.cv.{name}" for name in _DETECTION),
    *("fairscale", "h5py", "memoizer", "pytorch_lightning"),
)


@dataclass(frozen=True)
class Teacher:
    """A teacher of a case, with the arguments of TAO's ``DistillationLoss``."""

    loss_type: str
    mode: str = "auto"
    weight: float = 0.5
    summary_loss_type: str = "CE"


@dataclass(frozen=True)
class Case:
    """An objective: the package of TAO whose loss module it is, and its teachers.

    ``factor`` multiplies the weighted sum of the teachers' losses, which is divided by their number.
    """

    package: str
    teachers: tuple[Teacher, ...]
    factor: float = 1.0


_RADIO = "nvidia_tao_pytorch.multimodal.radio.distillation.loss"
_CLASSIFICATION = "nvidia_tao_pytorch.cv.classification_pyt.distillation.loss"
CASES = {
    "radio": Case(_RADIO, (Teacher("balanced"),)),
    "radio_two_teachers": Case(_RADIO, (Teacher("MSE", "combo"), Teacher("FD", weight=0.25))),
    "radio_cosine": Case(_RADIO, (Teacher("CS", "combo", summary_loss_type="cosine"), Teacher("MSE"))),
    "classification": Case(_CLASSIFICATION, (Teacher("balanced"),), factor=100.0),
}


def main() -> int:
    """Record or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("record", "compare"))
    parser.add_argument("first", type=Path, help="a checkout of TAO, or REFERENCE.npz")
    parser.add_argument("second", type=Path, help="OUT.npz, or OURS.npz")
    given = parser.parse_args()
    if given.task == "record":
        np.savez_compressed(given.second, **record(given.first))
        return 0
    found = compare(np.load(given.first), np.load(given.second))
    print(json.dumps(found))
    return 0 if all(case["agrees"] for case in found.values()) else 1


def inputs(case: str, step: int) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Return images, uint8 ``[B, 3, H, W]``, and each teacher's summary ``[B, D]`` and map ``[B, h, w, D]``, fp32."""
    number = list(CASES).index(case)
    random = np.random.default_rng([7, number, step])
    images = random.integers(0, 256, (BATCH, 3, SIDE, SIDE), np.uint8)
    features = []
    for teacher in range(len(CASES[case].teachers)):
        fixed = np.random.default_rng([8, number, teacher])
        mixing = fixed.standard_normal((WIDTH, WIDTH)) * np.geomspace(3, 0.1, WIDTH)
        centre = fixed.standard_normal(WIDTH)
        rows = random.standard_normal((BATCH, GRID * GRID + 1, WIDTH)) @ mixing.T + centre
        rounded = torch.tensor(rows, dtype=torch.float32).bfloat16().float().numpy()
        features.append((rounded[:, 0], rounded[:, 1:].reshape(BATCH, GRID, GRID, WIDTH)))
    return images, features


def student() -> nn.Module:
    """Return the student's backbone with its initial weights."""
    torch.manual_seed(0)
    return timm.create_model(**STUDENT, num_classes=0)


def record(checkout: Path) -> dict[str, np.ndarray]:
    """Run all cases with TAO's modules; return the arrays of the file."""
    sys.path.insert(0, str(checkout.resolve()))
    sys.meta_path.insert(0, _Empty())
    arrays: dict[str, np.ndarray] = {}
    load = torch.load
    torch.load = lambda *given, **options: load(*given, **{**options, "map_location": "cpu"})
    with _OnCpu(), tempfile.TemporaryDirectory(prefix="tao_steps") as cache:
        torch.hub.set_dir(cache)  # TAO keeps its Hadamard matrices there
        for name, case in CASES.items():
            arrays |= {f"{name}/{key}": value for key, value in optimize(*_reference(name, case)).items()}
        for name in DETECTORS:
            arrays |= {f"{name}/{key}": value for key, value in optimize(*detector_reference(name)).items()}
    return arrays


def compare(reference: Any, ours: Any, cases: Iterable[str] = (*CASES, *DETECTORS)) -> dict[str, dict[str, Any]]:
    """Compare losses and gradients of two files by case."""
    found = {}
    for name in cases:
        losses = np.abs(reference[f"{name}/losses"] - ours[f"{name}/losses"])
        cosines = []
        for key in (key for key in reference if key.startswith(f"{name}/gradient/")):
            a, b = (side[key].astype(np.float64).ravel() for side in (reference, ours))
            cosines.append(float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30)))
        agrees = len(losses) == STEPS and losses.max() <= LARGEST_DIFFERENCE and min(cosines) >= SMALLEST_COSINE
        found[name] = {
            "largest_difference": float(losses.max()),
            "at_step": int(losses.argmax()),
            "smallest_cosine": min(cosines),
            "agrees": bool(agrees),
        }
    return found


def optimize(modules: Mapping[str, nn.Module], loss_of: Callable[[int], torch.Tensor]) -> dict[str, np.ndarray]:
    """Train ``modules`` with AdamW on the loss of each step; return initial weights, losses and gradients by name."""
    found = {f"weight/{part}.{k}": v.numpy().copy() for part, m in modules.items() for k, v in m.state_dict().items()}
    parameters = [p for module in modules.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    losses = []
    for step in range(STEPS):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        for part, module in modules.items() if step in RECORDED else ():
            flat = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()]
            found[f"gradient/{step}/{part}"] = torch.cat(flat).numpy().copy()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {**found, "losses": np.array(losses)}


def _reference(name: str, case: Case) -> tuple[dict[str, nn.Module], Callable[[int], torch.Tensor]]:
    """Return the trainable modules by name, and TAO's loss as a function of the step."""
    module = importlib.import_module(case.package)
    taught = _Student(student())
    sides, terms = [], []
    torch.manual_seed(1)
    for teacher in case.teachers:
        side = _Teacher()
        options: dict[str, Any] = {"mlp_hidden_size": HIDDEN, "mlp_num_inner": 0, "distillation_mode": teacher.mode}
        if teacher.mode == "combo":
            options["summary_loss_type"] = teacher.summary_loss_type
        models = {"student_model": taught, "teacher_model": side, "num_classes": 0}
        terms.append(module.DistillationLoss(loss_type=teacher.loss_type, **models, **options).train())
        sides.append(side)
    heads = {
        f"head.{i}.{kind}": layers
        for i, term in enumerate(terms)
        for kind, layers in _heads(term).items()
        if layers is not None
    }

    def loss_of(step: int) -> torch.Tensor:
        images, features = inputs(name, step)
        for side, (summary, spatial) in zip(sides, features, strict=True):
            side.summary, side.map = torch.tensor(summary), torch.tensor(spatial).permute(0, 3, 1, 2).contiguous()
        unit = torch.tensor(images).float() / 255
        normal = (unit - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
        each = [term(normal) for term in terms]
        return sum(t.weight / len(terms) * value for t, value in zip(case.teachers, each, strict=True)) * case.factor

    return {"student": taught.model, **heads}, loss_of


def _heads(term: nn.Module) -> dict[str, nn.Module | None]:
    """Return TAO's projections of one teacher by kind of features."""
    if term.distillation_mode == "summary":
        return {"summary": term.projection_layer}
    return {"spatial": term.projection_layer, "summary": getattr(term, "projection_layer_summary", None)}


class _Student(nn.Module):
    """The interface that TAO's losses expect of a student, around a model of timm."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.num_features = model, model.num_features

    def forward(self, images: torch.Tensor, return_features: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        spatial = self.model.forward_features(images)
        return self.model.forward_head(spatial, pre_logits=True), spatial

    def forward_pre_logits(self, images: torch.Tensor) -> torch.Tensor:
        return self(images)[0]

    def forward_feature_pyramid(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [self(images)[1]]


class _Teacher(nn.Module):
    """The interface that TAO's losses expect of a teacher: the features of the step."""

    num_features = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.summary, self.map = torch.empty(0), torch.empty(0)

    def forward(self, images: torch.Tensor, return_features: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        return self.summary, self.map

    def forward_pre_logits(self, images: torch.Tensor) -> torch.Tensor:
        return self.summary

    def forward_feature_pyramid(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [self.map]


class _OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that TAO makes on ``cuda``."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*("cpu" if isinstance(each, str) and each == "cuda" else each for each in args), **kwargs)


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives empty modules, whose names are classes or decorators that do nothing, for the packages in :data:`EMPTY`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == each or name.startswith(f"{each}.") for each in EMPTY):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class _EmptyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("memoize", "rank_zero_info"):
            return lambda function: function
        return type(name, (nn.Module,), {})


if __name__ == "__main__":
    sys.exit(main())
