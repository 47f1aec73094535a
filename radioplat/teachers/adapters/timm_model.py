"""Any timm model as a teacher, with the layouts that timm itself can rename."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models.backbones import names
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.features import Features
from radioplat.models.weights.read import fit, read_weights
from radioplat.models.weights.timm_filter import renamed_by_timm
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, NativeInput, options_of, weights_field, weights_of

# In the order of the hint; the first is the default.
SUMMARIES = ("native", "class", "mean", "attention", "projection")
_WORDS = {
    "class": "class token",
    "mean": "mean of the map",
    "attention": "attention pool",
    "projection": "projected embedding",
}


class TimmTeacher(Adapter):
    """A timm CNN, ViT or hierarchical model.

    Options in ``model.backbone.kwargs``: ``summary`` is ``native`` (the input of timm's classifier), ``class``,
    ``mean`` (of the map), ``attention`` (its pooling block) or ``projection`` (the output of the last linear layer).
    """

    kind = "timm"
    default_summary = "native"

    def __init__(self, backbone: TimmBackbone, summary: str, native: NativeInput, logits_dim: int) -> None:
        super().__init__()
        self.backbone, self.summary, self.native, self.logits_dim = backbone, summary, native, logits_dim
        self.stride, self.needs_multiple = backbone.stride, backbone.needs_multiple

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> TimmTeacher:
        """Build the structure without weights."""
        where = f"{teacher.where}.model.backbone"
        options, kwargs = options_of(teacher, summary=(cls.default_summary, *SUMMARIES))
        classes = kwargs.pop("num_classes", None)
        tagged = cls.timm_name(teacher.backbone.type or "")
        name = names.resolve(tagged, where=f"{where}.type").name
        cfg = cls.record(tagged, name)
        summary = cls.summary_for(options["summary"], name, cfg)
        wanted_classes = 0
        if "logits" in teacher.wanted or summary == "projection":
            output = teacher.backbone.output_dim
            known = classes or (cfg.num_classes if cfg and summary == "projection" else 1000)
            wanted_classes = output[0] if output else int(known)
        backbone = TimmBackbone(name, wanted_classes, where, cls.built_for(teacher), **kwargs)
        _require_summary(backbone.model, summary, f"{where}.kwargs.summary")
        own = summary if summary != "native" else _native_summary(backbone.model)
        logits = wanted_classes if summary != "projection" else 0
        return cls(
            backbone,
            summary,
            native_input_of(cfg, name, _WORDS[own], tagged="." in tagged or cls.kind == "clip"),
            logits,
        )

    @classmethod
    def timm_name(cls, type_name: str) -> str:
        """Return timm's name for ``type_name``, with the tag of the weights if ``type_name`` determines it."""
        return type_name

    @classmethod
    def record(cls, tagged: str, name: str) -> Any:
        """Return timm's record of the weights of ``tagged``, timm's name, or None."""
        return pretrained_cfg(tagged, name)

    @classmethod
    def built_for(cls, teacher: ResolvedTeacher) -> int | None:
        """Return the image size for models that are built for one size; None: the model's default."""
        return teacher.input_size

    @classmethod
    def summary_for(cls, summary: str, name: str, cfg: Any) -> str:
        """Return the summary to use, if a family has a special one."""
        return summary

    @property
    def target(self) -> nn.Module:
        """The timm model, whose names the weights file uses."""
        return self.backbone.model

    def fitting(self, teacher: ResolvedTeacher, fresh: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
        """Return the tensors of the teacher's file by timm's names; other layouts are renamed by timm's own filter.

        Args:
            fresh: prefixes of tensors that may be missing.
        """
        where, path = weights_field(teacher), weights_of(teacher)
        tensors = self.prepared(read_weights(path, where), where)
        ignore = self.backbone.classifier_prefix
        try:
            return fit(self.target, tensors, path, where, ignore, fresh)
        except WeightsError:
            renamed = renamed_by_timm(self.target, tensors)
            if renamed is None or not set(renamed) & set(self.target.state_dict()):
                raise
            return fit(self.target, renamed, path, where, ignore, fresh)

    def prepared(self, tensors: dict[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
        """Select the tensors of the file that may be used; all, unless a family drops some."""
        return tensors

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        model = self.backbone.model
        raw = model.forward_features(images)
        named = {"logits": model.forward_head(raw)} if "logits" in wanted else {}
        return Features(
            self._summary(raw) if "summary" in wanted else None,
            self.backbone.spatial(raw, images) if "spatial" in wanted else None,
            named,
        )

    def _summary(self, raw: torch.Tensor) -> torch.Tensor:
        model = self.backbone.model
        if self.summary == "native":
            return model.forward_head(raw, pre_logits=True)
        if self.summary == "projection":
            return model.forward_head(raw)
        if self.summary == "class":
            return raw[:, 0]
        if self.summary == "attention":
            return model.attn_pool(raw)
        if raw.ndim == 3:
            return raw[:, getattr(model, "num_prefix_tokens", 0) :].mean(1)
        return raw.mean((1, 2) if getattr(model, "output_fmt", "NCHW") == "NHWC" else (2, 3))


def _native_summary(model: nn.Module) -> str:
    pool = getattr(model, "global_pool", None)
    return {"token": "class", "map": "attention"}.get(pool if isinstance(pool, str) else "", "mean")


def _require_summary(model: nn.Module, summary: str, where: str) -> None:
    prefix = getattr(model, "num_prefix_tokens", 0)
    if summary == "class" and not (prefix and getattr(model, "has_class_token", True)):
        raise SpecError("this model has no class token", where=where, hint="Take mean.")
    if summary == "attention" and getattr(model, "attn_pool", None) is None:
        raise SpecError("this model has no attention pool", where=where, hint="Take native or mean.")


def pretrained_cfg(type_name: str, name: str) -> Any:
    """Return timm's record of the weights: of the tag in ``type_name`` if there is one, else of ``name``'s default;
    or None."""
    if "." in type_name and timm.models.is_model_pretrained(type_name):
        return timm.get_pretrained_cfg(type_name)
    return timm.get_pretrained_cfg(name, allow_unregistered=True)


def native_input_of(cfg: Any, name: str, summary: str, tagged: bool) -> NativeInput:
    """Read normalisation and size from timm's record; unknown if the weights of this model differ in it."""
    if cfg is None:
        return NativeInput(summary=summary)
    size = cfg.input_size[-1] if cfg.input_size else None
    tags = [] if tagged else timm.list_pretrained(f"{name}.*")
    norms = {(tuple(c.mean), tuple(c.std)) for c in map(timm.get_pretrained_cfg, tags)}
    if len(norms) > 1:
        return NativeInput(None, None, size, summary)
    return NativeInput(tuple(cfg.mean), tuple(cfg.std), size, summary)
