"""A micro-batch splits itself: every field, also one that is added later."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields

import pytest
import torch

from radioplat.losses.base.grid import Overlap
from radioplat.models.features import Features
from radioplat.objectives.micro_batch import MicroBatch

B = 5


def rows(*shape: int) -> torch.Tensor:
    """Every row is its sample's number."""
    return torch.arange(B, dtype=torch.float32).reshape(B, *[1] * len(shape)).expand(B, *shape)


def overlap() -> Overlap:
    return Overlap(rows(3, 3), rows(4, 4) > 2, rows(6, 6) > 3)


# A value for each field, with nothing left out of it.
FULL = {
    "views": {"32": rows(3, 4, 4), "average": rows(3, 8, 8)},
    "weight": rows(),
    "label": rows().long(),
    "targets": {"a": Features(rows(5), rows(2, 2, 6), {"logits": rows(7)}), "b": Features(None, rows(2, 2, 3))},
    "factors": {"a": 2.0, "b": 0.0},
    "overlaps": {"a": overlap(), "b": Overlap(rows(3, 3))},
    "inner_overlaps": {"average": overlap()},
    "boxes": rows(2, 6),
}


def tensors(value, path: str = "") -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {path: value}
    inner = value if isinstance(value, dict) else vars(value) if dataclasses.is_dataclass(value) else {}
    return {name: t for key, v in inner.items() for name, t in tensors(v, f"{path}.{key}").items()}


def test_every_field_has_a_value_here():
    assert {f.name for f in fields(MicroBatch)} == FULL.keys(), "a field was added: give FULL a value for it"


def test_every_tensor_moves():
    whole = MicroBatch(**FULL)
    moved = tensors(whole.to(torch.device("meta")))
    assert {name: (t.shape, t.dtype) for name, t in moved.items()} == {
        name: (t.shape, t.dtype) for name, t in tensors(whole).items()
    }
    assert {t.device.type for t in moved.values()} == {"meta"}


@pytest.mark.parametrize(("count", "sizes"), [(1, [5]), (2, [3, 2]), (4, [2, 1, 1, 1]), (8, [1] * 5)])
def test_each_part_has_its_samples_of_every_field(count, sizes):
    whole = MicroBatch(**FULL)
    parts = whole.split(count)
    assert [len(part.weight) for part in parts] == sizes
    found = [tensors(part) for part in parts]
    assert len(tensors(whole)) == 16
    for name, value in tensors(whole).items():
        assert torch.equal(torch.cat([part[name] for part in found]), value), name
        assert [len(part[name]) for part in found] == sizes, name
    assert all(part.factors == whole.factors and part.overlaps["b"].student is None for part in parts)


@dataclass
class Larger(MicroBatch):
    masks: dict[str, torch.Tensor] | None = None
    names: object = None


def test_a_new_field_is_split_and_one_of_a_new_kind_is_refused_by_name():
    parts = Larger(**FULL, masks={"x": rows(2)}).split(2)
    assert [len(part.masks["x"]) for part in parts] == [3, 2] and type(parts[0]) is Larger
    with pytest.raises(TypeError, match=r"Larger\.names is a list"):
        Larger(**FULL, names=["a"] * B).split(2)
    with pytest.raises(ValueError, match=r"masks\['x'\] has 4 rows for 5 samples"):
        Larger(**FULL, masks={"x": rows(2)[:4]}).split(2)
