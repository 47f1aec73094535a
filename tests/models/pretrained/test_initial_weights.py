"""Where a student's weights come from: RADIO files, our own, timm's; what is matched, and what is said of the rest."""

from __future__ import annotations

import dataclasses
import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from radioplat.design.models import design_models
from radioplat.errors import SpecError, WeightsError
from radioplat.exporting.weights.hf import write_hf
from radioplat.exporting.weights.radio import write_radio
from radioplat.models.heads import HeadArchitecture
from radioplat.models.pretrained.initial_weights import architecture_of, start_notes, start_student
from radioplat.models.student.checkpoint import save_one_file, save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec

BACKBONE, MODEL = "model.backbone.pretrained_backbone_path", "train.pretrained_model_path"
TOKENS = "patch_generator.cls_token.token"


def started(architecture, *overrides: str) -> tuple[Student, list[str]]:
    """The student, and what was said; both of the shapes alone and of the values."""
    spec = load_spec(None, overrides)
    return start_student(spec, architecture).eval(), start_notes(spec, architecture)


def same_features(mine: Student, theirs: Student, pixels: torch.Tensor, heads=()) -> None:
    with torch.no_grad():
        a, b = mine(pixels), theirs(pixels)
        pairs = [(a, b)] + [(mine.head(n, a), theirs.head(n, b)) for n in heads]
    for x, y in pairs:
        torch.testing.assert_close(x.spatial, y.spatial, rtol=0, atol=1e-4)
        assert (x.summary is None) == (y.summary is None)
        if x.summary is not None:
            torch.testing.assert_close(x.summary, y.summary, rtol=0, atol=1e-4)


@pytest.fixture(params=["pth", "hf", "folder", "file"])
def written(request, radio_student, tmp_path):
    """A student, and its path in each layout that a student may start from."""
    student, path = radio_student(), tmp_path / request.param
    if request.param == "pth":
        path = tmp_path / "s.pth"
        write_radio(student, path)
    elif request.param == "file":
        path = tmp_path / "s.safetensors"
        save_one_file(student, path, {})
    else:
        path.mkdir()
        write_hf(student, path) if request.param == "hf" else save_student(student, student.state_dict(), path)
    return student, path


def test_a_decomposed_student_starts_from_its_own_checkpoint(radio_student, image_batch, tmp_path):
    low_rank = {"patch_generator.embedder": 5, "blocks.0.mlp.fc1": 7}
    student = radio_student(low_rank=low_rank)
    save_student(student, student.state_dict(), tmp_path)
    mine, notes = started(student.architecture, f"{MODEL}={tmp_path}")
    assert not notes and mine.architecture.low_rank == low_rank
    same_features(mine, student, image_batch(), student.head_names)


def test_backbone_heads_and_projections_come_back(written, image_batch):
    student, path = written
    again, notes = started(student.architecture, f"{MODEL}={path}", "train.pretrained_strict=true")
    assert notes == []
    for name, tensor in student.backbone.state_dict().items():
        assert torch.equal(again.backbone.state_dict()[name], tensor), name
    for size in ((48, 48), (24, 64)):
        same_features(again, student, image_batch(*size), student.head_names)


def test_the_backbone_alone(written, image_batch):
    student, path = written
    again, notes = started(student.architecture, f"{BACKBONE}={path}")
    assert notes == []
    same_features(again, student, image_batch())
    assert not torch.equal(again.heads["clip"].summary.fc1.weight, student.heads["clip"].summary.fc1.weight)


def test_teachers_are_known_by_name_wherever_they_stand(written, image_batch):
    """Another order of teachers: class tokens and heads move with the names."""
    student, path = written
    clip, sam, dino = student.architecture.heads
    moved = tuple(dataclasses.replace(h, token_slot=i) for i, h in enumerate((dino, clip, sam)))
    again, notes = started(dataclasses.replace(student.architecture, heads=moved), f"{MODEL}={path}")
    assert notes == []
    rows, own = again.backbone.state_dict()[TOKENS], student.backbone.state_dict()[TOKENS]
    assert torch.equal(rows, own[[2, 0, 1, 3, 4, 5, 6, 7]])
    with torch.no_grad():
        a, b = again(image_batch()), student(image_batch())
        for name in student.head_names:
            torch.testing.assert_close(again.head(name, a).spatial, student.head(name, b).spatial, rtol=0, atol=1e-4)


