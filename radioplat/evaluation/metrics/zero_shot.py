"""Zero-shot classification: an image gets the class whose name has the nearest text embedding.

Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision", section 3.1: the
embedding of a class is the mean of the normalised embeddings of its prompts, normalised again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from radioplat.errors import Problem, RadioplatError, SpecError, WeightsError
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Inputs, Metric, Setup, percentage
from radioplat.evaluation.models.held_out_labels import LABELS, highest_label
from radioplat.spec.schema.root import Spec
from radioplat.teachers.adapters.hf import LOADING, load_quietly, open_config, require_own_config
from radioplat.tracking.table import Table

_WHERE = "evaluate.zero_shot.text_tower"
# Supported types of text models, and the tokenizer's ``padding`` for each.
_PADDING = {
    "clip": True,
    "clip_text_model": True,
    "siglip": "max_length",
    "siglip_text_model": "max_length",
    "siglip2": "max_length",
    "siglip2_text_model": "max_length",
}
_TOWERS = {
    "clip_text_model": "CLIPTextModelWithProjection",
    "siglip_text_model": "SiglipTextModel",
    "siglip2_text_model": "Siglip2TextModel",
}
_SIGLIP_LENGTH = 64  # tokens, as in SigLIP's training


@dataclass(frozen=True)
class ZeroShotResult:
    """Result of :func:`zero_shot_accuracy`.

    Attributes:
        top1, top5: shares of images whose class is the nearest, or among the five nearest; in [0, 1].
        count: number of labelled images.
        classes: number of class names.
    """

    top1: float
    top5: float
    count: int
    classes: int


def text_width(folder: str | Path) -> int:
    """Return the width of the text embeddings, from ``config.json`` alone.

    Raises:
        SpecError: transformers is not installed, or the folder contains no text tower.
        WeightsError: there is no readable ``config.json``, no ``.safetensors`` file or no tokenizer.
    """
    kind, config = _config(folder)
    root = Path(folder)
    if not any(root.glob("*.safetensors")):
        raise WeightsError(f"{folder} holds no .safetensors file", where=_WHERE)
    if not any((root / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        hint = "tokenizer.json belongs beside the weights."
        raise WeightsError(f"{folder} holds no tokenizer", where=_WHERE, hint=hint)
    if kind.startswith("clip"):
        return int(config.projection_dim)
    text = getattr(config, "text_config", config)
    return int(getattr(text, "projection_size", None) or text.hidden_size)


@torch.inference_mode()
def text_embeddings(
    folder: str | Path, class_names: Sequence[str], templates: Sequence[str], device: str = "cpu", batch_size: int = 64
) -> Tensor:
    """Return the unit text embedding of each class name, fp32 ``[C, D]``.

    Nothing is downloaded, and no code of the folder is run.

    Raises:
        SpecError, WeightsError: see :func:`text_width`; or the weights do not fit.
    """
    text_width(folder)
    kind, _ = _config(folder)
    model, tokenizer = _load(folder, kind)
    model = model.to(device)
    prompts = [template.format(name) for name in class_names for template in templates]
    rows = []
    for start in range(0, len(prompts), batch_size):
        tokens = _tokens(tokenizer, prompts[start : start + batch_size], kind, model)
        rows.append(F.normalize(_embedding(model, tokens.to(device)).float(), dim=1).cpu())
    each = torch.cat(rows).reshape(len(class_names), len(templates), -1)
    return F.normalize(each.mean(1), dim=1)


def zero_shot_accuracy(images: Tensor, labels: Tensor, classes: Tensor) -> ZeroShotResult:
    """Classify images by the nearest class embedding.

    Args:
        images: ``[N, D]`` any float dtype; normalised here.
        labels: int ``[N]``, negative for none.
        classes: ``[C, D]``, :func:`text_embeddings`.

    Raises:
        RadioplatError: no image has a label, a label is not below C, features are not finite, or widths differ.
    """
    images, labels = images[labels >= 0].float(), labels[labels >= 0].long().to(images.device)
    if not len(images):
        raise RadioplatError("zero-shot classification needs labelled images", where="dataset.val_dataset")
    if images.shape[1] != classes.shape[1]:
        raise RadioplatError(
            f"images are embedded in {images.shape[1]} dimensions and texts in {classes.shape[1]}", where=_WHERE
        )
    if int(labels.max()) >= len(classes):
        raise RadioplatError(
            f"a label is {int(labels.max())} and there are {len(classes)} class names",
            where="evaluate.zero_shot.class_names",
        )
    if not images.isfinite().all():
        raise RadioplatError("features for zero-shot classification are not finite")
    scores = F.normalize(images, dim=1) @ F.normalize(classes.to(images), dim=1).T
    hit = scores.topk(min(5, len(classes)), dim=1).indices == labels[:, None]
    return ZeroShotResult(float(hit[:, 0].float().mean()), float(hit.any(1).float().mean()), len(images), len(classes))


def _config(folder: str | Path) -> tuple[str, Any]:
    raw, config = open_config(Path(folder), _WHERE)
    kind = raw["model_type"]
    if kind not in _PADDING:
        hint = f"Types that are known here: {', '.join(_PADDING)}."
        raise SpecError(f"a model of type {kind!r} is no text tower", where=_WHERE, hint=hint)
    return kind, config


def _load(folder: str | Path, kind: str) -> tuple[Any, Any]:
    import transformers

    def load() -> tuple[Any, Any, Any]:
        tower = getattr(transformers, _TOWERS[kind]) if kind in _TOWERS else transformers.AutoModel
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return *tower.from_pretrained(folder, **LOADING), tokenizer

    model, info, tokenizer = load_quietly(load, Path(folder), _WHERE)
    missing = sorted(key for key in info["missing_keys"] if "vision" not in key and "visual" not in key)
    require_own_config(Path(folder), missing, info, _WHERE)
    return model.eval(), tokenizer


def _tokens(tokenizer: Any, prompts: list[str], kind: str, model: Any) -> Any:
    text = getattr(model.config, "text_config", model.config)
    longest = int(getattr(text, "max_position_embeddings", _SIGLIP_LENGTH))
    if kind.startswith("siglip"):
        longest = min(longest, _SIGLIP_LENGTH)
    return tokenizer(prompts, padding=_PADDING[kind], truncation=True, max_length=longest, return_tensors="pt")


def _embedding(model: Any, tokens: Any) -> Tensor:
    inputs = {"input_ids": tokens["input_ids"]}
    # SigLIP was trained without an attention mask, padding included; CLIP's mask ends with the text.
    if "siglip" not in model.config.model_type and "attention_mask" in tokens:
        inputs["attention_mask"] = tokens["attention_mask"]
    if hasattr(model, "get_text_features"):
        out = model.get_text_features(**inputs)
        return out if isinstance(out, Tensor) else out.pooler_output
    out = model(**inputs)
    return out.text_embeds if getattr(out, "text_embeds", None) is not None else out.pooler_output


class ZeroShot(Metric):
    """:class:`ZeroShotResult` of the teacher with the text tower, and of each student's head for it."""

    name = figure = "zero_shot"
    score = "top1"
    switch = "zero_shot.text_tower"
    option = ("zero-shot classification", "zero_shot.text_tower and teacher")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        config = setup.spec.evaluate.zero_shot
        assert config.text_tower is not None and config.teacher is not None  # `problems` refuses a spec without them
        names = config.class_names or [name.replace("_", " ") for name in setup.class_names]
        self._teacher = config.teacher
        self._classes = text_embeddings(config.text_tower, names, config.templates, setup.device)
        self._images: dict[str, list[Tensor]] = defaultdict(list)

    @classmethod
    def problems(cls, spec: Spec, inputs: Inputs) -> Iterator[Problem]:
        """Yield the reasons why the metric cannot be measured."""
        config = spec.evaluate.zero_shot
        try:
            width = text_width(config.text_tower or "")
        except RadioplatError as error:
            yield from error.problems
            return
        widths: dict[str | None, int | None] = {config.teacher: width}
        if inputs.architecture is not None:
            widths = {head.name: head.summary_dim for head in inputs.architecture.heads}
        own = widths.get(config.teacher)
        if own is None:
            yield Problem(f"the student has no summary head for {config.teacher!r}", "evaluate.zero_shot.teacher")
        elif own != width:
            message = f"texts are embedded in {width} dimensions, and the summary of {config.teacher!r} has {own}"
            hint = (
                "Give the text tower that was trained with this teacher; the teacher's summary must be its projection."
            )
            yield Problem(message, _WHERE, hint)
        if inputs.models and not any(m.has_head(config.teacher or "", "summary") for m in inputs.models.values()):
            message = f"none of evaluate.models has a summary head for {config.teacher!r}"
            yield Problem(message, "evaluate.zero_shot.teacher")
        if inputs.val is None:
            return
        highest, names = highest_label(inputs.val), config.class_names or inputs.val.classes
        if highest < 0:
            yield Problem("zero-shot classification needs labelled images", "dataset.val_dataset", LABELS)
        elif highest >= len(names):
            message = f"labels go up to {highest}, and there are {len(names)} names"
            yield Problem(message, "evaluate.zero_shot.class_names", "Give one for each label, in their order.")

    def update(self, batch: EncodedBatch) -> None:
        """Add a batch of held-out images."""
        features = {self._teacher: batch.features[self._teacher]}
        for name, model in self.setup.at_usual_size.items():
            if model.has_head(self._teacher, "summary"):
                features[name] = batch.head(name, self._teacher)
        for name, value in features.items():
            self._images[name].append(value.of("summary").float().cpu())

    def result(self) -> dict[str, ZeroShotResult]:
        """Compute the result of each model."""
        labels = self.setup.held_out.labels
        return {name: zero_shot_accuracy(torch.cat(rows), labels, self._classes) for name, rows in self._images.items()}

    @classmethod
    def tables(cls, result: dict[str, ZeroShotResult]) -> list[Table]:
        """Return the result as tables of the report."""
        rows = [[name, percentage(r.top1), percentage(r.top5)] for name, r in result.items()]
        notes = [
            f"{r.count} held-out images, {r.classes} class names; students by their head." for r in result.values()
        ]
        return [Table(["model", "top-1", "top-5"], rows, "Zero-shot classification", note="".join(notes[:1]))]
