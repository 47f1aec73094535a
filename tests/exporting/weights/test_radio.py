"""Our RADIO ``.pth`` against the written description of what NVlabs' loader builds, and read back by our readers."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from radioplat.errors import EngineError
from radioplat.exporting.weights.export import format_problems
from radioplat.exporting.weights.radio import radio_file, write_radio
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student
from radioplat.models.weights.radio_layout import read_radio, split_radio
from radioplat.models.weights.read import read_weights
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.export import AdaptorTypes, ExportFormat
from radioplat.teachers.adapters.radio import RadioTeacher

LAYOUT = json.loads((Path(__file__).parent / "radio_layout.json").read_text())


def side(text: str, symbols: dict[str, int]) -> int:
    """``3*P*P`` or ``T+R`` as a number."""
    return sum(math.prod(symbols[f] if f in symbols else int(f) for f in part.split("*")) for part in text.split("+"))


def expand(group: dict, symbols: dict[str, int], prefix: str = "", **names) -> dict[str, tuple[int, ...]]:
    shapes = {k: v for k, v in group.items() if isinstance(v, list)}
    return {f"{prefix}{k.format(**names)}": tuple(side(s, symbols) for s in v) for k, v in shapes.items()}


def described(args: argparse.Namespace, depth: int, heads: dict, symbols: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Every tensor that the loader wants of a file with these ``args``; ``heads``: name -> kind -> (H, inner, O)."""
    distinct = len({t["name"] for t in args.teachers}) if args.cls_token_per_teacher else 1
    multiple = args.register_multiple
    registers = args.cpe_num_registers or (multiple - distinct % multiple if multiple else 0)
    symbols = symbols | {"T": distinct, "R": registers, "S": round(args.cpe_max_size / symbols["P"])}
    found = expand(LAYOUT["backbone"], symbols) | expand(LAYOUT["conditioner"], symbols)
    if args.model_norm:
        found |= expand(LAYOUT["norm"], symbols)
    for i in range(depth):
        found |= expand(LAYOUT["block"], symbols, i=i)
        if "init_values" in args.model_kwargs:
            found |= expand(LAYOUT["layer_scale"], symbols, i=i)
    for name, kinds in heads.items():
        for kind, (hidden, inner, out) in kinds.items():
            prefix, own = LAYOUT["heads"][kind].format(name=name), symbols | {"H": hidden, "O": out}
            found |= expand(LAYOUT["head"], own, prefix)
            for i in range(inner):
                found |= expand(LAYOUT["head_inner"], own, prefix, i=i)
    return found


def test_norms_inside_the_mlps_are_a_model_of_nvlabs(radio_student, image_batch, tmp_path):
    student = radio_student(kwargs=dict(embed_dim=64, depth=2, num_heads=2, mlp_norm=True))
    write_radio(student, tmp_path / "s.pth")
    contents = read_radio(tmp_path / "s.pth")
    assert contents.args["model"] == "vit_huge_patch16_224_mlpnorm" and "mlp_norm" not in contents.args["model_kwargs"]
    parts = split_radio(contents, "s.pth")
    backbone = RadioViT(**parts.vit).eval()
    backbone.load_state_dict(parts.backbone)
    images = image_batch() / 255
    with torch.no_grad():
        torch.testing.assert_close(backbone(images).spatial, student.backbone.eval()(images).spatial)


def wanted(heads) -> dict:
    """Widths of the heads; one that the student lacks is asked for all the same, and is 1 wide."""
    silent = (1, 0, 1)
    return {
        h.name: {
            "summary": (h.hidden, h.num_inner, h.summary_dim) if h.summary_dim else silent,
            "feature": (h.hidden, h.num_inner, h.upsample**2 * h.spatial_dim) if h.spatial_dim else silent,
        }
        for h in heads
    }


