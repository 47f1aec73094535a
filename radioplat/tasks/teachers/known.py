"""``radioplat teachers list``: models that can teach and whose weights can be fetched, as timm describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radioplat.errors import RadioplatError

# One or a few of each family that users distil; a pattern lists any others of timm's.
USUAL = (
    *(f"vit_{size}_patch14_reg4_dinov2.lvd142m" for size in ("small", "base", "large", "giant")),
    *(f"vit_{size}_patch16_dinov3.lvd1689m" for size in ("small", "base", "large", "7b")),
    "convnext_base.dinov3_lvd1689m",
    "vit_base_patch16_clip_224.openai",
    "vit_large_patch14_clip_336.openai",
    "vit_huge_patch14_clip_quickgelu_378.dfn5b",
    "vit_base_patch16_siglip_256.v2_webli",
    "vit_so400m_patch14_siglip_384.webli",
    "vit_so400m_patch16_siglip_512.v2_webli",
    "vit_giantopt_patch16_siglip_384.v2_webli",
    *(f"samvit_{size}_patch16.sa1b" for size in ("base", "large", "huge")),
    "vit_pe_core_large_patch14_336.fb",
    "vit_pe_spatial_base_patch16_512.fb",
    "aimv2_large_patch14_224.apple_pt",
    "tf_efficientnet_lite0.in1k",
    "tf_efficientnet_lite2.in1k",
)


@dataclass(frozen=True)
class KnownTeacher:
    """A model with pretrained weights.

    Attributes:
        type: for ``model.backbone.type``; ``timm:<type>`` is the address of its weights.
        licence: of the weights, by its name on the hub; empty if timm does not say.
        size: side in pixels that it was trained at.
        mean, std: normalisation of images in [0, 1].
    """

    type: str
    licence: str
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def parameters(self) -> int:
        """Number of parameters of the backbone, without a classifier; it is built without values."""
        import timm

        from radioplat.models.on_meta import on_meta  # with torch, which other uses of this module do without

        with on_meta():
            backbone = timm.create_model(self.type, pretrained=False, num_classes=0)
        return sum(parameter.numel() for parameter in backbone.parameters())

    @property
    def address(self) -> str:
        """The address for ``radioplat weights fetch`` and for a spec."""
        return f"timm:{self.type}"


def known_teachers(pattern: str = "") -> list[KnownTeacher]:
    """Return the usual teachers, or timm's pretrained models whose name has the pattern (``*`` stands for any text).

    Raises:
        RadioplatError: no name fits.
    """
    import timm

    names = timm.list_models(f"*{pattern}*", pretrained=True) if pattern else list(USUAL)
    if not names:
        hint = "Parts of names are, for example, dinov2, siglip, convnext, or vit_large*clip."
        raise RadioplatError("timm has no pretrained model of this name", where=pattern, hint=hint)
    return [teacher for teacher in map(describe, names) if teacher]


def describe(name: str) -> KnownTeacher | None:
    """Return timm's description of a pretrained model; None if it has no such model or no weights of it."""
    if (known := pretrained_cfg(name)) is None:
        return None
    return KnownTeacher(name, known.license or "", known.input_size[-1], tuple(known.mean), tuple(known.std))


def pretrained_cfg(name: str) -> Any | None:
    """Return timm's record of the weights of a model, ``NAME`` or ``NAME.TAG``; None if it has none of this name."""
    import timm

    try:
        known = timm.models.get_pretrained_cfg(name) if timm.is_model(name) else None
    except RuntimeError:  # the model has no such tag
        return None
    return known if known and (known.hf_hub_id or known.url) else None
