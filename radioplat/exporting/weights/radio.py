"""Write a student as a file for NVlabs/RADIO's code; the only module with the layout for writing.

Written from the source code of NVlabs/RADIO (hubconf.py and radio/, commit c0f3701);
tests/exporting/weights/radio_layout.json describes the model that its loader builds.
``models/weights/radio_layout.py`` reads the same files.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from radioplat.errors import EngineError, Problem, did_you_mean
from radioplat.exporting.weights.head_tensors import folded, has_mlp, is_linear, upsampling, zero_head
from radioplat.models.backbones import names
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.heads import AttentionHead, TeacherHead
from radioplat.models.student.plain_copy import plain_copy
from radioplat.models.student.student import Student
from radioplat.models.student.timm_form import FRONT_ARGUMENTS, TIMM_NAMES
from radioplat.spec.schema.export import AdaptorTypes

# Text towers for which NVlabs has a class of its own; it reads the others by OpenCLIP's names.
_OTHER_TYPES = {"ViT-gopt-16-SigLIP2-384:webli": {"type": "siglip2", "model": "siglip2-g-384"}}


@dataclass(frozen=True)
class RadioFile:
    """Content of the ``.pth``.

    Attributes:
        state_dict: fp32 tensors by RADIO's names.
        args: content of its ``argparse.Namespace``.
        adaptors: the heads in it, by teacher's name.
        notes: omissions, and additions that the loader needs, one sentence each.
    """

    state_dict: dict[str, torch.Tensor]
    args: dict[str, Any]
    adaptors: list[str]
    notes: list[str] = field(default_factory=list)


def write_radio(
    student: Student,
    path: Path,
    adaptors: Sequence[str] = (),
    types: AdaptorTypes = AdaptorTypes.generic,
    metadata: Mapping[str, str] | None = None,
) -> RadioFile:
    """Write ``student`` as a ``.pth`` for ``hubconf.radio_model(version=path, adaptor_names=[...])``.

    Args:
        adaptors: heads to write; default: all that the format supports.
        types: of the adaptors.
        metadata: further entries, texts.

    Raises:
        EngineError: the format does not support this student, or a head in ``adaptors``.
    """
    content = radio_file(student, adaptors)
    if types is AdaptorTypes.own:
        _give_own_types(student, content)
    args = argparse.Namespace(**content.args)
    torch.save({"state_dict": content.state_dict, "args": args, **(metadata or {})}, path)
    return content


def _give_own_types(student: Student, content: RadioFile) -> None:
    """Give the adaptors whose text tower is known the type and the names with which NVlabs' loader builds it."""
    for entry in content.args["teachers"]:
        if entry["name"] not in content.adaptors:
            continue
        if tower := student.heads[entry["name"]].architecture.text_tower:
            model, _, tag = tower.partition(":")
            theirs = {"type": "open_clip", "model": model, "pretrained": tag}
            entry |= _OTHER_TYPES.get(tower, theirs)
            package = "transformers" if tower in _OTHER_TYPES else "open_clip"
            content.notes.append(
                f"{entry['name']}: RADIO's loader needs {package} for the text tower {tower}, and downloads that tower"
            )
        else:
            content.notes.append(f"{entry['name']} stays generic: no text tower is known for its teacher")


def radio_file(student: Student, adaptors: Sequence[str] = (), own_code: bool = False) -> RadioFile:
    """Return the content that :func:`write_radio` writes.

    Args:
        own_code: whether it is for radioplat's code, which supports heads that NVlabs' loader cannot build.
    """
    require_radio(student)
    student = plain_copy(student)
    backbone = student.backbone
    chosen, notes = _supported_heads(student, adaptors, own_code)
    teachers, per_teacher, registers = _teachers(student)
    tensors = {f"base_model.{k}": v.clone() for k, v in backbone.state_dict().items()}
    for entry in teachers:
        name = entry["name"]
        if name in chosen:
            tensors |= _head(student.heads[name], entry, backbone.token_dim, notes)
    tensors["input_conditioner.norm_mean"] = student.mean.reshape(3, 1, 1).clone()
    tensors["input_conditioner.norm_std"] = student.std.reshape(3, 1, 1).clone()
    if student.classifier is not None or any(h.logits_dim for h in student.architecture.heads):
        notes.append("classifiers are left out: the format has none")
    return RadioFile(tensors, _args(student, teachers, per_teacher, registers), chosen, notes)


