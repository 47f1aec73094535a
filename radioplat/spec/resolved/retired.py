"""Fields without effect: those that a spec may still give for one release, and those that are gone."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from radioplat.spec.schema.root import Spec

RETIRED = {"cluster.spare_workers": "workers are no longer started ahead of a restart"}  # field path: the reason
# Moved here from RETIRED a release later, when the schema loses the field; `radioplat migrate run` removes its lines.
REMOVED: dict[str, str] = {}


def retired_field_notes(spec: Spec) -> Iterator[str]:
    """Yield a sentence for each field of :data:`RETIRED` to which ``spec`` gives a value other than the default."""
    defaults = Spec()
    for path, reason in RETIRED.items():
        value = operator.attrgetter(path)
        if value(spec) != value(defaults):
            yield f"{path} has no effect: {reason}. Remove it; the next release refuses it"
