"""Contradictions in section ``export``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.check_engine import engine_problems
from radioplat.spec.resolve import teacher_names
from radioplat.spec.root import Spec
from radioplat.spec.tasks import ExportFormat


def export_problems(spec: Spec) -> Iterator[Problem]:
    """Fields of ``export`` that contradict each other."""
    asked = spec.export
    if asked.format is ExportFormat.onnx:
        if asked.output is not None:
            yield Problem("is for formats other than onnx", "export.output", "ONNX is written to export.onnx_file.")
        return
    if asked.onnx_file is not None:
        yield Problem(f"format {asked.format.value} writes no ONNX", "export.onnx_file", "Take export.output.")
    if asked.dynamic_resolution:
        hint = "Leave it out; weights have no size."
        yield Problem(f"format {asked.format.value} is no graph", "export.dynamic_resolution", hint)
    if asked.data_type not in (None, "fp32"):
        hint = "Leave export.data_type out; onnx alone is typed."
        yield Problem(
            f"format {asked.format.value} is written in fp32, not {asked.data_type}", "export.data_type", hint
        )


def chained_export_problems(spec: Spec) -> Iterator[Problem]:
    """What ``distill.then`` would meet in tasks ``export`` and ``gen_trt_engine`` after the training."""
    asked, then = spec.export, spec.distill.then
    if "export" in then:
        yield from export_problems(spec)
        known = teacher_names(spec.distill.teacher)
        for name in asked.adaptors:
            if name not in known:
                yield Problem(f"no teacher is called {name!r}", "export.adaptors", f"Teachers: {', '.join(known)}.")
        if asked.format is not ExportFormat.onnx and "gen_trt_engine" in then and not spec.gen_trt_engine.onnx_file:
            hint = "Leave export.format at onnx, or give gen_trt_engine.onnx_file."
            yield Problem(
                f"an engine is built from ONNX, and format {asked.format.value} writes none", "export.format", hint
            )
    if "gen_trt_engine" in then:
        yield from engine_problems(spec.gen_trt_engine.tensorrt)
