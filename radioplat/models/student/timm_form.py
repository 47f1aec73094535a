"""A student's backbone as a model of timm's: ``student.as_timm()``, and ``export.format: timm``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from torch import nn

from radioplat.errors import Problem, RadioplatError, did_you_mean
from radioplat.models.backbones import names
from radioplat.models.backbones.radio_1d import Radio1D
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.plain_copy import plain_copy

# timm's architectures with a class token, by width; all arguments are given as well.
TIMM_NAMES = {
    192: "vit_tiny_patch16_224",
    384: "vit_small_patch16_224",
    768: "vit_base_patch16_224",
    1024: "vit_large_patch16_224",
    1280: "vit_huge_patch14_224",
    1536: "vit_giant_patch14_224",
}
# Arguments of timm's ViT for the part before the blocks, in place of which RADIO has its patch generator.
FRONT_ARGUMENTS = (
    "num_registers",
    "register_multiple",
    "cpe_max_size",
    "reg_tokens",
    "no_embed_class",
    "dynamic_img_size",
    "dynamic_img_pad",
    "embed_norm_layer",
    "pre_norm",
    "pos_drop_rate",
    "patch_drop_rate",
    "final_norm",
)


@dataclass(frozen=True)
class TimmForm:
    """A backbone for timm.

    Attributes:
        name, kwargs: arguments of ``timm.create_model``.
        tensors: its state dict, fp32.
        token: the class token of a RADIO ViT that is timm's class token.
        notes: omissions, one sentence each.
        inner_epsilon: of the norms inside the MLPs, which is no argument of timm's; None: there are no such norms.
    """

    name: str
    kwargs: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    token: int = 0
    notes: list[str] = field(default_factory=list)
    inner_epsilon: float | None = None

    def create(self) -> nn.Module:
        """Return the model with its weights, in evaluation mode."""
        model = timm.create_model(self.name, pretrained=False, **self.kwargs)
        model.load_state_dict(self.tensors)
        if self.inner_epsilon is not None:
            for block in model.blocks:
                block.mlp.norm.eps = self.inner_epsilon
        return model.eval()

    @property
    def call(self) -> str:
        """The line of Python that builds the model."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.kwargs.items())
        return f"timm.create_model({self.name!r}{', ' if arguments else ''}{arguments})"


def timm_problems(student: nn.Module) -> list[Problem]:
    """Return the reason why ``timm.create_model`` alone cannot build a student's backbone; [] if there is none."""
    epsilon = _inner_epsilon(student.backbone) if isinstance(student.backbone, RadioViT) else None
    if epsilon is None:
        return []
    message = f"the norms inside its MLPs have another epsilon than timm's, {epsilon:g}"
    return [Problem(message, "export.format", "Use student.as_timm(), another export.format, or the ONNX file.")]


def _inner_epsilon(backbone: RadioViT) -> float | None:
    return getattr(backbone.blocks[0].mlp.norm, "eps", None)


def timm_model(
    backbone: RadioViT | TimmBackbone,
    architecture: StudentArchitecture,
    classifier: nn.Linear | None,
    size: int | None,
    teacher: str | None,
) -> nn.Module:
    """Return what :meth:`radioplat.models.student.student.Student.as_timm` returns, on the CPU."""
    sides = (size or architecture.img_size,) * 2
    if isinstance(backbone, TimmBackbone):  # of any shapes: its layers are copied
        _check(backbone, architecture, sides, teacher)
        model = plain_copy(backbone).model.requires_grad_(True)
    else:
        model = timm_form(backbone, architecture, classifier, sides, teacher).create()
    give_config(model, architecture, sides)
    return model


def timm_form(
    backbone: RadioViT | TimmBackbone,
    architecture: StudentArchitecture,
    classifier: nn.Linear | None,
    size: tuple[int, int],
    teacher: str | None = None,
) -> TimmForm:
    """Return name, arguments and weights for ``timm.create_model``.

    A student of timm's is not changed. A RADIO ViT becomes timm's ViT, equal to it at one size: one class token stays,
    the others and the registers become registers, and the position table is cropped.

    Args:
        classifier: of a RADIO ViT; left out if it reads several class tokens.
        size: height and width in pixels, for a RADIO ViT multiples of the patch size.
        teacher: of a RADIO ViT, the one whose class token stays; default: the first with a summary.

    Raises:
        RadioplatError: layers were changed, so that ``timm.create_model`` cannot build it; a wrong size or teacher.
    """
    _check(backbone, architecture, size, teacher)
    changed = architecture.pruned or architecture.low_rank or architecture.quantized or architecture.fused_branches
    if changed or isinstance(backbone, Radio1D):
        message = f"timm.create_model cannot build this {architecture.type}: its layers are others"
        hint = "Use the student itself, radioplat.embed, or its ONNX file."
        raise RadioplatError(message, where="student", hint=hint)
    names_of_heads = [head.name for head in architecture.heads]
    left = [f"the heads of {', '.join(names_of_heads)} are left out"] if names_of_heads else []
    plain = plain_copy(backbone)
    if isinstance(plain, TimmBackbone):
        tensors = {k: v.clone() for k, v in plain.model.state_dict().items()}
        return TimmForm(plain.name, dict(plain.arguments), tensors, notes=left)
    return _vit(plain, architecture, classifier, size, teacher, left)


