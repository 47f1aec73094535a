"""Sections that are made one by one are those of the whole schema."""

from __future__ import annotations

import dataclasses

import pytest
from omegaconf import OmegaConf

from radioplat.spec.loading.merge import merged, section_defaults
from radioplat.spec.schema.root import Spec


def test_defaults_are_those_of_the_whole_schema():
    assert merged({}) == OmegaConf.to_object(OmegaConf.structured(Spec))


@pytest.mark.parametrize("section", [each.name for each in dataclasses.fields(Spec)])
def test_the_defaults_of_a_section_are_those_of_the_whole_schema(section):
    own, whole = section_defaults(section), OmegaConf.structured(Spec)
    assert own[section] == whole[section] and OmegaConf.get_type(own, section) == OmegaConf.get_type(whole, section)