def test_renamed_missing_and_wider_heads_are_named(written):
    student, path = written
    clip, sam, dino = student.architecture.heads
    heads = (
        dataclasses.replace(clip, hidden=48),
        HeadArchitecture("sam2", spatial_dim=8, token_slot=1, hidden=24),
        dataclasses.replace(dino, summary_dim=None),
    )
    architecture = dataclasses.replace(student.architecture, heads=heads)
    again, notes = started(architecture, f"{MODEL}={path}")
    said = "\n".join(notes)
    assert "head clip.summary starts anew: summary.fc1.weight is [16, 32] there and [48, 32] here" in said
    assert "head clip.spatial starts anew: spatial." in said
    assert "head sam2.spatial starts anew: the file knows clip, sam, dino; distill.teacher[i].name=sam would" in said
    assert "class token of sam2 starts as that of sam" in said
    assert "head dino.summary is left out" in said and "the heads of sam; no teacher is called so" in said
    assert len(notes) == 6 and all(note.startswith(f"{MODEL}: ") for note in notes)
    torch.testing.assert_close(again.heads["dino"].spatial.fc1.weight, student.heads["dino"].spatial.fc1.weight)
    with pytest.raises(WeightsError) as caught:
        started(architecture, f"{MODEL}={path}", "train.pretrained_strict=true")
    assert len(caught.value.problems) == 6 and {p.where for p in caught.value.problems} == {MODEL}


def test_another_table_more_tokens_and_no_norm(written, image_batch):
    student, path = written
    more = dataclasses.replace(
        student.architecture,
        cpe_max_size=96,
        num_class_tokens=4,
        num_registers=2,
        heads=(*student.architecture.heads, HeadArchitecture("new", 4, token_slot=3, hidden=8)),
    )
    again, notes = started(more, f"{BACKBONE}={path}")
    said = "\n".join(notes)
    assert "64 places is resized to 144" in said and "class token of new starts anew" in said
    assert "2 registers and the file 5: 2 are taken" in said
    rows, own = again.backbone.state_dict()[TOKENS], student.backbone.state_dict()[TOKENS]
    assert torch.equal(rows[:3], own[:3]) and torch.equal(rows[4:], own[3:5])
    table = student.backbone.patch_generator.pos_embed.reshape(1, 8, 8, 32).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(table, size=(12, 12), mode="bilinear").flatten(2).transpose(1, 2)
    torch.testing.assert_close(again.backbone.patch_generator.pos_embed, resized)
    bare = dataclasses.replace(student.architecture, kwargs={**student.architecture.kwargs, "final_norm": False})
    assert "the norm after the last block is left out" in "\n".join(started(bare, f"{BACKBONE}={path}")[1])


