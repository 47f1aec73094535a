"""Checks of images that a caller gives to a student or a detector."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from radioplat.errors import DataError

ROUNDING = 2**-7  # of bf16, just above 1
_WANTED = "Give RGB images [B, 3, H, W]: uint8, or floats from 0 to 1."


def check_images(images: Any, multiple: int, device: torch.device) -> None:
    """Refuse images of a wrong type, shape or place. No value is read, so that a GPU need not be waited for.

    Args:
        multiple: height and width must be multiples of it.
        device: of the model.

    Raises:
        DataError: with what was given, and what to do.
    """
    if not isinstance(images, torch.Tensor):
        hint = "torch.from_numpy makes one of an array. " + _WANTED
        raise _error(f"this is a {type(images).__name__}, not a tensor", hint)
    shape = list(images.shape)
    if images.dtype is not torch.uint8 and not images.is_floating_point():
        raise _error(f"these are {_name(images)} {shape}", f"Convert them: images.to(torch.uint8). {_WANTED}")
    if len(shape) == 3 and shape[0] != 3 == shape[2]:
        hint = f"Move them, and add the axis of the batch: images.permute(2, 0, 1)[None]. {_WANTED}"
        raise _error(f"{shape} is one image with its channels last", hint)
    if len(shape) == 3:
        raise _error(f"{shape} is one image, without the axis of the batch", f"Add it: images[None]. {_WANTED}")
    if len(shape) != 4:
        raise _error(f"{shape} has {len(shape)} axes instead of four", _WANTED)
    if shape[1] != 3:
        if shape[3] == 3:
            raise _error(f"{shape} has its channels last", f"Move them: images.permute(0, 3, 1, 2). {_WANTED}")
        kind = {1: " (grey images?)", 4: " (RGBA?)"}.get(shape[1], "")
        raise _error(f"{shape} has {shape[1]} channels{kind} instead of 3", _WANTED)
    if not images.numel():
        raise _error(f"{shape} has no pixels", _WANTED)
    height, width = shape[2:]
    if height % multiple or width % multiple:
        sizes = " x ".join(str(max(1, round(side / multiple)) * multiple) for side in (height, width))
        message = f"{height} x {width} pixels are not multiples of {multiple}, the model's patch or stride"
        raise _error(message, f"Resize or crop them, for example to {sizes}.")
    if images.device != device:
        message = f"they are on {images.device}, and the model is on {device}"
        raise _error(message, f"Move them: images.to({str(device)!r}).")


def check_range(images: torch.Tensor) -> None:
    """Refuse floats that are not from 0 to 1; waits for a GPU, since it reads the smallest and the largest value.

    Raises:
        DataError: with both, and what they probably are.
    """
    if isinstance(images, FakeTensor) or images.is_meta:
        return
    if images.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    low, high = torch.stack(images.detach().aminmax()).tolist()
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return
    given = f"the floats are from {low:.3g} to {high:.3g}, and not from 0 to 1"
    if low != low:
        raise _error("a value is not a number (NaN)", "Look for it in the steps before.")
    if low >= 0 and 1.5 < high <= 256:
        raise _error(given, "Divide them by 255, or give uint8.")
    hint = "The model normalises images itself: leave your own normalisation out. If resizing went beyond: clamp(0, 1)."
    raise _error(given, hint)


def _name(images: torch.Tensor) -> str:
    return str(images.dtype).removeprefix("torch.")


def _error(message: str, hint: str) -> DataError:
    return DataError(message, where="images", hint=hint)
