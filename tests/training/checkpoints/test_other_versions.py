"""A checkpoint of another version is named as such, never as damage, and never overwritten."""

from __future__ import annotations

import dataclasses
import json
import typing

import pytest
from checkpoint_files import STATE, change_header, change_state, seal
from safetensors.torch import load_file, save_file

import radioplat
from radioplat.errors import WeightsError
from radioplat.models.detectors.base import DetectorArchitecture
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import StudentArchitecture
from radioplat.training.checkpoints import checkpoint, run_state
from radioplat.training.checkpoints.checkpoint import (
    RunState,
    newest,
    verified_state,
)
from radioplat.training.checkpoints.mirror import Mirror


@pytest.mark.parametrize(
    "state, reason",
    [
        ("[]", "names no schema"),
        ("{}", "names no schema"),
        ('{"schema": 999, "global_step": 7}', "has schema 999, radioplat .* reads schema 1"),
        ('{"schema": "two"}', "has schema two, radioplat .* reads schema 1"),
        ('{"schema": 1, "global_step": 3, "steps": 3}', "has the unknown field steps"),
        ('{"schema": 1, "global_step": "3"}', "has no global_step that is a number"),
    ],
)
def test_a_state_of_another_form(state, reason, write, tmp_path):
    folder = write()
    (folder / checkpoint.STATE).write_text(state)
    seal(folder)
    assert verified_state(folder) is None
    with pytest.raises(WeightsError, match=f"model_epoch_001: of another version: state.json {reason}"):
        newest(tmp_path)


def hidden_in(text: str, path: str) -> str:
    """JSON text with a field ``from_tomorrow`` in the object at ``path``."""
    raw = json.loads(text)
    at = raw
    for part in filter(None, path.split(".")):
        at = at[int(part)] if isinstance(at, list) else at[part]
    at["from_tomorrow"] = 1
    return json.dumps(raw)


MODEL = "radioplat.student"


def cases():
    """Every JSON that a checkpoint holds, every object in it whose fields this version lists."""
    yield "state.json", "", "from_tomorrow"
    yield "state.json", "teacher_cost.a", "teacher_cost.a.from_tomorrow"
    yield "manifest.json", "", "from_tomorrow"
    for file in ("student.safetensors", "heads.safetensors"):
        yield file, None, "from_tomorrow"
        yield file, "", f"{MODEL}.from_tomorrow"
        for path, name in (("heads.0", "heads[0]"), *((p, p) for p in ("pruned", "sparsity", "quantized"))):
            yield file, path, f"{MODEL}.{name}.from_tomorrow"
        yield file, "quantized.layers.x", f"{MODEL}.quantized.layers.x.from_tomorrow"
    yield checkpoint.OPTIMIZER, None, "from_tomorrow"


