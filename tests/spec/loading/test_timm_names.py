"""One model of timm by all its spellings, as student, as teacher, and as the address of weights."""

from __future__ import annotations

import pytest

from radioplat.design.models import student_architecture
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.weights.address import parse_address

NAME = "vit_small_patch14_dinov2.lvd142m"


@pytest.mark.parametrize("prefix", ["", "timm/", "timm:", "timm:timm/", "hf-hub:timm/"])
def test_every_spelling_is_the_same_model(prefix):
    spec = load_spec(
        {
            "model": {"backbone": {"type": f"{prefix}resnet18"}},
            "distill": {"teacher": [{"model": {"backbone": {"type": prefix + NAME}}}, {"name": "second"}]},
        }
    )
    assert spec.model.backbone.type == "resnet18" and spec.distill.teacher[0].model.backbone.type == NAME
    assert spec.distill.teacher[1].model.backbone.type is None
    assert to_yaml(load_spec(spec)) == to_yaml(spec)
    assert student_architecture(spec, "distill", [], {}).type == "resnet18"


@pytest.mark.parametrize("text", ["timm.models:resnet18", "timm:", "timm/", "own/resnet18", "mytimm/resnet18"])
def test_other_words_stay(text):
    assert load_spec(None, [f"model.backbone.type='{text}'"]).model.backbone.type == text


def test_the_address_has_the_same_name():
    assert {parse_address(f"timm:{name}").repository for name in (NAME, f"timm/{NAME}")} == {NAME}
