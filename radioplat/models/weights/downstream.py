"""TAO's checkpoints of downstream tasks: where each has its backbone, and which tensors are not the backbone's.

Prefixes as in the ``StateDictAdapter`` of TAO 7.0.1 (``cv/classification_pyt/model/utils.py``), which reads the name of
the task from the checkpoint (``tao_model``). A file without it, like SegFormer's, is recognised by its decoder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from radioplat.common.listing import first_few

_BODY = "model.model.backbone.0.body."


@dataclass(frozen=True)
class _Task:
    """A task of TAO: its ``tao_model``, its name, the backbone's prefixes, longest first, and what no other has."""

    key: str
    name: str
    prefixes: tuple[str, ...]
    sign: str


_TASKS = (  # in the order in which their signs are looked for
    _Task("mask_grounding_dino", "Mask Grounding DINO", (_BODY,), "model.model.mask_head."),
    _Task("grounding_dino", "Grounding DINO", (_BODY,), "model.model.bert."),
    _Task("dino", "DINO", (_BODY,), "model.model.label_enc."),
    _Task("rtdetr", "RT-DETR", ("model.model.backbone.",), "model.model.decoder."),
    _Task("mal", "MAL", ("student.backbone.",), "student.roi_head."),
    _Task("mask2former", "Mask2Former", ("model.backbone.model.", "model.backbone."), "model.sem_seg_head."),
    _Task("visual_changenet_segment", "Visual ChangeNet", ("model.backbone.",), "model.decoder.make_pred_c"),
    _Task("visual_changenet_classify", "Visual ChangeNet", ("model.backbone.",), "model.decoder.diff_c"),
    _Task("segformer", "SegFormer", ("model.backbone.",), "model.decoder.linear_c"),
    _Task("mae", "MAE", ("model.encoder.", "model."), "model.decoder_embed."),
    _Task("classification", "classification or RADIO", ("model.",), ""),
)
# What tasks add to the backbone's own module: norms and convolutions of the maps that it returns, MAE's decoder.
_ADDED = re.compile(r"(?:out_norm\d|norm\d|learnable_downsample|conv_(?:512|1024|2048)|decoder\w*|mask_token)(?:\.|$)")
# ViT-Adapter (arXiv:2205.08534), which has a module spm.
_ADAPTER = re.compile(r"(?:spm|interactions|up|level_embed|fc_summary|conv\d)(?:\.|$)")
_RADIO = "patch_generator.pos_embed"


@dataclass(frozen=True)
class Downstream:
    """A backbone in a checkpoint of a downstream task.

    Attributes:
        name: the task, as TAO calls it.
        prefix: of the backbone's tensors in the file.
        tensors: the backbone's, by its own names.
        others: names in the file of all other tensors.
    """

    name: str
    prefix: str
    tensors: dict[str, torch.Tensor]
    others: list[str]

    @property
    def unused(self) -> str:
        """Describe the tensors that are not the backbone's by their number and modules."""
        modules = list(dict.fromkeys(self._module(name) for name in self.others))
        return f"{len(self.others)} tensor{'s' * (len(self.others) != 1)}: {first_few(modules, 5)}"

    def _module(self, name: str) -> str:
        depth = 3 if name.startswith("model.model.") else 2
        if name.startswith(self.prefix):
            depth = self.prefix.count(".") + 1
        return ".".join(name.split(".")[:depth])


def find_downstream(tensors: Mapping[str, torch.Tensor], tao_model: str = "") -> Downstream | None:
    """Find the backbone in a checkpoint of one of TAO's tasks; None if it is no such checkpoint.

    Args:
        tao_model: the name of the task in the checkpoint; empty: it is recognised by the tensors.
    """
    named = [task for task in _TASKS if task.key == tao_model]
    signed = [task for task in _TASKS if task.sign and any(name.startswith(task.sign) for name in tensors)]
    for task in named or signed[:1]:
        for prefix in task.prefixes:
            if any(name.startswith(prefix) for name in tensors):
                radio = next((name for name in tensors if name.startswith(prefix) and name.endswith(f".{_RADIO}")), "")
                return _split(task.name, radio.removesuffix(_RADIO) or prefix, tensors)
    return None


def without_additions(tensors: Mapping[str, torch.Tensor], own: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Leave out the modules that a task adds to its backbone.

    Args:
        tensors: by the backbone's names.
        own: names that are the backbone's, whatever they look like.
    """
    adapted = any(name.startswith("spm.") for name in tensors)
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in own or not (_ADDED.match(name) or (adapted and _ADAPTER.match(name)))
    }


def _split(task: str, prefix: str, tensors: Mapping[str, torch.Tensor]) -> Downstream:
    backbone = without_additions({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    others = [k for k in tensors if not (k.startswith(prefix) and k.removeprefix(prefix) in backbone)]
    return Downstream(task, prefix, backbone, others)
