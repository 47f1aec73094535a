"""Recognise the origin of a weight file by its tensors' names, and convert it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from radioplat.errors import WeightsError
from radioplat.models.backbones.names import VIT_SIZES
from radioplat.models.weights.downstream import find_downstream
from radioplat.models.weights.radio_layout import fold_spectral, is_radio, under_prefix
from radioplat.models.weights.read import Contents, read_checkpoint, require_finite
from radioplat.models.weights.timm_filter import renamed_efficientnet, timm_types

# Patterns of tensor names that identify a layout; the first match counts.
_MARKS = (
    ("DINOv3 (Meta)", re.compile(r"storage_tokens")),
    ("DINOv2 (Meta)", re.compile(r"mask_token|register_tokens")),
    ("CLIP with a timm tower (OpenCLIP)", re.compile(r"visual\.trunk\..*")),
    ("CLIP (OpenAI, OpenCLIP)", re.compile(r"visual\..*")),
    ("SAM (Meta)", re.compile(r"image_encoder\..*")),
    ("Hugging Face", re.compile(r"(?:vision_model\.|.*\.)?(?:encoder\.layer|embeddings)\..*")),
)
_PREFIXES = ("model.backbone.", "model.student.", "backbone.model.", "backbone.", "student.", "model.", "encoder.")
# One tensor of each of timm's large families: its prefix in a file is the backbone's prefix.
_BACKBONE_MARKS = (
    "blocks.0.attn.qkv.weight",
    "stages.0.blocks.0.conv_dw.weight",
    "conv_stem.weight",
    "layer1.0.conv1.weight",
    "layers.0.blocks.0.attn.relative_position_bias_table",
)


# Meta's Perception Encoder, by width.
_PE_CORE = {
    **{192: "PE-Core-T16-384", 384: "PE-Core-S16-384", 768: "PE-Core-B16-224"},
    **{1024: "PE-Core-L14-336", 1536: "PE-Core-G14-448"},
}


@dataclass(frozen=True)
class Inspection:
    """Result of inspecting a weight file.

    Attributes:
        layout: description of its origin, for users.
        types: values of ``model.backbone.type`` that its tensors fit, best first; empty if none is known.
        renamed: old name to new name, of renamed tensors.
        dropped: reason by name.
        tensors, parameters: their numbers.
        notes: further remarks.
    """

    path: Path
    layout: str
    types: list[str]
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    tensors: int = 0
    parameters: int = 0
    notes: list[str] = field(default_factory=list)


def inspect_weights(path: str | Path) -> Inspection:
    """Recognise a file; only names and shapes are kept.

    Raises:
        WeightsError: it cannot be read safely, or contains no tensors.
    """
    return _look(Path(path), read_checkpoint(path, str(path), shapes_only=True))[0]


def unlike(paths: Sequence[str | Path]) -> dict[str, str]:
    """Return the files whose tensors differ from the first file's, each with the first difference.

    Raises:
        WeightsError: as :func:`inspect_weights`.
    """
    first, *others = (read_checkpoint(path, str(path), shapes_only=True).tensors for path in paths)
    differences = {}
    for path, tensors in zip(paths[1:], others, strict=True):
        names = [*first, *(name for name in tensors if name not in first)]
        for name in names:
            here, there = (list(t[name].shape) if name in t else "missing" for t in (tensors, first))
            if here != there:
                differences[str(path)] = f"{name} is {here} there, and {there} in {paths[0]}"
                break
    return differences


def convert_weights(path: str | Path, out: str | Path | None = None) -> tuple[Inspection, Path]:
    """Write the tensors that a backbone can load from ``path`` as safetensors; other floating-point types become fp32.

    Args:
        out: default: ``path`` with the suffix ``.safetensors``.

    Returns:
        Renamed and dropped tensors, and the file written.

    Raises:
        WeightsError: the file cannot be read safely, or ``out`` is the file itself.
    """
    path = Path(path)
    target = Path(out) if out else path.with_suffix(".safetensors")
    if target.resolve() == path.resolve():
        raise WeightsError(f"{target} is the file to be read", where=str(path), hint="Name another OUT.safetensors.")
    inspection, tensors = _look(path, read_checkpoint(path, str(path)))
    require_finite(tensors, path, str(path))
    metadata = {"format": "pt", "source": path.name}
    if inspection.types:
        metadata["architecture"] = inspection.types[0]
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, target, metadata)
    return inspection, target


def _look(path: Path, contents: Contents) -> tuple[Inspection, dict[str, torch.Tensor]]:
    tensors, original = contents.tensors, dict(contents.tensors)
    notes, renamed, dropped = [], {}, {}
    if is_radio(tensors):
        folded = fold_spectral(tensors)
        dropped = {k: "folded into the plain weight" for k in tensors if k not in folded}
        adaptors = {m[1] for k in folded if (m := re.match(r"(?:_heads|radio_model\.adaptors)\.([^.]+)", k))}
        notes = [f"adaptors: {', '.join(sorted(adaptors))}"] if adaptors else []
        if contents.args:
            notes.append("the .pth also says which class token is whose; a converted file does not")
        layout, types = "RADIO (NVlabs)", ["radio"]
        return _report(path, layout, types, {}, dropped, original, notes), folded
    if efficientnet := renamed_efficientnet(tensors):
        name, named = efficientnet
        renamed = dict(zip(tensors, named, strict=False))
        return _report(path, "EfficientNet-PyTorch", [name], renamed, {}, original, notes), named
    downstream = find_downstream(tensors, contents.metadata.get("tao_model", ""))
    if downstream:
        dropped = dict.fromkeys(downstream.others, "not the backbone's")
        tensors = downstream.tensors
        renamed = {downstream.prefix + name: name for name in tensors}
    layout = next((name for name, mark in _MARKS if any(mark.fullmatch(k) for k in tensors)), "timm")
    bare = layout == "timm" and not downstream
    prefix = (under_prefix(tensors)[0] or _prefix_of(tensors)) if bare else ""
    if prefix:
        layout = f"Lightning or TAO, backbone under {prefix!r}"
        for key in tensors:
            if not key.startswith(prefix):
                dropped[key] = f"not under {prefix!r}"
        renamed = {k: k.removeprefix(prefix) for k in tensors if k.startswith(prefix)}
        tensors = {new: tensors[old] for old, new in renamed.items()}
    if layout.startswith(("CLIP", "SAM")):
        keep = "visual." if layout.startswith("CLIP") else "image_encoder."
        dropped |= {k: "not the image tower" for k in tensors if not k.startswith(keep)}
        tensors = {k: v for k, v in tensors.items() if k.startswith(keep)}
    types = [contents.metadata["architecture"]] if "architecture" in contents.metadata else []
    types += [t for t in _types(layout, tensors) if t not in types]
    if downstream:
        layout = f"TAO's {downstream.name}, backbone under {downstream.prefix!r}"
    return _report(path, layout, types, renamed, dropped, original, notes), tensors


def _report(path, layout, types, renamed, dropped, tensors, notes) -> Inspection:
    changed = {old: new for old, new in renamed.items() if old != new}
    count = sum(v.numel() for v in tensors.values())
    return Inspection(path, layout, types, changed, dropped, len(tensors), count, notes)


def _prefix_of(tensors: dict[str, torch.Tensor]) -> str:
    """Return the prefix of a backbone's tensors, recognised by a tensor that each family has; empty for none."""
    for prefix in _PREFIXES:
        if any(f"{prefix}{mark}" in tensors for mark in _BACKBONE_MARKS):
            return prefix
    return ""


