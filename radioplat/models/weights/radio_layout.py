"""NVlabs RADIO's checkpoints (``.pth`` and Hugging Face), renamed to our own RADIO ViT."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import nn

from radioplat.errors import WeightsError
from radioplat.models.backbones.names import VIT_SIZES
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.heads import ATTENTION_HEADS, MLP2, AttentionHead
from radioplat.models.on_meta import on_meta
from radioplat.models.weights.read import Contents, read_checkpoint

_BACKBONES = ("base_model.", "radio_model.model.")
_HEADS = (  # pattern of a tensor name with a group for the adaptor's name, and the kind of head
    (re.compile(r"_heads\.([^.]+)\.(.+)"), "summary"),
    (re.compile(r"_feature_projections\.([^.]+)\.(.+)"), "spatial"),
    (re.compile(r"radio_model\.adaptors\.([^.]+)\.head_mlp\.(.+)"), "summary"),
    (re.compile(r"radio_model\.adaptors\.([^.]+)\.feat_mlp\.(.+)"), "spatial"),
)
# Tensors of timm's ViT that a patch generator replaces; RADIO's "v2" architectures still carry the first.
_REPLACED = ("reg_token", "cls_token", "pos_embed", "mask_token")
# The small tensors whose values determine the structure.
_SMALL = ("input_conditioner.norm_mean", "input_conditioner.norm_std", "summary_idxs")
# Arguments of timm's ViT in the file's ``model_kwargs``: passed to our ViT; read from tensor shapes instead; or without
# effect, because they concern training or parts that a patch generator replaces.
_GIVEN = ("act_layer", "norm_layer", "mlp_layer", "proj_bias", "scale_attn_norm", "scale_mlp_norm")
_IN_SHAPES = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "qk_norm", "init_values")
_WITHOUT_EFFECT = (
    *("img_size", "dynamic_img_size", "dynamic_img_pad", "reg_tokens", "class_token", "no_embed_class", "pos_embed"),
    *("pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "weight_init", "fix_init", "final_norm"),
)
_LAYER_SCALE = re.compile(r"\.layer_scale([12])\.lambda1")  # as transformers' RadioModel names it
_FRONT = ("patch_generator.embedder.weight", "patch_generator.pos_embed", "patch_generator.cls_token.token")
_ANOTHER = "Its features cannot be computed here: take another checkpoint."
_SPECTRAL_FLOOR = 0.05  # RADIO's alpha: the norm of a weight is softplus(scale) plus this


@dataclass(frozen=True)
class RadioParts:
    """The parts of a RADIO checkpoint.

    Attributes:
        backbone: tensors by the names of :class:`~radioplat.models.backbones.radio_vit.RadioViT`.
        arguments: its constructor's, see :attr:`vit`; ``num_heads`` is None if the file does not say.
        summary_slots: class tokens that make the backbone's summary.
        heads: adaptor name -> ``summary`` and ``spatial`` -> tensors of its MLP.
        token_slots: the class token that each adaptor reads.
        teacher_slots: the class token of each teacher that the file names, with or without heads.
        upsample: the factor by which each adaptor's map is finer than the backbone's.
        normalizer: ``mean`` ``[D]`` and ``tx`` ``[D, D]`` of the map; empty for none.
        conditioner: ``norm_mean`` and ``norm_std`` of images in [0, 1]; empty if the file has none.
        dropped: names of all other tensors.
        origin: its path and the field that named it, for messages.
    """

    backbone: dict[str, torch.Tensor]
    arguments: dict[str, Any]
    summary_slots: list[int]
    heads: dict[str, dict[str, dict[str, torch.Tensor]]]
    token_slots: dict[str, int]
    teacher_slots: dict[str, int]
    upsample: dict[str, int]
    normalizer: dict[str, torch.Tensor]
    conditioner: dict[str, torch.Tensor]
    dropped: list[str]
    origin: tuple[str, str] = ("", "")

    @property
    def vit(self) -> dict[str, Any]:
        """All arguments of the constructor.

        Raises:
            WeightsError: the number of attention heads is unknown.
        """
        if not self.arguments["num_heads"]:
            path, where = self.origin
            message = f"{path} does not say how many attention heads its ViT has, {self.arguments['embed_dim']} wide"
            raise WeightsError(message, where=where, hint="Give num_heads in the model.backbone.kwargs beside it.")
        return self.arguments

    def adaptor(self, name: str) -> dict[str, nn.Module]:
        """Build the untrained heads of adaptor ``name``, by ``summary`` and ``spatial``.

        Raises:
            WeightsError: a head of unknown form.
        """
        return {kind: self._head(name, kind, tensors) for kind, tensors in self.heads[name].items()}

    def _head(self, name: str, kind: str, tensors: dict[str, torch.Tensor]) -> nn.Module:
        attends = "mlp.fc1.weight" in tensors
        mlp = {k.removeprefix("mlp."): v for k, v in tensors.items() if k.startswith("mlp.") or not attends}
        width = mlp["fc1.weight"].shape[1] if "fc1.weight" in mlp else 0
        if not width or "final.2.weight" not in mlp or (attends and width % ATTENTION_HEADS):
            path, where = self.origin
            hint = "Known: the MLP of version 2, and attn, two blocks of 16 attention heads before it."
            raise WeightsError(f"{path}: the {kind} head of {name!r} is of an unknown kind", where=where, hint=hint)
        inner = len({k.split(".")[1] for k in mlp if k.startswith("blocks.")})
        head = MLP2(width, mlp["fc1.weight"].shape[0], mlp["final.2.weight"].shape[0], inner)
        return AttentionHead(width, head) if attends else head


def is_radio(tensors: dict[str, torch.Tensor]) -> bool:
    """Return whether ``tensors`` are a RADIO checkpoint's."""
    return any(f"{prefix}patch_generator.embedder.weight" in tensors for prefix in _BACKBONES)