def test_a_file_without_a_norm(radio_student, image_batch, tmp_path):
    kwargs = {"embed_dim": 32, "depth": 2, "num_heads": 2, "final_norm": False}
    student = radio_student(kwargs=kwargs)
    write_radio(student, tmp_path / "s.pth")
    known = architecture_of(str(tmp_path / "s.pth"), "x")
    assert known.kwargs["final_norm"] is False
    full = dataclasses.replace(known, heads=student.architecture.heads, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    again, notes = started(full, f"{MODEL}={tmp_path / 's.pth'}")
    assert notes == []
    same_features(again, student, image_batch(), student.head_names)
    normed = dataclasses.replace(full, kwargs={**known.kwargs, "final_norm": True})
    fresh, notes = started(normed, f"{MODEL}={tmp_path / 's.pth'}")
    assert "final_norm=false" in notes[0] and fresh.backbone.norm.weight.eq(1).all()


@pytest.mark.parametrize(
    "kwargs", [{}, {"reg_tokens": 3, "no_embed_class": True}, {"reg_tokens": 2, "init_values": 0.1}]
)
def test_timm_weights_for_a_radio_vit(kwargs, tmp_path):
    """Exact where the table keeps its size: a timm ViT's class token and map, from a RADIO ViT with one token."""
    torch.manual_seed(0)
    shape = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=48, **shape, **kwargs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / "w.safetensors")
    architecture = StudentArchitecture(
        type="radio_vit_tiny_patch8",
        kwargs={k: v for k, v in shape.items() if k != "patch_size"}
        | ({"init_values": 0.1} if "init_values" in kwargs else {}),
        num_registers=kwargs.get("reg_tokens", 0),
        cpe_max_size=48,
        img_size=48,
    )
    student, notes = started(architecture, f"{BACKBONE}={tmp_path / 'w.safetensors'}")
    assert notes == [f"{BACKBONE}: its head is left out"]
    pixels = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        found, own = student.backbone(pixels), model.forward_features(pixels)
    torch.testing.assert_close(found.summary, own[:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.spatial.flatten(1, 2), own[:, model.num_prefix_tokens :], rtol=0, atol=1e-5)
    three = dataclasses.replace(architecture, num_class_tokens=3)
    tokens = started(three, f"{BACKBONE}={tmp_path / 'w.safetensors'}")[0].backbone.state_dict()[TOKENS]
    assert torch.equal(tokens[0], tokens[1]) and torch.equal(tokens[0], tokens[2])


def test_another_normalisation_is_named(written):
    student, path = written
    other = dataclasses.replace(student.architecture, mean=(0.5, 0.5, 0.5))
    (note,) = started(other, f"{BACKBONE}={path}")[1]
    assert "model.backbone.student_norm_mean=[0.4, 0.5, 0.6] and " in note
    assert note.endswith("model.backbone.student_norm_std=[0.2, 0.3, 0.4]")


def test_an_argument_of_the_file_that_is_not_known_is_refused_by_name(radio_student, tmp_path):
    """NVlabs' scaled_ln has no tensors: a student that starts from such a file would have other features."""
    student, file, folder = radio_student(), tmp_path / "s.pth", tmp_path / "hf"
    folder.mkdir()
    write_radio(student, file)
    write_hf(student, folder)
    content = torch.load(file, weights_only=False)
    content["args"].model_kwargs["scaled_ln"] = True
    torch.save(content, file)
    config = json.loads((folder / "config.json").read_text())
    config["args"]["model_kwargs"]["scaled_ln"] = True
    (folder / "config.json").write_text(json.dumps(config))
    for path in (file, folder):
        with pytest.raises(WeightsError, match="scaled_ln=True") as caught:
            started(student.architecture, f"{BACKBONE}={path}")
        assert caught.value.problems[0].where == BACKBONE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:80], "not a whole Hugging Face config"),
        (lambda text: text.replace('"name"', '"nome"'), "each with a name"),
        (lambda text: json.dumps({**json.loads(text), "args": [1]}), "args must be a mapping"),
        (lambda text: text.replace('"model_kwargs": {', '"model_kwargs": [1], "old": {'), "model_kwargs must be"),
    ],
    ids=["torn", "teachers", "args", "model_kwargs"],
)
def test_a_folder_whose_config_is_of_another_form(change, words, radio_student, tmp_path):
    write_hf(radio_student(), tmp_path)
    config = tmp_path / "config.json"
    config.write_text(change(config.read_text()))
    with pytest.raises(WeightsError, match=words) as caught:
        architecture_of(str(tmp_path), BACKBONE)
    assert caught.value.problems[0].where == BACKBONE