def require_radio(student: Student) -> None:
    """Refuse a student whose backbone is not a RADIO ViT.

    Raises:
        EngineError: with other formats.
    """
    if not isinstance(student.backbone, RadioViT):
        raise EngineError(
            f"a {student.architecture.type} cannot be a RADIO checkpoint: RADIO's loader builds a ViT with a patch "
            "generator",
            where="export.format",
            hint="Use timm, safetensors or onnx, or distil a radio_vit_* student.",
        )


def known_adaptors(adaptors: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return ``adaptors`` without duplicates; if empty, all of ``known``.

    Raises:
        EngineError: one is not a head of the student.
    """
    for name in adaptors:
        if name not in known:
            valid = did_you_mean(name, known) or "This student has no heads."
            raise EngineError(f"the student has no head named {name!r}", where="export.adaptors", hint=valid)
    return list(dict.fromkeys(adaptors or known))


def adaptor_problems(student: Student, adaptors: Sequence[str], own_code: bool = False) -> list[Problem]:
    """Return why heads in ``adaptors`` cannot be in the format; the student may be on the meta device.

    Args:
        own_code: as for :func:`radio_file`.
    """
    reasons = {name: _unsupported(student.heads[name], name, own_code) for name in adaptors if name in student.heads}
    return [
        Problem(f"head {name!r} cannot be in this format: {reason}", "export.adaptors", "Leave it out.")
        for name, reason in reasons.items()
        if reason
    ]


def type_problems(student: Student, adaptors: Sequence[str], types: AdaptorTypes) -> list[Problem]:
    """Return why no adaptor can have a type of its own, if ``types`` asks for that."""
    names = [name for name in adaptors or student.head_names if name in student.heads]
    if types is AdaptorTypes.generic or any(student.heads[name].architecture.text_tower for name in names):
        return []
    hint = "A CLIP or SigLIP teacher with a summary says it by its type: timm's name with the tag of the weights."
    message = f"no text tower is known for the heads of {', '.join(names) or 'this student'}"
    return [Problem(message, "export.adaptor_types", hint)]


def _supported_heads(student: Student, adaptors: Sequence[str], own_code: bool) -> tuple[list[str], list[str]]:
    """Return the supported heads, and notes on others; refuse an unsupported one in ``adaptors``."""
    if problems := adaptor_problems(student, adaptors, own_code):
        raise EngineError(*problems)
    chosen, notes = [], []
    for name in known_adaptors(adaptors, student.head_names):
        if reason := _unsupported(student.heads[name], name, own_code):
            notes.append(f"head {name} is left out: {reason}")
        else:
            chosen.append(name)
    return chosen, notes


def _unsupported(head: TeacherHead, name: str, own_code: bool) -> str:
    """Return the reason why the format does not support a head; empty if it does."""
    if name.isdigit():
        return "RADIO interprets a number as a position in its list"
    if head.architecture.identity:
        return "it has no layers (use_head: false), and RADIO's heads are MLPs"
    if any(is_linear(head, kind) for kind in ("summary", "spatial")):
        return "it is a single linear layer, and RADIO's heads are MLPs (distill.use_mlp=true)"
    if not any(has_mlp(head, kind) for kind in ("summary", "spatial")):
        return "it has neither summary nor map"
    return "" if own_code or not isinstance(head.spatial, AttentionHead) else _unsupported_attention(head)


def _unsupported_attention(head: TeacherHead) -> str:
    """Return the reason why NVlabs' loader does not support an ``attn`` head; empty if it does."""
    if head.architecture.upsample > 1:
        return "RADIO's loader cannot run an attn head with an upsampled map (fd_upsample_factor above 1)"
    if head.spatial is not None and len(head.spatial.mlp.blocks):
        return "RADIO's attn heads have no inner blocks (spatial_num_inner above 0)"
    return ""


def _teachers(student: Student) -> tuple[list[dict[str, Any]], bool, int]:
    """Return RADIO's list of teachers, whether each has a class token, and the number of registers for its arguments.

    Its loader gives the i-th distinct name the i-th class token of the backbone's summary, so names are in the order of
    their tokens; a second head of a token comes after them and is not in the summary.
    """
    generator, heads = student.backbone.patch_generator, student.architecture.heads
    taught = student.architecture.summary_slots
    count, total = generator.num_class_tokens, generator.num_prefix
    first = {head.token_slot: head.name for head in reversed(heads)}
    entries = [
        {
            "name": first.get(slot, f"class_token_{slot}"),
            "type": "generic",
            "use_summary": slot in taught or not taught,
            "token_slot": slot,
        }
        for slot in range(count)
    ]
    names_so_far = {entry["name"] for entry in entries}
    more = [
        {"name": head.name, "type": "generic", "use_summary": False, "token_slot": head.token_slot}
        for head in heads
        if head.name not in names_so_far
    ]
    if not more or count == 1:
        return entries + more, count > 1 or not more, total - count
    registers = total - count - len(more)
    if registers < 0:
        raise EngineError(
            f"RADIO's loader needs a token for each of {count + len(more)} teachers, and the student has {total}",
            where="export.format",
            hint="List fewer of them in export.adaptors, or use safetensors.",
        )
    return entries + more, True, registers


def _head(head: TeacherHead, entry: dict[str, Any], width: int, notes: list[str]) -> dict[str, torch.Tensor]:
    """Return both MLPs of one teacher; RADIO's loader needs both, so a missing one is written with output 0."""
    tensors: dict[str, torch.Tensor] = {}
    for kind, prefix in (("summary", "_heads"), ("spatial", "_feature_projections")):
        weights = folded(head, kind)
        if weights is None:
            weights = zero_head(width)
            entry.setdefault("filled", []).append(kind)
            notes.append(
                f"{entry['name']} has no {kind} head: RADIO's loader needs one, so one with output 0 is written"
            )
        elif kind == "spatial":
            if any(k.startswith("mlp.") for k in weights):
                entry["spatial_mlp_version"] = "attn"
            if (factor := upsampling(head, weights)) > 1:
                entry["fd_upsample_factor"] = factor
        tensors |= {f"{prefix}.{entry['name']}.{k}": v for k, v in weights.items()}
    return tensors


def _args(student: Student, teachers: list[dict[str, Any]], per_teacher: bool, registers: int) -> dict[str, Any]:
    architecture, backbone = student.architecture, student.backbone
    kwargs = dict(names.resolve(architecture.type, architecture.kwargs).kwargs)
    drop, drop_path = kwargs.pop("drop_rate", 0.0), kwargs.pop("drop_path_rate", 0.0)
    model = TIMM_NAMES.get(kwargs["embed_dim"], "vit_base_patch16_224")
    if kwargs.pop("mlp_norm", False):  # NVlabs have a model of this form, not an argument
        model = "vit_huge_patch16_224_mlpnorm"
    table, patch = backbone.patch_generator.side * backbone.stride, backbone.stride
    kwargs = {k: v for k, v in kwargs.items() if k not in FRONT_ARGUMENTS}
    # Its loader crops positions like CPE only if the table's size differs from that of timm's model.
    kwargs["img_size"] = patch if table != patch else 2 * patch
    return {
        "model": model,
        "pretrained": False,
        "in_chans": 3,
        "input_size": [3, architecture.img_size, architecture.img_size],
        "num_classes": 0,
        "drop": drop,
        "drop_path": drop_path,
        "drop_block": None,
        "gp": None,
        "bn_momentum": None,
        "bn_eps": None,
        "torchscript": False,
        "initial_checkpoint": "",
        "model_kwargs": kwargs,
        "model_norm": not isinstance(backbone.norm, nn.Identity),
        "cpe_max_size": table,
        "cpe_num_registers": registers,
        "register_multiple": None,
        "cls_token_per_teacher": per_teacher,
        "mlp_version": "v2",
        "spectral_reparam": False,
        "spectral_heads": False,
        "damp": None,
        "teachers": teachers,
    }
