"""TAO's specs of RT-DETR."""

from __future__ import annotations

import copy

import pytest
from transformers import RTDetrConfig

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.loading.tao_rtdetr import RTDETR

MODEL = {"backbone": "convnext_tiny", "num_queries": 50, "hidden_dim": 128, "feat_channels": [128] * 3, "nheads": 4}
TREE = {
    "model": {**MODEL, "vfl_loss_coef": 3, "class_cost": 7.0, "train_backbone": False, "load_teacher_enc_dec": True},
    "dataset": {
        "train_data_sources": [{"image_dir": "images", "json_file": "boxes.json"}],
        "quant_calibration_data_sources": {"image_dir": "calibration", "json_file": ""},
        "num_classes": 80,
        "remap_mscoco_category": True,
        "augmentation": {"train_spatial_size": [256, 256], "multi_scales": [224, 256], "iou_crop_prob": 0.0},
    },
    "train": {"precision": "BF16", "enable_ema": True, "ema": {"decay": 0.99}, "optim": {"lr_backbone": 1e-5}},
    "distill": {
        "teacher": {**MODEL, "backbone": "convnext_large", "dn_number": 100},
        "pretrained_teacher_model_path": "teacher.pth",
        "bindings": [
            {"teacher_module_name": "srcs", "student_module_name": "srcs", "criterion": "IOU", "weight": 20},
            {"teacher_module_name": "dsrcs", "student_module_name": "dsrcs", "criterion": "iou", "weight": 2},
        ],
    },
}


def spec(changes: dict | None = None, **top):
    tree = {**copy.deepcopy(TREE), **top}
    for path, value in (changes or {}).items():
        *sections, name = path.split(".")
        inner = tree
        for section in sections:
            inner = inner[section]
        inner[name] = value
    return load_spec(tree)


def test_a_whole_spec_is_translated():
    found = spec()
    options = found.model.detector.options
    assert found.model.detector.kind == "rtdetr" and found.model.backbone.freeze_backbone
    assert options["d_model"] == options["encoder_hidden_dim"] == 128 and options["encoder_attention_heads"] == 4
    assert "decoder_attention_heads" not in options  # TAO's decoder has 8, whatever the spec says
    data = found.dataset
    assert (data.train_dataset.coco, data.quant_calibration_dataset.images_dir) == ("boxes.json", "calibration")
    assert (data.img_size, data.val_img_size, data.num_classes) == (256, 640, 80)  # TAO validates at 640 by default
    assert data.augmentation.multi_scales == [224, 256] and not data.augmentation.random_crop.enable
    assert found.train.ema_decay == 0.99 and found.train.precision.value == "fp32"
    assert found.train.optim.lr_mults == {"backbone.": pytest.approx(0.1)} and found.train.optim.lr == 1e-4
    (teacher,) = found.distill.teacher
    assert teacher.model.backbone.type == "convnext_large" and teacher.pretrained_teacher_model_path == "teacher.pth"
    assert "num_denoising" not in teacher.model.detector.options and found.distill.encoder_from_teacher
    assert found.distill.decoder_from_teacher
    assert load_spec({**copy.deepcopy(TREE), "model_name": "rtdetr"}).model == found.model
    noted = found.without_effect.keys()
    assert {"dataset.remap_mscoco_category", "train.precision", "distill.teacher.dn_number"} <= noted


def test_what_is_written_is_read_as_it_was(tmp_path):
    found = spec(compat="tao")
    (tmp_path / "experiment.yaml").write_text(to_yaml(found))
    assert load_spec(tmp_path / "experiment.yaml") == found


def test_names_of_all_maps_are_bindings_of_each():
    names = [(b.teacher_module_name, b.student_module_name, b.weight) for b in spec().distill.bindings]
    maps = [f"detr.model.encoder_input_proj.{i}" for i in range(3)]
    assert names == [(n, n, 20) for n in maps] + [(f"memory.{i}", f"memory.{i}", 2) for i in range(3)]
    with pytest.raises(SpecError, match="only be bound to the same"):
        spec({"distill.bindings": [{**TREE["distill"]["bindings"][0], "student_module_name": "srcs.0"}]})


def test_a_distillation_matches_by_the_weights_of_the_losses():
    """TAO's RT-DETR distiller gives its matcher vfl_loss_coef; its trainer gives it class_cost."""
    costs = spec().model.detector.options
    assert costs["matcher_class_cost"] == costs["weight_loss_vfl"] == 3.0
    alone = spec(distill={}).model.detector.options
    assert (alone["matcher_class_cost"], alone["weight_loss_vfl"]) == (7.0, 3.0)


def test_taos_distillation_has_one_size():
    found = spec(compat="tao")
    assert not found.dataset.augmentation.multi_scales and "dataset.augmentation.multi_scales" in found.without_effect
    assert spec(compat="tao", distill={}).dataset.augmentation.multi_scales == [224, 256]


def test_every_option_that_is_named_exists():
    named = {ours for theirs in (*RTDETR.options.values(), *RTDETR.training.values()) for ours in theirs}
    defaults = RTDetrConfig().to_dict()
    assert named <= defaults.keys()
    assert all(isinstance(defaults[name], float) for name in RTDETR.floats)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.dropout_ratio", 0.1),
        ("model.frozen_fm", {"enabled": True}),
        ("model.feat_channels", [256, 256, 256]),
        ("model.focal_alpha", 0.5),
        ("dataset.augmentation.train_spatial_size", [544, 960]),
        ("dataset.augmentation.multi_scales", [[480, 832], [512, 896]]),
        ("dataset.augmentation.preserve_aspect_ratio", True),
        ("train.freeze", ["encoder"]),
        ("train.ema", {"every_n_steps": 5}),
    ],
)
def test_what_is_not_available_is_named(path, value):
    with pytest.raises(SpecError) as caught:
        spec({path: value})
    (problem,) = caught.value.problems
    assert problem.where.startswith(path)


@pytest.mark.parametrize(
    "tree",
    [
        {"model_name": "rtdetr", "model": {"backbone": "resnet_50"}},
        {"model": {"backbone": "fan_small", "return_interm_indices": [1, 2, 3], "enc_layers": 1}},
        {"model": {"backbone": "resnet_50"}, "dataset": {"remap_mscoco_category": True}},
        {"model": {"backbone": "resnet_50"}, "dataset": {"augmentation": {"distortion_prob": 0.5}}},
    ],
)
def test_a_spec_of_rtdetr_is_recognised(tree):
    assert load_spec(tree).model.detector.kind == "rtdetr"
    assert load_spec({"model": {"backbone": "resnet_50", "num_queries": 300}}).model.detector.kind == "dino"
