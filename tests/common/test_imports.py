"""A user's own code by its import path: found, or an error that names the spec's field."""

from __future__ import annotations

import pytest

from radioplat.common.imports import import_object
from radioplat.errors import SpecError


def test_the_named_object_is_imported():
    assert import_object("collections:OrderedDict", "a.field").__name__ == "OrderedDict"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_package:name", "ModuleNotFoundError"),
        ("collections:no_such_name", "AttributeError"),
        ("broken_on_import:name", "ZeroDivisionError"),
        (":name", "cannot import :name"),
    ],
)
def test_what_cannot_be_imported_is_an_error_of_the_field(path, message, tmp_path, monkeypatch):
    (tmp_path / "broken_on_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match=message) as error:
        import_object(path, "distill.teachers[0].loss_type")
    assert "distill.teachers[0].loss_type" in str(error.value)
