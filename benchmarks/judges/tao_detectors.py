"""The detectors of :mod:`benchmarks.judges.tao_steps`: TAO's own distillers around a small student. Imports nothing of
radioplat.

TAO's ``_build_criterion`` makes bindings, matcher and detection losses, and its ``training_step`` the loss of a step:
the sum of the bindings and of the detection losses of two decoder layers and of the proposals. Only the student, the
teacher's outputs and Lightning's part of the distiller are replaced. Queries are not denoised, because noise is random.

RT-DETR's binding and weights are those of TAO's shipped spec. DINO's shipped spec leaves its bindings open: here it has
one of each kind that TAO's DINO names, and for the weights of its detection losses TAO's defaults.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

BATCH, SIDE, INNER, WIDTH, QUERIES = 4, 64, 16, 24, 12
EMPTY_STEP = 7  # no image of this step has an object
MOST_OBJECTS = 3
LAYERS = 3  # of class scores and boxes: the proposals, then two layers of a decoder


@dataclass(frozen=True)
class DetectorCase:
    """A shipped detector spec.

    Attributes:
        package, distiller: module and class of TAO.
        levels: number of maps.
        bindings: names of the module in student and teacher, criterion and weight.
        model: fields of TAO's ``model`` that its criterion reads.
        dataset: the same of ``dataset``.
        proposals_are_layer: TAO's detector returns its proposals as a further layer of the decoder.
    """

    package: str
    distiller: str
    levels: int
    bindings: tuple[tuple[str, str, float], ...]
    model: dict[str, Any] = field(hash=False)
    dataset: dict[str, Any] = field(hash=False)
    proposals_are_layer: bool = False

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.dataset["num_classes"]


_BOTH = {"bbox_loss_coef": 5.0, "giou_loss_coef": 2.0, "distillation_loss_coef": 1.0, "num_select": QUERIES}
DETECTORS = {
    "rtdetr": DetectorCase(
        "nvidia_tao_pytorch.cv.rtdetr.distillation.distiller",
        "RtdetrDistiller",
        3,
        (("srcs", "IOU", 20.0),),
        {**_BOTH, "vfl_loss_coef": 1.0, "alpha": 0.75, "gamma": 2.0, "loss_types": ["vfl", "boxes"]},
        {"num_classes": 80, "remap_mscoco_category": False},
        proposals_are_layer=True,
    ),
    "dino": DetectorCase(
        "nvidia_tao_pytorch.cv.dino.distillation.distiller",
        "DINODistiller",
        4,
        (("model.backbone.0.body", "L2", 2.0), ("pred_logits", "KL", 3.0), ("pred_boxes", "L1", 2.0)),
        {
            **_BOTH,
            **{"cls_loss_coef": 2.0, "focal_alpha": 0.25, "loss_types": ["labels", "boxes"], "use_dn": False},
            **{"aux_loss": True, "dec_layers": LAYERS - 1, "two_stage_type": "standard"},
            **{"interm_loss_coef": 1.0, "no_interm_box_loss": False},
        },
        {"num_classes": 91},
    ),
}


class SmallDetector(nn.Module):
    """A trainable module with a detector's outputs.

    ``forward(images)``, fp32 ``[B, 3, 64, 64]`` in [0, 1], returns maps ``[B, WIDTH, h, w]`` of strides 8, 16, ..., and
    class scores ``[LAYERS, B, QUERIES, C]`` and boxes ``[LAYERS, B, QUERIES, 4]`` (centre, size; relative).
    """

    def __init__(self, case: DetectorCase) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(
            nn.Conv2d(INNER, INNER, 2, 2) if level else nn.Conv2d(3, INNER, 8, 8) for level in range(case.levels)
        )
        self.maps = nn.ModuleList(nn.Conv2d(INNER, WIDTH, 1) for _ in range(case.levels))
        self.queries = nn.Embedding(QUERIES, INNER)
        self.classes = nn.ModuleList(nn.Linear(INNER, case.classes) for _ in range(LAYERS))
        self.boxes = nn.ModuleList(nn.Linear(INNER, 4) for _ in range(LAYERS))

    def forward(self, images: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        level, maps = images * 2 - 1, []
        for reduce, project in zip(self.trunk, self.maps, strict=True):
            level = nn.functional.gelu(reduce(level))
            maps.append(project(level))
        queries = torch.tanh(level.mean((2, 3))[:, None] + self.queries.weight)
        scores = torch.stack([layer(queries) - 3 for layer in self.classes])
        return maps, scores, torch.stack([layer(queries).sigmoid() for layer in self.boxes])


@dataclass(frozen=True)
class DetectorInputs:
    """Images and teacher's outputs of a step; fp32 numbers that bf16 has.

    Attributes:
        images: uint8 ``[B, 3, H, W]``.
        objects: of each image int64 ``[N, 5]``: left, top, right, bottom in pixels, class.
        maps: of each level ``[B, h, w, WIDTH]``.
        logits, boxes: ``[B, Q, C]`` and ``[B, Q, 4]`` (centre, size; relative).
        proposal_logits, proposal_boxes, proposal_queries: of the encoder's proposals; the last ``[B, Q, WIDTH]``.
    """

    images: np.ndarray
    objects: list[np.ndarray]
    maps: list[np.ndarray]
    logits: np.ndarray
    boxes: np.ndarray
    proposal_logits: np.ndarray
    proposal_boxes: np.ndarray
    proposal_queries: np.ndarray


def detector_inputs(name: str, step: int) -> DetectorInputs:
    """Return the inputs of a case's step. The second image of every step has no object."""
    case = DETECTORS[name]
    random = np.random.default_rng([9, list(DETECTORS).index(name), step])
    images = random.integers(0, 256, (BATCH, 3, SIDE, SIDE), np.uint8)
    objects = []
    for image in range(BATCH):
        count = 0 if image == 1 or step == EMPTY_STEP else random.integers(0, MOST_OBJECTS + 1)
        corners = random.integers(0, SIDE // 2, (count, 2))
        sizes = random.integers(2, SIDE // 2, (count, 2))
        objects.append(np.hstack([corners, corners + sizes, random.integers(0, case.classes, (count, 1))]))
    sides = [SIDE // 8 >> level for level in range(case.levels)]
    pixel = np.array([1, 1, 2, 2]) / SIDE  # TAO takes corners of objects for pixels: only such proposals meet them
    boxes = random.uniform(0.05, 0.95, (2, BATCH, QUERIES, 4))
    boxes[1, :, ::2] = pixel * random.uniform(0.2, 1, (BATCH, QUERIES // 2, 4))
    logits = random.normal(-1, 2, (2, BATCH, QUERIES, case.classes))
    maps = [_as_bf16(random.normal(0, 0.5, (BATCH, side, side, WIDTH))) for side in sides]
    features = _as_bf16(random.standard_normal((BATCH, QUERIES, WIDTH)))
    return DetectorInputs(
        images, objects, maps, *map(_as_bf16, (logits[0], boxes[0], logits[1], boxes[1])), proposal_queries=features
    )


def detector_student(name: str) -> SmallDetector:
    """Return the student with its initial weights."""
    torch.manual_seed(2)
    return SmallDetector(DETECTORS[name])


def detector_reference(name: str) -> tuple[dict[str, nn.Module], Callable[[int], torch.Tensor]]:
    """Return the trainable modules by name, and TAO's loss as a function of the step."""
    case = DETECTORS[name]
    distiller = getattr(importlib.import_module(case.package), case.distiller)
    student = detector_student(name)
    bound = [
        SimpleNamespace(student_module_name=module, teacher_module_name=module, criterion=criterion, weight=weight)
        for module, criterion, weight in case.bindings
    ]
    shown = _Side()
    lightning = SimpleNamespace(
        model=_Side(student, case.proposals_are_layer),
        teacher=shown,
        model_config=case.model,
        dataset_config=case.dataset,
        experiment_spec=SimpleNamespace(distill=SimpleNamespace(bindings=bound)),
        log=lambda *values, **options: None,
        optimizers=lambda: SimpleNamespace(optimizer=SimpleNamespace(param_groups=[{"lr": 0.0}])),
    )
    distiller._build_criterion(lightning)

    def loss_of(step: int) -> torch.Tensor:
        given = detector_inputs(name, step)
        shown.outputs = {
            "pred_logits": torch.tensor(given.logits),
            "pred_boxes": torch.tensor(given.boxes),
            "srcs": [torch.tensor(level).permute(0, 3, 1, 2) for level in given.maps],
            "enc_topk_bboxes": torch.tensor(given.proposal_boxes),
            "scores_per_img": torch.tensor(given.proposal_logits).amax(-1),
            "obj_queries": torch.tensor(given.proposal_queries),
        }
        batch = torch.tensor(given.images).float() / 255, list(map(_target, given.objects)), None
        return distiller.training_step(lightning, batch, step)["loss"]

    return dict(student.named_children()), loss_of


class _Side(nn.Module):
    """What TAO expects of a detector; a binding of DINO looks for its module ``model.backbone.0.body``."""

    def __init__(self, student: SmallDetector | None = None, proposals_are_layer: bool = False) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.backbone = nn.ModuleList([nn.Module()])
        self.model.backbone[0].body = nn.Identity()
        self.student, self.proposals_are_layer = student, proposals_are_layer
        self.outputs: dict[str, Any] = {}

    def forward(self, images: torch.Tensor, targets: Any = None) -> dict[str, Any]:
        if self.student is None:
            return self.outputs
        maps, logits, boxes = self.student(images)
        proposals, *layers = ({"pred_logits": a, "pred_boxes": b} for a, b in zip(logits, boxes, strict=True))
        last = layers.pop()
        if self.proposals_are_layer:
            return {**last, "srcs": maps, "aux_outputs": [*layers, proposals]}
        return {**last, "srcs": maps, "aux_outputs": layers, "interm_outputs": proposals, "dn_meta": None}


def _target(objects: np.ndarray) -> dict[str, torch.Tensor]:
    """Return TAO's target of an image: labels, and boxes as centre and size relative to the image."""
    corners = torch.tensor(objects[:, :4], dtype=torch.float32) / SIDE
    centre, size = (corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]
    return {"labels": torch.tensor(objects[:, 4]), "boxes": torch.cat([centre, size], 1)}


def _as_bf16(values: np.ndarray) -> np.ndarray:
    """Round to numbers that bf16 has; return fp32."""
    return torch.tensor(values, dtype=torch.float32).bfloat16().float().numpy()