@pytest.mark.parametrize(
    ("change", "table"),
    [
        ({}, 64),
        ({"cpe_max_size": 48}, 48),
        ({"cpe_max_size": 100}, 96),  # whole patches
        ({"cpe_max_size": None, "img_size": 40}, 40),
        ({"cpe_max_size": 8}, 8),
        ({"num_registers": 0}, 64),
        ({"num_registers": None, "register_multiple": 4}, 64),
        ({"kwargs": {"embed_dim": 32, "depth": 3, "num_heads": 4, "init_values": 1e-5, "mlp_ratio": 2}}, 64),
        ({"kwargs": {"embed_dim": 32, "depth": 2, "num_heads": 2, "final_norm": False, "drop_path_rate": 0.1}}, 64),
        ({"heads": (HeadArchitecture("clip", 12, 10, hidden=16, num_inner=2, upsample=2),), "num_class_tokens": 1}, 64),
    ],
)
def test_the_file_is_as_described(change, table, radio_student, tmp_path):
    student = radio_student(**change)
    write_radio(student, tmp_path / "s.pth")
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(tmp_path / "s.pth", weights_only=True)
    assert set(content) == set(LAYOUT["file"])
    args = content["args"]
    for group in ("read without a default", "read with a default"):
        for name, kind in LAYOUT["args"][group].items():
            assert type(getattr(args, name)).__name__ in (kind, "NoneType"), name
    assert not set(args.model_kwargs) & set(LAYOUT["args"]["given to timm beside model_kwargs, so not allowed in it"])
    assert args.cpe_max_size == table and args.model_kwargs["img_size"] != table
    blocks = student.backbone.blocks
    symbols = {"D": 32, "P": 8, "F": blocks[0].mlp.fc1.out_features}
    optional = LAYOUT["args"]["teacher, optional"]
    for head in student.architecture.heads:
        entry = next(t for t in args.teachers if t["name"] == head.name)
        assert entry.get("fd_upsample_factor", 1) == head.upsample
        assert all(type(v).__name__ == optional[k] for k, v in entry.items() if k in optional)
    shapes = {k: tuple(v.shape) for k, v in content["state_dict"].items()}
    assert shapes == described(args, len(blocks), wanted(student.architecture.heads), symbols)
    assert all(v.dtype is torch.float32 for v in content["state_dict"].values())


def test_teachers_are_in_the_order_of_their_tokens(radio_student):
    clip, sam, dino = radio_student().architecture.heads
    found = radio_file(radio_student(heads=(dino, clip, sam)))
    entry = LAYOUT["args"]["teacher"]
    for i, teacher in enumerate(found.args["teachers"]):
        assert {k: type(teacher[k]).__name__ for k in entry} == entry and teacher["token_slot"] == i
        assert teacher["type"] not in LAYOUT["args"]["types with an adaptor class that downloads a text tower"]
    assert [t["name"] for t in found.args["teachers"]] == ["clip", "sam", "dino"]
    assert [t["use_summary"] for t in found.args["teachers"]] == [True, False, True]


def test_a_student_without_heads_and_one_with_a_shared_token(radio_student):
    bare = radio_file(radio_student(heads=(), num_class_tokens=2))
    assert bare.adaptors == [] and all(t["use_summary"] for t in bare.args["teachers"])
    assert len(bare.args["teachers"]) == 2 and not any(k.startswith("_") for k in bare.state_dict)
    one = tuple(HeadArchitecture(n, 4, 4, hidden=8) for n in ("a", "b"))
    found = radio_file(radio_student(heads=one, num_class_tokens=1))
    assert not found.args["cls_token_per_teacher"] and found.args["cpe_num_registers"] == 5
    shared = (*one, HeadArchitecture("c", 4, 4, hidden=8, token_slot=1))
    found = radio_file(radio_student(heads=shared, num_class_tokens=2, num_registers=3))
    assert [(t["name"], t["token_slot"], t["use_summary"]) for t in found.args["teachers"]] == [
        ("a", 0, True),
        ("c", 1, True),
        ("b", 0, False),
    ]
    assert found.args["cpe_num_registers"] == 2  # the loader counts a token for each name
    with pytest.raises(EngineError, match="a token for each of 3 teachers"):
        radio_file(radio_student(heads=shared, num_class_tokens=2, num_registers=0))


def teacher_of(path, adaptor: str | None = None) -> RadioTeacher:
    """Our RADIO teacher on the file, with the images' own mean and std."""
    entry = {
        "name": "t",
        "mode": "combo",
        "loss_type": "MSE",
        "model": {"backbone": {"type": "radio", "kwargs": {"adaptor": adaptor} if adaptor else {}}},
        "pretrained_teacher_model_path": str(path),
        "input_size": 48,
    }
    resolved = resolve_teachers(load_spec({"distill": {"teacher": [entry]}}))[0]
    teacher = RadioTeacher.build(resolved).eval()
    teacher.load(resolved)
    return teacher