def under_prefix(tensors: dict[str, torch.Tensor]) -> tuple[str, dict[str, torch.Tensor]]:
    """Return what precedes the names of a RADIO ViT's tensors, and the tensors by the names that follow it.

    TAO writes its students as ``model.radio.radio.model.*``. Of a file without such a ViT: nothing, and all tensors.
    """
    prefix = next((k.removesuffix(_FRONT[1]) for k in tensors if k.endswith(_FRONT[1])), "")
    return prefix, {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def read_radio(path: str | Path, where: str = "", shapes_only: bool = False) -> Contents | None:
    """Read a file, or a folder's ``model.safetensors`` with the arguments in ``config.json``; None if there is none.

    The few small tensors whose values determine the structure are read even with ``shapes_only``.

    Raises:
        WeightsError: it cannot be read safely.
    """
    path, args = Path(path), None
    if path.is_dir():
        config = path / "config.json"
        args = _config_args(config, where) if config.is_file() else None
        path = path / "model.safetensors"
    if not path.is_file():
        return None
    contents = read_checkpoint(path, where, shapes_only)
    keys = [k for k in contents.tensors if k.removeprefix("radio_model.") in _SMALL]
    if shapes_only and keys:
        contents.tensors.update(read_checkpoint(path, where, only=tuple(keys)).tensors)
    return Contents(contents.tensors, args or contents.args, contents.metadata)


def split_radio(contents: Contents, path: str, where: str = "", num_heads: int | None = None) -> RadioParts:
    """Sort the tensors of a RADIO checkpoint into its parts.

    Args:
        contents: with ``args`` as in the ``.pth`` or the folder's ``config.json``.
        num_heads: of attention, if the width does not imply them.

    Raises:
        WeightsError: an architecture that is not a ViT with a patch generator.
    """
    if not is_radio(contents.tensors):
        raise WeightsError(f"{path} is not a RADIO checkpoint with a ViT in it", where=where)
    args, groups = contents.args, _sort(fold_spectral(contents.tensors))
    _require_form(args, path, where)
    groups["dropped"] += [k for k in groups["backbone"] if k in _REPLACED]
    backbone = {_with_gamma(k): v for k, v in groups["backbone"].items() if k not in _REPLACED}
    teachers = args.get("teachers") or []
    class_tokens, slots = _tokens(args, teachers, groups["other"].get("summary_idxs"))
    names = [t.get("name") for t in teachers]
    heads: dict[str, dict[str, dict[str, torch.Tensor]]] = {}
    for (name, kind), tensors in groups["heads"].items():
        name = names[int(name)] if name.isdigit() and int(name) < len(names) else name
        heads.setdefault(name, {})[kind] = tensors
    for teacher in teachers:
        for kind in teacher.get("filled") or ():  # heads that our export added only for NVlabs' loader
            heads.get(teacher["name"], {}).pop(kind, None)
    per_teacher = args.get("cls_token_per_teacher", True)
    first = {n: names.index(n) for n in names}
    known = {n: (teachers[i].get("token_slot", i) if per_teacher else 0) for n, i in first.items()}
    upsample = {n: int(teachers[names.index(n)].get("fd_upsample_factor") or 1) for n in heads if n in names}
    return RadioParts(
        backbone=backbone,
        arguments=_arguments(backbone, class_tokens, args, num_heads, path, where),
        summary_slots=slots,
        heads=heads,
        token_slots={n: known.get(n, 0) for n in heads},
        teacher_slots=known,
        upsample={n: upsample.get(n, 1) for n in heads},
        normalizer=groups["normalizer"],
        conditioner=groups["conditioner"],
        dropped=groups["dropped"],
        origin=(path, where),
    )


def _config_args(config: Path, where: str) -> dict[str, Any] | None:
    try:
        raw = json.loads(config.read_text())
        args = raw.get("args")
    except (ValueError, AttributeError) as error:
        raise WeightsError(f"{config} is not a whole Hugging Face config: {error}", where=where) from None
    if args is None and is_native(raw):
        return _native_args(raw, str(config), where)
    if args is not None and not isinstance(args, dict):
        raise WeightsError(f"{config}: args must be a mapping, not {type(args).__name__}", where=where)
    return args


def is_native(config: dict[str, Any]) -> bool:
    """Return whether ``config`` is that of transformers' own class ``RadioModel``."""
    return config.get("model_type") == "radio" and "num_cls_tokens" in config


def _native_args(config: dict[str, Any], path: str, where: str) -> dict[str, Any]:
    """Return NVlabs' arguments for the config of transformers' ``RadioModel`` (5.23), whose ViT has one form.

    Raises:
        WeightsError: a setting with which our ViT would compute other features.
    """
    expected = {"hidden_act": "gelu", "layer_norm_eps": 1e-6, "use_swiglu_ffn": False, "layerscale_value": 1.0}
    expected |= {"video_temporal_patch_size": None, "num_channels": 3}
    if unlike := [f"{k}={config[k]!r}" for k, value in expected.items() if config.get(k, value) != value]:
        message = f"{path}: a RadioModel with {', '.join(unlike)} is not known here"
        raise WeightsError(message, where=where, hint=_ANOTHER)
    slots, count = config.get("summary_idxs") or [0, 1], config["num_cls_tokens"]
    if type(count) is not int or not isinstance(slots, list):
        raise WeightsError(f"{path}: num_cls_tokens must be a number and summary_idxs a list", where=where)
    teachers = [{"name": f"class_token_{i}", "use_summary": i in slots} for i in range(count)]
    return {"model_kwargs": {"num_heads": config.get("num_attention_heads", 16)}, "teachers": teachers}


def _require_form(args: dict[str, Any], path: str, where: str) -> None:
    """Check the form of ``args``: as NVlabs' loader reads them."""
    teachers = args.get("teachers") or []
    if not isinstance(teachers, list) or not all(
        isinstance(t, dict) and isinstance(t.get("name"), str) for t in teachers
    ):
        raise WeightsError(f"{path}: args.teachers must be a list of teachers, each with a name", where=where)
    if not isinstance(args.get("model_kwargs") or {}, dict):
        raise WeightsError(f"{path}: args.model_kwargs must be a mapping", where=where)


def _sort(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    groups: dict[str, Any] = {"backbone": {}, "heads": {}, "normalizer": {}, "conditioner": {}, "other": {}}
    groups["dropped"] = []
    for key, value in tensors.items():
        name = key.removeprefix("radio_model.").removeprefix("_")
        prefix = next((p for p in _BACKBONES if key.startswith(p)), None)
        head = next(((m[1], kind, m[2]) for pattern, kind in _HEADS if (m := pattern.fullmatch(key))), None)
        if prefix:
            groups["backbone"][key.removeprefix(prefix)] = value
        elif head:
            groups["heads"].setdefault(head[:2], {})[head[2]] = value
        elif name.startswith("feature_normalizer."):
            groups["normalizer"][name.partition(".")[2]] = value
        elif name.startswith("input_conditioner."):
            groups["conditioner"][name.partition(".")[2]] = value
        elif name == "summary_idxs":
            groups["other"][name] = value
        else:
            groups["dropped"].append(key)
    return groups


def _tokens(args: dict[str, Any], teachers: list[dict[str, Any]], stored: torch.Tensor | None) -> tuple[int, list[int]]:
    """Return the number of class tokens, and those that make the summary: the first of each teacher with a summary."""
    if not args.get("cls_token_per_teacher", True):
        return 1, [0]
    if not teachers:
        slots = [0] if stored is None or stored.is_meta else stored.tolist()
        return max(slots) + 1, slots
    first: dict[str, int] = {}
    for i, teacher in enumerate(teachers):
        if teacher.get("use_summary", True):
            first.setdefault(teacher["name"], i)
    return len({t["name"] for t in teachers}), sorted(first.values())


def _with_gamma(name: str) -> str:
    """Return the name of a tensor with timm's spelling of LayerScale's gamma, for Hugging Face's two spellings."""
    return _LAYER_SCALE.sub(r".ls\1.gamma", name.replace(".grandma", ".gamma"))


def _arguments(
    backbone: dict[str, torch.Tensor],
    class_tokens: int,
    args: dict[str, Any],
    num_heads: int | None,
    path: str,
    where: str,
) -> dict[str, Any]:
    model_kwargs = args.get("model_kwargs") or {}
    _require_known(backbone, model_kwargs, path, where)
    width = backbone["patch_generator.embedder.weight"].shape[0]
    patch = math.isqrt(backbone["patch_generator.embedder.weight"].shape[1] // 3)
    blocks = 1 + max((int(k.split(".")[1]) for k in backbone if k.startswith("blocks.")), default=-1)
    block = _timm_block(args.get("model") or "", model_kwargs, path, where)
    by_name = getattr(getattr(block, "attn", None), "num_heads", None)
    by_width = next((s["num_heads"] for s in VIT_SIZES.values() if s["embed_dim"] == width), None)
    arguments: dict[str, Any] = dict(
        patch_size=patch,
        num_class_tokens=class_tokens,
        cpe_max_size=math.isqrt(backbone["patch_generator.pos_embed"].shape[1]) * patch,
        num_registers=backbone["patch_generator.cls_token.token"].shape[0] - class_tokens,
        embed_dim=width,
        depth=blocks,
        num_heads=num_heads or model_kwargs.get("num_heads") or by_name or by_width,
        mlp_ratio=backbone["blocks.0.mlp.fc1.bias"].shape[0] / width if "blocks.0.mlp.fc1.bias" in backbone else 4.0,
        qkv_bias="blocks.0.attn.qkv.bias" in backbone,
    )
    if "blocks.0.ls1.gamma" in backbone:
        arguments["init_values"] = 1e-5
    if "blocks.0.attn.q_norm.weight" in backbone:
        arguments["qk_norm"] = True
    if "blocks.0.mlp.norm.weight" in backbone and not model_kwargs.get("scale_mlp_norm"):
        arguments["mlp_norm"] = True
    if "norm.weight" not in backbone:
        arguments["final_norm"] = False
    arguments.update({k: v for k, v in model_kwargs.items() if k in _GIVEN})
    if block is not None and arguments["num_heads"]:
        with on_meta():
            ours = RadioViT(**(arguments | {"depth": 1})).blocks[0]
        if str(block) != str(ours):
            message = f"{path}: the blocks of its ViT, timm's {args['model']}, are not those of a plain one"
            raise WeightsError(message, where=where, hint=_ANOTHER)
    return arguments


def _require_known(backbone: dict[str, torch.Tensor], model_kwargs: dict[str, Any], path: str, where: str) -> None:
    """Reject arguments of NVlabs' ViT that ours does not have: the same tensors would compute other features."""
    known = (*_GIVEN, *_IN_SHAPES, *_WITHOUT_EFFECT)
    unknown = [k for k, value in model_kwargs.items() if k not in known and value not in (None, False)]
    if unknown:
        listed = ", ".join(f"{k}={model_kwargs[k]!r}" for k in unknown)
        message = f"{path}: its ViT was built with arguments that are not known here (model_kwargs: {listed})"
        raise WeightsError(message, where=where, hint=_ANOTHER)
    missing = [k for k in _FRONT if k not in backbone]
    if missing:
        raise WeightsError(f"{path}: its ViT has no {', '.join(missing)}", where=where)


def _timm_block(model: str, model_kwargs: dict[str, Any], path: str, where: str) -> nn.Module | None:
    """Build a block of timm's ViT ``model``, to find ViTs with the same tensors as ours but other layers.

    Examples are QuickGELU and other epsilons. Returns None for names that timm lacks: NVlabs' own models have other
    tensors if they differ from ours.
    """
    if not timm.is_model(model):
        return None
    model_kwargs = {k: v for k, v in model_kwargs.items() if k in (*_GIVEN, *_IN_SHAPES)}
    try:
        with on_meta():
            return timm.create_model(model, num_classes=0, **(model_kwargs | {"depth": 1})).blocks[0]
    except (TypeError, AttributeError, AssertionError, ValueError) as error:
        raise WeightsError(f"{path}: timm's {model} is no ViT that can be built: {error}", where=where) from None


def fold_spectral(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Replace spectrally reparametrized weights by plain ones: ``W * s / sigma(W)``, sigma from the power method.

    ``s`` is softplus(scale) + 0.05 (version 2) or scale (version 1); an attention's q, k, v are scaled separately.
    """
    mark = ".parametrizations.weight."
    plain = {k: v for k, v in tensors.items() if mark not in k}
    for key, weight in tensors.items():
        if not key.endswith(f"{mark}original"):
            continue
        base = key.removesuffix("original") + "0."
        parts = sorted({int(k.removeprefix(base + "parts.").split(".")[0]) for k in tensors if base + "parts." in k})
        target = key.replace(f"{mark}original", ".weight")
        if weight.is_meta or not (parts or f"{base}scale" in tensors):
            plain[target] = weight
        elif parts:
            chunks = weight.chunk(3 if ".qkv." in key else 2)
            scaled = [_scaled(c, tensors, f"{base}parts.{i}.") if i in parts else c for i, c in enumerate(chunks)]
            plain[target] = torch.cat(scaled)
        else:
            plain[target] = _scaled(weight, tensors, base)
    return plain


def _scaled(weight: torch.Tensor, tensors: dict[str, torch.Tensor], prefix: str) -> torch.Tensor:
    matrix = weight.float().flatten(1)
    sigma = tensors[f"{prefix}_u"].float() @ (matrix @ tensors[f"{prefix}_v"].float())
    scale = tensors[f"{prefix}scale"].float()
    if int(tensors.get(f"{prefix}_sn_version", torch.tensor(1))) == 2:
        scale = F.softplus(scale) + _SPECTRAL_FLOOR
    return (weight.float() * (scale / sigma)).to(weight.dtype)
