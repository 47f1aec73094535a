"""Read local weights without running code: safetensors, or pickles of tensors and ``argparse.Namespace`` only."""

from __future__ import annotations

import argparse
import contextlib
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from radioplat.common.listing import first_few
from radioplat.errors import WeightsError
from radioplat.models.weights.downstream import find_downstream, without_additions
from radioplat.models.weights.timm_filter import renamed_by_timm, timm_types
from radioplat.spec.resolved.paths import no_such_weights

_PREFIXES = ("backbone.", "model.", "encoder.", "model.backbone.")  # usual for backbones in larger models
_IMAGES = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")  # Pillow's names
# The first that is present is read: if a file also has a moving average, NVlabs' and timm's loaders use that.
_WRAPPERS = ("state_dict_ema", "state_dict", "model", "model_state_dict", "model_state", "module")


def read_weights(path: str | Path, where: str = "") -> dict[str, torch.Tensor]:
    """Read the tensors of a checkpoint.

    Args:
        path: a ``.safetensors``, ``.pth`` or ``.pt`` file, or a radioplat checkpoint folder.
        where: the spec field that named the path, for messages.

    Returns:
        Tensors by name, with wrappers (``state_dict``, ``model``) and a ``module.`` prefix removed.

    Raises:
        WeightsError: the file is missing, damaged, contains anything but tensors, or a tensor has a NaN or infinity.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "student.safetensors"
    if not path.exists():
        raise WeightsError(no_such_weights(path, where))
    tensors = read_checkpoint(path, where).tensors
    require_finite(tensors, path, where)
    return tensors


@dataclass(frozen=True)
class Contents:
    """Content of a checkpoint file.

    Attributes:
        tensors: by name, without wrappers (``state_dict``, ``model``) and the prefixes ``module.`` and ``_orig_mod.``.
        args: the training arguments, if the file has them (RADIO's ``argparse.Namespace``), as a mapping.
        metadata: text metadata of a safetensors file; of a pickle TAO's name of the task, ``tao_model``.
    """

    tensors: dict[str, torch.Tensor]
    args: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


def read_checkpoint(
    path: str | Path, where: str = "", shapes_only: bool = False, only: tuple[str, ...] = ()
) -> Contents:
    """Read a file's tensors and metadata without running code from it.

    Args:
        shapes_only: return tensors on the meta device; nothing large is kept in memory.
        only: the tensors to read; empty for all.

    Raises:
        WeightsError: the file is missing, damaged, or contains anything but tensors and plain values.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(no_such_weights(path, where))
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path, where, shapes_only, only)
        contents = _read_pickle(path, where, shapes_only)
    except WeightsError:
        if image := _image_format(path):
            hint = "Name a .safetensors, .pth, .pt or .bin file."
            raise WeightsError(f"{path} is an image ({image}), not a file of weights", where=where, hint=hint) from None
        raise
    if not only:
        return contents
    return Contents({k: v for k, v in contents.tensors.items() if k in only}, contents.args, contents.metadata)


def _image_format(path: Path) -> str:
    """Return the format of an image file; empty if ``path`` is none."""
    with contextlib.suppress(OSError), Image.open(path, formats=_IMAGES) as image:
        return image.format or ""
    return ""


def require_finite(tensors: dict[str, torch.Tensor], path: str | Path, where: str) -> None:
    """Check that no tensor has a NaN or an infinity.

    Raises:
        WeightsError: with the name of the first such tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise WeightsError(
                f"{path}: tensor {name!r} holds NaN or infinite values", where=where, hint="Take an earlier checkpoint."
            )


def _read_safetensors(path: Path, where: str, shapes_only: bool, only: tuple[str, ...]) -> Contents:
    try:
        with safetensors.safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
            if shapes_only:
                return Contents({k: _shape_of(opened.get_slice(k)) for k in opened.keys()}, {}, metadata)
            if only:
                return Contents({k: opened.get_tensor(k) for k in only}, {}, metadata)
        return Contents(load_file(path), {}, metadata)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path} is not a whole safetensors file: {error}", where=where) from None


def _shape_of(piece: Any) -> torch.Tensor:
    kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    return torch.empty(piece.get_shape(), dtype=kinds.get(piece.get_dtype(), torch.int64), device="meta")


def _read_pickle(path: Path, where: str, shapes_only: bool) -> Contents:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="meta" if shapes_only else "cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        content_name = f"the class {named[1]}" if named else "something other than tensors"
        raise WeightsError(
            f"{path} holds {content_name}, which would run code when loaded",
            where=where,
            hint="Save only tensors: torch.save(model.state_dict(), path), or a .safetensors file.",
        ) from None
    except Exception as error:  # torch raises RuntimeError, EOFError, OSError, KeyError... for other files
        if "TorchScript" in str(error):
            raise WeightsError(
                f"{path} is a TorchScript file: it holds code", where=where, hint="Name it by type: torchscript."
            ) from None
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise WeightsError(f"{path} is not a whole checkpoint: {reason}", where=where) from None
    args = content.get("args") if isinstance(content, dict) else None
    args = vars(args) if isinstance(args, argparse.Namespace) else args if isinstance(args, dict) else {}
    metadata = {}
    if isinstance(content, dict):
        metadata = {"tao_model": name} if isinstance(name := content.get("tao_model"), str) else {}
        if content.get("state_dict_encrypted"):
            hint = "Save it in TAO without a key (-k, encryption_key)."
            raise WeightsError(f"{path} is encrypted with a key of TAO's", where=where, hint=hint)
    # A wrapper may also contain other tensors (a best accuracy).
    while isinstance(content, dict) and (
        inner := next((content[k] for k in _WRAPPERS if isinstance(content.get(k), dict)), None)
    ):
        content = inner
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not tensors by name", where=where)
    tensors = {_bare(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise WeightsError(f"{path} holds no tensors", where=where)
    return Contents(tensors, args, metadata)


def _bare(name: object) -> str:
    """Remove the prefixes of DistributedDataParallel and torch.compile from a tensor's name."""
    text = str(name)
    while text.startswith(("module.", "_orig_mod.")):
        text = text.removeprefix("module.").removeprefix("_orig_mod.")
    return text


