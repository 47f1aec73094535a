"""Kinds of detectors by name. A kind's module is imported only where a spec or a file names the kind.

Such a module has four functions:

- ``build(kind, options, num_classes, pyramid, where) -> nn.Module``: an untrained decoder on the pyramid's maps;
- ``run(decoder, maps, images, targets)``: its output in transformers' form, see
  :class:`radioplat.models.detectors.base.Detector`;
- ``input_projections(decoder) -> nn.ModuleList``: the layers that read the maps, then those of further levels;
- ``level_shapes(decoder, shapes) -> list``: heights and widths of the maps that its encoder reads.
"""

from __future__ import annotations

import importlib
from typing import Any

from radioplat.errors import SpecError

KINDS = {
    "rtdetr": "radioplat.models.detectors.rtdetr",
    "rtdetr_v2": "radioplat.models.detectors.rtdetr",
    "dino": "radioplat.models.detectors.dino.dino",
}


def kind_module(kind: str, where: str) -> Any:
    """Import the module of the detectors called ``kind``.

    Args:
        where: the spec field of the detector, for messages.

    Raises:
        SpecError: there is no such kind, or transformers is not installed.
    """
    if kind not in KINDS:
        hint = f"One of {', '.join(KINDS)}."
        raise SpecError(f"no detector is called {kind!r}", where=f"{where}.kind", hint=hint)
    try:
        return importlib.import_module(KINDS[kind])
    except ImportError as error:
        if (error.name or "").startswith("radioplat"):
            raise
        hint = "pip install 'radioplat[hf]'"
        raise SpecError(f"detectors of kind {kind} need {error.name}", where=where, hint=hint) from None
