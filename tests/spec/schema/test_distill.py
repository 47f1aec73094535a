"""The schema of ``distill`` stands without omegaconf, and means the same to it."""

from __future__ import annotations

import omegaconf

from radioplat.spec.schema import distill


def test_a_field_without_a_default_is_missing_to_omegaconf():
    assert distill.MISSING == omegaconf.MISSING
    binding = omegaconf.OmegaConf.structured(distill.BindingConfig)
    assert omegaconf.OmegaConf.is_missing(binding, "criterion")
