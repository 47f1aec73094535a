"""The architecture of a student: all that builds it but its weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from radioplat.models.heads import HeadArchitecture
from radioplat.models.modifiers.reshaping import Reshaping
from radioplat.models.modifiers.sparsity import Sparsity
from radioplat.models.quantized.architecture import Quantization


@dataclass(frozen=True)
class StudentArchitecture:
    """Everything needed to build a student but its weights; kept as JSON in the checkpoint.

    Attributes:
        type: TAO's or timm's backbone name.
        kwargs: further constructor arguments.
        num_class_tokens: of a RADIO ViT.
        img_size: training resolution in pixels.
        num_classes: of a classifier on the backbone itself (``dataset.num_classes``); 0 for none.
        class_names: its classes in their order, as in ``classes.json`` of the training images; empty if labels were
            numbers.
        mean, std: normalisation of images in [0, 1].
        drop_path: probability, while training, that the residual branch of the last block is dropped; lower before it.
        spectral_reparam: whether the ViT's linear layers are ``(gamma / sigma(W)) W``.
        fused_branches: whether timm's blocks of several branches are one convolution each.
        pruned: changes by pruning to the backbone that ``type`` builds, with fused branches if they are; None for none.
        low_rank: rank by name of the layers that are two in a row, in the backbone after pruning.
        quantized: which layers have quantizers, with BatchNorm folded; None for none.
        sparsity: the layers whose zero weights stay zero in training; None for none.
    """

    type: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_class_tokens: int = 1
    cpe_max_size: int | None = None
    num_registers: int | None = None
    register_multiple: int | None = None
    img_size: int = 224
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    heads: tuple[HeadArchitecture, ...] = ()
    drop_path: float = 0.0
    spectral_reparam: bool = False
    fused_branches: bool = False
    pruned: Reshaping | None = None
    low_rank: dict[str, int] = field(default_factory=dict)
    quantized: Quantization | None = None
    sparsity: Sparsity | None = None

    @property
    def summary_slots(self) -> list[int]:
        """Indices of the class tokens that the summary consists of; empty for all of them.

        A teacher without a summary loss keeps its class token, but that token is not trained to summarise an image
        (RADIO's ``use_summary: false``), so it is left out.
        """
        slots = (head.token_slot for head in self.heads if head.summary_dim or head.logits_dim)
        return list(dict.fromkeys(slots))  # two teachers may share a token

    @property
    def student(self) -> StudentArchitecture:
        """Itself; a detector's architecture returns that of its backbone."""
        return self

    @property
    def quantizations(self) -> dict[str, Quantization]:
        """Quantized layers, by the prefix that their names lack in the model; empty for a float model."""
        return {} if self.quantized is None else {"": self.quantized}

    def with_quantization(self, quantized: Quantization) -> StudentArchitecture:
        """Return this architecture with quantizers, whose names are those of the built model."""
        return replace(self, quantized=quantized)

    def to_json(self) -> str:
        """Return JSON text; :meth:`from_json` is the inverse."""
        raw = asdict(self)
        for head in raw["heads"]:
            for later in ("text_tower", "identity"):  # without a value as in files from before these fields
                if not head[later]:
                    del head[later]
        return json.dumps(raw, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StudentArchitecture:
        """Inverse of :meth:`to_json`."""
        raw = json.loads(text)
        raw["heads"] = tuple(HeadArchitecture(**h) for h in raw["heads"])
        raw["class_names"] = tuple(raw.get("class_names", ()))
        raw["sparsity"] = Sparsity(**raw["sparsity"]) if raw.get("sparsity") else None
        raw["pruned"] = Reshaping(**raw["pruned"]) if raw.get("pruned") else None
        raw["quantized"] = Quantization.from_plain(raw["quantized"]) if raw.get("quantized") else None
        return cls(**{**raw, "mean": tuple(raw["mean"]), "std": tuple(raw["std"])})


def classes_differ(known: Sequence[str], given: Sequence[str]) -> str:
    """Describe how two lists of class names differ; empty if they are equal or one is unknown."""
    if not known or not given or list(known) == list(given):
        return ""
    if len(known) != len(given):
        return f"{len(known)} there and {len(given)} here"
    number = next(i for i, pair in enumerate(zip(known, given, strict=True)) if pair[0] != pair[1])
    return f"class {number} is {known[number]!r} there and {given[number]!r} here"
