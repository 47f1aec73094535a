"""OpenCLIP's names of models, and which text tower belongs to an image tower (open_clip 3.3, ``pretrained.py``)."""

from __future__ import annotations

import re

_SIZES = {
    "B": "base",
    "L": "large",
    "H": "huge",
    "g": "giant",
    "bigG": "gigantic",
    "SO400M": "so400m",
    "gopt": "giantopt",
}
_LETTERS = {size: letter for letter, size in _SIZES.items()}
_OPEN_CLIP = re.compile(r"ViT-(\w+)-(\d+)(-quickgelu)?(-SigLIP2?)?(?:-(\d+))?(-quickgelu)?")
_TIMM = re.compile(r"vit_([a-z0-9]+)_patch(\d+)_(?:clip|clip_quickgelu|siglip)_(\d+)\.(\w+)")
# timm's tag of SigLIP's weights -> their part of OpenCLIP's name; OpenCLIP's tag is webli for all.
_SIGLIP = {"webli": "-SigLIP", "webli_i18n": "-SigLIP-i18n", "v2_webli": "-SigLIP2"}
# timm's tag of CLIP's weights -> OpenCLIP's; by model where one of timm's tags stands for several.
_CLIP = {
    **{tag: tag for tag in ("openai", "dfn2b", "dfn2b_s39b", "dfn5b", "metaclip_400m", "metaclip_altogether")},
    "metaclip_2pt5b": "metaclip_fullcc",
    "datacompxl": {
        "ViT-B-32": "datacomp_xl_s13b_b90k",
        "ViT-B-32-256": "datacomp_s34b_b86k",
        "ViT-B-16": "datacomp_xl_s13b_b90k",
        "ViT-L-14": "datacomp_xl_s13b_b90k",
    },
    "laion2b": {
        "ViT-B-32": "laion2b_s34b_b79k",
        "ViT-B-16": "laion2b_s34b_b88k",
        "ViT-L-14": "laion2b_s32b_b82k",
        "ViT-H-14": "laion2b_s32b_b79k",
        "ViT-bigG-14": "laion2b_s39b_b160k",
    },
}
_QUICK = ("openai", "dfn2b", "dfn5b", "metaclip_400m", "metaclip_fullcc")  # trained with QuickGELU
_ONLY = {"ViT-B-32-256": "datacomp_s34b_b86k", "ViT-L-14-336": "openai", "ViT-H-14-378": "dfn5b"}  # with one tag


def timm_name(type_name: str) -> str:
    """Convert OpenCLIP's name to timm's of the image tower; other names are returned unchanged."""
    match = _OPEN_CLIP.fullmatch(type_name)
    if not match or match[1] not in _SIZES:
        return type_name
    family = match[4].lower().replace("-", "") if match[4] else "clip"
    quick = "_quickgelu" if match[3] or match[6] else ""
    # timm keeps SigLIP2's weights under SigLIP's architectures.
    family = "siglip" if family.startswith("siglip") else family + quick
    return f"vit_{_SIZES[match[1]]}_patch{match[2]}_{family}_{match[5] or '224'}"


def text_tower(type_name: str) -> str:
    """Return OpenCLIP's name and tag (``ViT-L-14-quickgelu:openai``) of the text tower for the image tower
    ``type_name``.

    Args:
        type_name: OpenCLIP's name, or timm's with its tag.

    Returns:
        The name, then a colon and the tag; empty if ``type_name`` does not determine the weights. OpenCLIP's name
        without ``-quickgelu`` is a model with GELU, whatever its weights were trained with.
    """
    if match := _OPEN_CLIP.fullmatch(type_name):
        side = f"-{match[5]}" if match[5] not in (None, "224") else ""
        model = f"ViT-{match[1]}-{match[2]}{match[4] or ''}{side}"
        tag = "webli" if match[4] else _ONLY.get(model, "")
        if bool(match[3] or match[6]) != (tag in _QUICK):
            return ""  # there are no weights for this activation
    elif (match := _TIMM.fullmatch(type_name)) and match[1] in _LETTERS:
        side = "" if match[3] == "224" else f"-{match[3]}"
        family = _SIGLIP.get(match[4], "")
        model = f"ViT-{_LETTERS[match[1]]}-{match[2]}{family}{side}"
        known = "webli" if family else _CLIP.get(match[4], "")
        tag = known if isinstance(known, str) else known.get(model, "")
    else:
        return ""
    return f"{model}{'-quickgelu' if tag in _QUICK else ''}:{tag}" if tag else ""
