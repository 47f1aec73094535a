"""A Hugging Face folder as a teacher, with ``transformers``' own classes; code in the folder is never run."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models.backbones.timm_backbone import map_of
from radioplat.models.features import Features
from radioplat.models.on_meta import on_meta
from radioplat.models.weights.read import require_finite
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, NativeInput, refuse_kwargs, weights_field, weights_of

# In a file of a whole SAM 3, the start of the names of its ViT's tensors.
_SAM3_VIT = r"^(?:detector_model\.)?(?:vision_encoder\.)?backbone\."
# Models of which only the image tower is loaded: the part of the configuration that describes it, its class (empty: the
# one that AutoModel takes), and a pattern of what its tensors' names begin with, if transformers does not know it.
_TOWERS: dict[str, tuple[str, str, str]] = {
    "clip": ("vision_config", "CLIPVisionModelWithProjection", ""),
    "siglip": ("vision_config", "SiglipVisionModel", ""),
    "siglip2": ("vision_config", "Siglip2VisionModel", ""),
    "sam": ("vision_config", "SamVisionModel", ""),
    # SAM 3's neck is left out: RADIO distils the wide features before it.
    "sam3": ("vision_config.backbone_config", "", _SAM3_VIT),
    "sam3_video": ("detector_config.vision_config.backbone_config", "", _SAM3_VIT),
    "sam3_vision_model": ("backbone_config", "", _SAM3_VIT),
    "perception_lm": ("vision_config", "", r"^(?:model\.)?vision_tower\."),
}
# Arguments for loading a folder: nothing is downloaded, and no pickle is read.
LOADING = dict(local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True)
Result = TypeVar("Result")
_MOST_PREFIX = 32  # maximum number of class tokens and registers; a model with more is no ViT
_SMALL_PREFIX = 8  # the same for a model without a patch size


class HfTeacher(Adapter):
    """A folder with ``config.json`` and ``model.safetensors``: ViT, DINOv2, DINOv3, CLIP, SigLIP, SAM 3, ConvNeXt, ...

    Summary: the projected embedding if the model ends in one, else its pooler, else its class token, else the mean
    of the map. Normalisation is read from ``preprocessor_config.json`` or ``processor_config.json``.
    """

    kind = "hf"

    def __init__(self, model: nn.Module, config: Any, native: NativeInput) -> None:
        super().__init__()
        self.model, self.native = model, native
        self.pooled = True
        # True for NaFlex models, whose input is patches and their grid.
        self.patched = "spatial_shapes" in inspect.signature(model.forward).parameters
        self.fits_positions = getattr(config, "model_type", "") == "sam3_vit_model"
        self.patch = int(getattr(config, "patch_size", 0) or 0)
        accepts = inspect.signature(model.forward).parameters
        self.extra = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in accepts else {}
        size = native.size or 224
        with on_meta(), torch.no_grad():
            shape = self._run(torch.empty(1, 3, size, size)).last_hidden_state.shape
        self.stride, self.prefix = _grid(shape, size, self.patch)
        self.needs_multiple = len(shape) == 3

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> HfTeacher:
        """Build the structure without weights; always on the meta device, ``load`` replaces the model."""
        refuse_kwargs(teacher, "a Hugging Face folder")
        field, folder = weights_field(teacher), weights_of(teacher)
        config, model_class, _ = _open(folder, field)
        with on_meta():
            model = model_class(config)
        mean, std = _normalisation(folder)
        of_timm = getattr(config, "model_args", None) or {}  # of a model that transformers builds with timm
        size = getattr(config, "image_size", None) or of_timm.get("img_size")
        size = int(size[0] if isinstance(size, (list, tuple)) else size) if size else None
        summary = "projected embedding" if "Projection" in model_class.__name__ else "pooler, class token or mean"
        try:
            return cls(model.eval(), config, NativeInput(mean, std, size, summary))
        except Exception as error:  # models that are not vision encoders may raise anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SpecError(f"{type(model).__name__} takes no images: {reason}", where=field) from None

    def load(self, teacher: ResolvedTeacher) -> None:
        """Load the weights."""
        field, folder = weights_field(teacher), weights_of(teacher)
        if not any(folder.glob("*.safetensors")):
            raise WeightsError(
                f"{folder} holds no .safetensors file",
                where=field,
                hint="Make one of its .bin file: radioplat weights convert pytorch_model.bin model.safetensors.",
            )
        config, model_class, prefix = _open(folder, field)
        renames = {prefix: ""} if prefix else None
        load = partial(model_class.from_pretrained, folder, config=config, key_mapping=renames, **LOADING)
        self.model, info = load_quietly(load, folder, field)
        missing = sorted(info["missing_keys"])
        self.pooled = not any("pooler." in k for k in missing)  # a classifier's file has no trained pooler
        require_own_config(folder, [k for k in missing if "pooler." not in k], info, field)
        require_finite(self.model.state_dict(), folder, field)
        self.model.eval()

    def check(self, teacher: ResolvedTeacher) -> None:
        """Read the weights and check that they fit."""
        type(self).build(teacher).load(teacher)

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        out = self._run(images)
        body = out.last_hidden_state
        if body.ndim == 4:
            spatial, tokens = body.permute(0, 2, 3, 1), None
        else:
            spatial, tokens = map_of(body[:, self.prefix :], images, self.stride), body
        summary = getattr(out, "image_embeds", None)
        if summary is None and self.pooled:
            summary = getattr(out, "pooler_output", None)
        if summary is None:
            summary = tokens[:, 0] if tokens is not None and self.prefix else spatial.mean((1, 2))
        return Features(summary.flatten(1) if "summary" in wanted else None, spatial if "spatial" in wanted else None)

    def _run(self, images: torch.Tensor) -> Any:
        if self.fits_positions:
            _fit_positions(self.model, images)
        if not self.patched:
            return self.model(pixel_values=images, **self.extra)
        b, c, height, width = images.shape
        p = self.patch
        h, w = height // p, width // p
        if images.is_meta:  # the model reads the grid's values, so it cannot run here
            body = images.new_empty(b, h * w, self.model.config.hidden_size)
            return SimpleNamespace(last_hidden_state=body, pooler_output=body[:, 0])
        patches = images.reshape(b, c, h, p, w, p).permute(0, 2, 4, 3, 5, 1).reshape(b, h * w, p * p * c)
        shapes = torch.tensor([[h, w]] * b, device=images.device)
        mask = torch.ones(b, h * w, dtype=torch.long, device=images.device)
        return self.model(pixel_values=patches, pixel_attention_mask=mask, spatial_shapes=shapes)


def _fit_positions(model: Any, images: torch.Tensor) -> None:
    """Compute the rotary positions of SAM 3's global layers for the size of ``images``.

    transformers computes them once, for the size in the configuration.
    """
    height, width = images.shape[-2:]
    window, patch = model.config.window_size, model.config.patch_size
    config = SimpleNamespace(window_size=window, patch_size=patch, image_size=(width, height))  # in this order
    for layer in model.layers:
        if not layer.window_size:
            layer.position_ids = layer.precompute_positions(config, 0).to(images.device)


def _grid(shape: torch.Size, size: int, patch: int) -> tuple[int, int]:
    """Return stride and number of tokens before the patches, from the output shape for a square image."""
    if len(shape) == 4:
        return max(1, round(size / shape[2])), 0
    side = size // patch if patch else math.isqrt(shape[1])
    # Without a patch size the map's side has to divide the image's, and the prefix to be small.
    fits = patch or (size % side == 0 and shape[1] - side * side <= _SMALL_PREFIX)
    if fits and 0 <= shape[1] - side * side <= _MOST_PREFIX:
        return patch or size // side, shape[1] - side * side
    side = math.isqrt(shape[1])
    if side * side != shape[1]:
        raise ValueError(f"its {shape[1]} tokens are no map")
    return max(1, round(size / side)), 0


def open_config(folder: Path, field: str) -> tuple[dict[str, Any], Any]:
    """Read ``config.json``, as it is and as a configuration of transformers, without the folder's own code.

    Raises:
        SpecError: transformers is not installed, or has no such model.
        WeightsError: the folder contains no readable ``config.json``.
    """
    try:
        import transformers
    except ImportError:
        hint = "pip install 'radioplat[hf]'"
        raise SpecError("Hugging Face folders need the package transformers", where=field, hint=hint) from None
    try:
        raw = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        hint = "Give a folder with config.json and model.safetensors, as Hugging Face has it."
        raise WeightsError(f"{folder} holds no readable config.json: {error}", where=field, hint=hint) from None
    kind = raw.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        hint = "Code inside the folder is never run. A class of your own: model.backbone.type: package.module:Class."
        if "pretrained_cfg" in raw:
            hint = f"It is timm's: model.backbone.type: {raw.get('architecture')}, with its model.safetensors."
        raise SpecError(f"transformers has no model of type {kind!r}", where=field, hint=hint)
    return raw, transformers.CONFIG_MAPPING[kind].from_dict({k: v for k, v in raw.items() if k != "auto_map"})


def load_quietly(load: Callable[[], Result], folder: Path, field: str) -> Result:
    """Call ``load``, which opens ``folder``, without warnings (of an unused tower) and progress bars.

    Raises:
        WeightsError: it fails.
    """
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return load()
    except Exception as error:  # transformers raises OSError, RuntimeError, SafetensorError, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{folder} cannot be loaded: {reason}", where=field) from None
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


def require_own_config(folder: Path, missing: list[str], info: dict[str, Any], field: str) -> None:
    """Check that no tensor of a loaded model was ``missing`` in ``folder``, or of another shape by transformers'
    ``info``."""
    unlike = sorted(str(k) for k in info["mismatched_keys"])
    if missing or unlike:
        message = f"{folder} does not fit its own config.json (missing: {missing[:3]}, shapes: {unlike[:3]})"
        raise WeightsError(message, where=field)


def _open(folder: Path, field: str) -> tuple[Any, Any, str]:
    """Read the configuration, and find the class of ``transformers`` that it names; errors as of :func:`open_config`.

    Returns:
        Both, and a pattern of what the names of the tensors begin with in the file alone; empty for nothing.
    """
    raw, config = open_config(folder, field)
    import transformers

    kind = raw["model_type"]
    part, named, prefix = _TOWERS.get(kind, ("", "", ""))
    if part:
        projection = getattr(config, "projection_dim", None)
        config = attrgetter(part)(config)
        if projection:
            config.projection_dim = projection
    saved_as = named or (raw.get("architectures") or [""])[0]
    if named or (saved_as.endswith("VisionModelWithProjection") and hasattr(transformers, saved_as)):
        return config, getattr(transformers, saved_as), prefix
    if type(config) not in transformers.MODEL_MAPPING:
        raise SpecError(f"transformers has no encoder of type {kind!r}", where=field)
    model_class = transformers.MODEL_MAPPING[type(config)]
    return config, model_class[0] if isinstance(model_class, (list, tuple)) else model_class, prefix


def _normalisation(folder: Path) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        try:
            raw = json.loads((folder / name).read_text())
        except (OSError, ValueError):
            continue
        images = raw.get("image_processor", raw)
        if images.get("image_mean") and images.get("image_std"):
            return tuple(images["image_mean"]), tuple(images["image_std"])
    return None, None
