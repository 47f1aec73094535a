"""TAO's spec of DINO is read as it is printed; what cannot be had here is refused by name."""

from __future__ import annotations

import pytest
import yaml

from radioplat.errors import SpecError
from radioplat.models.detectors.dino.dino import OPTIONS
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.loading.tao_detectors import accept_detectors
from radioplat.spec.loading.tao_dino import DINO

# "Logits distillation for object detection with DINO" of TAO's guide, Optimizing the Training Pipeline.
PRINTED = """
distill:
  teacher:
    backbone: fan_small
    train_backbone: False
    num_feature_levels: 4
    dec_layers: 6
    enc_layers: 6
    num_queries: 900
    dropout_ratio: 0.0
    dim_feedforward: 2048
    pretrained_teacher_model_path: /workspace/tao-experiments/dino/dino_fan_small_ep12.pth
  bindings:
  - teacher_module_name: 'model.backbone.0.body'
    student_module_name: 'model.backbone.0.body'
    criterion: L2
    weight: 1.0
"""
# A student, its data and its training in TAO's fields.
REST = """
train:
  num_epochs: 12
  optim: {optimizer: AdamW, lr: 0.0001, lr_backbone: 1.0e-05, lr_steps: [11], momentum: 0.9, layer_decay_rate: 0.9}
dataset:
  train_sampler: default_sampler
  train_data_sources: [{image_dir: /data/train, json_file: /data/train.json}]
  val_data_sources: [{image_dir: /data/val, json_file: /data/val.json}]
  test_data_sources: {image_dir: /data/test, json_file: /data/test.json}
  batch_size: 2
  augmentation: {input_mean: [0.1, 0.2, 0.3], horizontal_flip_prob: 0.25, test_random_resize: 320, scales: [256, 288]}
model:
  backbone: resnet_50
  train_backbone: False
  dec_layers: 3
  enc_layers: 2
  num_select: 100
  dropout_ratio: 0.1
  dim_feedforward: 512
  hidden_dim: 128
  nheads: 4
  set_cost_giou: 3.0
  dn_number: 50
  pe_temperatureH: 10
  two_stage_type: standard
  distillation_loss_coef: 0.5
"""


def spec(*, printed=PRINTED, **changes):
    tree = yaml.safe_load(REST) | yaml.safe_load(printed)
    for path, value in changes.items():
        section, _, name = path.partition("__")
        node = tree["distill"]["teacher"] if section == "teacher" else tree[section]
        node[name] = value
    return load_spec(tree)


def refused(**changes) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        spec(**changes)
    return {problem.where: str(problem) for problem in caught.value.problems}


def test_the_printed_block_is_a_teacher_with_a_binding_a_level():
    found = load_spec(yaml.safe_load(PRINTED)).distill
    (teacher,) = found.teacher
    assert teacher.model.backbone.type == "fan_small" and teacher.model.task == "detection"
    assert teacher.pretrained_teacher_model_path == "/workspace/tao-experiments/dino/dino_fan_small_ep12.pth"
    assert teacher.model.detector.kind == "dino"
    assert teacher.model.detector.options == {
        "num_queries": 900, "num_feature_levels": 4, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.0,
        "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
    }  # fmt: skip
    names = [f"detr.input_proj.{level}" for level in range(4)]
    assert [b.teacher_module_name for b in found.bindings] == [b.student_module_name for b in found.bindings] == names
    assert {(b.criterion.value, b.weight) for b in found.bindings} == {("L2", 1.0)}


def test_a_path_beside_the_teacher_is_the_teachers():
    """As it is printed, the line may be one level further out."""
    line = "    pretrained_teacher_model_path: /workspace"
    beside = load_spec(yaml.safe_load(PRINTED.replace(line, line[2:])))
    assert beside == load_spec(yaml.safe_load(PRINTED))


def test_a_whole_spec_is_translated():
    found = spec()
    assert found.model.backbone.type == "resnet_50" and found.model.backbone.freeze_backbone
    assert found.model.task == "detection" and found.model.detector.kind == "dino"
    assert found.model.detector.options == {
        "num_queries": 300, "class_loss_coefficient": 2.0, "class_cost": 2.0,  # TAO's defaults
        "decoder_layers": 3, "encoder_layers": 2, "num_select": 100, "dropout": 0.1, "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512, "d_model": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "giou_cost": 3.0, "num_denoising": 50, "position_temperature": 10,
    }  # fmt: skip
    data = found.dataset
    assert (data.train_dataset.images_dir, data.train_dataset.coco) == ("/data/train", "/data/train.json")
    assert (data.val_dataset.images_dir, data.test_dataset.coco) == ("/data/val", "/data/test.json")
    assert data.batch_size == 2 and data.val_img_size == 320 and data.augmentation.multi_scales == [256, 288]
    assert data.augmentation.mean == [0.1, 0.2, 0.3] and data.augmentation.random_flip.hflip_probability == 0.25
    optim = found.train.optim
    assert (optim.optim.value, optim.lr, optim.layer_decay) == ("adamw", 1e-4, 1.0)
    assert "train.optim.layer_decay_rate" in found.without_effect  # of a ViT alone
    assert optim.lr_mults == {"backbone.": pytest.approx(0.1)}
    assert optim.policy.value == "multistep" and optim.policy_params == {"milestones": [11], "gamma": 0.1}
    assert {binding.weight for binding in found.distill.bindings} == {0.5}  # distillation_loss_coef times weight
    assert load_spec(yaml.safe_load(to_yaml(found))) == found


