"""Backbones by name: TAO's names and timm's, in one table."""

from __future__ import annotations

import difflib
import importlib
import re
from dataclasses import dataclass, field
from typing import Any

import timm

import radioplat.models.backbones.nv_clip  # noqa: F401  registers its models with timm
import radioplat.models.backbones.tao_sizes  # noqa: F401  registers its models with timm
from radioplat.errors import SpecError

# Width, depth and heads of the ViT sizes (ViT paper, table 1; DeiT for tiny and small; So400m from SigLIP).
VIT_SIZES: dict[str, dict[str, Any]] = {
    "tiny": dict(embed_dim=192, depth=12, num_heads=3),
    "small": dict(embed_dim=384, depth=12, num_heads=6),
    "base": dict(embed_dim=768, depth=12, num_heads=12),
    "large": dict(embed_dim=1024, depth=24, num_heads=16),
    "so400m": dict(embed_dim=1152, depth=27, num_heads=16, mlp_ratio=4304 / 1152),
    "huge": dict(embed_dim=1280, depth=32, num_heads=16),
    "giant": dict(embed_dim=1536, depth=40, num_heads=24),
}

_RADIO = re.compile(
    r"(?:(?P<theirs>c_)?radio(?:_(?:v(?P<version>\d)(?:_\d)?|(?P<early>p[123])))?|radio(?P<sequence>1d))"
    r"_vit_(?P<size>[a-z0-9]+)_patch(?P<patch>\d+)"
    # the training size, like 224, does not change the structure
    r"(?:_\d{3,4})?(?:_reg(?P<reg>\d+))?(?P<dinov2>_dinov2)?(?P<mlp_norm>_mlpnorm)?"
)
# Arguments of NVlabs' models (c_radio_*) that our radio_vit_* do not have: no norm after the last block, and a position
# table for 2048 pixels. Those whose name ends in dinov2 also have LayerScale, in mlpnorm a norm inside each MLP.
_THEIRS: dict[str, Any] = {"final_norm": False, "cpe_max_size": 2048}
_LAYER_SCALE = 1e-5
# By version: class tokens, how many of them make the summary, and the multiple to which registers pad the prefix.
_TOKENS = {"4": (3, 2, 10), "p1": (3, 3, 16), "p2": (4, 4, 16), "p3": (4, 3, 16)}
_USUAL_TOKENS = (4, 3, 8)
# Candidates for the nearest name, besides timm's own.
_TAO = [
    *(
        f"c_radio_v{v}_vit_{size}_patch16_{tail}"
        for v, tail in ((2, "224"), (3, "reg4_dinov2"), (4, "reg4_dinov2"))
        for size in ("base", "large", "huge")
    ),
    *(f"gc_vit_{size}" for size in ("xxtiny", "xtiny", "tiny", "small", "base", "large")),
    *(f"fan_{size}" for size in ("tiny", "small", "base", "large")),
    *(f"resnet_{depth}" for depth in (18, 34, 50, 101, 152)),
]

# TAO's spelling -> timm's, tried in order.
_RENAMES: list[tuple[str, str]] = [
    (r"vit_(small|base|large|giant)_patch14_(reg4_)?dinov2", r"vit_\1_patch14_\2dinov2"),
    (r"vit_giant_patch14_(reg4_)?dinov2_swiglu", r"vit_giant_patch14_\1dinov2"),  # timm's giant has SwiGLU
    (r"vit_(base|large)_patch16", r"vit_\1_patch16_224"),
    (r"vit_huge_patch14", "vit_huge_patch14_224"),
    (r"resnet_(\d+d?)", r"resnet\1"),
    (r"gc_vit_(xxtiny|xtiny|tiny|small|base|large|base_384|large_384)", r"gcvit_\1"),
    (r"swin_(tiny|small)_(?:patch4_window7_)?224", r"swin_\1_patch4_window7_224"),
    (r"swin_(base|large)_(?:patch4_window7_)?224", r"swin_\1_patch4_window7_224"),
    (r"fan_tiny", "fan_tiny_8_p4_hybrid"),
    (r"fan_small", "fan_small_12_p4_hybrid"),
    (r"fan_(base|large)", r"fan_\1_16_p4_hybrid"),
    (r"hiera_(tiny|small|base|base_plus|large|huge)_224", r"hiera_\1_224"),
]
# Names of models that timm lacks, and the module that registers them with timm when it is imported.
_EXTENSIONS: list[tuple[str, str]] = [(r"fan_.*", "radioplat.models.backbones.fan.fan")]


