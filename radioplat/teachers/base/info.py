"""Description of a teacher without its weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from radioplat.teachers.adapters.adapter import NativeInput


@dataclass(frozen=True)
class TeacherInfo:
    """Description of a teacher without its weights.

    Attributes:
        stride: pixels of the backbone's input that a position of its map covers; less if it is upsampled.
        grid: rows and columns of its map at its input size.
        logits_dim: classes of its classifier, 0 for none.
        parameters: how many; of an ensemble, those of all members.
        adapter: its kind of model, see ``teachers.adapters.registry``.
        native: the normalisation and size it was trained with, as far as they are known.
        named: shapes, for one image, of the module outputs that bindings need.
        class_names: of its classifier, in their order; empty if unknown.
    """

    name: str
    summary_dim: int
    spatial_dim: int
    logits_dim: int
    stride: float
    grid: tuple[int, int]
    parameters: int
    adapter: str = ""
    native: NativeInput = NativeInput()
    named: dict[str, tuple[int, ...]] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """Adapter, native size, stride, widths and normalisation, in one line."""
        native = self.native
        size = f"{native.size} px" if native.size else "any size"
        norm = f"mean {_numbers(native.mean)} std {_numbers(native.std)}" if native.mean and native.std else "unknown"
        return (
            f"{self.adapter}, native {size}, stride {self.stride:g}, summary {self.summary_dim} ({native.summary}), "
            f"spatial {self.spatial_dim}, normalisation {norm}"
        )


def _numbers(values: tuple[float, ...] | None) -> str:
    return "/".join(f"{v:.3g}" for v in values or ())
