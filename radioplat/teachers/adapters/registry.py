"""Choose the adapter of a spec's teacher, by one table."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path

from radioplat.common.hashing import file_hash
from radioplat.errors import SpecError
from radioplat.models.model_kind import ModelKind
from radioplat.models.vision_model import model_kind
from radioplat.models.weights.radio_layout import is_native
from radioplat.spec.resolved.paths import no_such_weights
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import Adapter

_PACKAGE = "radioplat.teachers.adapters"
# kind -> module and class; imported only if a spec names the kind.
ADAPTERS = {
    "radioplat": ("trained_student", "CheckpointTeacher"),
    "detector": ("detector", "DetectorTeacher"),
    "torchscript": ("torchscript", "TorchScriptTeacher"),
    "class": ("own_class", "OwnClassTeacher"),
    "hf": ("hf", "HfTeacher"),
    "radio": ("radio", "RadioTeacher"),
    "sam": ("sam", "SamTeacher"),
    "dino": ("dino", "DinoTeacher"),
    "clip": ("clip", "ClipTeacher"),
    "timm": ("timm_model", "TimmTeacher"),
}
_OF_MODELS = {ModelKind.student: "radioplat", ModelKind.detector: "detector"}  # of radioplat's own checkpoints
# Pattern of a backbone's name -> kind, tried in order; the last matches all.
_BY_NAME = (
    (r"torchscript", "torchscript"),
    (r"[\w.]+:\w+", "class"),
    (r"hf|siglip2_(?:so400m|so400m_patch16_512|g_384)|sam3_default", "hf"),  # TAO's names of Hugging Face folders
    (r"radio|(?:c_)?radio_v?\d.*|c_radio.*", "radio"),
    (r"sam_vit_[blh]|samvit_.*", "sam"),
    (r"(?:dinov[23]|eupe)_.*|vit_.*dinov[23].*|convnext_.*\.(?:dinov3|eupe).*", "dino"),
    (r"(?:ViT|PE)-.*|vit_(?:pe_|.*(?:clip|siglip)).*", "clip"),
    (r".*", "timm"),
)


def kind_of(teacher: ResolvedTeacher) -> str:
    """Return the kind of ``teacher``: by its weights if they are radioplat's, else by its type.

    Raises:
        SpecError: neither determines it.
    """
    path, name = Path(teacher.weights or ""), teacher.backbone.type
    if teacher.weights and (own := model_kind(path)):
        return _OF_MODELS[own]
    if not name and (path / "config.json").is_file() and teacher.weights:
        return "radio" if _is_radio_folder(path) else "hf"
    # Of a detector the file alone says that it is one; a backbone of its type has other modules.
    if (teacher.detects or not name) and teacher.weights and not path.exists():
        raise SpecError(no_such_weights(path, f"{teacher.where}.pretrained_teacher_model_path"))
    if not name:
        raise SpecError(
            "a value is required here",
            where=f"{teacher.where}.model.backbone.type",
            hint="radioplat weights inspect FILE names the type that a file fits.",
        )
    return next(kind for pattern, kind in _BY_NAME if re.fullmatch(pattern, name))


def adapter_class(teacher: ResolvedTeacher) -> type[Adapter]:
    """Import the adapter class of ``teacher``."""
    module, name = ADAPTERS[kind_of(teacher)]
    return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)


def own_code_hash(teacher: ResolvedTeacher) -> str | None:
    """Return sha256 (hex) of the source file of a user's own class; None for a built-in adapter.

    What that file imports is not in the hash.

    Raises:
        SpecError: the module cannot be found.
    """
    if kind_of(teacher) != "class":
        return None
    module = (teacher.backbone.type or "").partition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except ImportError as error:
        raise SpecError(f"cannot import {module}: {error}", where=f"{teacher.where}.model.backbone.type") from None
    return file_hash(Path(spec.origin)) if spec and spec.origin and Path(spec.origin).is_file() else None


def _is_radio_folder(path: Path) -> bool:
    try:
        raw = json.loads((path / "config.json").read_text())
    except ValueError:
        return False
    return ("adaptor_configs" in raw and "args" in raw) or is_native(raw)
