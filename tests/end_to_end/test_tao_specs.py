"""The fields of the distillation specs that TAO 7.0.1 ships (``tao_specs``) through `radioplat plan` and `distill`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import radioplat
from benchmarks.composites import CLASSES, write_set
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import load_detector, save_detector
from radioplat.models.student.student import StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan

pytest.importorskip("transformers")

SPECS = Path(__file__).with_name("tao_specs")
SAYS_MISSING = ("no such file", "cannot be read: No such file", "does not exist")
WEIGHTS = "distill.pretrained_teacher_model_path=absent/teacher.pth"
BACKBONE = "model{}.pretrained_backbone_path=absent/backbone.pth"
SPLITS = ("train", "val", "test")
DINO_PATHS = [
    *(f"dataset.{split}_data_sources={{image_dir: absent, json_file: absent.json}}" for split in SPLITS),
    WEIGHTS.replace("distill.", "distill.teacher."),
    BACKBONE.format(""),
]
BODY = "model.backbone.0.body"
BOUND = f"distill.bindings=[{{teacher_module_name: {BODY}, student_module_name: {BODY}, criterion: L2, weight: 2.0}}]"
# What each spec leaves open.
GIVEN = {
    "rtdetr": [],
    "dino": [*DINO_PATHS, BOUND],
    "classification_pyt": [BACKBONE.format(".backbone"), WEIGHTS],
    "radio": [BACKBONE.format(".backbone"), WEIGHTS],
}


@pytest.mark.parametrize("compat", ["radioplat", pytest.param("tao", marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", GIVEN)
def test_nothing_but_paths_is_missing(name, compat, tmp_path):
    more = [f"results_dir={tmp_path}", f"compat={compat}"]
    found = {p.where: p.message for p in plan(load_spec(SPECS / f"{name}.yaml", [*GIVEN[name], *more])).problems}
    assert found and all(any(words in message for words in SAYS_MISSING) for message in found.values())
    assert "distill.teacher[0].pretrained_teacher_model_path" in found


# Narrow models: TAO's fields, and our options of the same.
SMALL = {
    "rtdetr": dict(hidden_dim=32, feat_channels=[32, 32, 32], dim_feedforward=32, nheads=4),
    "dino": dict(hidden_dim=32, dim_feedforward=32, nheads=4, enc_layers=1, num_feature_levels=3),
}
OURS = {
    "rtdetr": dict(d_model=32, encoder_hidden_dim=32, encoder_ffn_dim=32, encoder_attention_heads=4),
    "dino": dict(
        d_model=32, encoder_ffn_dim=32, decoder_ffn_dim=32, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_layers=1, num_feature_levels=3, num_denoising=0,
    ),
}  # fmt: skip
SIZES = {
    "rtdetr": ["dataset.augmentation={train_spatial_size: [64, 64], eval_spatial_size: [64, 64], multi_scales: [64]}"],
    "dino": ["dataset.img_size=64"],
}
CLASSES_OF = {"rtdetr": 80, "dino": 91}  # as written in the specs


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Images with boxes, weights of a backbone, and a teacher of each kind with untrained weights."""
    folder = tmp_path_factory.mktemp("files")
    for kind, classes in CLASSES_OF.items():
        student = StudentArchitecture("resnet10t", img_size=64)
        options = OURS[kind] | {"num_queries": 8, "decoder_layers": 1}
        save_detector(Detector(DetectorArchitecture(student, classes, kind, options, tuple(CLASSES))), folder / kind)
    torch.save(TimmBackbone("resnet10t").model.state_dict(), folder / "backbone.pth")
    return folder, write_set(folder / "set", 6, False, side=64)


def small(files, name: str, results: Path, *more: str):
    """Return the shipped spec with narrow models, small images and real files."""
    folder, (images, boxes) = files
    source = f"{{image_dir: {images}, json_file: {boxes}}}"
    fields = {"backbone": "resnet10t", "num_queries": 8, "dec_layers": 1, **SMALL[name]}
    overrides = [
        *GIVEN[name],
        *(f"dataset.{split}_data_sources={source}" for split in SPLITS),
        *(f"{where}.{field}={value}" for where in ("model", "distill.teacher") for field, value in fields.items()),
        *SIZES[name],
        f"model.pretrained_backbone_path={folder / 'backbone.pth'}",
        f"distill.teacher.pretrained_teacher_model_path={folder / name}",
        "distill.pretrained_teacher_model_path=null",
        f"results_dir={results}",
        *("train.num_gpus=1", "dataset.batch_size=2", "dataset.workers=1"),
        *more,
    ]
    return load_spec(SPECS / f"{name}.yaml", overrides)


@pytest.mark.parametrize("compat", ["radioplat", pytest.param("tao", marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", SMALL)
def test_with_files_a_run_can_start(files, name, compat, tmp_path):
    spec = small(files, name, tmp_path, f"compat={compat}")
    assert spec.distill.binding_form.value == ("tao" if compat == "tao" else "matched")
    squared = name == "dino" and compat == "tao"  # TAO multiplies by such a weight twice
    assert {b.weight for b in spec.distill.bindings} == {20.0 if name == "rtdetr" else 4.0 if squared else 2.0}
    assert not plan(spec).problems
    few = plan(small(files, name, tmp_path, "dataset.num_classes=3")).problems
    assert "dataset.num_classes: the training images have 4 classes, not 3" in " ".join(map(str, few))


@pytest.mark.parametrize("name", SMALL)
def test_a_run_with_compat_tao(files, name, tmp_path):
    spec = small(files, name, tmp_path, "compat=tao", "cluster.mode=local", "train.num_epochs=1", "train.max_steps=2")
    run = radioplat.distill(spec)
    student = load_detector(run.checkpoint).architecture
    assert (run.global_step, student.num_classes, student.class_names) == (2, CLASSES_OF[name], CLASSES)
    lines = [json.loads(line).get("kpi") or {} for line in open(run.folder / "status.json")]
    found = {name.rpartition("/")[2]: value for line in lines for name, value in line.items()}
    assert found["binding_0"] > 0 and "mAP" in found
