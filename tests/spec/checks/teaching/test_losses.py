"""Every rule of the losses by an example that breaks it, and only it."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[4] / "specs" / "radio_two_teachers.yaml"
T, S = "distill.teacher[0]", "distill.teacher[1]"  # the first gives its map, the second its summary
LOGITS = [f"{S}.loss_type=KL", f"{S}.mode=logits"]
TAO = "distill.label_form=tao"
ALONE = ["distill.teacher=[{loss_type: CS, pretrained_teacher_model_path: /a.pth}]"]


def extra(*terms: str) -> str:
    return f"{T}.extra_losses=[{', '.join(f'{{{term}}}' for term in terms)}]"


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        ([f"{T}.loss_type=gram"], None),
        ([f"{T}.loss_type=dampened_mse", f"{T}.mode=summary"], None),
        ([f"{T}.loss_type=KL", f"{T}.mode=spatial"], f"{T}.loss_type"),
        ([f"{T}.loss_type=CE", f"{T}.mode=combo"], f"{T}.loss_type"),
        ([f"{T}.loss_type=CE", f"{T}.mode=combo", f"{T}.spatial_loss_type=mse"], None),
        ([f"{T}.loss_type=gram", f"{T}.mode=summary"], f"{T}.loss_type"),
        ([f"{T}.loss_type=channel_kl", f"{T}.mode=logits"], f"{T}.loss_type"),
        ([f"{T}.loss_type=angle", f"{T}.mode=spatial"], f"{T}.loss_type"),
        ([f"{T}.mode=combo", f"{T}.summary_loss_type=angle"], None),
        ([f"{T}.mode=combo", f"{T}.summary_loss_type=tangent_sphere"], None),
        ([f"{S}.spatial_loss_type=gram"], f"{S}.spatial_loss_type"),
        ([extra("type: gram, kind: spatial", "type: rkd_angle, kind: spatial, weight: 0.1")], None),
        ([extra("type: angle, kind: summary, weight: 0")], None),
        ([extra("type: gram, kind: summary")], f"{T}.extra_losses[0].type"),
        ([extra("type: MSE, kind: spatial", "type: KL, kind: spatial")], f"{T}.extra_losses[1].type"),
        ([extra("type: gram, kind: spatial, weight: -1")], f"{T}.extra_losses[0].weight"),
        ([extra("type: gram, kind: spatial, weight: .nan")], f"{T}.extra_losses[0].weight"),
        ([extra("type: gram, kind: spatial", "type: gram, kind: spatial")], f"{T}.extra_losses[1]"),
        ([extra("type: rkd_angle, kind: spatial"), "dataset.batch_size=2"], "dataset.batch_size"),
        ([extra("type: rkd_distance, kind: spatial"), "dataset.batch_size=2"], None),
        ([extra("type: rkd_distance, kind: spatial"), "dataset.batch_size=1"], "dataset.batch_size"),
        ([extra("type: rkd_angle, kind: spatial"), "dataset.batch_size=512"], "dataset.batch_size"),
        ([f"{T}.spatial_focal_weight=0.5", f"{T}.spatial_focal_gamma=2"], None),
        ([f"{T}.spatial_focal_weight=0.5", f"{T}.spatial_focal_max_weight=0"], None),
        ([f"{T}.spatial_focal_weight=1.5"], f"{T}.spatial_focal_weight"),
        ([f"{S}.spatial_focal_weight=0.5"], f"{S}.spatial_focal_weight"),
        ([f"{T}.spatial_focal_weight=0.5", f"{T}.loss_type=gram"], f"{T}.spatial_focal_weight"),
        ([f"{T}.spatial_focal_weight=0.5", f"{T}.spatial_focal_gamma=-1"], f"{T}.spatial_focal_gamma"),
        ([f"{T}.spatial_focal_weight=0.5", f"{T}.spatial_focal_max_weight=0.5"], f"{T}.spatial_focal_max_weight"),
        ([f"{T}.spatial_focal_gamma=2"], f"{T}.spatial_focal_weight"),
        (["distill.temperature=2"], "distill.temperature"),
        ([*LOGITS, "distill.temperature=2"], "distill.temperature"),
        ([*LOGITS, "distill.temperature=2", "distill.kl_form=hinton"], None),
        ([*LOGITS, "distill.temperature=0", "distill.kl_form=hinton"], "distill.temperature"),
        (["distill.alpha=0.5"], "distill.alpha"),
        ([*LOGITS, "distill.alpha=0.5"], None),
        (["distill.alpha=0.5", "dataset.num_classes=3"], None),
        ([TAO, "dataset.num_classes=3", "distill.loss_lambda=0.3"], None),
        ([TAO, "distill.loss_lambda=0.3"], "distill.label_form"),
        ([TAO, "dataset.num_classes=3", "distill.loss_lambda=0.5"], "distill.loss_lambda"),
        ([TAO, "dataset.num_classes=3", "distill.loss_lambda=-0.5"], "distill.loss_lambda"),
        ([TAO, "dataset.num_classes=3", "distill.loss_lambda=0.3", "distill.alpha=0.5"], "distill.alpha"),
        ([*LOGITS, "distill.alpha=1.5"], "distill.alpha"),
        (["distill.balance=loss_scale"], None),
        (["distill.balance=adaloss", "distill.teacher_drop_prob=1"], None),
        (["distill.teacher_drop_prob=1.1"], "distill.teacher_drop_prob"),
        (["distill.teacher_drop_prob=.nan"], "distill.teacher_drop_prob"),
        ([*ALONE, "distill.teacher_drop_prob=0.5"], "distill.teacher_drop_prob"),
        ([*ALONE, "distill.balance=adaloss"], "distill.balance"),
        ([*ALONE, "distill.balance=loss_scale"], None),
    ],
)
def test_rule(overrides, where, problems_of):
    found = problems_of(EXAMPLE, overrides)
    assert [p.where for p in found] == ([] if where is None else [where])
    # Training on labels looks at none of it; a number out of its range is refused for every task.
    if not any(p.message.startswith("must be ") for p in found):
        assert not {p.where for p in problems_of(EXAMPLE, overrides, "train")} & {where} - {"dataset.batch_size"}
