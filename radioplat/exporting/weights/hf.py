"""A student as a folder for ``transformers.AutoModel``, in the names of NVIDIA's RADIO models on Hugging Face."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from radioplat.exporting.weights.radio import RadioFile, radio_file
from radioplat.models.student.student import Student

CODE = "modeling_radioplat"  # the module in the folder
# A release that every version of NVIDIA's code knows; what would follow from it is written beside it.
_VERSION = "radio_v2.5-b"
_KINDS = (("summary", "_heads", "head_mlp"), ("feature", "_feature_projections", "feat_mlp"))


def write_hf(student: Student, folder: Path, adaptors: Sequence[str] = ()) -> RadioFile:
    """Write ``config.json``, ``model.safetensors`` and the module that computes with them into ``folder``.

    The folder loads by itself (``AutoModel.from_pretrained`` runs the module in it, which is ours), and with NVIDIA's
    ``RADIOModel``.

    Args:
        folder: an existing, empty one.
        adaptors: heads to write; none named: all that the format can hold.

    Raises:
        EngineError: the format cannot hold this student, or a head that was named.
    """
    found = radio_file(student, adaptors, own_code=True)
    entries = {entry["name"]: entry for entry in found.args["teachers"]}
    if odd := [name for name in found.adaptors if "spatial_mlp_version" in entries[name]]:
        found.notes.append(
            f"the attention head of {', '.join(odd)} is computed by the folder's own code alone: the config of "
            "NVIDIA's RADIOModel has no place for it"
        )
    save_file(_tensors(found), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(student, found, entries), indent=2) + "\n")
    code = importlib.util.find_spec("radioplat.exporting.weights.hf_modeling")  # not imported: it needs transformers
    assert code is not None and code.origin
    shutil.copyfile(code.origin, folder / f"{CODE}.py")
    return found


def _tensors(found: RadioFile) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for key, value in found.state_dict.items():
        part, _, rest = key.partition(".")
        if part == "base_model":
            key = f"model.{rest}"
        for _, prefix, module in _KINDS:
            if part == prefix:
                name, _, tensor = rest.partition(".")
                key = f"adaptors.{name}.{module}.{tensor}"
        tensors[f"radio_model.{key}"] = value.contiguous()
    slots = [i for i, entry in enumerate(found.args["teachers"]) if entry["use_summary"]]
    tensors["radio_model.summary_idxs"] = torch.tensor(slots, dtype=torch.int64)
    return tensors


def _config(student: Student, found: RadioFile, entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    size = student.architecture.img_size
    return {
        "architectures": ["RadioModel"],
        "model_type": "radio",
        "auto_map": {"AutoConfig": f"{CODE}.RadioConfig", "AutoModel": f"{CODE}.RadioModel"},
        "args": found.args,
        "version": _VERSION,
        "patch_size": student.stride,
        "max_resolution": found.args["cpe_max_size"],
        "preferred_resolution": [size, size],
        "adaptor_names": found.adaptors,
        "adaptor_configs": {name: _adaptor(found, entries[name]) for name in found.adaptors},
        "vitdet_window_size": None,
        "feature_normalizer_config": None,
        "inter_feature_normalizer_config": None,
        "torch_dtype": "float32",
    }


def _adaptor(found: RadioFile, entry: dict[str, Any]) -> dict[str, Any]:
    """Widths of one adaptor, and the class token it reads."""
    config: dict[str, Any] = {}
    for kind, prefix, _ in _KINDS:
        start = f"{prefix}.{entry['name']}."
        tensors = {k.removeprefix(start): v for k, v in found.state_dict.items() if k.startswith(start)}
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
