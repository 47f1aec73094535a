"""What is known of a teacher before its weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

from radioplat.teachers.adapters.adapter import Wants


@dataclass(frozen=True)
class TeacherInfo:
    """What is known of a teacher without its weights.

    Attributes:
        stride: pixels, of what its backbone sees, that a position of its map covers; less where it is upsampled.
        grid: rows and columns of its map at the size it is fed.
        logits_dim: classes of its classifier, 0 for none.
        parameters: how many; of an ensemble, those of all members.
        adapter: which kind of model it is, see ``teachers.adapters.registry``.
        wants: the normalisation and size it was trained with, as far as they are known.
        named: shapes, for one image, of the module outputs that bindings want.
        class_names: of its classifier, in their order; empty where they are not known.
    """

    name: str
    summary_dim: int
    spatial_dim: int
    logits_dim: int
    stride: float
    grid: tuple[int, int]
    parameters: int
    adapter: str = ""
    wants: Wants = Wants()
    named: dict[str, tuple[int, ...]] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """Adapter, native size, stride, widths and normalisation, in one line."""
        wants = self.wants
        size = f"{wants.size} px" if wants.size else "any size"
        norm = f"mean {_numbers(wants.mean)} std {_numbers(wants.std)}" if wants.mean and wants.std else "unknown"
        return (
            f"{self.adapter}, native {size}, stride {self.stride:g}, summary {self.summary_dim} ({wants.summary}), "
            f"spatial {self.spatial_dim}, normalisation {norm}"
        )


def _numbers(values: tuple[float, ...] | None) -> str:
    return "/".join(f"{v:.3g}" for v in values or ())