# TAO's names that build nothing here: the reason, and the nearest that do.
_UNAVAILABLE: list[tuple[str, str, str]] = [
    (r"faster_vit_.*", "FasterViT is in neither timm nor transformers", "fastvit_sa24, nextvit_small"),
    (r"fan_(\w+_p16_224.*|xlarge.*|swin.*)", "only FAN's hybrids up to large are built", "fan_small_12_p4_hybrid"),
    (r"edgenext_\w+_bn_hs", "timm lacks EdgeNeXt with BatchNorm and hard swish", "edgenext_small"),
]


@dataclass(frozen=True)
class Architecture:
    """Structure of a backbone.

    Attributes:
        radio: True for a RADIO ViT (patch generator, class token per teacher, registers), else a timm model.
        name: the timm model name; for a RADIO ViT the name as the spec gave it.
        kwargs: constructor arguments.
        class_tokens: number of class tokens in the model released under this name; a student has one for each teacher.
        summary_slots: indices of the class tokens that make its summary; empty for all.
        sequence: whether a RADIO ViT is a :class:`~radioplat.models.backbones.radio_1d.Radio1D`.
    """

    radio: bool
    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    class_tokens: int = 1
    summary_slots: tuple[int, ...] = ()
    sequence: bool = False


def resolve(name: str, kwargs: dict[str, Any] | None = None, where: str = "model.backbone.type") -> Architecture:
    """Find the architecture that ``name`` (TAO's or timm's) refers to.

    Raises:
        SpecError: no backbone has this name; the hint lists the nearest names.
    """
    kwargs = dict(kwargs or {})
    if radio := _RADIO.fullmatch(name):
        size = radio["size"]
        if size not in VIT_SIZES:
            raise SpecError(f"no ViT size {size!r} in {name!r}", where=where, hint=f"Sizes: {', '.join(VIT_SIZES)}.")
        implied: dict[str, Any] = {**VIT_SIZES[size], "patch_size": int(radio["patch"])}
        if radio["reg"]:
            implied["num_registers"] = int(radio["reg"])
        if radio["mlp_norm"]:
            implied["mlp_norm"] = True
        if radio["dinov2"] and (radio["theirs"] or radio["version"] or radio["sequence"]):
            implied["init_values"] = _LAYER_SCALE
        version = radio["version"] or radio["early"]
        if not (radio["theirs"] or version):
            return Architecture(True, name, {**implied, **kwargs}, sequence=bool(radio["sequence"]))
        tokens, spoken, multiple = _TOKENS.get(version, _USUAL_TOKENS)
        implied |= _THEIRS | {"register_multiple": multiple}
        return Architecture(True, name, {**implied, **kwargs}, tokens, tuple(range(spoken)))
    for pattern, module in _EXTENSIONS:
        if re.fullmatch(pattern, name):
            importlib.import_module(module)
    for pattern, replacement in _RENAMES:
        match = re.fullmatch(pattern, name)
        if match:
            target = match.expand(replacement)
            if timm.is_model(target):
                return Architecture(False, target, kwargs)
    if timm.is_model(name.split(".")[0]):
        return Architecture(False, name.split(".")[0], kwargs)
    for pattern, reason, others in _UNAVAILABLE:
        if re.fullmatch(pattern, name):
            raise SpecError(f"{name!r} is not available: {reason}", where=where, hint=f"Nearest available: {others}.")
    near = difflib.get_close_matches(name, [*_TAO, *timm.list_models()], n=5, cutoff=0.4)
    raise SpecError(
        f"no backbone is called {name!r}",
        where=where,
        hint=f"Nearest available: {', '.join(near)}." if near else "Any timm model name works, see timm.list_models().",
    )