@pytest.mark.parametrize("size", [(48, 48), (64, 64), (24, 56), (80, 32)])
def test_our_radio_teacher_says_what_the_student_says(size, radio_student, image_batch, tmp_path):
    student = radio_student()
    write_radio(student, tmp_path / "s.pth")
    pixels = image_batch(*size)
    normalised = (pixels - student.mean) / student.std
    with torch.no_grad():
        features = student(pixels)
        found = teacher_of(tmp_path / "s.pth")(normalised)
        torch.testing.assert_close(found.summary, features.summary, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.spatial, features.spatial, rtol=0, atol=1e-4)
        for name in student.head_names:
            adaptor, own = teacher_of(tmp_path / "s.pth", name)(normalised), student.head(name, features)
            torch.testing.assert_close(adaptor.spatial, own.spatial, rtol=0, atol=1e-4)
            if own.summary is not None:
                torch.testing.assert_close(adaptor.summary, own.summary, rtol=0, atol=1e-4)


def test_mean_and_scale_are_in_the_last_layer(radio_student):
    student = radio_student()
    head = student.heads["clip"]
    tensors = radio_file(student).state_dict
    last = head.spatial.final[2]
    weight, bias = (tensors[f"_feature_projections.clip.final.2.{k}"] for k in ("weight", "bias"))
    torch.testing.assert_close(weight, last.weight.detach() * head.spatial_scale)
    torch.testing.assert_close(bias, last.bias.detach() * head.spatial_scale + head.spatial_mean)
    assert student.heads["clip"].spatial.final[2].weight is last.weight  # the student itself is untouched


def test_a_finer_map_is_folded_position_by_position(radio_student):
    """Four positions of ten numbers each, as a pixel shuffle takes them apart; the factor is told to the loader."""
    student = radio_student()
    head = student.heads["clip"]
    last = head.spatial.final[2] = torch.nn.Linear(16, 4 * 10)
    found = radio_file(student)
    weight, bias = (found.state_dict[f"_feature_projections.clip.final.2.{k}"] for k in ("weight", "bias"))
    torch.testing.assert_close(weight, last.weight.detach() * head.spatial_scale)
    expected = last.bias.detach().reshape(4, 10) * head.spatial_scale + head.spatial_mean
    torch.testing.assert_close(bias.reshape(4, 10), expected)
    first, second = found.args["teachers"][:2]
    assert first["fd_upsample_factor"] == 2 and "fd_upsample_factor" not in second


def attends(radio_student, **changes):
    """A student whose head for dino attends."""
    heads = list(radio_student().architecture.heads)
    heads[2] = dataclasses.replace(heads[2], spatial_version="attn", **changes)
    return radio_student(heads=tuple(heads))


def test_an_attention_head_is_as_described(radio_student, tmp_path):
    student = attends(radio_student, spatial_num_inner=0)
    found = write_radio(student, tmp_path / "s.pth")
    assert found.args["teachers"][2]["spatial_mlp_version"] == "attn" and found.adaptors == ["clip", "sam", "dino"]
    prefix, own = "_feature_projections.dino.", {"D": 32, "H": 16, "O": 20}
    expected = expand(LAYOUT["head"], own, f"{prefix}mlp.")
    for i in range(2):
        expected |= expand(LAYOUT["head_attn"], own, prefix, i=i)
    assert {k: tuple(v.shape) for k, v in found.state_dict.items() if k.startswith(prefix)} == expected
    pixels = torch.rand(2, 3, 48, 48)
    with torch.no_grad():
        features = student(pixels)
        said = teacher_of(tmp_path / "s.pth", "dino")((pixels - student.mean) / student.std)
        own = student.head("dino", features)
    torch.testing.assert_close(said.spatial, own.spatial, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "why"), [({"spatial_num_inner": 1}, "no inner blocks"), ({"upsample": 2}, "with an upsampled map")]
)
def test_an_attention_head_that_their_loader_cannot_build_is_left_out(changes, why, radio_student):
    student = attends(radio_student, **{"spatial_num_inner": 0} | changes)
    found = radio_file(student)
    assert found.adaptors == ["clip", "sam"] and [why in note for note in found.notes if "dino" in note] == [True]
    assert not any(".dino." in k for k in found.state_dict)
    with pytest.raises(EngineError, match=why):
        radio_file(student, ["dino"])
    planned = Student(student.architecture).to("meta")
    assert format_problems(planned, ExportFormat.radio, []) == []
    (problem,) = format_problems(planned, ExportFormat.radio, ["clip", "dino"])
    assert problem.where == "export.adaptors" and why in problem.message
    assert format_problems(planned, ExportFormat.hf, ["dino"]) == []


def with_towers(radio_student, **towers):
    heads = [dataclasses.replace(h, text_tower=towers.get(h.name, "")) for h in radio_student().architecture.heads]
    return radio_student(heads=tuple(heads))


