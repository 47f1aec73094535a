"""Checks of section ``quantize``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.training_task import training_task
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.resolved.number_formats import (
    ACTIVATIONS,
    DATA_TYPES,
    NATIVE,
    SMOOTHING,
    SPELLINGS,
    formats_of,
    has_blocks,
)
from radioplat.spec.schema.dataset import SplitConfig
from radioplat.spec.schema.quantize import BLOCK_SIZES, Calibrator, QuantizeConfig, QuantizeMode
from radioplat.spec.schema.root import Spec

ONNX_BACKEND, TORCH_BACKEND = "modelopt.onnx", "modelopt.pytorch"
# Configurations of ModelOpt whose scales are those of the native backend, and what selects them there.
_SAME_AS_NATIVE = {
    "INT8_DEFAULT_CFG": "default_layer_dtype: int8",
    "FP8_DEFAULT_CFG": "default_layer_dtype: fp8_e4m3fn and per_channel: false",
    "INT8_WEIGHT_ONLY_CFG": "default_layer_dtype: int8 and mode: weight_only_ptq",
    "INT4_BLOCKWISE_WEIGHT_ONLY_CFG": "default_layer_dtype: int4 and mode: weight_only_ptq",
}
# Calibrators of each backend. ModelOpt's "mse" is left out: it chose 0.17 for values up to 2.6 (version 0.47.0).
_ALGORITHMS = {
    TORCH_BACKEND: (Calibrator.minmax, Calibrator.max, Calibrator.percentile, Calibrator.entropy),
    ONNX_BACKEND: (Calibrator.minmax, Calibrator.max, Calibrator.entropy),
    "torchao": (Calibrator.minmax, Calibrator.max, Calibrator.mse),
}
BACKENDS = (NATIVE, *_ALGORITHMS)


def replaced_backend(config: QuantizeConfig) -> list[str]:
    """Return a note if the native backend measures all ranges although another is named; else nothing."""
    largest = config.algorithm in (Calibrator.minmax, Calibrator.max)
    ranges = f"its {config.algorithm.value} ranges {'are the same' if largest else 'differ a little'}"
    if config.backend == "torchao":
        return [f"quantize.backend: torchao is no longer a backend; native was used, {ranges}"]
    if config.backend == TORCH_BACKEND and largest and not config.backend_kwargs:
        return [f"quantize.backend: modelopt.pytorch was not called; native was used, {ranges}"]
    return []


def quantize_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of section ``quantize``."""
    config = spec.quantize
    if config.backend not in BACKENDS:
        yield Problem(f"no backend is called {config.backend!r}", "quantize.backend", f"Any of {', '.join(BACKENDS)}.")
    yield from _qat(spec)
    yield from _options(config)
    if config.checkpoint and config.model_path and config.checkpoint != config.model_path:
        yield Problem("quantize.checkpoint is another path", "quantize.model_path", "Give one of them.")
    if config.attention is not None and SPELLINGS.get(config.attention.strip().lower()) not in ACTIVATIONS:
        hint = f"Any of {', '.join(DATA_TYPES[name].tao_name for name in ACTIVATIONS)}; leave it out for floats."
        yield Problem(f"{config.attention!r} is no format of activations", "quantize.attention", hint)
    if config.equalize and config.relu6:
        message = "channels are scaled for a ReLU, and relu6 would then clip them at 6"
        yield Problem(message, "quantize.equalize", "Set one of them to false.")
    if config.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", config.device):
        yield Problem(f"must be cpu, cuda or cuda:N, not {config.device!r}", "quantize.device")
    yield from _formats(spec)
    yield from calibration_problems(spec)


