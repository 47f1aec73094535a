"""The latency of an engine on the machine that runs it: its record's, if measured on such a machine, else a new one."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from radioplat.common.cpu_threads import UNITS, cpu_name
from radioplat.exporting.engines.comparison import compare_latency
from radioplat.exporting.engines.engine_runner import EngineRunner, load_engine
from radioplat.spec.resolved.number_formats import FLOATS

SECONDS = 0.5  # of measuring each data type


def latency_here(path: Path, runner: EngineRunner | None = None, gpu_id: int = 0) -> tuple[dict[str, Any], bool]:
    """Return the latency of an engine on this machine, as ``compare_latency`` gives it, and whether it is new.

    If the record has none of such a machine, the engine is measured with its smallest batch; in turn with its float
    twins, if the ONNX file that it was built from is in the same folder. The record is not written.

    Args:
        runner: of the engine; None: it is opened.

    Raises:
        EngineError: the engine cannot be run here.
    """
    runner = runner or load_engine(path, gpu_id=gpu_id)
    record = runner.record
    if is_of_this_machine(known := record.get("latency"), runner.device):
        return dict(known or {}), False
    sizes = [record["batch"][0]]
    source, reason = _source(path, record)
    if source is None:
        missing = {name: reason for name in FLOATS if name != record["data_type"]}
        return compare_latency({record["data_type"]: path}, missing, SECONDS, gpu_id, sizes), True
    from radioplat.exporting.engines.build import compare_with_twins  # of the extra `onnx`

    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        return compare_with_twins(source, path, record, SECONDS, gpu_id, Path(scratch), sizes), True


def is_of_this_machine(latency: dict[str, Any] | None, device: str) -> bool:
    """Return whether a record's latency was measured on a machine like this one.

    That is one with the same GPU, or with the same CPU and as many threads: virtual machines with one kind of CPU
    differ in their cores.
    """
    if not latency or latency["device"] != device:
        return False
    import torch

    return device != "cpu" or (latency["cpu"], latency.get("threads")) == (cpu_name(UNITS), torch.get_num_threads())


def _source(path: Path, record: dict[str, Any]) -> tuple[Path | None, str]:
    """Return the ONNX file of an engine, if it is in the same folder and unchanged; else the reason."""
    file = path.with_name(record["onnx"])
    if not file.is_file():
        return None, f"not measured: no ONNX file {file.name} beside the engine"
    if importlib.util.find_spec("onnx") is None:
        return None, "not measured: the package onnx is not installed"
    from radioplat.exporting.engines.onnx_input import read_onnx

    if read_onnx(file).sha256 != record["onnx_sha256"]:
        return None, f"not measured: {file.name} is not the file that the engine was built from"
    return file, ""