def test_adaptors_of_their_own_type(radio_student, tmp_path):
    """The entries that NVlabs' adaptor classes read: open_clip_adaptor.py and siglip2_adaptor.py."""
    student = with_towers(radio_student, clip="ViT-L-14-quickgelu:openai", dino="ViT-gopt-16-SigLIP2-384:webli")
    found = write_radio(student, tmp_path / "s.pth", types=AdaptorTypes.own)
    with torch.serialization.safe_globals([argparse.Namespace]):
        clip, sam, dino = torch.load(tmp_path / "s.pth", weights_only=True)["args"].teachers
    kinds = LAYOUT["args"]["types with an adaptor class that downloads a text tower"]
    assert {k: clip[k] for k in ("type", *kinds["open_clip"])} == {
        "type": "open_clip",
        "model": "ViT-L-14-quickgelu",
        "pretrained": "openai",
    }
    assert {k: dino[k] for k in ("type", *kinds["siglip2"])} == {"type": "siglip2", "model": "siglip2-g-384"}
    assert dino["model"] in LAYOUT["args"]["models of siglip2"]
    assert sam["type"] == "generic" and any("sam stays generic" in note for note in found.notes)
    assert any("needs open_clip for the text tower ViT-L-14-quickgelu:openai" in note for note in found.notes)
    generic = write_radio(student, tmp_path / "g.pth")
    assert [t["type"] for t in generic.args["teachers"]] == ["generic"] * 3
    assert all("model" not in t for t in generic.args["teachers"])
    assert set(generic.state_dict) == set(found.state_dict)


def test_types_of_their_own_need_a_head_with_a_text_tower(radio_student):
    student = with_towers(radio_student, clip="ViT-L-14-quickgelu:openai")
    assert not any(format_problems(student, ExportFormat.radio, names, AdaptorTypes.own) for names in ([], ["clip"]))
    (problem,) = format_problems(student, ExportFormat.radio, ["dino"], AdaptorTypes.own)
    assert problem.where == "export.adaptor_types"
    assert "no text tower is known for the heads of dino" in problem.message


def test_reparametrized_weights_are_made_plain(radio_student):
    student = radio_student()
    linear = student.backbone.blocks[0].mlp.fc1
    torch.nn.utils.parametrizations.spectral_norm(linear)
    tensors = radio_file(student).state_dict
    torch.testing.assert_close(tensors["base_model.blocks.0.mlp.fc1.weight"], linear.eval().weight.detach())
    assert not any("parametrizations" in k for k in tensors)


def test_chosen_adaptors_and_refusals(radio_student):
    student = radio_student()
    found = radio_file(student, ["dino"])
    assert found.adaptors == ["dino"] and len(found.args["teachers"]) == 3
    assert {k.split(".")[1] for k in found.state_dict if k.startswith("_")} == {"dino"}
    with pytest.raises(EngineError, match="no head named 'siglip'") as caught:
        radio_file(student, ["siglip"])
    assert "clip, sam, dino" in caught.value.problems[0].hint
    flat = (
        student.architecture.heads[0],
        HeadArchitecture("flat", 4, 4, token_slot=1),
        HeadArchitecture("2", 4, token_slot=2, hidden=8),
        HeadArchitecture("same", 32, 32, identity=True),
    )
    odd = radio_student(heads=flat)
    assert radio_file(odd).adaptors == ["clip"]
    assert ["left out" in note for note in radio_file(odd).notes[:3]] == [True] * 3
    for name, why in (("flat", "use_mlp"), ("2", "a position in its list"), ("same", "use_head")):
        with pytest.raises(EngineError, match=why):
            radio_file(odd, [name])
    cnn = radio_student(type="test_efficientnet", kwargs={}, heads=())
    with pytest.raises(EngineError, match="test_efficientnet cannot be a RADIO checkpoint") as caught:
        radio_file(cnn)
    assert caught.value.problems[0].where == "export.format"


def test_what_is_missing_is_silent_and_said(radio_student, tmp_path):
    student = radio_student()
    found = write_radio(student, tmp_path / "s.pth")
    assert any("sam has no summary head" in note for note in found.notes)
    parts = split_radio(read_radio(tmp_path / "s.pth"), "s.pth")
    assert set(parts.heads["sam"]) == {"spatial"} and parts.summary_slots == [0, 2]
    assert read_weights(tmp_path / "s.pth")["_heads.sam.final.2.bias"].tolist() == [0.0]
