"""A student for the exporter: one tensor in, a tuple of named tensors out."""

from __future__ import annotations

import contextlib
import copy
import logging
import typing
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from radioplat.errors import DataError, EngineError, Problem, RadioplatError
from radioplat.exporting.onnx.dynamic_resolution import FIELD, constant_same_padding, sides, traced_size
from radioplat.models.backbones.radio_1d import SEQUENCE
from radioplat.models.features import Features
from radioplat.models.modifiers.fuse_branches import count_convolutions, fuse_branches, fusion_notes, kept_notes
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.quantizer import quantizers, settle_scales
from radioplat.models.student.fold_target_norm import fold_heads
from radioplat.models.student.student import Student

INPUT, LOGITS = "images", "logits"


class Exportable(typing.Protocol):
    """Members of a student that `export_onnx` uses; it is also an ``nn.Module``."""

    @property
    def stride(self) -> int:
        """Pixels per position of its map."""
        ...

    @property
    def head_names(self) -> list[str]:
        """Names of the teachers that it has heads for."""
        ...

    def __call__(self, images: Tensor) -> Features:
        """Return backbone features of float images ``[B, 3, H, W]`` in [0, 1], which it normalises."""
        ...

    def head(self, name: str, features: Features) -> Features:
        """Return backbone features in the space of teacher ``name``."""
        ...


class FlatStudent(nn.Module):
    """A copy of a student, in fp32, on the CPU, in evaluation mode, whose forward returns a tuple of tensors.

    Blocks whose branches are one convolution in evaluation (MobileOne, RepVGG, FastViT, RepViT) become that
    convolution, if its features stay the same. Those of a quantized student were fused before it was quantized.

    Attributes:
        convolutions: before and after; 0 for a quantized student.
        branch_notes: what became of its branches, one sentence; none for a student without, or a quantized one.
    """

    def __init__(self, student: Exportable, adaptors: Sequence[str] = ()) -> None:
        super().__init__()
        module = copy.deepcopy(typing.cast(nn.Module, student))
        self.student = module.to(device="cpu", dtype=torch.float32).requires_grad_(False)
        fold_heads(self.student)
        settle_scales(self.student)
        self.adaptors = adaptors
        classes = getattr(getattr(student, "architecture", None), "num_classes", 0)
        self.extra = {"wanted": frozenset({"summary", "spatial", LOGITS})} if classes else {}
        self.eval()
        self.convolutions = (0, 0)
        self.branch_notes: list[str] = []
        if not quantizers(self):
            before = count_convolutions(self.student)
            part = getattr(self.student, "student", self.student)  # of a detector
            if isinstance(part, Student):
                part.fuse_backbone()
            else:
                fuse_branches(self.student)
            self.convolutions = before, count_convolutions(self.student)
            self.branch_notes = fusion_notes(*self.convolutions) or kept_notes(self.student)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs for float ``[B, 3, H, W]`` in [0, 1], in the order of their names."""
        return tuple(tensor for _, tensor in self._named(images))

    @property
    def comparison(self) -> dict[str, Any]:
        """Further arguments of :func:`radioplat.exporting.onnx.compare.compare_with_torch`."""
        return {}

    @property
    def formats(self) -> list[NumberFormat]:
        """Formats of its quantizers, sorted by name; empty for a student in floats."""
        return sorted({q.format for q in quantizers(self).values() if q.enabled})

    @property
    def bytes(self) -> int:
        """Size of weights and buffers."""
        return sum(t.numel() * t.element_size() for t in [*self.parameters(), *self.buffers()])

    def find_outputs(self, height: int, width: int) -> list[str]:
        """Run :meth:`forward` once; return the names of its outputs."""
        try:
            with torch.no_grad():
                names = [name for name, _ in self._named(torch.zeros(1, 3, height, width))]
        except DataError as error:  # of the size, since the rest is as it must be
            raise EngineError(
                *(Problem(p.message, "export.input_height, export.input_width", p.hint) for p in error.problems)
            ) from error
        except RadioplatError:
            raise
        except Exception as error:  # backbones raise errors of any type for a wrong size
            raise EngineError(
                f"the student cannot run at {height} x {width} pixels: {_root(error)}",
                where="export.input_height, export.input_width",
                hint="Give a size that its patches divide.",
            ) from error
        if not names:
            raise EngineError("the student has neither a summary nor a map", where="export.checkpoint")
        return names

    def _named(self, images: Tensor) -> Iterator[tuple[str, Tensor]]:
        student = typing.cast(Exportable, self.student)
        features = student(images, **self.extra)
        for prefix, output in [("", features)] + [(f"{name}.", student.head(name, features)) for name in self.adaptors]:
            if output.summary is not None:
                yield f"{prefix}summary", output.summary
            if output.spatial is not None:
                yield f"{prefix}spatial", output.spatial
            for name in (LOGITS, SEQUENCE) if not prefix else ():
                if name in output.named:
                    yield name, output.named[name]


def trace(
    module: FlatStudent, outputs: list[str], shape: tuple[int, int, int], opset: int, verbose: bool, step: int = 0
):
    """Trace ``module`` to an ONNX program for images of ``shape`` (batch, height, width); batch 0 or less is dynamic.

    Args:
        step: above 0, image sizes are dynamic, with sides that are multiples of it.
    """
    from radioplat.exporting.qdq.mark import translations

    batch, height, width = shape
    dynamic = batch <= 0
    if step:
        height, width = traced_size(height, width, step)
    # torch.export treats a sample batch of 1 as a constant.
    example = torch.zeros(2 if dynamic else batch, 3, height, width)
    dynamic_sides = {0: torch.export.Dim("batch", min=1)} if dynamic else {}
    dynamic_sides.update(sides(step) if step else {})
    dimensions = {INPUT: dynamic_sides} if dynamic_sides else None
    try:
        with (
            contextlib.nullcontext() if verbose else _quiet(),
            constant_same_padding(step, (height, width)) if step else contextlib.nullcontext(),
        ):
            return torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT],
                output_names=outputs,
                dynamic_shapes=dimensions,
                custom_translation_table=translations() if module.formats else None,
                verbose=verbose,
            )
    except Exception as error:  # the exporter raises errors of many types
        hint = "A fixed export.batch_size may succeed." if dynamic else ""
        hint = f"Without {FIELD} it may succeed." if step else hint
        raise EngineError(f"torch cannot export this student: {_root(error)}", where="export", hint=hint) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings and log lines, which need no action of users."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _root(error: BaseException) -> str:
    """Return the first line of the innermost cause, which the exporter wraps in long advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
