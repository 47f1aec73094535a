"""One list of the schemes of object stores: what the checks let pass is what the clients take."""

from __future__ import annotations

import pytest

from radioplat.data.storage.object_stores import strip_scheme
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved import paths

FIELDS = pytest.mark.parametrize("field", ["feature_cache.dir", "train.checkpoint_dir"])


def problems(field: str, folder: str) -> list[str]:
    found = check(load_spec(None, [f"{field}={folder}"]))
    return [f"{p.message} {p.hint}" for p in found if p.where == field]


@FIELDS
@pytest.mark.parametrize("scheme", paths.SCHEMES)
def test_a_store_that_has_a_client_is_a_place(field, scheme):
    folder = f"{scheme}bucket/folder"
    assert paths.is_remote(folder) and strip_scheme(folder) == "bucket/folder"
    assert problems(field, folder) == []


@FIELDS
@pytest.mark.parametrize("folder", ["hdfs://host/folder", "S3://bucket/folder", "file:///folder"])
def test_another_scheme_is_refused_with_those_that_are_known(field, folder):
    hint = "Give a folder, s3://bucket/folder or gs://bucket/folder."
    assert problems(field, folder) == [f"{folder} has an unknown URL scheme {hint}"]


@pytest.mark.parametrize(
    ("path", "is_repository"),
    [
        ("google/siglip2-base-patch16-224", True),
        ("facebook/dinov3.1_vit", True),
        ("weights/teacher.pth", False),
        ("weights/teacher.safetensors", False),
        ("/weights/teacher", False),
        ("./weights/teacher", False),
        ("teacher", False),
    ],
)
def test_a_repository_of_the_hub_without_its_scheme_is_told_its_address(path, is_repository):
    problem = paths.no_such_weights(path, "distill.teacher[0].pretrained_teacher_model_path")
    assert (f"radioplat weights fetch hf://{path}" in problem.hint) == is_repository
    assert is_repository or "hf://ORG/NAME" in problem.hint


@FIELDS
def test_a_new_scheme_stands_in_one_place(field, monkeypatch):
    monkeypatch.setattr(paths, "SCHEMES", (*paths.SCHEMES, "az://"))
    assert problems(field, "az://bucket/folder") == []
    assert "or az://bucket/folder" in problems(field, "hdfs://host/folder")[0]