def test_what_cannot_start_this_student(radio_student, tmp_path):
    student = radio_student()
    write_radio(student, tmp_path / "s.pth")
    deeper = dataclasses.replace(student.architecture, kwargs={**student.architecture.kwargs, "depth": 3})
    with pytest.raises(WeightsError, match=r"does not fit the architecture \(missing: blocks.2"):
        started(deeper, f"{MODEL}={tmp_path / 's.pth'}")
    cnn = StudentArchitecture("test_efficientnet", img_size=64)
    with pytest.raises(WeightsError, match="holds a RADIO ViT, and the student is a test_efficientnet"):
        started(cnn, f"{BACKBONE}={tmp_path / 's.pth'}")
    save_file(
        {k: v.contiguous() for k, v in Student(cnn).backbone.model.state_dict().items()}, tmp_path / "c.safetensors"
    )
    with pytest.raises(WeightsError, match="does not fit"):
        started(student.architecture, f"{BACKBONE}={tmp_path / 'c.safetensors'}")
    student.backbone.blocks[0].mlp.fc1.weight.data[0, 0] = float("nan")
    write_radio(student, tmp_path / "n.pth")
    with pytest.raises(WeightsError, match="NaN"):
        start_student(load_spec(None, [f"{MODEL}={tmp_path / 'n.pth'}"]), student.architecture)
    with pytest.raises(WeightsError, match="no such file"):
        start_student(load_spec(None, [f"{MODEL}={tmp_path / 'none.pth'}"]), student.architecture)


def test_released_layouts(radio_student, image_batch, tmp_path):
    """What NVIDIA's own files have beside ours: heads by place, half precision, an unused timm token, more tensors."""
    student = radio_student()
    found = write_radio(student, tmp_path / "s.pth")
    places = {entry["name"]: i for i, entry in enumerate(found.args["teachers"])}
    tensors = {}
    for key, value in found.state_dict.items():
        part, _, rest = key.partition(".")
        if part in ("_heads", "_feature_projections"):
            name, _, tensor = rest.partition(".")
            key = f"{part}.{places[name]}.{tensor}"
        tensors[f"module.{key}"] = value.half()
    tensors["module.base_model.reg_token"] = torch.zeros(1, 4, 32)
    tensors["module._intermediate_feature_normalizer.alphas"] = torch.ones(2)
    import argparse

    torch.save({"state_dict": tensors, "args": argparse.Namespace(**found.args), "epoch": 3}, tmp_path / "r.pth")
    again, notes = started(student.architecture, f"{MODEL}={tmp_path / 'r.pth'}")
    assert notes == []
    with torch.no_grad():
        mine, theirs = (s.head("dino", s(image_batch())).spatial for s in (again, student))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0.05)


TEACHER = {"mode": "spatial", "loss_type": "MSE", "model": {"backbone": {"type": "test_resnet"}}}


def test_the_student_is_what_the_file_says(radio_student, tmp_path):
    kwargs = {"embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0, "qk_norm": True, "final_norm": False}
    student = radio_student(kwargs=kwargs)
    for path, write in ((tmp_path / "s.pth", write_radio), (tmp_path / "hf", write_hf)):
        path.mkdir() if path.suffix == "" else None
        write(student, path)
        known = architecture_of(str(path), "x")
        assert known.type == "radio_vit_base_patch8" and known.num_class_tokens == 3 and known.num_registers == 5
        assert known.kwargs["num_heads"] == 4 and known.cpe_max_size == 64
        raw = {
            "dataset": {"img_size": 64},
            "model": {"backbone": {"type": "radio", "pretrained_backbone_path": str(path), "cpe_max_size": 128}},
            "distill": {"teacher": [{**TEACHER, "name": n} for n in ("sam", "other")]},
        }
        architecture = design_models(load_spec(raw), "distill").architecture
        assert architecture.cpe_max_size == 128 and architecture.num_class_tokens == 3
        spec = load_spec(raw)
        said = start_notes(spec, architecture)
        assert any("class token of other starts as that of clip" in s for s in said)
        built = start_student(spec, architecture)
        own = student.backbone.state_dict()[TOKENS]
        assert torch.equal(built.backbone.state_dict()[TOKENS][:3], own[[1, 0, 2]])
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["args"]["model_norm"] is False
    with pytest.raises(SpecError, match="model.backbone.type: a value is required here"):
        design_models(load_spec({"distill": {"teacher": [{**TEACHER, "name": "a"}]}}), "distill")
