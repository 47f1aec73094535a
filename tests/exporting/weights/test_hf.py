"""The Hugging Face folder: opened by transformers alone, and by our RADIO teacher."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from radioplat.errors import EngineError
from radioplat.exporting.weights.hf import write_hf
from radioplat.exporting.weights.radio import radio_file
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.adapters.registry import adapter_class


@pytest.fixture
def auto_model(tmp_path, monkeypatch):
    """auto_model(folder) -> the model as ``AutoModel`` opens it, with its copy of the code in this test's folder."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return lambda folder: transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()


@pytest.mark.parametrize("size", [(48, 48), (24, 72)])
def test_auto_model_says_what_the_student_says(size, radio_student, image_batch, auto_model, tmp_path):
    student = radio_student()
    folder = tmp_path / "hf"
    folder.mkdir()
    found = write_hf(student, folder)
    assert found.adaptors == ["clip", "sam", "dino"]
    pixels = image_batch(*size)
    with torch.no_grad():
        features, said = student(pixels), auto_model(folder)(pixels)
        pairs = {"backbone": features} | {name: student.head(name, features) for name in student.head_names}
        for name, own in pairs.items():
            summary, patches = said[name]
            torch.testing.assert_close(patches, own.spatial.flatten(1, 2), rtol=0, atol=1e-4)
            if own.summary is not None:
                torch.testing.assert_close(summary, own.summary, rtol=0, atol=1e-4)
            else:
                assert not summary.any()


def test_an_attention_head_goes_into_the_folder(radio_student, image_batch, auto_model, tmp_path):
    """With pixel shuffle behind it; a student starts from the folder with the head it had."""
    heads = list(radio_student().architecture.heads)
    heads[2] = dataclasses.replace(heads[2], spatial_version="attn", upsample=2)
    student, folder = radio_student(heads=tuple(heads)), tmp_path / "hf"
    folder.mkdir()
    found = write_hf(student, folder)
    assert [note for note in found.notes if "attention head of dino" in note]
    again = start_student(load_spec(None, [f"train.pretrained_model_path={folder}"]), student.architecture).eval()
    pixels = image_batch(24, 72)
    with torch.no_grad():
        features, said = student(pixels), auto_model(folder)(pixels)
        for name in student.head_names:
            own = student.head(name, features).spatial
            torch.testing.assert_close(said[name][1], own.flatten(1, 2), rtol=0, atol=1e-4)
            torch.testing.assert_close(again.head(name, features).spatial, own, rtol=0, atol=1e-4)


def test_without_adaptors_it_gives_a_pair(radio_student, image_batch, auto_model, tmp_path):
    student = radio_student(
        heads=(), num_class_tokens=2, kwargs={"embed_dim": 32, "depth": 1, "num_heads": 2, "final_norm": False}
    )
    write_hf(student, tmp_path)
    with torch.no_grad():
        summary, patches = auto_model(tmp_path)(image_batch())
        own = student(image_batch())
    torch.testing.assert_close(summary, own.summary, rtol=0, atol=1e-4)
    torch.testing.assert_close(patches, own.spatial.flatten(1, 2), rtol=0, atol=1e-4)


def test_names_and_config_are_nvidias(radio_student, tmp_path):
    """The layout that hf_hub.py and hf_model.py of NVlabs/RADIO write and read."""
    student = radio_student()
    write_hf(student, tmp_path, ["dino"])
    tensors, pth = load_file(tmp_path / "model.safetensors"), radio_file(student, ["dino"]).state_dict
    renamed = {
        "base_model.": "model.",
        "_heads.dino.": "adaptors.dino.head_mlp.",
        "_feature_projections.dino.": "adaptors.dino.feat_mlp.",
    }
    expected = {"radio_model.summary_idxs"}
    for key, value in pth.items():
        prefix = next((p for p in renamed if key.startswith(p)), "")
        name = f"radio_model.{renamed.get(prefix, '')}{key.removeprefix(prefix)}"
        assert torch.equal(tensors[name], value)
        expected.add(name)
    assert set(tensors) == expected and tensors["radio_model.summary_idxs"].tolist() == [0, 2]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["adaptor_names"] == ["dino"] and set(config["adaptor_configs"]) == {"dino"}
    assert config["adaptor_configs"]["dino"] == {
        "summary": {"input_dim": 32, "hidden_dim": 16, "output_dim": 20, "num_inner": 1},
        "feature": {
            "input_dim": 32,
            "hidden_dim": 16,
            "output_dim": 20,
            "num_inner": 1,
            "upsample_factor": 1,
            "upsample_rank": None,
        },
        "head_idx": 2,
    }
    assert config["patch_size"] == 8 and config["args"]["cpe_max_size"] == 64
    assert all(key.isidentifier() for key in config["args"])  # they become a namedtuple


def test_our_teacher_reads_the_folder(radio_student, image_batch, tmp_path):
    student = radio_student()
    write_hf(student, tmp_path)
    entry = {
        "name": "t",
        "mode": "combo",
        "loss_type": "MSE",
        "model": {"backbone": {"kwargs": {"adaptor": "dino"}}},
        "pretrained_teacher_model_path": str(tmp_path),
        "input_size": 48,
    }
    resolved = resolve_teachers(load_spec({"distill": {"teacher": [entry]}}))[0]
    teacher = adapter_class(resolved).build(resolved).eval()
    teacher.load(resolved)
    with torch.no_grad():
        found = teacher((image_batch() - student.mean) / student.std)
        own = student.head("dino", student(image_batch()))
    assert teacher.native.mean == pytest.approx((0.4, 0.5, 0.6))
    torch.testing.assert_close(found.summary, own.summary, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.spatial, own.spatial, rtol=0, atol=1e-4)


def test_refusals(radio_student, tmp_path):
    with pytest.raises(EngineError, match="no head named"):
        write_hf(radio_student(), tmp_path, ["siglip"])
    with pytest.raises(EngineError, match="cannot be a RADIO checkpoint"):
        write_hf(radio_student(type="test_resnet", kwargs={}, heads=()), tmp_path)
