"""Source checkpoints: pretrained weights of any origin, renamed to the names of our own models."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from radioplat.errors import WeightsError
from radioplat.models.modifiers.spectral import plain_tensors
from radioplat.models.student.checkpoint import HEADS_FILE, STUDENT_FILE, is_checkpoint, read_architecture, read_tensors
from radioplat.models.weights.downstream import find_downstream
from radioplat.models.weights.manifest import require_unchanged
from radioplat.models.weights.radio_layout import RadioParts, is_radio, read_radio, split_radio, under_prefix
from radioplat.models.weights.read import read_checkpoint, require_finite
from radioplat.spec.resolved.paths import no_such_weights

EMBEDDER, TABLE, TOKENS = (f"patch_generator.{k}" for k in ("embedder.weight", "pos_embed", "cls_token.token"))
_KIND = re.compile(r"summary|spatial|logits")
Heads = dict[str, dict[str, dict[str, torch.Tensor]]]


@dataclass(frozen=True)
class SourceCheckpoint:
    """A trained backbone, and the other parts of its file.

    Attributes:
        layout: the origin of the file, for messages.
        backbone: tensors by the names of a RADIO ViT if there is a patch generator among them, else of a timm model.
        class_tokens: number of rows of ``cls_token.token`` that are class tokens; registers follow. None if unknown: as
            many as the student's are assumed.
        slots: class token by teacher's name; empty if unknown.
        heads: teacher's name -> ``summary``, ``spatial``, ``logits`` -> tensors by their names in a ``TeacherHead``.
        classifier: tensors of a classifier on the backbone, by their names in a ``Student``.
        arguments: of the RADIO ViT in a RADIO file.
        normal: mean and std of images in [0, 1] that it was trained with; None if unknown.
        ignored: parts of the file that no student can use, described in a few words each.
    """

    layout: str
    backbone: dict[str, torch.Tensor]
    class_tokens: int | None = None
    slots: dict[str, int] = field(default_factory=dict)
    heads: Heads = field(default_factory=dict)
    classifier: dict[str, torch.Tensor] = field(default_factory=dict)
    arguments: dict = field(default_factory=dict)
    normal: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    ignored: list[str] = field(default_factory=list)

    @property
    def is_radio(self) -> bool:
        """True if the backbone is a RADIO ViT."""
        return TABLE in self.backbone  # the embedder can be two layers with other names

    @property
    def is_timm_vit(self) -> bool:
        """True if the backbone is a plain timm ViT."""
        return "patch_embed.proj.weight" in self.backbone and "blocks.0.attn.qkv.weight" in self.backbone


def read_source(
    path: str | Path, where: str, shapes_only: bool = False, num_heads: int | None = None
) -> SourceCheckpoint:
    """Read a radioplat checkpoint, a RADIO ``.pth`` or Hugging Face folder, a checkpoint of TAO's, or a timm file.

    Args:
        where: the spec field that named it, for messages.
        shapes_only: read tensors on the meta device.
        num_heads: attention heads of a RADIO ViT, if its width does not imply them.

    Raises:
        WeightsError: it cannot be read, is none of these, or contains a NaN.
    """
    if is_checkpoint(path):
        source = _of_ours(Path(path), where, shapes_only)
    else:
        contents = read_radio(path, where, shapes_only)
        if contents is None:
            raise WeightsError(no_such_weights(path, where))
        if is_radio(contents.tensors):
            source = _of_radio(split_radio(contents, str(path), where, num_heads))
        elif task := find_downstream(contents.tensors, contents.metadata.get("tao_model", "")):
            ignored = [f"what TAO's {task.name} has beside the backbone ({task.unused})"] if task.others else []
            source = SourceCheckpoint(f"TAO's {task.name}", task.tensors, ignored=ignored)
        else:
            prefix, backbone = under_prefix(contents.tensors)
            others = len(contents.tensors) - len(backbone)
            ignored = [f"what is not under {prefix!r} ({others} tensors)"] if others else []
            source = SourceCheckpoint("timm or plain tensors", backbone, ignored=ignored)
    if not shapes_only:
        tensors = source.backbone | {
            f"{name}.{k}": v
            for name, kinds in source.heads.items()
            for layers in kinds.values()
            for k, v in layers.items()
        }
        require_finite(tensors, path, where)
    return source


def _of_ours(path: Path, where: str, shapes_only: bool) -> SourceCheckpoint:
    architecture = read_architecture(path, where)
    if shapes_only:
        files = (path / STUDENT_FILE, path / HEADS_FILE) if path.is_dir() else (path,)
        tensors = {k: v for f in files for k, v in read_checkpoint(f, where, shapes_only=True).tensors.items()}
    else:
        require_unchanged(path, (STUDENT_FILE, HEADS_FILE), where)
        tensors = read_tensors(path, where)
    tensors = plain_tensors(tensors)
    backbone = {k.removeprefix("backbone."): v for k, v in tensors.items() if k.startswith("backbone.")}
    heads: Heads = {}
    for key, value in tensors.items():
        if key.startswith("heads."):
            _, name, rest = key.split(".", 2)
            kind = match[0] if (match := _KIND.match(rest)) else rest
            heads.setdefault(name, {}).setdefault(kind, {})[rest] = value
    return SourceCheckpoint(
        "radioplat",
        {k.removeprefix("model."): v for k, v in backbone.items()},
        architecture.num_class_tokens,
        {head.name: head.token_slot for head in architecture.heads},
        heads,
        {k: v for k, v in tensors.items() if k.startswith("classifier.")},
        normal=(architecture.mean, architecture.std),
    )


def _of_radio(parts: RadioParts) -> SourceCheckpoint:
    heads = {
        name: {kind: {f"{kind}.{k}": v for k, v in tensors.items()} for kind, tensors in kinds.items()}
        for name, kinds in parts.heads.items()
    }
    mean, std = (parts.conditioner.get(f"norm_{k}") for k in ("mean", "std"))
    normal = None
    if mean is not None and std is not None and not (mean.is_meta or std.is_meta):
        normal = tuple(mean.flatten().tolist()), tuple(std.flatten().tolist())
    ignored = ["its normalizer of the map"] if parts.normalizer else []
    return SourceCheckpoint(
        "RADIO (NVlabs)",
        parts.backbone,
        parts.arguments["num_class_tokens"],
        parts.teacher_slots,
        heads,
        arguments=parts.vit,
        normal=normal,
        ignored=ignored,
    )


def as_radio(source: SourceCheckpoint, class_tokens: int) -> SourceCheckpoint:
    """Rename a timm ViT's tensors to a RADIO ViT's; exact if the position table keeps its size.

    The patch embedding's bias is added to every position, and a class token's position to the token; each of
    ``class_tokens`` starts as a copy of the one class token. Classifier and pooling norm are left out.

    Raises:
        WeightsError: a ViT with a norm before its blocks, or without positions.
    """
    given = dict(source.backbone)
    kernel, bias = given.pop("patch_embed.proj.weight"), given.pop("patch_embed.proj.bias", None)
    table, token = given.pop("pos_embed", None), given.pop("cls_token", None)
    registers = given.pop("reg_token", None)
    if table is None or any(k.startswith("norm_pre.") for k in given):
        raise WeightsError(
            "this ViT has no position table, or a norm before its blocks: a RADIO ViT has no place for it"
        )
    width = kernel.shape[0]
    prefix = table.shape[1] - math.isqrt(table.shape[1]) ** 2
    if prefix not in (0, 1, 1 + (0 if registers is None else registers.shape[1])):
        raise WeightsError("its position table is not square")
    prefixes = table[0, :prefix]
    positions = table[:, prefix:] + (0 if bias is None else bias)
    if token is None:
        token = torch.zeros(1, 1, width, dtype=kernel.dtype, device=kernel.device)
    token, registers = token[0], registers[0] if registers is not None else token[0, :0]
    if prefix:
        token = token + prefixes[:1]
        registers = registers + prefixes[1:] if prefix > 1 else registers
    dropped = sorted({k.split(".")[0] for k in given if not k.startswith(("blocks.", "norm."))})
    kept = {k: v for k, v in given.items() if k.startswith(("blocks.", "norm."))}
    kept |= {
        EMBEDDER: kernel.flatten(1),
        TABLE: positions,
        TOKENS: torch.cat([token.expand(class_tokens, -1), registers]),
    }
    return replace(
        source, layout="timm ViT", backbone=kept, class_tokens=class_tokens, ignored=[f"its {k}" for k in dropped]
    )


def resized(table: torch.Tensor, side: int) -> torch.Tensor:
    """Resize a position table ``[1, s*s, D]`` to ``[1, side*side, D]``, bilinear, as a RADIO ViT does."""
    old = math.isqrt(table.shape[1])
    if old == side:
        return table
    square = table.reshape(1, old, old, -1).permute(0, 3, 1, 2).float()
    resampled = F.interpolate(square, size=(side, side), mode="bilinear", align_corners=False)
    return resampled.flatten(2).transpose(1, 2).to(table.dtype)
