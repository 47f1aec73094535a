"""Engines of `gen_trt_engine` as encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radioplat.common.cpu_threads import UNITS, cpu_name
from radioplat.errors import EngineError, Problem
from radioplat.evaluation.models.file_interface import FileInterface
from radioplat.exporting.engine_latency import is_of_this_machine, latency_here
from radioplat.exporting.engines.engine_record import mark_evaluated, mark_latency, read_record, state_of
from radioplat.exporting.engines.engine_runner import EngineRunner, load_engine
from radioplat.models.features import Features


class EngineModel:
    """An engine with its record; it runs if its device and library are available.

    Args:
        where: the field that names it, for errors.
        device: where features are returned.

    Attributes:
        kind: ``engine tensorrt_rtx int8``.
        bytes: on disk, without the record.
        kernels: number of convolution and GEMM kernels by data type; empty if the builder does not list them.
        milliseconds: median latency of its smallest batch on this machine, from its record or by :meth:`measure`; None
            if it was not measured here.
        reason: why it cannot run on this machine; empty if it can.
        interface: names and shapes of its inputs and outputs.

    Raises:
        EngineError: it is no engine, has no record, or has no features among its outputs.
    """

    def __init__(self, path: Path, where: str, device: str) -> None:
        self.path, self._where, self._device = path, where, device
        try:
            record = read_record(path)
        except EngineError as error:
            raise _named(error, where) from error
        outputs = record.get("outputs")
        if not isinstance(outputs, dict):
            hint = "Build it again by `radioplat gen_trt_engine`."
            raise EngineError("its record was written by another version", where=where, hint=hint)
        shapes = {name: list(about["shape"]) for name, about in outputs.items()}
        self.interface = FileInterface(shapes, tuple(record["input_shape"][1:]), where)
        self.kind = f"engine {record['library']} {record['data_type']}"
        self.bytes, self._record = path.stat().st_size, record
        self.kernels: dict[str, int] = (record.get("coverage") or {}).get("kernels") or {}
        self._overflow = _overflows(path) if record["library"] == "onnxruntime" and "int8" in self.kernels else ""
        self.reason = ""
        self._runner: EngineRunner | None = None
        try:
            self._runner = load_engine(path)
        except EngineError as error:  # it is for another GPU, or there is no driver
            self.reason = str(Problem(error.problems[0].message, hint=error.problems[0].hint))
        self._latency: dict[str, Any] | None = None  # measured here, not in the record yet
        self._known: dict[str, Any] = {}  # of the record, measured on a machine like this one
        self.milliseconds: float | None = None
        if self._runner is not None and is_of_this_machine(record.get("latency"), self._runner.device):
            self._known = record["latency"]
            self.milliseconds = self._median(self._known)

    @property
    def warning(self) -> str:
        """Sentences about it that a user should know first; empty if there are none.

        Its INT8 products overflow on this machine's CPU, it computes something else than its ONNX file, or another data
        type is faster here.
        """
        execution = self._record.get("execution") or {}
        differs = execution.get("warning", "")
        if differs and execution.get("cpu") != cpu_name(UNITS):  # None for a GPU
            differs = f"where it was built ({execution.get('cpu') or execution['device']}): {differs}"
        slower = (self._latency or self._known).get("warnings", [])
        return "; ".join(filter(None, [self._overflow, differs, *slower]))

    def state(self, evaluated: bool) -> str:
        """Return a description of where the engine was executed and evaluated: here, or as its record lists."""
        record = {**self._record, "evaluated": evaluated}
        if evaluated:
            assert self._runner is not None
            record |= {"executed": True, "execution": {"device": self._runner.device}}
        return state_of(record)

    def encode(self, images: torch.Tensor) -> Features:
        """Compute fp32 features of uint8 ``[B, 3, H, W]``; outputs of heads are in ``named``, as ``<teacher>.<kind>``.

        Raises:
            EngineError: the engine fails.
        """
        assert self._runner is not None
        try:
            outputs = self._runner(images.numpy(force=True).astype(np.float32) / 255)
        except EngineError as error:
            raise _named(error, self._where) from error
        return self.interface.features(outputs, self._device)

    def measure(self) -> None:
        """Measure the latency, if the record has none of this machine.

        Raises:
            EngineError: the engine fails.
        """
        assert self._runner is not None
        if self.milliseconds is None:
            self._latency, _ = latency_here(self.path, self._runner)
            self.milliseconds = self._median(self._latency)

    def _median(self, latency: Mapping[str, Any]) -> float:
        return float(latency["batches"][str(self._record["batch"][0])][self._record["data_type"]]["p50"])

    def remember(self, figures: Mapping[str, float]) -> None:
        """Write the figures of an evaluation, and the latency if it was measured here, into its record.

        Raises:
            EngineError: the record cannot be written.
        """
        assert self._runner is not None
        self.measure()
        if self._latency is not None:
            mark_latency(self.path, self._latency)
        mark_evaluated(self.path, figures, device=self._runner.device)


def _overflows(path: Path) -> str:
    import onnx  # of the extra `onnx`: other engines are evaluated without it

    from radioplat.exporting.qdq.int8_overflow import overflow_warning

    return overflow_warning(onnx.load(str(path)))


def _named(error: EngineError, where: str) -> EngineError:
    """Return the error with ``where`` as its field, and the file in the message."""
    problems = (replace(p, message=f"{p.where}: {p.message}" if p.where else p.message) for p in error.problems)
    return EngineError(*(replace(problem, where=where) for problem in problems))
