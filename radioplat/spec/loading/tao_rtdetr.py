"""Fields of the model of TAO's RT-DETR (``nvidia_tao_pytorch/config/rtdetr/model.py``)."""

from __future__ import annotations

from typing import Any

from radioplat.spec.loading.tao_detector_model import UNREAD, DetectorFields

# TAO's name: arguments of transformers' RTDetrConfig. TAO's decoder has 8 heads and 1024 hidden units whatever the
# spec says, which are RTDetrConfig's defaults.
_OPTIONS = {
    "num_queries": ("num_queries",),
    "hidden_dim": ("encoder_hidden_dim", "d_model"),
    "nheads": ("encoder_attention_heads",),
    "enc_layers": ("encoder_layers",),
    "dec_layers": ("decoder_layers",),
    "dim_feedforward": ("encoder_ffn_dim",),
    "pe_temperature": ("positional_encoding_temperature",),
    "expansion": ("hidden_expansion",),
    "enc_act": ("encoder_activation_function",),
    "act": ("activation_function",),
}
_TRAINING: dict[str, tuple[str, ...]] = {
    "dn_number": ("num_denoising",),
    "vfl_loss_coef": ("weight_loss_vfl",),
    "bbox_loss_coef": ("weight_loss_bbox",),
    "giou_loss_coef": ("weight_loss_giou",),
    "class_cost": ("matcher_class_cost",),
    "bbox_cost": ("matcher_bbox_cost",),
    "giou_cost": ("matcher_giou_cost",),
    "alpha": ("focal_loss_alpha",),
    "gamma": ("focal_loss_gamma",),
}
_ONLY: dict[str, Any] = {
    "num_feature_levels": 3,
    "return_interm_indices": [1, 2, 3],
    "feat_strides": [8, 16, 32],
    "feat_channels": lambda block: [block.get("hidden_dim", 256)] * 3,
    "use_encoder_idx": [2],
    "depth_mult": 1,
    "dropout_ratio": 0.0,  # TAO's has dropout in the encoder, transformers' in encoder and decoder
    "eval_idx": -1,
    "frozen_fm.enabled": False,
    "loss_types": ["vfl", "boxes"],
}
_WITHOUT_EFFECT = {
    **dict.fromkeys(("aux_loss", "clip_max_norm", "backbone_names", "linear_proj_names"), UNREAD),
    "distillation_loss_coef": "TAO's RT-DETR multiplies by the bindings' weights alone",
    **dict.fromkeys(("frozen_fm.backbone", "frozen_fm.checkpoint"), "the frozen model beside the backbone is off"),
    "num_select": "an evaluation takes the 100 best boxes of an image, as COCO does",
}

_WEIGHTS = {ours for names in _TRAINING.values() for ours in names} - {"num_denoising"}
RTDETR = DetectorFields(
    kind="rtdetr",
    options=_OPTIONS,
    training=_TRAINING,
    only=_ONLY,
    without_effect=_WITHOUT_EFFECT,
    floats=frozenset(_WEIGHTS | {"hidden_expansion"}),
)
# Names that only RT-DETR's specs have.
OF_RTDETR = frozenset(
    {"feat_channels", "feat_strides", "use_encoder_idx", "expansion", "depth_mult", "enc_act", "act", "eval_idx"}
    | {"vfl_loss_coef", "class_cost", "load_teacher_enc_dec", "frozen_fm", "pe_temperature", "remap_mscoco_category"}
    | {"train_spatial_size", "eval_spatial_size", "distortion_prob", "iou_crop_prob"}
)
