"""RADIO models as teachers: the backbone, or one of its adaptors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models.backbones import names
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.features import Features
from radioplat.models.heads import shuffle_up
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.student import build_backbone
from radioplat.models.weights.radio_layout import RadioParts, is_radio, read_radio, split_radio
from radioplat.models.weights.read import Contents, fit, read_checkpoint, require_finite
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, NativeInput, options_of, weights_field, weights_of


class RadioTeacher(Adapter):
    """A RADIO ViT: NVlabs' ``.pth`` or Hugging Face folder, which contain their architecture, or our ViT by its name.

    Options in ``model.backbone.kwargs``: ``adaptor`` names the teacher whose features to compute (``clip``,
    ``dino_v2``, ``sam``, ...); default: the backbone's features. ``num_heads`` if the width does not imply it.
    """

    kind = "radio"

    def __init__(self, backbone: RadioViT, slots: list[int], parts: RadioParts | None, adaptor: str | None) -> None:
        super().__init__()
        self.backbone, self.slots, self.adaptor = backbone, slots, adaptor
        self.stride, self.needs_multiple, self.upsample = backbone.stride, True, 1
        self.normalizer = nn.ParameterDict()
        self.heads = nn.ModuleDict()
        if parts is None:
            self.native = NativeInput(summary="class tokens")
            return
        if "norm.weight" not in parts.backbone:  # as in most RADIO models
            backbone.norm = nn.Identity()
        self.normalizer.update({k: torch.empty(v.shape) for k, v in parts.normalizer.items()})
        if adaptor:
            self.heads.update(parts.adaptor(adaptor))
            self.slots, self.upsample = [parts.token_slots[adaptor]], parts.upsample[adaptor]
            self.multiple, self.stride = backbone.stride, backbone.stride // self.upsample

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> RadioTeacher:
        """Build the structure without weights; NVlabs' files are read for their shapes."""
        where = f"{teacher.where}.model.backbone"
        options, kwargs = options_of(teacher, adaptor=None)
        contents = _contents(teacher, shapes_only=True)
        if contents is None or not is_radio(contents.tensors):
            return cls._by_name(teacher, kwargs, where, options["adaptor"], contents)
        parts = split_radio(contents, str(teacher.weights), weights_field(teacher), kwargs.pop("num_heads", None))
        adaptor = options["adaptor"]
        if adaptor and adaptor not in parts.heads:
            known = f"It has: {', '.join(sorted(parts.heads)) or 'none'}."
            raise SpecError(f"this checkpoint has no adaptor {adaptor!r}", where=f"{where}.kwargs.adaptor", hint=known)
        built = cls(RadioViT(**{**parts.vit, **kwargs}), parts.summary_slots, parts, adaptor)
        real = {k: tuple(v.flatten().tolist()) for k, v in parts.conditioner.items() if not v.is_meta}
        built.native = NativeInput(
            real.get("norm_mean"), real.get("norm_std"), None, f"adaptor {adaptor}" if adaptor else "class tokens"
        )
        return built

    @classmethod
    def _by_name(
        cls, teacher: ResolvedTeacher, kwargs: dict, where: str, adaptor: str | None, contents: Contents | None
    ) -> RadioTeacher:
        """Build our ViT of the spec's name, with the released number of class tokens, or the number in the file."""
        name, backbone = teacher.backbone.type or "", teacher.backbone
        if name == "radio":
            weights_of(teacher)
            raise WeightsError(f"{teacher.weights} is not a RADIO checkpoint", where=weights_field(teacher))
        if adaptor:
            raise SpecError("only NVlabs' checkpoints have adaptors", where=f"{where}.kwargs.adaptor")
        named = names.resolve(name, where=f"{where}.type")
        tokens = named.class_tokens
        if contents is not None and (rows := _prefix_tokens(contents)) and "num_registers" in named.kwargs:
            tokens = max(1, rows - named.kwargs["num_registers"])
        architecture = StudentArchitecture(
            type=name,
            kwargs={k: v for k, v in kwargs.items() if k != "num_classes"},
            num_class_tokens=tokens,
            cpe_max_size=backbone.cpe_max_size,
            num_registers=backbone.cpe_num_registers,
            register_multiple=backbone.register_multiple,
            img_size=teacher.input_size,
        )
        slots = list(named.summary_slots) if tokens == named.class_tokens else []
        return cls(build_backbone(architecture, where), slots, None, None)

    def fitting(self, teacher: ResolvedTeacher) -> dict[str, torch.Tensor]:
        """Return the tensors of the file that the teacher loads, by the names of :attr:`target`."""
        where, path = weights_field(teacher), weights_of(teacher)
        contents = _contents(teacher) or read_checkpoint(path, where)
        require_finite(contents.tensors, path, where)
        if not is_radio(contents.tensors):
            layers = fit(self.backbone, contents.tensors, path, where)
            return {f"backbone.{k}": v for k, v in layers.items()}
        parts = split_radio(contents, str(path), where, self.backbone.blocks[0].attn.num_heads)
        tensors = {f"backbone.{k}": v for k, v in parts.backbone.items()}
        tensors |= {f"normalizer.{k}": v for k, v in parts.normalizer.items()}
        for kind, layers in parts.heads.get(self.adaptor or "", {}).items():
            tensors |= {f"heads.{kind}.{k}": v for k, v in layers.items()}
        return fit(self, tensors, path, where)

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        features = self.backbone(images, wanted)
        summary, spatial = features.summary, features.spatial
        if self.slots:
            summary = features.named["tokens"][:, self.slots].flatten(1)
        if spatial is not None and self.normalizer:
            spatial = (spatial - self.normalizer["mean"]) @ self.normalizer["tx"].T
        if "summary" in self.heads and "summary" in wanted:
            summary = self.heads["summary"](summary)
        if "spatial" in self.heads and spatial is not None:
            spatial = shuffle_up(self.heads["spatial"](spatial), self.upsample)
        return Features(summary if "summary" in wanted else None, spatial)


def _prefix_tokens(contents: Contents) -> int:
    """Return the number of class tokens and registers of a RADIO ViT, under any prefix; 0 for other files."""
    name = "patch_generator.cls_token.token"
    return next((len(v) for k, v in contents.tensors.items() if k == name or k.endswith(f".{name}")), 0)


def _contents(teacher: ResolvedTeacher, shapes_only: bool = False) -> Contents | None:
    """Read the file, or the folder's file with the arguments in ``config.json``; None if there is no file yet."""
    return read_radio(Path(teacher.weights), weights_field(teacher), shapes_only) if teacher.weights else None
