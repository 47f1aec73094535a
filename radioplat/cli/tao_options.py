"""Options of TAO's older command lines: translated into overrides of the spec, or answered with ours.

From NVIDIA's blog post on QAT with TAO (``-e -r -k -n -m -o --gpus --data_type ...``) and from the page on training
pipelines (``--gpus``, ``--use_amp``).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from radioplat.common import terminal
from radioplat.errors import SpecError

_PATHS = ("dir", "checkpoint", "file", "cache")  # ends of the fields whose value is text, not YAML
_AMP = {"const": "fp16", "nargs": 0, "help": "TAO's: train.precision=fp16"}
_KEY = {"note": "checkpoints are not encrypted, so the key has no effect", "metavar": "KEY"}
_NAME = {"note": "checkpoints are named by epoch and step, so the name has no effect", "metavar": "NAME"}
_COMMON: dict[tuple[str, ...], dict[str, Any]] = {
    ("-r", "--results_dir"): {"field": "results_dir", "metavar": "DIR"},
    ("-k", "--key"): _KEY,
}
_TRAINING = {
    **_COMMON,
    ("--gpus", "--num_gpus"): {"field": "train.num_gpus", "metavar": "N"},
    ("--use_amp",): {"field": "train.precision", **_AMP},
    ("-n",): _NAME,
}
_BATCH = "gen_trt_engine.tensorrt.max_batch_size is an engine's largest batch; export.batch_size fixes that of the file"
# Command -> names of an option -> its field, its note (no effect) or the reason why it is refused
_OPTIONS: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {
    **dict.fromkeys(("distill", "train", "quantize", "compress", "auto"), _TRAINING),
    "evaluate": {
        **_COMMON,
        ("--gpus", "--num_gpus"): {"field": "evaluate.num_gpus", "metavar": "N"},
        ("-m", "--model"): {"field": "evaluate.checkpoint", "metavar": "CHECKPOINT"},
    },
    "inference": {
        **_COMMON,
        ("-m", "--model"): {"field": "inference.checkpoint", "metavar": "CHECKPOINT"},
        ("--gpus", "--num_gpus"): {"note": "images are computed by one process", "metavar": "N"},
    },
    "export": {
        **_COMMON,
        ("-m", "--model"): {"field": "export.checkpoint", "metavar": "CHECKPOINT"},
        ("-o", "--output_file"): {"field": "export.onnx_file", "metavar": "FILE.onnx"},
        ("--cal_cache_file",): {"field": "export.calibration_cache", "metavar": "FILE"},
        ("--force_ptq",): {"field": "export.force_ptq", "const": "true", "nargs": 0},
        ("--data_type",): {"refusal": "export.data_type is fp32, fp16 or bf16; INT8 is what radioplat quantize makes"},
        ("--batch_size",): {"refusal": _BATCH},
        ("--engine_file",): {"refusal": "radioplat gen_trt_engine builds the engine from the exported file"},
    },
}


class _Option(argparse.Action):
    """An option of TAO's: collects an override, or what to print, in ``tao_options``."""

    def __init__(self, option_strings, dest, field="", note="", refusal="", **rest) -> None:
        text = f"TAO's: {field}" if field else f"TAO's: {note or refusal}"
        rest = {"metavar": "VALUE", **rest} if refusal else rest
        super().__init__(option_strings, "tao_options", **{"default": (), "help": text, **rest})
        self.field, self.note, self.refusal = field, note, refusal

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        if self.refusal:
            raise argparse.ArgumentError(self, self.refusal)
        text = self.const if self.nargs == 0 else values
        if not text:
            raise argparse.ArgumentError(self, "a value is needed")
        namespace.tao_options = (*namespace.tao_options, (option_string, self.field, text, self.note))


def add_tao_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options that TAO's users know to the parser of ``command``."""
    for names, option in _OPTIONS.get(command, {}).items():
        parser.add_argument(*names, action=_Option, **option)


def with_tao_options(args: argparse.Namespace) -> argparse.Namespace:
    """Turn the options of TAO's in ``args`` into overrides, in place, and print a note for those without effect.

    Raises:
        SpecError: a field is set by an option and by an override.
    """
    overrides = []
    for option, field, text, note in getattr(args, "tao_options", ()):
        if note:
            terminal.note(f"{option}: {note}")
            continue
        if twice := next((each for each in args.overrides if _sets(each, field)), None):
            raise SpecError(f"{option} sets it, and {twice} does too", where=field, hint="Leave one of the two out.")
        overrides.append(f"{field}={json.dumps(text, ensure_ascii=False) if field.endswith(_PATHS) else text}")
    if overrides:
        args.overrides = [*overrides, *args.overrides]
    return args


def _sets(override: str, field: str) -> bool:
    """Return True if ``override`` sets ``field``, or the section that it is in."""
    path = override.partition("=")[0].lstrip("+")
    return field == path or field.startswith(f"{path}.")
