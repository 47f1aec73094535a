"""Write a student as a folder for ``transformers.AutoModel``, with the names of NVIDIA's RADIO models."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from radioplat.exporting.weights.radio import RadioFile, radio_file
from radioplat.models.student.student import Student

CODE = "modeling_radioplat"  # the module in the folder
# A release that every version of NVIDIA's code supports; all its settings are written as well.
_VERSION = "radio_v2.5-b"
_KINDS = (("summary", "_heads", "head_mlp"), ("feature", "_feature_projections", "feat_mlp"))


def write_hf(
    student: Student, folder: Path, adaptors: Sequence[str] = (), metadata: Mapping[str, str] | None = None
) -> RadioFile:
    """Write ``config.json``, ``model.safetensors`` and the module that computes with them into ``folder``.

    The folder can be loaded without radioplat (``AutoModel.from_pretrained`` runs the module in it), and by NVIDIA's
    ``RADIOModel``.

    Args:
        folder: an existing, empty one.
        adaptors: heads to write; default: all that the format supports.
        metadata: more of it, for ``model.safetensors``.

    Raises:
        EngineError: the format does not support this student, or a head in ``adaptors``.
    """
    content = radio_file(student, adaptors, own_code=True)
    entries = {entry["name"]: entry for entry in content.args["teachers"]}
    if attention := [name for name in content.adaptors if "spatial_mlp_version" in entries[name]]:
        content.notes.append(
            f"the attention head of {', '.join(attention)} is computed only by the folder's code: the config of "
            "NVIDIA's RADIOModel has no place for it"
        )
    save_file(_tensors(content), folder / "model.safetensors", {"format": "pt", **(metadata or {})})
    (folder / "config.json").write_text(json.dumps(_config(student, content, entries), indent=2) + "\n")
    code = importlib.util.find_spec("radioplat.exporting.weights.hf_modeling")  # not imported: it needs transformers
    assert code is not None and code.origin
    shutil.copyfile(code.origin, folder / f"{CODE}.py")
    return content


def _tensors(content: RadioFile) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for key, value in content.state_dict.items():
        part, _, rest = key.partition(".")
        if part == "base_model":
            key = f"model.{rest}"
        for _, prefix, module in _KINDS:
            if part == prefix:
                name, _, tensor = rest.partition(".")
                key = f"adaptors.{name}.{module}.{tensor}"
        tensors[f"radio_model.{key}"] = value.contiguous()
    slots = [i for i, entry in enumerate(content.args["teachers"]) if entry["use_summary"]]
    tensors["radio_model.summary_idxs"] = torch.tensor(slots, dtype=torch.int64)
    return tensors


def _config(student: Student, content: RadioFile, entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    size = student.architecture.img_size
    return {
        "architectures": ["RadioModel"],
        "model_type": "radio",
        "auto_map": {"AutoConfig": f"{CODE}.RadioConfig", "AutoModel": f"{CODE}.RadioModel"},
        "args": content.args,
        "version": _VERSION,
        "patch_size": student.stride,
        "max_resolution": content.args["cpe_max_size"],
        "preferred_resolution": [size, size],
        "adaptor_names": content.adaptors,
        "adaptor_configs": {name: _adaptor(content, entries[name]) for name in content.adaptors},
        "vitdet_window_size": None,
        "feature_normalizer_config": None,
        "inter_feature_normalizer_config": None,
        "torch_dtype": "float32",
    }


def _adaptor(content: RadioFile, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the widths of one adaptor, and its class token."""
    config: dict[str, Any] = {}
    for kind, prefix, _ in _KINDS:
        start = f"{prefix}.{entry['name']}."
        tensors = {k.removeprefix(start): v for k, v in content.state_dict.items() if k.startswith(start)}
        attends = any(k.startswith("mlp.") for k in tensors)
        if attends:
            tensors = {k.removeprefix("mlp."): v for k, v in tensors.items() if k.startswith("mlp.")}
        hidden, width = tensors["fc1.weight"].shape
        inner = len({k.split(".")[1] for k in tensors if k.startswith("blocks.")})
        config[kind] = {
            "input_dim": width,
            "hidden_dim": hidden,
            "output_dim": tensors["final.2.weight"].shape[0],
            "num_inner": inner,
            **({"mlp_version": "attn"} if attends else {}),
        }
    config["feature"] |= {"upsample_factor": entry.get("fd_upsample_factor", 1), "upsample_rank": None}
    config["head_idx"] = entry["token_slot"]
    return config