@pytest.mark.parametrize("file, path, name", list(cases()))
def test_a_field_of_another_version_is_named_and_never_called_damage(file, path, name, write, tmp_path):
    folder = write()
    if file == checkpoint.STATE:
        change_state(folder, teacher_cost={"a": {"images": 3}})
        (folder / file).write_text(hidden_in((folder / file).read_text(), path))
        seal(folder)
    elif file == checkpoint.MANIFEST:
        seal(folder, from_tomorrow=1)
    elif path is None:
        change_header(folder, file, lambda metadata: metadata.update(from_tomorrow="1"))
    else:

        def hide(metadata):
            raw = json.loads(metadata[MODEL])
            raw |= {"pruned": {}, "sparsity": {"pattern": "2:4", "layers": []}, "quantized": {"layers": {"x": {}}}}
            metadata[MODEL] = hidden_in(json.dumps(raw), path)

        change_header(folder, file, hide)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(WeightsError) as caught:
        newest(tmp_path)
    text = str(caught.value)
    assert f"of another version: {file} has the unknown" in text and f" {name};" in text and "not whole" not in text
    assert f"radioplat {radioplat.__version__}" in text and "train.restart=true" in text
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_one_of_an_older_schema_is_read_as_it_is(write, tmp_path, monkeypatch):
    """A made-up schema 2 calls ``epoch`` what schema 1 called ``round``; here and on a mirror."""
    folder = write()
    state = json.loads((folder / "state.json").read_text())
    state["round"] = state.pop("epoch")
    (folder / "state.json").write_text(json.dumps(state))
    seal(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "unknown field round" in str(checkpoint.examine(folder))

    def renamed(old: dict) -> dict:
        return {("epoch" if name == "round" else name): value for name, value in old.items()}

    monkeypatch.setattr(run_state, "SCHEMA", 2)
    assert "has schema 1" in str(checkpoint.examine(folder)), "without an upgrade it is refused"
    monkeypatch.setitem(run_state.UPGRADES, 1, renamed)
    expected = dataclasses.replace(STATE, schema=2)
    assert newest(tmp_path) == (folder, expected)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    Mirror(str(tmp_path / "mirror")).upload(folder)
    brought, unreadable = Mirror(str(tmp_path / "mirror")).bring_newer(None, tmp_path / "lost")
    assert brought == (tmp_path / "lost" / folder.name, expected) and unreadable == []


@pytest.mark.parametrize("path", ["", "student", "quantized"])
def test_a_field_of_a_detector_of_another_version_is_named(path, write, tmp_path):
    folder = write()
    tensors = load_file(folder / "student.safetensors")
    for file in ("student.safetensors", "heads.safetensors"):
        (folder / file).unlink()
    form = {"student": {"type": "test_efficientnet"}, "num_classes": 2, "quantized": {"layers": {}}}
    metadata = {"radioplat.detector": hidden_in(json.dumps(form), path)}
    save_file(tensors, folder / "detector.safetensors", metadata)
    seal(folder)
    name = ".".join(filter(None, ("radioplat.detector", path, "from_tomorrow")))
    with pytest.raises(WeightsError, match=f"of another version: detector.safetensors has the unknown field {name};"):
        newest(tmp_path)


def test_the_list_of_fields_above_is_complete():
    """Dataclasses that a checkpoint's JSON is made of; one that is new belongs into the cases."""
    found, ahead = set(), [RunState, StudentArchitecture, DetectorArchitecture]
    while ahead:
        kind = ahead.pop()
        found.add(kind.__name__)
        for hint in typing.get_type_hints(kind).values():
            inner = [hint, *typing.get_args(hint)]
            ahead += [one for one in inner if dataclasses.is_dataclass(one)]
    assert found == {
        "RunState", "StudentArchitecture", "DetectorArchitecture", "HeadArchitecture", "Reshaping", "Quantization",
        "LayerFormats", "Sparsity",
    }  # fmt: skip


def test_a_file_of_another_version_is_named(write, tmp_path):
    folder = write()
    (folder / "sampler.bin").write_bytes(b"of tomorrow")
    seal(folder)
    with pytest.raises(WeightsError, match="of another version: manifest.json has the unknown entry sampler.bin"):
        newest(tmp_path)
    (folder / "sampler.bin").write_bytes(b"damaged")
    with pytest.raises(WeightsError, match="not whole: sampler.bin is missing or damaged"):
        newest(tmp_path)


def test_another_versions_is_in_the_way_of_older_ones_only(write, tmp_path):
    write("model_epoch_001", 3)
    change_state(write("model_epoch_002", 6), from_tomorrow=1)
    with pytest.raises(WeightsError, match="model_epoch_002: of another version.*\n.*go on at step 3 without it"):
        newest(tmp_path)
    assert newest(tmp_path / "..") is None
    later = write("model_epoch_003", 9)
    assert newest(tmp_path)[0] == later


def test_one_whose_step_nobody_knows_is_not_missed(write, tmp_path):
    write("model_epoch_001", 3)
    folder = write("model_epoch_002", 6)
    (folder / checkpoint.STATE).write_text('{"schema": 2, "progress": {"step": 6}}')
    seal(folder)
    with pytest.raises(WeightsError, match="schema 2"):
        newest(tmp_path)


def test_the_version_that_wrote_it_is_named(write, tmp_path):
    folder = write()
    change_header(folder, "student.safetensors", lambda metadata: metadata.update({"radioplat.version": "9.8.7"}))
    assert newest(tmp_path)[0] == folder  # another version alone is no reason to refuse
    change_state(folder, schema=2)
    with pytest.raises(WeightsError, match="schema 2, .* it was written by radioplat 9.8.7"):
        newest(tmp_path)


def test_a_student_with_a_field_of_another_version_is_named(write):
    folder = write()
    change_header(folder, "student.safetensors", lambda m: m.update({MODEL: hidden_in(m[MODEL], "heads.0")}))
    with pytest.raises(WeightsError, match=r"student.safetensors .*\(radioplat.student: heads\[0\].from_tomorrow\)"):
        load_student(folder)