def _options(config: QuantizeConfig) -> Iterator[Problem]:
    """Check ``backend_kwargs``; those of the ONNX backend are ModelOpt's to check."""
    given, where = config.backend_kwargs, "quantize.backend_kwargs"
    if not given or config.backend == ONNX_BACKEND:
        return
    if config.backend != TORCH_BACKEND:
        yield Problem(f"the backend {config.backend} has no options", where, "Leave it out.")
        return
    name, choices = given.get("quant_cfg"), ", ".join(SMOOTHING)
    if name in _SAME_AS_NATIVE:
        hint = f"Take backend: native with {_SAME_AS_NATIVE[name]}, and leave this out."
        yield Problem(f"{name} is what the backend native does", f"{where}.quant_cfg", hint)
    elif name not in SMOOTHING:
        message = f"{name} is for other number formats" if name else "a configuration of ModelOpt is missing"
        hint = f"Any of {choices}. Files of this project have the formats int8, fp8_e4m3fn and int4 (no NVFP4, no MX)."
        yield Problem(message, f"{where}.quant_cfg", hint)
    elif (formats := formats_of(config, None)) != SMOOTHING[name]:
        weights, activations = SMOOTHING[name]
        mode = "" if activations else " and mode: weight_only_ptq"
        pairs = (SMOOTHING[name], formats)
        wanted, other = (f"{pair[0]} weights and {pair[1] or 'float'} activations" for pair in pairs)
        message = f"{name} is for {wanted}, not for {other}"
        yield Problem(message, f"{where}.quant_cfg", f"Set quantize.default_layer_dtype: {weights}{mode}.")
    alpha = given.get("alpha")
    if alpha is not None and name == "INT8_SMOOTHQUANT_CFG":
        if not isinstance(alpha, int | float) or not 0 < alpha <= 1:
            yield Problem(f"must be a number above 0, at most 1, not {alpha!r}", f"{where}.alpha")
        alpha = None
    for option in sorted(given.keys() - {"quant_cfg", *([] if alpha is not None else ["alpha"])}):
        hint = "Options are quant_cfg, and with INT8_SMOOTHQUANT_CFG alpha."
        yield Problem(f"the backend {TORCH_BACKEND} has no such option here", f"{where}.{option}", hint)


def _algorithm(spec: Spec) -> Iterator[Problem]:
    config = spec.quantize
    known = _ALGORITHMS.get(config.backend)
    if known is None:
        return
    formats = {part for rule in [None, *config.layers] for part in formats_of(config, rule) if part is not None}
    unsupported = sorted(part for part in formats if config.algorithm not in DATA_TYPES[part].toolkit_calibrators)
    if config.algorithm not in known or unsupported:
        of = "".join(f"{part.upper()} " for part in unsupported)
        message = f"backend {config.backend} does not find {of}ranges by {config.algorithm.value}"
        yield Problem(message, "quantize.algorithm", "Take minmax, or backend: native.")


def _onnx_backend(spec: Spec) -> Iterator[Problem]:
    """Check the settings of the backend that quantizes an ONNX file in place of the student."""
    config = spec.quantize
    if config.backend != ONNX_BACKEND:
        return
    if config.mode in (QuantizeMode.qat, QuantizeMode.weight_only_ptq):
        hint = "Take mode: ptq, or another backend."
        yield Problem(f"backend {ONNX_BACKEND} does not support {config.mode.value}", "quantize.mode", hint)
    names = ("layers", "per_channel", "block_size", "heads", "attention", "equalize", "relu6", "reestimate_batchnorm")
    message = f"backend {ONNX_BACKEND} does not read it"
    hint = "Take backend: native; this one reads quantize.skip_names and backend_kwargs."
    yield from unused_fields(config, names, "quantize", message, hint)
    weights, activations = formats_of(config, None)
    if not config.layers and (weights != activations or weights not in ("int8", "fp8")):
        where = "quantize.default_layer_dtype"
        yield Problem(f"backend {ONNX_BACKEND} writes int8 and fp8", where, "Take one of these for both.")


def _qat(spec: Spec) -> Iterator[Problem]:
    qat = spec.quantize.qat
    if spec.quantize.mode is not QuantizeMode.qat:
        hint = "Set quantize.mode: qat, or remove the line."
        yield from unused_fields(qat, vars(qat), "quantize.qat", "nothing is trained in this mode", hint)
    elif not spec.distill.teacher and not training_task(spec).has_labels(spec):
        hint = "Name teachers in distill.teacher; or dataset.num_classes, to train on labels alone."
        yield Problem("mode qat needs teachers or labels", "quantize.mode", hint)


