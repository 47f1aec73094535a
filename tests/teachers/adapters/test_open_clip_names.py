"""OpenCLIP's names: against the list of its weights (recorded from open_clip 3.3.0) and timm's list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm

from radioplat.teachers.adapters.open_clip_names import text_tower, timm_name

WEIGHTS = json.loads((Path(__file__).parent / "open_clip_names.json").read_text())["weights"]
HUBS = {f"{model}:{tag}": (hub, quick) for model, tag, hub, quick in WEIGHTS}
OF_TIMM = [name for name in timm.list_pretrained("vit_*") if "_clip_" in name or "_siglip_" in name]


def test_every_tower_is_one_of_open_clips():
    """Both name the same repository of weights where OpenCLIP reads timm's."""
    found = {name: text_tower(name) for name in OF_TIMM}
    assert sum(map(bool, found.values())) > 50
    for name, tower in found.items():
        if not tower:
            continue
        hub, quick = HUBS[tower]
        family = "siglip" if "SigLIP" in tower else "clip"
        assert f"_{family}_" in name and quick == ("-quickgelu" in tower)
        if hub.startswith("timm/vit_"):
            assert hub == timm.get_pretrained_cfg(name).hf_hub_id
        elif family == "siglip":
            assert ("v2_webli" in name) == ("SigLIP2" in hub) and ("i18n" in name) == ("i18n" in hub)


@pytest.mark.parametrize("tag", ["ft_in1k", "ft_in12k", "pali", "siglip_gap", "tinyclip"])
def test_weights_without_a_text_tower_have_none(tag):
    names = [name for name in OF_TIMM if tag in name]
    assert names and not any(map(text_tower, names))


def test_a_name_of_open_clip_without_a_tag_has_a_tower_only_if_it_has_one_set_of_weights():
    tags: dict[str, list[str]] = {}
    for model, tag, _, quick in WEIGHTS:
        if quick == ("-quickgelu" in model):
            tags.setdefault(model, []).append(tag)
    for model, known in tags.items():
        tower = text_tower(model)
        assert tower in ("", f"{model}:{known[0]}") and (not tower or len(known) == 1)
    assert text_tower("ViT-SO400M-14-SigLIP-384") == "ViT-SO400M-14-SigLIP-384:webli"
    assert text_tower("ViT-H-14-378-quickgelu") == "ViT-H-14-378-quickgelu:dfn5b"
    for model in ("ViT-H-14-378", "ViT-L-14-336", "ViT-B-32-256-quickgelu"):
        assert text_tower(model) == "", "no weights were trained with its activation"
    assert text_tower("ViT-L-14-336-quickgelu") == "ViT-L-14-336-quickgelu:openai"
    assert text_tower("ViT-H-14") == text_tower("resnet50") == text_tower("vit_base_patch16_siglip_224") == ""


def test_timm_has_the_image_tower_of_each():
    models = {model for model, *_ in WEIGHTS if "i18n" not in model}
    assert all(timm.is_model(timm_name(model)) for model in models)
    assert timm_name("ViT-L-14-336-quickgelu") == "vit_large_patch14_clip_quickgelu_336"
    assert timm_name("resnet50") == "resnet50"
