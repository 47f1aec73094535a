"""Detectors on a student's backbone; :mod:`radioplat.models.detectors.registry` lists their kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torchvision.ops import box_convert

from radioplat.errors import SpecError
from radioplat.models.backbones.pyramid import Pyramid
from radioplat.models.capture import captured
from radioplat.models.detectors.registry import kind_module
from radioplat.models.model_kind import ModelKind
from radioplat.models.quantized.architecture import Quantization, quantize_modules
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import Student

BACKBONE = "student."  # prefix of the student's module names in a detector
# Modules of transformers' detectors that stay float, and box heads, whose last layer stays float.
_WHOLE = {
    "class_embed": "a classifier",
    "enc_score_head": "a classifier",
    "sampling_offsets": "sampling positions of attention",
}
_BOXES = ("bbox_embed", "enc_bbox_head")


@dataclass(frozen=True)
class DetectorArchitecture:
    """Everything needed to build a detector but its weights; kept as JSON in its file.

    Attributes:
        student: architecture of its backbone; without heads.
        num_classes: labels are below it.
        kind: one of :data:`radioplat.models.detectors.registry.KINDS`.
        options: arguments of transformers' ``RTDetrConfig`` or ``RTDetrV2Config`` (``d_model``, ``num_queries``,
            ``decoder_layers``, ``num_denoising``, ``matcher_class_cost``, ``weight_loss_giou``, ...), or of our
            ``DinoConfig``.
        class_names: by label, of the classes that the training images have; empty if unknown.
        quantized: quantized layers outside the backbone, which has its own in ``student.quantized``. None for none.
    """

    student: StudentArchitecture
    num_classes: int
    kind: str = "rtdetr_v2"
    options: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    quantized: Quantization | None = None

    @property
    def img_size(self) -> int:
        """Training resolution in pixels."""
        return self.student.img_size

    @property
    def quantizations(self) -> dict[str, Quantization]:
        """Quantized layers, by the prefix that their names lack in the model; the backbone's own are included."""
        own = {} if self.quantized is None else {"": self.quantized}
        return {f"{BACKBONE}{prefix}": how for prefix, how in self.student.quantizations.items()} | own

    def with_quantization(self, quantized: Quantization) -> DetectorArchitecture:
        """Return this architecture with quantizers, whose names are those of the built model; a backbone that is
        quantized keeps its own."""
        backbone, rest = quantized.split(BACKBONE)
        student = replace(self.student, quantized=self.student.quantized or backbone)
        return replace(self, student=student, quantized=rest)

    def to_json(self) -> str:
        """Return JSON text; :meth:`from_json` is the inverse."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DetectorArchitecture:
        """Inverse of :meth:`to_json`."""
        raw = json.loads(text)
        student = StudentArchitecture.from_json(json.dumps(raw["student"]))
        raw["quantized"] = Quantization.from_plain(raw["quantized"]) if raw.get("quantized") else None
        return cls(**{**raw, "student": student, "class_names": tuple(raw.get("class_names", ()))})


@dataclass
class Outputs:
    """Output of a detector for training.

    Attributes:
        logits: ``[B, Q, C]`` of its last layer, without denoising queries.
        pred_boxes: ``[B, Q, 4]``, centre x, centre y, width, height relative to the image.
        losses: terms by name whose sum is the loss, each weighted, summed over the images' objects and divided by
            ``max(1, boxes)`` of these images; empty without targets.
    """

    logits: torch.Tensor
    pred_boxes: torch.Tensor
    losses: dict[str, torch.Tensor] = field(default_factory=dict)


class Found(NamedTuple):
    """Detections of one image, by descending score.

    Attributes:
        xyxy: ``[N, 4]``, left, top, right, bottom in pixels.
        labels: int64 ``[N]``.
        scores: ``[N]``, in (0, 1).
    """

    xyxy: torch.Tensor
    labels: torch.Tensor
    scores: torch.Tensor


class Detector(nn.Module):
    """A detector: a student's backbone, a pyramid of its maps, and a decoder of :attr:`DetectorArchitecture.kind`.

    ``detector(images, targets)`` reads uint8, or floats in [0, 1], ``[B, 3, H, W]``, and returns transformers' output:
    ``logits [B, Q, C]``, ``pred_boxes [B, Q, 4]`` (centre x, centre y, width, height relative to the image) and, with
    targets, ``loss`` and ``loss_dict``: varifocal (DINO: focal), L1 and GIoU after Hungarian matching, of every decoder
    layer, of the encoder's proposals, and while training of denoising queries. It is a
    :class:`~radioplat.models.vision_model.VisionModel`.

    Args:
        architecture: see :class:`DetectorArchitecture`.
        where: the spec field of the detector, for messages.

    Raises:
        SpecError: transformers is missing, or the architecture cannot be built.
    """

    model_kind = ModelKind.detector
    whole_images = True
    backbone_name = f"{BACKBONE}backbone"

    def __init__(self, architecture: DetectorArchitecture, where: str = "model.detector") -> None:
        super().__init__()
        if architecture.student.heads or architecture.student.num_classes:
            raise SpecError("a detector's backbone has no heads and no classifier", where=where)
        module = kind_module(architecture.kind, where)
        if architecture.num_classes < 1:
            raise SpecError("a detector needs a class at least", where=f"{where}.num_classes")
        self.architecture = architecture
        self._run, self._level_shapes = module.run, module.level_shapes
        self.student = Student(architecture.student)
        self.pyramid = Pyramid(self.student.backbone)
        self.detr: nn.Module = module.build(
            architecture.kind, architecture.options, architecture.num_classes, self.pyramid, where
        )
        if architecture.quantized is not None:
            quantize_modules(self, architecture.quantized)
        # Identity modules whose outputs bindings refer to by name.
        self.srcs = nn.ModuleList(nn.Identity() for _ in self.pyramid.strides)
        self.memory = nn.ModuleList(nn.Identity() for _ in self.pyramid.strides)
        self.queries, self.pred_logits, self.pred_boxes = nn.Identity(), nn.Identity(), nn.Identity()
        self.proposal_queries, self.proposal_logits, self.proposal_boxes = nn.Identity(), nn.Identity(), nn.Identity()

    @property
    def stride(self) -> int:
        """Pixels; both sides of an image must be multiples of it."""
        return self.pyramid.strides[-1]

    @property
    def backbone(self) -> nn.Module:
        """The student's backbone."""
        return self.student.backbone

    @property
    def head_names(self) -> list[str]:
        """Empty: a detector has no heads for teachers."""
        return []

    @property
    def name_prefixes(self) -> list[str]:
        """Prefixes that patterns of layer names may leave out: of the backbone, timm's model, or transformers'."""
        return [*(f"{BACKBONE}{p}" for p in self.student.name_prefixes), BACKBONE, "detr.model.", "detr."]

    def float_layers(self) -> dict[str, str]:
        """Return the layers that read or return classes and boxes, with a description."""
        return dict(_float_layers(self.detr, "detr"))

    def feature_probe(self, images: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return the backbone's ``maps``, ``[B, h, w, C]``, and the encoder's ``memory``, ``[B, N, D]``, before
        query selection."""
        tensors: list[torch.Tensor] = []
        parts = [*self.srcs, getattr(self.detr, "model", self.detr).enc_output]
        handles = [part.register_forward_hook(lambda _, args, output: tensors.append(output)) for part in parts]
        try:
            self(images)
        finally:
            for handle in handles:
                handle.remove()
        *maps, memory = tensors
        return [*(("maps", level.movedim(1, -1)) for level in maps), ("memory", memory)]

    @property
    def input_projections(self) -> nn.ModuleList:
        """Layers that read the maps: one a map, then those of the decoder's further levels."""
        return kind_module(self.architecture.kind, "").input_projections(self.detr)

    def fuse_branches(self) -> Detector:
        """Fuse those of the backbone, in place; see :meth:`radioplat.models.student.student.Student.fuse_branches`."""
        self.student.fuse_branches()
        self.architecture = replace(self.architecture, student=self.student.architecture)
        return self

    def run_all(self, images: torch.Tensor) -> None:
        """Run every part on uint8, or floats in [0, 1], ``[B, 3, H, W]``."""
        self(images)

    def maps(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Compute the backbone's maps ``[B, C, H/s, W/s]``, one for each stride s.

        Raises:
            DataError: images are not as a student's.
            SpecError: their sides are not multiples of :attr:`stride`.
        """
        self.student.check_images(images, multiple=1)
        backbone = self.student.backbone
        maps = self.pyramid(backbone, self.student.normalized(images).to(next(backbone.parameters()).dtype))
        return [tap(level) for tap, level in zip(self.srcs, maps, strict=True)]

    def forward(self, images: torch.Tensor, targets: list[dict[str, torch.Tensor]] | None = None):
        """Return transformers' output, with losses if there are ``targets``; see the class.

        Args:
            targets: of each image ``class_labels`` int64 ``[N]`` and ``boxes`` float ``[N, 4]`` in the form of
                ``pred_boxes``; N may be 0.
        """
        maps, queries = self.maps(images), self.detr.config.num_queries
        levels = [tuple(level.shape[-2:]) for level in maps]
        positions = sum(height * width for height, width in self._level_shapes(self.detr, levels))
        if positions < queries:
            size = f"{images.shape[-1]} x {images.shape[-2]}"
            message = f"{queries} queries are more than the {positions} positions of images of {size} pixels"
            hint = "Larger images, or fewer queries."
            raise SpecError(message, where="model.detector.options.num_queries", hint=hint)
        return self._run(self.detr, maps, images, targets)

    def outputs(self, images: torch.Tensor, targets: list[dict[str, torch.Tensor]] | None = None) -> Outputs:
        """Run the detector for training; arguments as :meth:`forward`. The losses give every trainable parameter a
        gradient."""
        with captured(self.detr, ["model.enc_output"] if hasattr(self.detr, "model") else []) as positions:
            output = self(images, targets)
        if positions:
            self._tap_proposals(positions["model.enc_output"], output)
        queries = self.detr.config.num_queries  # the last ones: denoising queries come first
        self.queries(output.last_hidden_state[:, -queries:])
        self._tap_memory(output.encoder_last_hidden_state, images)
        logits = self.pred_logits(output.logits[:, -queries:])
        boxes = self.pred_boxes(output.pred_boxes[:, -queries:])
        if targets is None:
            return Outputs(logits, boxes)
        losses = dict(output.loss_dict)
        noised = getattr(getattr(self.detr, "model", self.detr), "denoising_class_embed", None)
        if self.training and noised is not None and not any(len(target["class_labels"]) for target in targets):
            # Without objects nothing is denoised, but all ranks must reduce the gradient of this weight together.
            losses["loss_bbox"] = losses["loss_bbox"] + 0 * noised.weight.sum()
        return Outputs(logits, boxes, losses)

    def _tap_proposals(self, positions: torch.Tensor, output: Any) -> None:
        """Pass RT-DETR's proposals through the modules ``proposal_*``: features ``[B, Q, D]``, logits and boxes."""
        best = output.enc_outputs_class.amax(-1).topk(self.detr.config.num_queries, 1).indices[..., None]
        self.proposal_queries(positions.detach().gather(1, best.expand(-1, -1, positions.shape[-1])))
        self.proposal_logits(output.enc_topk_logits)
        self.proposal_boxes(output.enc_topk_bboxes)

    def _tap_memory(self, memory: list[torch.Tensor] | torch.Tensor, images: torch.Tensor) -> None:
        """Pass the encoder's maps, ``[B, D, h, w]``, through the modules ``memory``; DINO's are tokens of all
        levels."""
        if isinstance(memory, torch.Tensor):
            height, width = images.shape[-2:]
            shapes = [(height // stride, width // stride) for stride in self.pyramid.strides]
            tokens = memory[:, : sum(h * w for h, w in shapes)].split([h * w for h, w in shapes], 1)
            memory = [t.transpose(1, 2).unflatten(2, shape) for t, shape in zip(tokens, shapes, strict=True)]
        for tap, level in zip(self.memory, memory, strict=True):
            tap(level)

    @torch.no_grad()
    def detect(self, images: torch.Tensor, most: int | None = None) -> list[Found]:
        """Return the detections of each image in pixels: at most ``most`` pairs of a query and a class.

        ``most`` of None is DINO's ``num_select``, or 100.
        """
        most = getattr(self.detr.config, "num_select", 100) if most is None else most
        output = self(images)
        return best_boxes(output.logits, output.pred_boxes, images.shape[-2:], most)


def best_boxes(logits: torch.Tensor, boxes: torch.Tensor, size: tuple[int, int], most: int = 100) -> list[Found]:
    """Return the pairs of a query and a class with the highest scores (a sigmoid per class), as RT-DETR does.

    Args:
        logits: ``[B, Q, C]``.
        boxes: ``[B, Q, 4]``, centre x, centre y, width, height relative to the image.
        size: height, width in pixels.
    """
    height, width = size
    classes = logits.shape[-1]
    scores, index = logits.float().sigmoid().flatten(1).topk(min(most, logits[0].numel()))
    corners = box_convert(boxes.float(), "cxcywh", "xyxy") * boxes.new_tensor([width, height, width, height]).float()
    return [
        Found(of_image[at // classes], at % classes, score)
        for of_image, at, score in zip(corners, index, scores, strict=True)
    ]


def detector_on(student: Student, num_classes: int, kind: str = "rtdetr_v2", **options: Any) -> Detector:
    """Build a detector on the backbone of ``student``, with its weights and quantizers; heads and classifier are
    left out."""
    plain = student.fold()
    quantized = plain.architecture.quantized and plain.architecture.quantized.without_heads()
    backbone = replace(plain.architecture, heads=(), num_classes=0, quantized=quantized)
    detector = Detector(DetectorArchitecture(backbone, num_classes, kind, options))
    own = detector.student.state_dict()
    detector.student.load_state_dict({name: t for name, t in plain.state_dict().items() if name in own})
    return detector


def _float_layers(detr: nn.Module, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield names of layers and modules of ``detr`` that stay float, with ``prefix``, and the reason."""
    for name, _ in detr.named_modules(prefix=prefix):
        parts = name.split(".")
        reason = next((_WHOLE[part] for part in parts if part in _WHOLE), None)
        if reason is not None:
            yield name, reason
        boxes, _, number = name.rpartition(".layers.")
        if number.isdigit() and any(part in _BOXES for part in parts):
            if int(number) == len(detr.get_submodule(f"{boxes}.layers".removeprefix(f"{prefix}."))) - 1:
                yield name, "a regression"
        if name.endswith("query_pos_head.layers.0"):
            yield name, "reads boxes"
