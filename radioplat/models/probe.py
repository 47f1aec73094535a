"""Output shapes of a backbone at an image size, computed on the meta device."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.errors import RadioplatError, SpecError
from radioplat.models.features import Features
from radioplat.models.on_meta import on_meta


def probe(backbone: nn.Module, size: int, wanted: frozenset[str], where: str, device: str = "meta") -> Features:
    """Run ``backbone`` on one image; on the meta device every output has a shape and no values.

    Args:
        backbone: called as ``backbone(images, wanted)``.
        size: side of the image in pixels.
        where: the spec field of the size, for messages.
        device: the device of the backbone.

    Raises:
        SpecError: the backbone cannot compute such an image, or its output has another form than ``Features``.
    """
    training = backbone.training
    try:
        with on_meta() if device == "meta" else torch.device(device), torch.no_grad():
            features = backbone.eval()(torch.empty(1, 3, size, size), wanted)
    except RadioplatError:
        raise
    except Exception as error:  # for an unsupported size a layer may raise any exception
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SpecError(f"this backbone cannot take images of {size} x {size} pixels: {reason}", where=where) from None
    finally:
        backbone.train(training)
    if (features.summary is not None and features.summary.ndim != 2) or (
        features.spatial is not None and features.spatial.ndim != 4
    ):
        raise SpecError("this backbone gives no summary vector or no map of features", where=where)
    return features
