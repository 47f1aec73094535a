"""The settings that the sample order depends on, as a checkpoint stores them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from radioplat.data.loading.run_data import RunData, differing_fields
from radioplat.spec.schema.dataset import ResolutionFilter, SplitConfig, TarSource, WeightMode
from radioplat.training.checkpoints.resume import ORDER_FIELDS

# Another value of each field that is compared by itself.
CHANGES = {
    "tar_data_sources": [TarSource(root_dir="a", scale_factor=2.0)],
    "seed": 43,
    "data_weight_mode": WeightMode.inv_frequency,
    "native_resolution_filter": ResolutionFilter(min_area=5),
    "dedup": True,
    "views_per_step": 2,
}
COVERED_BY_THE_INDEX = {"images_dir", "coco"}  # rows of the index, and the digest of the boxes
NO_EFFECT = {"prefetch", "full_equivariance", "shift_equivariance", "reject_uniform_color"}  # on which sample is next


@pytest.fixture(scope="module")
def data(write_run_data, tmp_path_factory) -> RunData:
    return write_run_data(tmp_path_factory.mktemp("run"))[1]


def with_split(data: RunData, **changes) -> RunData:
    split = dataclasses.replace(data.split, **changes)
    return RunData(data.index, split, data.codes, data.frequency, data.shard_weights)


def test_every_setting_of_the_order_has_a_name_for_users(data):
    fields = data.order_fields(8, 10**6).keys()
    assert fields | {"boxes", "views_per_step"} == ORDER_FIELDS.keys()


def test_every_field_of_a_split_is_compared_or_named_here():
    fields = {field.name for field in dataclasses.fields(SplitConfig)}
    assert fields == CHANGES.keys() | COVERED_BY_THE_INDEX | NO_EFFECT, "does a new field change the sample order?"


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_field_is_seen(data, field):
    now = with_split(data, **{field: CHANGES[field]}).order_fields(8, 10**6)
    assert len(differing_fields(data.order_fields(8, 10**6), now)) == 1


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ResolutionFilter)])
def test_a_changed_filter_is_seen(data, field):
    now = with_split(data, native_resolution_filter=ResolutionFilter(**{field: 5})).order_fields(8, 10**6)
    assert differing_fields(data.order_fields(8, 10**6), now) == ["filters"]


def test_a_filter_that_a_later_version_adds_changes_nothing_until_it_is_set(data):
    @dataclasses.dataclass
    class Later(ResolutionFilter):
        max_side: int | None = None

    before = data.order_fields(8, 10**6)
    assert with_split(data, native_resolution_filter=Later()).order_fields(8, 10**6) == before
    now = with_split(data, native_resolution_filter=Later(max_side=9)).order_fields(8, 10**6)
    assert differing_fields(before, now) == ["filters"] and json.loads(now["filters"])[0]["max_side"] == 9


def test_fields_that_only_one_side_has_differ():
    assert differing_fields({"seed": "1", "boxes": "b"}, {"seed": "1", "new": "n"}) == ["boxes", "new"]
