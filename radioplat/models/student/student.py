"""The student: normalisation, backbone, one head per teacher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from radioplat.errors import Problem, RadioplatError, SpecError
from radioplat.models.backbones import names
from radioplat.models.backbones.radio_1d import Radio1D
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.features import Features
from radioplat.models.heads import TeacherHead
from radioplat.models.image_checks import check_images, check_range
from radioplat.models.model_kind import ModelKind
from radioplat.models.modifiers.fuse_branches import fuse_branches, fuse_if_equal
from radioplat.models.modifiers.low_rank import split_layers
from radioplat.models.modifiers.reshaping import reshape
from radioplat.models.modifiers.spectral import materialise, reparametrize
from radioplat.models.quantized.architecture import quantize_modules
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.timm_form import no_head, timm_model


def build_backbone(architecture: StudentArchitecture, where: str = "model.backbone") -> RadioViT | TimmBackbone:
    """Build an untrained backbone.

    Raises:
        SpecError: the name is unknown, or the backbone rejects its arguments.
    """
    resolved = names.resolve(architecture.type, architecture.kwargs, f"{where}.type")
    kwargs = dict(resolved.kwargs)
    if "num_classes" in kwargs:
        raise SpecError(
            "the number of classes is not an argument of a backbone",
            where=f"{where}.kwargs.num_classes",
            hint="Fine-tuning takes dataset.num_classes.",
        )
    if architecture.drop_path:
        kwargs["drop_path_rate"] = architecture.drop_path
    if not resolved.radio:
        try:
            return TimmBackbone(resolved.name, architecture.num_classes, where, architecture.img_size, **kwargs)
        except SpecError as error:
            if architecture.drop_path and "drop_path_rate" in str(error):
                raise SpecError(f"timm's {resolved.name} has no DropPath", where=f"{where}.drop_path") from None
            raise
    # Arguments of the patch generator: the architecture's, else those that the name implies.
    named = {k: kwargs.pop(k, None) for k in ("num_registers", "register_multiple", "cpe_max_size")}
    registers, multiple = architecture.num_registers, architecture.register_multiple
    if registers is None and multiple is None:
        registers, multiple = named["num_registers"], named["register_multiple"]
    return (Radio1D if resolved.sequence else RadioViT)(
        num_class_tokens=architecture.num_class_tokens,
        cpe_max_size=architecture.cpe_max_size or named["cpe_max_size"] or architecture.img_size,
        num_registers=registers,
        register_multiple=multiple,
        **kwargs,
    )


def sequence_problems(architecture: StudentArchitecture, where: str) -> Iterator[Problem]:
    """Yield a problem with the field ``where`` if the student has no sequence of tokens."""
    if not names.resolve(architecture.type, architecture.kwargs).sequence:
        hint = "Leave it out, or take a radio1d_vit_... student."
        yield Problem(f"a {architecture.type} has no sequence of tokens", where, hint)


class Student(nn.Module):
    """A student backbone with its heads.

    ``student(images)`` reads uint8, or floats in [0, 1], ``[B, 3, H, W]``, and normalises them.
    ``student.head(name, features)`` maps those features to the space of teacher ``name``. It is a
    :class:`~radioplat.models.vision_model.VisionModel`.

    Type, shape and device of images are always checked. The values of floats are read in evaluation mode, and of the
    first images in training mode, because a GPU has to be waited for; those of uint8, as in a run, never.
    """

    model_kind = ModelKind.student
    whole_images = False
    backbone_name = "backbone"

    def __init__(self, architecture: StudentArchitecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.frozen_norm = False
        # Without a normalisation of its own it reads floats of any range.
        self._any_range = (architecture.mean, architecture.std) == ((0.0,) * 3, (1.0,) * 3)
        self._first_checked = False
        # Teacher's name and kind of heads that were trained elsewhere, whose layers return raw features themselves.
        self.raw_heads: set[tuple[str, str]] = set()
        self.backbone = build_backbone(architecture)
        if architecture.fused_branches:
            fuse_branches(self.backbone)
        if architecture.pruned is not None:
            reshape(self.backbone, architecture.pruned)
        split_layers(self.backbone, architecture.low_rank)
        if architecture.spectral_reparam:
            reparametrize(self.backbone, iterations=1)  # start_student loads its weights
        for h in architecture.heads:
            if hasattr(nn.ModuleDict(), h.name):
                raise SpecError(f"no teacher can be called {h.name!r}", where="distill.teacher", hint="Give it a name.")
        self.heads = nn.ModuleDict(
            {
                h.name: TeacherHead(h, self.backbone.token_dim, self.backbone.spatial_dim, f"distill.teacher[{i}]")
                for i, h in enumerate(architecture.heads)
            }
        )
        needs_classifier = architecture.num_classes and isinstance(self.backbone, RadioViT)
        self.classifier = nn.Linear(self.backbone.summary_dim, architecture.num_classes) if needs_classifier else None
        if architecture.quantized is not None:
            if architecture.spectral_reparam:
                hint = "Set it to false: quantized layers learn scales of their own."
                raise SpecError(
                    "a quantized student has plain weights", where="model.backbone.spectral_reparam", hint=hint
                )
            quantize_modules(self, architecture.quantized)
        self.register_buffer("mean", torch.tensor(architecture.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(architecture.std).view(1, 3, 1, 1), persistent=False)

    @property
    def head_names(self) -> list[str]:
        """Teachers that have a head, in spec order."""
        return [h.name for h in self.architecture.heads]

    @property
    def stride(self) -> int:
        """Pixels that a position of the spatial map covers."""
        return self.backbone.stride

    @property
    def name_prefixes(self) -> list[str]:
        """Prefixes that patterns of layer names may leave out: names relative to the backbone, or to timm's model."""
        return ["backbone.model.", "backbone."] if self.backbone.target is not self.backbone else ["backbone."]

    def float_layers(self) -> dict[str, str]:
        """Return the layers whose output is the student's output, with a description."""
        reasons = {n: "a classifier" for n, _ in self.named_modules() if n == "classifier"}
        prefixes = getattr(self.backbone, "classifier_prefix", ())
        for name, _ in self.named_modules():
            if any(f"{name}.".startswith(f"backbone.model.{p}") for p in prefixes):
                reasons[name] = "a classifier"
        for teacher, head in self.heads.items():
            for kind in ("summary", "spatial", "logits"):
                part = getattr(head, kind, None)
                linears = [] if part is None else [n for n, m in part.named_modules() if isinstance(m, nn.Linear)]
                if linears:
                    reasons[f"heads.{teacher}.{kind}.{linears[-1]}".rstrip(".")] = "a regression"
            for binding in head.bindings:
                reasons[f"heads.{teacher}.bindings.{binding}"] = "a regression"
        return reasons

    def feature_probe(self, images: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return the backbone's map and summary."""
        features = self(images)
        both = [("spatial", features.spatial), ("summary", features.summary)]
        return [(kind, tensor) for kind, tensor in both if tensor is not None]

    def run_all(self, images: torch.Tensor) -> None:
        """Run backbone, classifier and all heads on uint8, or floats in [0, 1], ``[B, 3, H, W]``."""
        features = self(
            images, frozenset({"summary", "spatial"} | ({"logits"} if self.architecture.num_classes else set()))
        )
        for name in self.head_names:
            self.head(name, features)

    def freeze_norm(self) -> int:
        """Stop training the normalization layers of the backbone and updating BatchNorm's statistics; return how
        many."""
        self.frozen_norm = True
        layers = _norms(self.backbone)
        for layer in layers:
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(False)
        self.train(self.training)
        return len(layers)

    def train(self, mode: bool = True) -> Student:
        """As ``nn.Module``'s; frozen normalization layers stay in evaluation mode."""
        super().train(mode)
        for layer in _norms(self.backbone) if self.frozen_norm else ():
            layer.training = False  # only the layer itself, not its submodules
        return self

    def fold(self) -> Student:
        """Replace reparametrized weights by plain ones, in place; outputs stay the same."""
        if self.architecture.spectral_reparam:
            materialise(self)
            self.architecture = replace(self.architecture, spectral_reparam=False)
        return self

    def fuse_branches(self) -> Student:
        """Make timm's blocks of several branches one convolution each, in place; evaluation stays the same.

        Without effect on a student that was pruned or quantized with its branches, and on one whose features would
        change (:func:`radioplat.models.modifiers.fuse_branches.fuse_if_equal`).
        """
        architecture = self.architecture
        if architecture.pruned is None and architecture.quantized is None:
            names = set(self.backbone.state_dict())
            self.fuse_backbone()
            # Some blocks only fold their BatchNorm (LeViT's, TinyViT's), and have as many convolutions as before.
            changed = set(self.backbone.state_dict()) != names
            self.architecture = replace(architecture, fused_branches=architecture.fused_branches or changed)
        return self

    def fuse_backbone(self) -> None:
        """Fuse the branches of the backbone alone, in place, if its features on noise stay the same."""
        size = self.architecture.img_size
        noise = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            fuse_if_equal(self.backbone, self.normalized(noise.to(self.mean.device)).to(self.mean.dtype))

    def leave_normalization_out(self) -> None:
        """Read images that are normalised already from now on: floats of any range, as a teacher in a run does."""
        self.mean.zero_()
        self.std.fill_(1)
        self._any_range = True

    def normalized(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise uint8 images, or floats in [0, 1]; returns fp32."""
        unit = images.float() if images.is_floating_point() else images.float() / 255
        return (unit - self.mean.float()) / self.std.float()

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = frozenset({"summary", "spatial"})) -> Features:
        """Compute backbone features of images; see :class:`~radioplat.models.features.Features`.

        Args:
            images: uint8, or floats in [0, 1], ``[B, 3, H, W]``, on the student's device. For a ViT their sides are
                multiples of its patch (:attr:`stride`).
            wanted: of ``summary``, ``spatial`` and ``logits``.

        Raises:
            DataError: the images are not such, for example normalised already, or channels last.
        """
        self.check_images(images, self.stride if self.backbone.needs_multiple else 1)
        dtype = next(self.backbone.parameters()).dtype
        features = self.backbone(self.normalized(images).to(dtype), wanted)
        if "logits" in wanted and self.classifier is not None:
            features.named["logits"] = self.classifier(features.summary)
        features.summary = taught_summary(features, self.architecture.summary_slots)
        return features

    def as_timm(self, size: int | None = None, teacher: str | None = None) -> nn.Module:
        """Return the backbone as a model of timm's, with copies of the weights, in fp32 and evaluation mode.

        It has ``forward_features``, ``forward_head``, ``num_features`` and ``pretrained_cfg``; ``model(images)`` is the
        pooled feature ``[B, D]``, or the classes of a classifier ``[B, C]``. Unlike the student it reads normalised
        images, as ``timm.data.create_transform(**timm.data.resolve_model_data_config(model))`` makes them. The heads of
        teachers are left out.

        Args:
            size: pixels a side that its configuration names; default: the training resolution. At this size a RADIO
                ViT's features are the student's; at others timm resizes its positions, and a RADIO ViT crops its table.
            teacher: of a RADIO ViT, the teacher whose class token is pooled; default: the first with a summary.

        Raises:
            RadioplatError: a RADIO ViT that is pruned, quantized, of low rank or has a sequence, which timm cannot
                build; a wrong size or teacher.

        Example:
            >>> model = student.as_timm()
            >>> transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
            >>> model(transform(Image.open("a.jpg").convert("RGB"))[None]).shape
            torch.Size([1, 384])
        """
        model = timm_model(self.backbone, self.architecture, self.classifier, size, teacher)
        return model.to(self.mean.device)

    def check_images(self, images: Any, multiple: int) -> None:
        """Refuse images that this student cannot read; see the class.

        Args:
            multiple: height and width must be multiples of it.

        Raises:
            DataError: with what was given, and what to do.
        """
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return
        check_images(images, multiple, self.mean.device)
        if images.is_floating_point() and not self._any_range and not (self.training and self._first_checked):
            check_range(images)
            self._first_checked = self._first_checked or self.training

    def head(self, name: str, features: Features) -> Features:
        """Map features to the space of teacher ``name``.

        Args:
            features: what ``student(images)`` returned.

        Raises:
            RadioplatError: there is no head of this name, with the nearest one; or these are no features.
        """
        if not isinstance(name, str):
            hint = f"Write student.head({next(iter(self.head_names), 'name')!r}, features)."
            raise RadioplatError(f"this is a {type(name).__name__}, not a name", where="name", hint=hint)
        if name not in self.heads:
            raise no_head(name, self.head_names)
        if not isinstance(features, Features):
            hint = "Give what student(images) returned."
            raise RadioplatError(f"this is a {type(features).__name__}, not Features", where="features", hint=hint)
        return self.heads[name](features)


def taught_summary(features: Features, slots: list[int]) -> torch.Tensor | None:
    """Return the summary made of the class tokens in ``slots``, ``[B, len(slots) * D]``."""
    tokens = features.named.get("tokens")
    return features.summary if tokens is None or not slots else tokens[:, slots].flatten(1)


def _norms(module: nn.Module) -> list[nn.Module]:
    """Return normalization layers that have weights or statistics of their own, recognised by class name."""
    return [
        m
        for m in module.modules()
        if "norm" in type(m).__name__.lower()
        and any(True for tensors in (m.parameters(recurse=False), m.buffers(recurse=False)) for _ in tensors)
    ]