def _types(layout: str, tensors: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of backbones whose tensors have these shapes."""
    if layout == "Hugging Face":
        return ["hf"]
    if layout.startswith("SAM"):
        width = tensors["image_encoder.pos_embed"].shape[-1] if "image_encoder.pos_embed" in tensors else 0
        return [name for name, w in (("sam_vit_b", 768), ("sam_vit_l", 1024), ("sam_vit_h", 1280)) if w == width]
    if layout.startswith("DINO"):
        return _dino(layout, tensors)
    if layout.startswith("CLIP"):
        return _clip(tensors)
    return _radio_names(tensors) or timm_types(tensors)


def _radio_names(tensors: dict[str, torch.Tensor]) -> list[str]:
    """Return NVlabs' names of a RADIO ViT alone, as TAO writes it: by width, layers and tokens before the patches."""
    tokens = tensors.get("patch_generator.cls_token.token")
    sizes = {size["embed_dim"]: name for name, size in VIT_SIZES.items()}
    if tokens is None or tokens.shape[1] not in sizes:
        return []
    size = sizes[tokens.shape[1]]
    if "blocks.0.mlp.norm.weight" in tensors:
        return [f"c_radio_{early}_vit_{size}_patch16_mlpnorm" for early in ("p1", "p2", "p3")]
    if "blocks.0.ls1.gamma" in tensors:
        return [f"c_radio_v3_vit_{size}_patch16_reg4_dinov2"]
    return [f"c_radio_{'v4' if len(tokens) == 10 else 'v2'}_vit_{size}_patch16"]


def _dino(layout: str, tensors: dict[str, torch.Tensor]) -> list[str]:
    width = tensors["cls_token"].shape[-1] if "cls_token" in tensors else 0
    size = {384: "s", 768: "b", 1024: "l", 1536: "g", 1280: "hplus", 4096: "7b"}.get(width)
    if not size:
        return ["eupe_vitt16"] if width == 192 else []
    if layout.startswith("DINOv3"):  # a file of EUPE has the same names and shapes
        return [f"dinov3_vit{size}16", *([f"eupe_vit{size}16"] if size in "sb" else [])]
    return [f"dinov2_vit{size}14" + ("_reg" if "register_tokens" in tensors else "")]


def _clip(tensors: dict[str, torch.Tensor]) -> list[str]:
    kernel = next(
        (v for k, v in tensors.items() if k.endswith(("visual.conv1.weight", "patch_embed.proj.weight"))), None
    )
    if kernel is None or kernel.ndim != 4:
        return []
    if "visual.ln_pre.weight" not in tensors and (named := _nv_clip(kernel.shape[0], tensors)):
        return [named]
    if "visual.attn_pool.probe" in tensors and kernel.shape[0] in _PE_CORE:
        return [_PE_CORE[kernel.shape[0]]]
    letter = {768: "B", 1024: "L", 1152: "SO400M", 1280: "H", 1408: "g", 1664: "bigG"}.get(kernel.shape[0])
    suffix = "-SigLIP" if any("attn_pool" in k for k in tensors) else ""
    return [f"ViT-{letter}-{kernel.shape[-1]}{suffix}"] if letter else []


def _nv_clip(width: int, tensors: dict[str, torch.Tensor]) -> str:
    """Return the name of a tower without a norm before its blocks, by width and number of positions; empty for none."""
    places = len(tensors.get("visual.positional_embedding", ()))
    if width == 1024 and places in (257, 577):
        return f"vit_l_14_siglip_clipa_{224 if places == 257 else 336}"
    return "vit_h_14_siglip_clipa_224" if (width, places) == (1280, 257) else ""
