"""Write a student's backbone for transformers' own class ``RadioModel``, which needs no code from the folder.

The folder has the tensors' names of NVIDIA's RADIO models, which transformers renames while it reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from radioplat.errors import Problem
from radioplat.models.backbones import names
from radioplat.models.student.plain_copy import plain_copy
from radioplat.models.student.student import Student
from radioplat.models.student.timm_form import FRONT_ARGUMENTS

# Arguments of the ViT for which the config has a place, or that concern training only.
_KNOWN = (
    *("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "init_values", "drop_path_rate"),
    *("drop_rate", "proj_drop_rate", "attn_drop_rate", "weight_init", "fix_init", *FRONT_ARGUMENTS),
)


def native_problems(student: Student) -> list[Problem]:
    """Return what of a RADIO ViT, which may be on the meta device, transformers' ``RadioModel`` cannot compute."""
    problems, where = [], "export.format"
    if not isinstance(student.backbone.norm, nn.Identity):
        message = "transformers' RadioModel has no norm after the last block, and this student has one"
        hint = "Use hf or safetensors; a student with model.backbone.kwargs.final_norm=false has none."
        problems.append(Problem(message, where, hint))
    kwargs = names.resolve(student.architecture.type, student.architecture.kwargs).kwargs
    defaults = {"proj_bias": True}  # of timm; those of the other arguments are False
    unknown = [k for k, v in kwargs.items() if k not in _KNOWN and v not in (None, defaults.get(k, False))]
    if unknown:
        message = f"transformers' RadioModel has no setting like model.backbone.kwargs.{', '.join(unknown)}"
        problems.append(Problem(message, where, "Use hf or safetensors."))
    return problems


def write_hf_native(student: Student, folder: Path, metadata: Mapping[str, str] | None = None) -> list[str]:
    """Write ``config.json`` and ``model.safetensors`` of the backbone into ``folder``; return notes on omissions.

    LayerScale, which NVIDIA's RADIO models lack, is multiplied into the layer before it.

    Args:
        student: one without :func:`native_problems`.
        folder: an existing, empty one.
        metadata: more of it, for ``model.safetensors``.
    """
    student = plain_copy(student)
    architecture, backbone, generator = student.architecture, student.backbone, student.backbone.patch_generator
    tensors = {f"radio_model.model.{k}": v.contiguous() for k, v in _without_layer_scale(backbone).items()}
    tensors["radio_model.input_conditioner.norm_mean"] = student.mean.reshape(3, 1, 1).clone()
    tensors["radio_model.input_conditioner.norm_std"] = student.std.reshape(3, 1, 1).clone()
    slots = architecture.summary_slots or list(range(generator.num_class_tokens))
    tensors["radio_model.summary_idxs"] = torch.tensor(slots, dtype=torch.int64)
    save_file(tensors, folder / "model.safetensors", {"format": "pt", **(metadata or {})})
    kwargs = names.resolve(architecture.type, architecture.kwargs).kwargs
    config = {
        "architectures": ["RadioModel"],
        "model_type": "radio",
        "hidden_size": kwargs["embed_dim"],
        "num_hidden_layers": kwargs["depth"],
        "num_attention_heads": kwargs["num_heads"],
        "mlp_ratio": kwargs.get("mlp_ratio", 4.0),
        "hidden_act": "gelu",
        "layer_norm_eps": backbone.blocks[0].norm1.eps,
        "qkv_bias": kwargs.get("qkv_bias", True),
        "patch_size": backbone.stride,
        "image_size": architecture.img_size,
        "max_img_size": generator.side * backbone.stride,
        "num_cls_tokens": generator.num_class_tokens,
        "num_registers": generator.num_registers,
        "summary_idxs": slots,
        "norm_mean": list(architecture.mean),
        "norm_std": list(architecture.std),
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    notes = [f"the heads of {', '.join(student.head_names)} are left out"] if student.head_names else []
    return notes + (["the classifier is left out"] if student.classifier is not None else [])


def _without_layer_scale(backbone: nn.Module) -> dict[str, torch.Tensor]:
    tensors = {k: v.clone() for k, v in backbone.state_dict().items()}
    for i in range(len(backbone.blocks)):
        for scale, layer in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
            gamma = tensors.pop(f"blocks.{i}.{scale}.gamma", None)
            if gamma is not None:
                tensors[f"blocks.{i}.{layer}.weight"] *= gamma[:, None]
                tensors[f"blocks.{i}.{layer}.bias"] *= gamma
    return tensors