def _formats(spec: Spec) -> Iterator[Problem]:
    config = spec.quantize
    dtypes = {"default_layer_dtype": config.default_layer_dtype}
    dtypes |= {"default_activation_dtype": config.default_activation_dtype}
    for i, rule in enumerate(config.layers):
        dtypes |= {f"layers[{i}].weights.dtype": rule.weights.dtype}
        dtypes |= {f"layers[{i}].activations.dtype": rule.activations.dtype}
    problems = [problem for name, dtype in dtypes.items() for problem in _dtype(dtype, f"quantize.{name}")]
    yield from problems
    if not problems:
        yield from _pairs(spec)
        yield from _blocks(config)
        yield from _algorithm(spec)
        yield from _onnx_backend(spec)


def _dtype(dtype: str | None, where: str) -> Iterator[Problem]:
    if dtype is None or dtype == NATIVE:
        return
    if dtype in ("fp8_e5m2", "float8_e5m2"):
        yield Problem("E5M2 is a format of gradients: engines compute in E4M3", where, "Take fp8_e4m3fn.")
    elif dtype not in SPELLINGS:
        yield Problem(f"no format is called {dtype!r}", where, f"Any of {', '.join(SPELLINGS)}, {NATIVE}.")
    elif "activation" in where and SPELLINGS[dtype] not in ACTIVATIONS:
        hint = f"Take {', '.join(DATA_TYPES[name].tao_name for name in ACTIVATIONS)} or {NATIVE}."
        yield Problem(f"activations cannot be {dtype}", where, hint)


def _pairs(spec: Spec) -> Iterator[Problem]:
    """Check that engines support the combinations of weight and activation formats."""
    config = spec.quantize
    for i, rule in [*enumerate(config.layers), (None, None)]:
        where = "quantize.default_layer_dtype" if rule is None else f"quantize.layers[{i}]"
        weights, activations = formats_of(config, rule)
        if rule is not None and weights is None and rule.activations.dtype not in (None, NATIVE):
            yield Problem("activations alone cannot be quantized", where, "Name weights.dtype, too.")
        if activations is not None and weights not in ACTIVATIONS[activations]:
            message = f"{weights} weights cannot be multiplied with {activations} activations"
            yield Problem(message, where, "Take one dtype for both, int4 weights with int8, or native activations.")


def _blocks(config: QuantizeConfig) -> Iterator[Problem]:
    """Check the fields of scales for blocks of 4-bit weights."""
    used = any(has_blocks(*formats_of(config, rule)) for rule in [None, *config.layers])
    if config.block_size is not None and config.block_size not in BLOCK_SIZES:
        hint = f"Take {' or '.join(map(str, BLOCK_SIZES))}, or leave it out."
        yield Problem(f"engines have no blocks of {config.block_size}", "quantize.block_size", hint)
    elif config.block_size is not None and not used:
        hint = "Leave it out, or take int4 weights with native activations (mode: weight_only_ptq)."
        yield Problem("no layer has 4-bit weights with float activations", "quantize.block_size", hint)
    if used and not config.per_channel:
        message = "4-bit weights with float activations have a scale for each block"
        yield Problem(message, "quantize.per_channel", "Leave it out.")


def calibration_problems(spec: Spec) -> Iterator[Problem]:
    """Check that ranges are not measured on the images of an evaluation."""
    own = calibration_split(spec)
    folders = _folders(getattr(spec.dataset, f"{own}_dataset"))
    for name in ("val", "test"):
        if shared := folders & _folders(getattr(spec.dataset, f"{name}_dataset")):
            message = f"{sorted(shared)[0]} is also in dataset.{name}_dataset, on which students are evaluated"
            hint = "Give other images; if it is left out, train_dataset is used."
            if not sources(spec.dataset.quant_calibration_dataset):
                hint = "Ranges are measured on it if dataset.quant_calibration_dataset is empty: give other images."
            yield Problem(message, f"dataset.{own}_dataset", hint)


def _folders(split: SplitConfig) -> set[str]:
    """Return the split's folders, normalized: local paths without links, remote ones without a slash at the end."""
    return {
        folder.rstrip("/") if "://" in folder else os.path.realpath(os.path.expanduser(folder))
        for folder in sources(split)
    }


def calibration_split(spec: Spec) -> str:
    """Return the name of the split that ranges are measured on."""
    return "quant_calibration" if sources(spec.dataset.quant_calibration_dataset) else "train"


def sources(split: SplitConfig) -> set[str]:
    """Return the folders that a split reads."""
    folders = {source.root_dir for source in split.tar_data_sources}
    return folders | ({split.images_dir} if split.images_dir else set())