def no_head(name: str, heads: Sequence[str]) -> RadioplatError:
    """Return the error for a name of a head that is not among ``heads``."""
    hint = did_you_mean(name, heads) or "This student has no heads."
    return RadioplatError(f"the student has no head named {name!r}", where="name", hint=hint)


def _check(
    backbone: RadioViT | TimmBackbone, architecture: StudentArchitecture, size: tuple[int, int], teacher: str | None
) -> None:
    heads = [head.name for head in architecture.heads]
    if teacher is not None and teacher not in heads:
        raise no_head(teacher, heads)
    if backbone.needs_multiple and any(side % backbone.stride or side < 1 for side in size):
        message = f"{size[0]} x {size[1]} pixels are not multiples of the patch size {backbone.stride}"
        raise RadioplatError(message, where="size")


def _vit(
    backbone: RadioViT,
    architecture: StudentArchitecture,
    classifier: nn.Linear | None,
    size: tuple[int, int],
    teacher: str | None,
    notes: list[str],
) -> TimmForm:
    slots = {head.name: head.token_slot for head in architecture.heads}
    token = slots[teacher] if teacher else (architecture.summary_slots or [0])[0]
    patch, generator = backbone.stride, backbone.patch_generator
    tokens = generator.cls_token["token"].detach()
    others = torch.cat([tokens[:token], tokens[token + 1 :]])
    kwargs = names.resolve(architecture.type, architecture.kwargs).kwargs
    arguments = {k: v for k, v in kwargs.items() if k not in FRONT_ARGUMENTS}
    arguments |= {"img_size": size, "num_classes": 0, "no_embed_class": True, "dynamic_img_size": True}
    if isinstance(backbone.norm, nn.Identity):
        arguments["final_norm"] = False
    if arguments.pop("mlp_norm", False):  # timm's name of it
        arguments["scale_mlp_norm"] = True
    tensors = {k: v.clone() for k, v in backbone.state_dict().items() if not k.startswith("patch_generator.")}
    tensors["patch_embed.proj.weight"] = generator.embedder.weight.detach().reshape(-1, 3, patch, patch).clone()
    tensors["patch_embed.proj.bias"] = torch.zeros(tokens.shape[1])
    tensors["cls_token"] = tokens[token].reshape(1, 1, -1).clone()
    tensors["pos_embed"] = generator.positions(1, size[0] // patch, size[1] // patch).detach().clone()
    if len(others):
        arguments["reg_tokens"] = len(others)
        tensors["reg_token"] = others.unsqueeze(0).clone()
    owner = next((f"of {name}" for name, slot in slots.items() if slot == token), str(token))
    notes = [
        f"the class token {owner} is timm's; the other {generator.num_class_tokens - 1} and "
        f"{generator.num_registers} registers are its registers",
        f"positions are for {size[0]} x {size[1]} pixels: at others timm resizes them, and RADIO crops its table",
        *notes,
    ]
    if classifier is not None and generator.num_class_tokens == 1:
        arguments["num_classes"] = classifier.out_features
        tensors |= {
            f"head.{k}": v.detach().to("cpu", torch.float32, copy=True) for k, v in classifier.state_dict().items()
        }
    elif classifier is not None:
        notes.append("the classifier reads all class tokens and is left out")
    inner = _inner_epsilon(backbone)
    return TimmForm(TIMM_NAMES.get(tokens.shape[1], "vit_base_patch16_224"), arguments, tensors, token, notes, inner)


def give_config(model: nn.Module, architecture: StudentArchitecture, size: tuple[int, int]) -> None:
    """Set timm's ``pretrained_cfg`` of ``model``, by which ``timm.data`` makes the images that the student reads."""
    own = getattr(model, "pretrained_cfg", None) or {}
    kept = ("architecture", "first_conv", "classifier", "fixed_input_size")
    model.pretrained_cfg = {name: own[name] for name in kept if name in own} | {
        "num_classes": model.num_classes,
        "input_size": (3, *size),
        "mean": architecture.mean,
        "std": architecture.std,
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "crop_mode": "center",
        "label_names": architecture.class_names or None,
    }
    model.default_cfg = model.pretrained_cfg