def test_every_option_that_is_named_exists():
    named = {ours for theirs in (*DINO.options.values(), *DINO.training.values()) for ours in theirs}
    assert named <= set(OPTIONS)


@pytest.mark.parametrize("block, where", [("model", "model"), ("teacher", "distill.teacher")])
@pytest.mark.parametrize(
    "name, value",
    [
        ("two_stage_type", "no"),
        ("decoder_sa_type", "ca_label"),
        ("embed_init_tgt", False),
        ("pre_norm", True),
        ("fix_refpoints_hw", 1),
        ("return_interm_indices", [2, 3, 4]),
        ("aux_loss", False),
        ("dilation", True),
    ],
)
def test_what_dino_is_not_here_is_named(block, where, name, value):
    assert f"{where}.{name}" in refused(**{f"{block}__{name}": value})


@pytest.mark.parametrize(
    "change, where",
    [
        ({"model__num_querys": 3}, "model.num_querys"),
        ({"model__pe_temperatureW": 20}, "model.pe_temperatureW"),
        ({"teacher__num_querys": 3}, "distill.teacher[0].num_querys"),
        ({"dataset__train_sampler": "uniform_sampler"}, "dataset.train_sampler"),
        ({"dataset__train_data_sources": []}, "dataset.train_data_sources"),
        ({"dataset__train_data_sources": [{"image_dir": "a", "json_file": "b"}] * 2}, "dataset.train_data_sources"),
        ({"dataset__val_data_sources": [{"image_dirs": "a"}]}, "dataset.val_dataset.image_dirs"),
        ({"dataset__augmentation": {"train_random_crop_min": 400}}, "dataset.augmentation.train_random_crop_min"),
        ({"train__optim": {"lr_scheduler": "AutoReduce"}}, "train.optim.lr_scheduler"),
        ({"train__is_dry_run": True}, "train.is_dry_run"),
    ],
)
def test_what_is_not_available_is_named(change, where):
    assert where in refused(**change)


def test_a_body_goes_with_a_body():
    printed = PRINTED.replace("student_module_name: 'model.backbone.0.body'", "student_module_name: srcs.0")
    assert "distill.bindings[0].student_module_name" in refused(printed=printed)


def test_other_specs_are_left_alone():
    tree = {"model": {"backbone": {"type": "resnet18"}}, "distill": {"teacher": [{"name": "a"}, {"name": "b"}]}}
    copy = yaml.safe_load(yaml.safe_dump(tree))
    assert accept_detectors(tree) == [] and tree == copy


def test_a_vit_learns_by_layers():
    optim = {"lr": 1e-4, "lr_backbone": 1e-5, "layer_decay_rate": 0.65}
    found = spec(model__backbone="vit_large_dinov2", train__optim=optim)
    assert found.train.optim.layer_decay == 0.65 and not found.train.optim.lr_mults
    assert "train.optim.lr_backbone" in found.without_effect


def test_indices_follow_the_number_of_levels():
    three = {"num_feature_levels": 3, "return_interm_indices": [1, 2, 3]}
    found = load_spec({"model_name": "dino", "model": {"backbone": "resnet_50", **three}})
    assert found.model.detector.options["num_feature_levels"] == 3


def test_images_of_inference_are_those_of_the_test_split():
    def tree(folders, **dataset) -> dict:
        sources = {"image_dir": folders, "classmap": "names.txt"}
        data = {"infer_data_sources": sources, **dataset}
        return {"model_name": "dino", "model": {"backbone": "resnet_50"}, "dataset": data}

    spec = load_spec(tree(["a"]))
    assert spec.dataset.test_dataset.images_dir == "a" and "dataset.infer_data_sources.classmap" in spec.without_effect
    spec = load_spec(tree(["a"], test_data_sources={"image_dir": "b", "json_file": "b.json"}))
    assert spec.dataset.test_dataset.images_dir == "b" and "dataset.infer_data_sources.image_dir" in spec.without_effect
    with pytest.raises(SpecError, match="not 2") as error:
        load_spec(tree(["a", "b"]))
    assert error.value.problems[0].where == "dataset.infer_data_sources.image_dir"
