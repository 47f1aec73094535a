"""Local weights, read without running anything: safetensors, or pickles of tensors and ``argparse.Namespace`` only."""

from __future__ import annotations

import argparse
import pickle
import re
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from radioplat.errors import WeightsError

_WRAPPERS = ("state_dict", "model", "model_state_dict", "module")


def read_weights(path: str | Path, where: str = "") -> dict[str, torch.Tensor]:
    """Read the tensors of a checkpoint.

    Args:
        path: a ``.safetensors``, ``.pth`` or ``.pt`` file, or a radioplat checkpoint folder.
        where: the spec field that named the path, for messages.

    Returns:
        Tensors by name, wrappers (``state_dict``, ``model``) opened and a ``module.`` prefix removed.

    Raises:
        WeightsError: the file is missing, torn, holds anything but tensors, or a tensor has a NaN or infinity.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "student.safetensors"
    if not path.exists():
        hint = "Give the path of local weights; nothing is downloaded."
        raise WeightsError(f"no such file: {path}", where=where, hint=hint)
    tensors = _read_safetensors(path, where) if path.suffix == ".safetensors" else _read_pickle(path, where)
    require_finite(tensors, path, where)
    return tensors


def require_finite(tensors: dict[str, torch.Tensor], path: str | Path, where: str) -> None:
    """Refuse a NaN or an infinity.

    Raises:
        WeightsError: with the name of the first such tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise WeightsError(
                f"{path}: tensor {name!r} holds NaN or infinite values", where=where, hint="Take an earlier checkpoint."
            )


def _read_safetensors(path: Path, where: str) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path} is not a whole safetensors file: {error}", where=where) from None


def _read_pickle(path: Path, where: str) -> dict[str, torch.Tensor]:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"the class {named[1]}" if named else "something other than tensors"
        raise WeightsError(
            f"{path} holds {what}, which would run code when loaded",
            where=where,
            hint="Save only tensors: torch.save(model.state_dict(), path), or a .safetensors file.",
        ) from None
    except Exception as error:  # torch raises RuntimeError, EOFError, OSError, KeyError... for what is no checkpoint
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise WeightsError(f"{path} is not a whole checkpoint: {reason}", where=where) from None
    # A wrapper may hold tensors of its own (a best accuracy) beside the weights.
    while isinstance(content, dict) and (inner := next((content[k] for k in _WRAPPERS if _is_dict(content, k)), None)):
        content = inner
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not tensors by name", where=where)
    tensors = {_bare(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise WeightsError(f"{path} holds no tensors", where=where)
    return tensors


def _is_dict(content: dict, key: str) -> bool:
    return isinstance(content.get(key), dict)


def _bare(name: object) -> str:
    """A tensor's name without what DistributedDataParallel and torch.compile put before it."""
    text = str(name)
    while text.startswith(("module.", "_orig_mod.")):
        text = text.removeprefix("module.").removeprefix("_orig_mod.")
    return text


def load_into(
    module: nn.Module,
    tensors: dict[str, torch.Tensor],
    path: str | Path,
    where: str,
    ignore: tuple[str, ...] = (),
    fresh: tuple[str, ...] = (),
) -> None:
    """Copy ``tensors`` into ``module``; every name and shape must fit (see :func:`fit`)."""
    module.load_state_dict(fit(module, tensors, path, where, ignore, fresh), strict=not fresh)


def fit(
    module: nn.Module,
    tensors: dict[str, torch.Tensor],
    path: str | Path,
    where: str,
    ignore: tuple[str, ...] = (),
    fresh: tuple[str, ...] = (),
) -> dict[str, torch.Tensor]:
    """The tensors that ``module`` (which may be on the meta device) takes, by its own names.

    Args:
        ignore: prefixes of tensors that may be left over (a classifier that a backbone has no use for).
        fresh: prefixes of the module's own tensors that may be missing or of another shape (a classifier to be
            trained on other labels); those are left out of the answer.

    Raises:
        WeightsError: tensors are missing, left over or of another shape; the first few of each are named.
    """
    own = module.state_dict()
    # A checkpoint of a larger model often holds the backbone under one prefix.
    if own and not set(own) & set(tensors):
        for prefix in ("backbone.", "model.", "encoder.", "model.backbone."):
            stripped = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if set(own) & set(stripped):
                tensors = stripped
                break
    unlike = {k for k in own if k in tensors and tensors[k].shape != own[k].shape}
    own = {k: v for k, v in own.items() if not (k.startswith(fresh) and (k in unlike or k not in tensors))}
    missing = [k for k in own if k not in tensors]
    extra = [k for k in tensors if k not in own and not k.startswith(ignore + fresh)]
    shapes = [f"{k} is {list(tensors[k].shape)} there and {list(v.shape)} here" for k, v in own.items() if k in unlike]
    if missing or extra or shapes:
        found = (("missing", missing), ("left over", extra), ("shapes", shapes))
        parts = [f"{what}: {_few(names)}" for what, names in found if names]
        raise WeightsError(
            f"{path} does not fit the architecture ({'; '.join(parts)})",
            where=where,
            hint="Check that backbone.type and its kwargs are what the weights were trained as.",
        )
    return {k: v for k, v in tensors.items() if k in own}


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
