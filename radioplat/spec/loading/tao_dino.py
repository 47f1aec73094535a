"""Fields of the model of TAO's DINO (``nvidia_tao_pytorch/config/dino/model.py``)."""

from __future__ import annotations

from typing import Any

from radioplat.errors import Problem
from radioplat.spec.loading.tao_detector_model import UNREAD, DetectorFields, levels_of

# TAO's name: arguments of radioplat.models.detectors.dino.dino.DinoConfig.
_OPTIONS = {
    "num_queries": ("num_queries",),
    "num_feature_levels": ("num_feature_levels",),
    "hidden_dim": ("d_model",),
    "nheads": ("encoder_attention_heads", "decoder_attention_heads"),
    "enc_layers": ("encoder_layers",),
    "dec_layers": ("decoder_layers",),
    "dim_feedforward": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "enc_n_points": ("encoder_n_points",),
    "dec_n_points": ("decoder_n_points",),
    "dropout_ratio": ("dropout",),
}
_TRAINING = {
    "num_select": ("num_select",),
    # TAO's matcher uses the losses' weights as its costs.
    "cls_loss_coef": ("class_loss_coefficient", "class_cost"),
    "bbox_loss_coef": ("bbox_loss_coefficient", "bbox_cost"),
    "giou_loss_coef": ("giou_loss_coefficient", "giou_cost"),
    # older releases
    "set_cost_class": ("class_cost",),
    "set_cost_bbox": ("bbox_cost",),
    "set_cost_giou": ("giou_cost",),
    "interm_loss_coef": ("encoder_loss_coefficient",),
    "focal_alpha": ("focal_alpha",),
    "dn_number": ("num_denoising",),
    "dn_box_noise_scale": ("box_noise_scale",),
    "dn_label_noise_ratio": ("label_noise_ratio",),
}
_ONLY: dict[str, Any] = {
    "pre_norm": False,
    "two_stage_type": "standard",
    "decoder_sa_type": "sa",
    "embed_init_tgt": True,
    "fix_refpoints_hw": -1,
    # Maps of strides 8, 16 and 32; index 4 and above stand for the levels that a convolution adds.
    "return_interm_indices": lambda block: list(range(1, 1 + levels_of(block))),
    "no_interm_box_loss": False,
    "aux_loss": True,
    "dilation": False,
    "focal_gamma": 2.0,
    "loss_types": ["labels", "boxes"],
}


def _special(block: dict[str, Any], where: str, problems: list[Problem]) -> dict[str, Any]:
    """Translate temperatures of positions, and the switch of noised boxes."""
    options: dict[str, Any] = {}
    if not block.pop("use_dn", True):
        options["num_denoising"] = 0
        block.pop("dn_number", None)
    high, wide = (block.pop(f"pe_temperature{side}", None) for side in "HW")
    if (high or wide) is not None:
        options["position_temperature"] = wide if high is None else high
        if None not in (high, wide) and high != wide:
            message = f"one temperature applies to both axes, not {high} and {wide}"
            problems.append(Problem(message, f"{where}.pe_temperatureW", f"Give {where}.pe_temperatureH alone."))
    return options


DINO = DetectorFields(
    kind="dino",
    options=_OPTIONS,
    training=_TRAINING,
    only=_ONLY,
    without_effect=dict.fromkeys(("clip_max_norm", "backbone_names", "linear_proj_names"), UNREAD),
    defaults={"num_queries": 300, "cls_loss_coef": 2.0},
    special=_special,
)
