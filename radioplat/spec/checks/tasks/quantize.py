"""Contradictions in section ``quantize``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.training_task import training_task
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, NATIVE, SPELLINGS, formats_of
from radioplat.spec.schema.dataset import SplitConfig
from radioplat.spec.schema.quantize import Calibrator, QatConfig, QuantizeConfig, QuantizeMode
from radioplat.spec.schema.root import Spec

ONNX_BACKEND = "modelopt.onnx"
# What each backend finds ranges by; ModelOpt's "mse" chose 0.17 where values went to 2.6 (0.47.0): it is left out.
_ALGORITHMS = {
    "modelopt.pytorch": (Calibrator.minmax, Calibrator.max, Calibrator.percentile, Calibrator.entropy),
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
    if config.backend == "modelopt.pytorch" and largest:
        return [f"quantize.backend: modelopt.pytorch was not called; native was used, {ranges}"]
    return []


def quantize_problems(spec: Spec) -> Iterator[Problem]:
    """What the task ``quantize`` cannot do."""
    asked = spec.quantize
    if asked.backend not in BACKENDS:
        yield Problem(f"no backend is called {asked.backend!r}", "quantize.backend", f"Any of {', '.join(BACKENDS)}.")
    yield from _qat(spec)
    if asked.backend_kwargs and asked.backend != ONNX_BACKEND:
        yield Problem(f"the backend {asked.backend} takes none", "quantize.backend_kwargs", "Leave it out.")
    if asked.checkpoint and asked.model_path and asked.checkpoint != asked.model_path:
        yield Problem("quantize.checkpoint names another", "quantize.model_path", "Give one of them.")
    if asked.equalize and asked.relu6:
        hint = "Set one of them to false."
        yield Problem("weights cannot be moved across a ReLU6", "quantize.equalize", hint)
    if asked.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", asked.device):
        yield Problem(f"must be cpu, cuda or cuda:N, not {asked.device!r}", "quantize.device")
    yield from _formats(spec)
    yield from calibration_problems(spec)


def _algorithm(spec: Spec) -> Iterator[Problem]:
    asked = spec.quantize
    known = _ALGORITHMS.get(asked.backend)
    if known is None:
        return
    formats = {part for rule in [None, *asked.layers] for part in formats_of(asked, rule) if part is not None}
    beyond = sorted(part for part in formats if asked.algorithm not in DATA_TYPES[part].toolkit_calibrators)
    if asked.algorithm not in known or beyond:
        whose = "".join(f"{part.upper()} " for part in beyond)
        message = f"backend {asked.backend} does not find {whose}ranges by {asked.algorithm.value}"
        yield Problem(message, "quantize.algorithm", "Take minmax, or backend: native.")


def _of_files(spec: Spec) -> Iterator[Problem]:
    """What cannot be asked of a backend that knows no student, only an ONNX file."""
    asked, default = spec.quantize, QuantizeConfig()
    if asked.backend != ONNX_BACKEND:
        return
    if asked.mode in (QuantizeMode.qat, QuantizeMode.weight_only_ptq):
        hint = "Take mode: ptq, or another backend."
        yield Problem(f"backend {ONNX_BACKEND} cannot do {asked.mode.value}", "quantize.mode", hint)
    for name in ("layers", "per_channel", "heads", "equalize", "relu6"):
        if getattr(asked, name) != getattr(default, name):
            hint = "Take backend: native; quantize.skip_names and backend_kwargs are what this one reads."
            yield Problem(f"backend {ONNX_BACKEND} does not read it", f"quantize.{name}", hint)
    weights, activations = formats_of(asked, None)
    if not asked.layers and (weights != activations or weights not in ("int8", "fp8")):
        where = "quantize.default_layer_dtype"
        yield Problem(f"backend {ONNX_BACKEND} writes int8 and fp8", where, "Take one of these for both.")


def _qat(spec: Spec) -> Iterator[Problem]:
    own, default = spec.quantize.qat, QatConfig()
    if spec.quantize.mode is not QuantizeMode.qat:
        for name, value in vars(own).items():
            if value != getattr(default, name):
                hint = "Set quantize.mode: qat, or remove the line."
                yield Problem("nothing is trained in this mode", f"quantize.qat.{name}", hint)
    elif not spec.distill.teacher and not training_task(spec).has_labels(spec):
        hint = "Name teachers in distill.teacher; or dataset.num_classes, to train on labels alone."
        yield Problem("there is nobody to learn from", "quantize.mode", hint)


def _formats(spec: Spec) -> Iterator[Problem]:
    asked = spec.quantize
    places = [("quantize.default_layer_dtype", asked.default_layer_dtype)]
    places += [("quantize.default_activation_dtype", asked.default_activation_dtype)]
    for i, rule in enumerate(asked.layers):
        places += [(f"quantize.layers[{i}].weights.dtype", rule.weights.dtype)]
        places += [(f"quantize.layers[{i}].activations.dtype", rule.activations.dtype)]
    wrong = False
    for where, said in places:
        if said is None or said == NATIVE:
            continue
        if said in ("fp8_e5m2", "float8_e5m2"):
            wrong = True
            yield Problem("E5M2 is a format of gradients: engines compute in E4M3", where, "Take fp8_e4m3fn.")
        elif said not in SPELLINGS:
            wrong = True
            yield Problem(f"no format is called {said!r}", where, f"Any of {', '.join(SPELLINGS)}, {NATIVE}.")
        elif "activation" in where and SPELLINGS[said] not in ACTIVATIONS:
            wrong = True
            hint = f"Take {', '.join(DATA_TYPES[name].tao_name for name in ACTIVATIONS)} or {NATIVE}."
            yield Problem(f"activations cannot be {said}", where, hint)
    if not wrong:
        yield from _pairs(spec)
        yield from _algorithm(spec)
        yield from _of_files(spec)


def _pairs(spec: Spec) -> Iterator[Problem]:
    """Weights and activations that no engine multiplies."""
    asked = spec.quantize
    for i, rule in [*enumerate(asked.layers), (None, None)]:
        where = "quantize.default_layer_dtype" if rule is None else f"quantize.layers[{i}]"
        weights, activations = formats_of(asked, rule)
        if rule is not None and weights is None and rule.activations.dtype not in (None, NATIVE):
            yield Problem("activations alone cannot be quantized", where, "Name weights.dtype, too.")
        if activations is not None and weights not in ACTIVATIONS[activations]:
            message = f"{weights} weights cannot be multiplied with {activations} activations"
            yield Problem(message, where, "Take one dtype for both, int4 weights with int8, or native activations.")


def calibration_problems(spec: Spec) -> Iterator[Problem]:
    """Ranges must not come from the images that the result is judged on."""
    own = calibration_split(spec)
    folders = _places(getattr(spec.dataset, f"{own}_dataset"))
    for name in ("val", "test"):
        if shared := folders & _places(getattr(spec.dataset, f"{name}_dataset")):
            message = f"{sorted(shared)[0]} is also dataset.{name}_dataset's, on which students are judged"
            hint = "Give other images; left out, it is train's."
            if not sources(spec.dataset.quant_calibration_dataset):
                hint = "Ranges are measured on it where dataset.quant_calibration_dataset is empty: give other images."
            yield Problem(message, f"dataset.{own}_dataset", hint)


def _places(split: SplitConfig) -> set[str]:
    """Its folders, each in one spelling: a local path without links, a bucket's without a slash at its end."""
    return {
        folder.rstrip("/") if "://" in folder else os.path.realpath(os.path.expanduser(folder))
        for folder in sources(split)
    }


def calibration_split(spec: Spec) -> str:
    """The split that ranges are measured on."""
    return "quant_calibration" if sources(spec.dataset.quant_calibration_dataset) else "train"


def sources(split: SplitConfig) -> set[str]:
    """The folders that a split reads."""
    folders = {source.root_dir for source in split.tar_data_sources}
    return folders | ({split.images_dir} if split.images_dir else set())