def load_into(module: nn.Module, tensors: dict[str, torch.Tensor], path: str | Path, where: str) -> None:
    """Copy ``tensors`` into ``module``; every name and shape must fit (see :func:`fit`)."""
    module.load_state_dict(fit(module, tensors, path, where))


def fit(
    module: nn.Module,
    tensors: dict[str, torch.Tensor],
    path: str | Path,
    where: str,
    ignore: tuple[str, ...] = (),
    fresh: tuple[str, ...] = (),
) -> dict[str, torch.Tensor]:
    """Return the tensors that ``module`` (which may be on the meta device) loads, by its own names.

    Names that timm's filter for the family knows are renamed.

    Args:
        ignore: prefixes of tensors that may be left over (a classifier that a backbone does not use).
        fresh: prefixes of the module's own tensors that may be missing or of another shape (a classifier to be
            trained on other labels); those are left out of the result.

    Raises:
        WeightsError: tensors are missing, left over or of another shape; the first few of each are named.
    """
    own = module.state_dict()
    if own and not set(own) & set(tensors):
        tensors = _under_prefix(own, tensors, path, where)
    if any(k not in tensors and not k.startswith(fresh) for k in own):
        tensors = _by_timms_names(module, tensors, {k for k in own if not k.startswith(fresh)})
    unlike = {k for k in own if k in tensors and tensors[k].shape != own[k].shape}
    own = {k: v for k, v in own.items() if not (k.startswith(fresh) and (k in unlike or k not in tensors))}
    missing = [k for k in own if k not in tensors]
    extra = [k for k in tensors if k not in own and not k.startswith(ignore + fresh)]
    shapes = [f"{k} is {list(tensors[k].shape)} there and {list(v.shape)} here" for k, v in own.items() if k in unlike]
    if missing or extra or shapes:
        misfits = (("missing", missing), ("left over", extra), ("shapes", shapes))
        parts = [f"{kind}: {first_few(names, 3)}" for kind, names in misfits if names]
        hint = f"Check that backbone.type and its kwargs are what the weights were trained as{_fitting_types(tensors)}."
        raise WeightsError(f"{path} does not fit the architecture ({'; '.join(parts)})", where=where, hint=hint)
    return {k: v for k, v in tensors.items() if k in own}


def _fitting_types(tensors: dict[str, torch.Tensor]) -> str:
    """Name the types of backbone that ``tensors`` fit; empty if none is known."""
    downstream = find_downstream(tensors)
    types = timm_types(downstream.tensors if downstream else tensors)
    return f": {' or '.join(types)}" if types else ""


def _by_timms_names(module: nn.Module, tensors: dict[str, torch.Tensor], needed: set[str]) -> dict[str, torch.Tensor]:
    """Return ``tensors`` renamed by timm's filter if they then are all of those ``needed``, else as they are."""
    downstream, prefix = find_downstream(tensors), "model."  # of TAO's classifiers
    inner = downstream.tensors if downstream else tensors
    if all(k.startswith(prefix) for k in inner):
        inner = {k.removeprefix(prefix): v for k, v in inner.items()}
    renamed = renamed_by_timm(module, inner) or {}
    return renamed if needed <= renamed.keys() else tensors


def _under_prefix(
    own: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor], path: str | Path, where: str
) -> dict[str, torch.Tensor]:
    """Return the tensors of a backbone embedded in a larger checkpoint, with their common prefix removed.

    Tensors outside the prefix, like a decoder's or a detector's heads, are left out, and so is what tasks add to a
    backbone. Without such a prefix ``tensors`` are returned as they are.

    Raises:
        WeightsError: several parts of the file fit equally, and none has a usual prefix of backbones.
    """
    prefixes = {k[: -len(name)] for name in own for k in tensors if k.endswith(f".{name}")}
    hits = {prefix: sum(prefix + name in tensors for name in own) for prefix in prefixes}
    most = [prefix for prefix in sorted(hits) if hits[prefix] == max(hits.values())]
    task = find_downstream(tensors) if len(most) > 1 else None  # in TAO's MAL the teacher is the student's average
    usual = [prefix for prefix in (*_PREFIXES, *([task.prefix] if task else [])) if prefix in most]
    if len(most) > 1 and not usual:
        hint = "Save the one that is meant in a file of its own."
        raise WeightsError(f"{path} holds the backbone more than once: {first_few(most, 3)}", where=where, hint=hint)
    if not most:
        return tensors
    prefix = (usual or most)[0]
    return without_additions({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}, own)
