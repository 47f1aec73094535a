"""Wrong values in TAO's detector specs are named, and none is dropped."""

from __future__ import annotations

import pytest

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec

BINDING = {"teacher_module_name": "pred_boxes", "student_module_name": "pred_boxes", "criterion": "L1"}


def spec_of(kind: str, *overrides: str, **sections):
    model = {"backbone": "resnet_50"}
    return load_spec({"model_name": kind, "model": model, "distill": {"teacher": model}, **sections}, overrides)


@pytest.mark.parametrize(
    ("kind", "override", "where"),
    [
        ("dino", "model.distillation_loss_coef=x", "model.distillation_loss_coef"),
        ("dino", "dataset.infer_data_sources=x", "dataset.infer_data_sources"),
        ("dino", "dataset.infer_data_sources=[{image_dir: a}]", "dataset.infer_data_sources"),
        ("dino", "dataset.infer_data_sources={image_dir: a, foo: 3}", "dataset.infer_data_sources"),
        ("rtdetr", "dataset.augmentation={distortion_prob: half}", "dataset.augmentation.distortion_prob"),
        ("rtdetr", "dataset.augmentation={train_spatial_size: [[9], 9]}", "dataset.augmentation.train_spatial_size"),
        ("rtdetr", "dataset.augmentation={train_spatial_size: []}", None),
        ("dino", "train.optim={lr_backbone: 1e-5, lr_mults: {backbone.: 0.3}}", "train.optim.lr_backbone"),
        ("dino", "train.optim={policy: cosine, lr_decay: 0.5}", "train.optim.lr_decay"),
        ("dino", "train.optim={lr_backbone: 1e-5, lr_mults: null}", None),
        ("dino", "dataset={train_dataset: null, train_data_sources: {image_dir: a, json_file: b}}", None),
        ("dino", "model.num_feature_levels=null", None),
    ],
)
def test_a_wrong_value_is_named(kind, override, where):
    try:
        spec_of(kind, override, distill={"teacher": {"backbone": "resnet_50"}, "bindings": [BINDING]})
    except SpecError as error:
        assert where and any(problem.where.startswith(where) for problem in error.problems), error
    else:
        assert where is None


def test_a_backbone_learns_at_taos_rate():
    """``lr_backbone`` has a default of its own; a ViT learns by layers."""
    for kind, rate in (("dino", 2e-5), ("rtdetr", 1e-5)):
        optim = spec_of(kind, "train.optim.lr=4e-4", compat="tao").train.optim
        assert optim.lr * optim.lr_mults["backbone."] == pytest.approx(rate)
    vit = {"model": {"backbone": "vit_large_nvdinov2"}, "compat": "tao"}
    assert spec_of("dino", "train.optim.lr=4e-4", **vit).train.optim.lr_mults == {}
    given = spec_of("dino", "train.optim={lr: 4e-4, lr_backbone: 4e-5}", compat="tao").train.optim
    assert given.lr_mults == {"backbone.": pytest.approx(0.1)}


def test_a_rate_of_the_backbone_needs_no_other():
    optim = spec_of("dino", "train.optim={lr: null, lr_backbone: 2e-5}").train.optim
    assert optim.lr == 2e-4 and optim.lr_mults == {"backbone.": pytest.approx(0.1)}


def test_the_batch_size_of_an_export_spec_is_listed_and_not_used():
    model, dataset = {"backbone": "resnet_50", "num_queries": 300}, {"num_classes": 91, "batch_size": -1}
    spec = load_spec({"model": model, "dataset": dataset})
    assert spec.dataset.batch_size == load_spec({}).dataset.batch_size
    assert "exported file" in spec.without_effect["dataset.batch_size"]
