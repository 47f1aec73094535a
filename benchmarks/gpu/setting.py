"""The models, the device and the limits of one start of the benchmark, as its processes share them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Unmeasured(Exception):
    """A rung that this machine or this start has no way to measure; the message is the reason."""


@dataclass(frozen=True)
class Model:
    """A model of timm with random weights.

    Attributes:
        name: as on the command line.
        type: timm's name.
        size: side in pixels of its images.
        kwargs: arguments of ``timm.create_model``.
        width, grid: dimensions of its features, and positions a side of its map; 0 before the model was built.
    """

    name: str
    type: str
    size: int
    kwargs: dict[str, Any] = field(default_factory=dict)
    width: int = 0
    grid: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments of ``timm.create_model``."""
        return {"model_name": self.type, **self.kwargs}


_TINY = {"depth": 2, "img_size": 64}
MODELS = {
    model.name: model
    for model in (
        # At 256 pixels a student of patch 16 has the map of 16 x 16 positions of the teachers of patch 14 at 224.
        Model("vit_small", "vit_small_patch16_224", 256, {"img_size": 256}),
        Model("vit_base", "vit_base_patch16_224", 256, {"img_size": 256}),
        Model("vit_large", "vit_large_patch16_224", 256, {"img_size": 256}),
        Model("clip_h", "vit_huge_patch14_clip_quickgelu_224", 224),
        Model("siglip_so400m", "vit_so400m_patch14_siglip_224", 224),
        Model("dinov2_l", "vit_large_patch14_reg4_dinov2", 224, {"img_size": 224}),
        Model("dinov2_g", "vit_giant_patch14_reg4_dinov2", 224, {"img_size": 224}),
        Model("tiny", "vit_tiny_patch16_224", 64, _TINY),
        Model("tiny_a", "vit_tiny_patch16_224", 64, _TINY),
        Model("tiny_b", "vit_tiny_patch16_224", 64, _TINY),
    )
}


@dataclass(frozen=True)
class Setting:
    """One start.

    Attributes:
        device: ``cuda`` or ``cpu``.
        gpus: ranks, one on each GPU; on a CPU as many processes.
        seconds: to measure one rung.
        micro_batches: of an optimizer step and a rank.
        batch: images of a micro-batch; 0 before it is searched.
        most: largest micro-batch of the search.
        precision: ``bf16`` or ``fp32``, of student and teachers.
        compiles: whether students and teachers are compiled.
        why_eager: the reason if they are not.
        scratch: a folder for weights and images of this start.
        engine: of the rungs that run the training loop, a key of :data:`benchmarks.gpu.bare.ENGINES`.
        gflop: operations of an image, as :func:`benchmarks.gpu.flops.count` returns them.
        peak: published bf16 operations a second of a GPU; None if it is not known.
    """

    device: str
    gpus: int
    student: Model
    teachers: tuple[Model, ...]
    seconds: float
    micro_batches: int
    batch: int
    most: int
    precision: str
    compiles: bool
    why_eager: str
    scratch: str
    engine: str = "ddp"
    gflop: dict[str, Any] = field(default_factory=dict)
    peak: float | None = None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Setting:
        """Read what :meth:`write` wrote."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        models = {"student": Model(**fields["student"]), "teachers": tuple(Model(**t) for t in fields["teachers"])}
        return cls(**{**fields, **models})

    @property
    def widths(self) -> list[int]:
        """Dimensions of the teachers' features."""
        return [teacher.width for teacher in self.teachers]

    @property
    def images_a_step(self) -> int:
        """Of all ranks."""
        return self.batch * self.micro_batches * self.gpus


def model_of(name: str) -> Model:
    """Return a model by the name in :data:`MODELS`, or any of timm's at 224 pixels."""
    return MODELS.get(name) or Model(name, name, 224)
