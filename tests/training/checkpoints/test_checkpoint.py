"""A checkpoint is whole or it does not count."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import typing

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import radioplat
from radioplat.data.ledger.lineage import Reached
from radioplat.errors import WeightsError
from radioplat.models.detectors.base import DetectorArchitecture
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.training.checkpoints import checkpoint, run_state
from radioplat.training.checkpoints.checkpoint import (
    LOSSES,
    RunState,
    commit,
    newest,
    read_checkpoint,
    read_losses,
    snapshot,
    verified_state,
)
from radioplat.training.checkpoints.mirror import Mirror

STATE = RunState(
    global_step=3,
    epoch=1,
    samples_consumed=24,
    optimizer_steps=2,
    order_hash="abc",
    order_fields={"seed": "1"},
    quarantined=["a"],
)


@pytest.fixture(scope="module")
def student() -> Student:
    torch.manual_seed(0)
    return Student(StudentArchitecture("test_efficientnet", heads=(HeadArchitecture("a", 4),)))


@pytest.fixture
def write(student, tmp_path):
    """write(name, step) -> folder of a checkpoint."""

    def make(name: str = "model_epoch_001", step: int = 3):
        moments = {f"{n}.exp_avg": torch.full_like(p, 0.5) for n, p in student.named_parameters()}
        state = dataclasses.replace(STATE, global_step=step)
        return commit(tmp_path, snapshot(name, student, student.state_dict(), moments, state))

    return make


def test_round_trip(write, student, tmp_path):
    folder = write()
    assert folder == tmp_path / "model_epoch_001" and [p.name for p in tmp_path.iterdir()] == [folder.name]
    assert newest(tmp_path) == (folder, STATE) and verified_state(folder) == STATE
    tensors, moments = read_checkpoint(folder)
    assert set(tensors) == set(student.state_dict())
    assert all(torch.equal(tensors[k], v) for k, v in student.state_dict().items())
    assert {k.removesuffix(".exp_avg") for k in moments} == {n for n, _ in student.named_parameters()}
    assert all((m == 0.5).all() for m in moments.values())


def test_statistics_of_losses_are_part_of_it(write, student, tmp_path):
    assert read_losses(write()) == {}
    mine = {"criteria.t/summary.direction": torch.arange(3, dtype=torch.float64) / 7}
    made = snapshot("model_epoch_002", student, student.state_dict(), {}, STATE, {LOSSES: (mine, {})})
    folder = commit(tmp_path, made)
    found = read_losses(folder)
    assert found.keys() == mine.keys() and all(torch.equal(found[name], value) for name, value in mine.items())
    (folder / checkpoint.LOSSES).unlink()
    assert verified_state(folder) is None


def test_the_newest_by_steps_not_by_name(write, tmp_path):
    write("model_epoch_009", 5)
    last = write("model_epoch_001_step_00090", 90)
    assert newest(tmp_path)[0] == last


def test_written_again_under_one_name(write, tmp_path):
    write(step=3)
    again = write(step=8)
    assert newest(tmp_path) == (again, dataclasses.replace(STATE, global_step=8))
    assert [p.name for p in tmp_path.iterdir()] == [again.name]


FILES = ["student.safetensors", "heads.safetensors", checkpoint.OPTIMIZER, checkpoint.STATE, checkpoint.MANIFEST]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "damage", [lambda d: d[: len(d) // 2], lambda d: b"", flip], ids=["half", "empty", "flipped bit"]
)
def test_a_damaged_one_is_passed_over(file, damage, write, tmp_path):
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    (newer / file).write_bytes(damage((newer / file).read_bytes()))
    assert verified_state(newer) is None
    assert newest(tmp_path)[0] == older


def test_all_torn_is_a_question(write, tmp_path):
    for name, step in (("model_epoch_001", 3), ("model_epoch_002", 6)):
        (write(name, step) / "student.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="cannot read these checkpoints: shall the run begin anew") as caught:
        newest(tmp_path)
    assert str(caught.value).count("not whole: student.safetensors is missing or damaged") == 2


@pytest.fixture
def must_end():
    """A test that still reads after some seconds has failed; it is not waited for."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("still reading"))
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["/dev/zero", "zeros", "pipe", ".", "../pipe"])
def test_a_manifest_that_names_what_is_no_file(name, write, tmp_path, must_end):
    """It is never read: a plain name counts as damage, another one as the entry of a version that is not known."""
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    os.symlink("/dev/zero", newer / "zeros")
    os.mkfifo(newer / "pipe")
    os.mkfifo(tmp_path / "pipe")
    manifest = json.loads((newer / checkpoint.MANIFEST).read_text())
    (newer / checkpoint.MANIFEST).write_text(json.dumps({name: "0" * 64, **manifest}))
    if name in ("zeros", "pipe"):
        assert newest(tmp_path)[0] == older
    else:
        with pytest.raises(WeightsError, match="unknown entry"):
            newest(tmp_path)


@pytest.mark.parametrize("file", [checkpoint.STATE, checkpoint.MANIFEST])
def test_a_pipe_in_place_of_a_file(file, write, tmp_path, must_end):
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    (newer / file).unlink()
    os.mkfifo(newer / file)
    assert newest(tmp_path)[0] == older


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file(file, write, tmp_path):
    older, newer = write("model_epoch_001", 3), write("model_epoch_002", 6)
    (newer / file).unlink()
    assert newest(tmp_path)[0] == older


@pytest.mark.parametrize("manifest", ["{}", "[]", "3", "null", '{"state.json": 1}'])
def test_a_manifest_that_does_not_cover_the_files(manifest, write, tmp_path):
    (write() / checkpoint.MANIFEST).write_text(manifest)
    with pytest.raises(WeightsError, match="(?s)not whole: manifest.json .*begin anew without it"):
        newest(tmp_path)


def seal(folder, **more) -> None:
    """A manifest that is right about what lies there; ``more`` are further entries."""
    files = [path for path in folder.iterdir() if path.name not in (checkpoint.MANIFEST, "validation.json")]
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(sums | more))


def change_state(folder, **fields) -> None:
    """A whole checkpoint as a version would write it that has these fields too."""
    path = folder / checkpoint.STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    seal(folder)


def change_header(folder, file, change) -> None:
    """The same with another header of a tensor file; ``change`` gets its metadata."""
    tensors = load_file(folder / file)
    with safe_open(folder / file, "pt") as opened:
        metadata = dict(opened.metadata() or {})
    change(metadata)
    save_file(tensors, folder / file, metadata)
    seal(folder)


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


@pytest.mark.parametrize("name", ["/dev/zero", "../../../../../../../../dev/zero"])
def test_a_manifest_leads_nowhere_else(name, write, tmp_path):
    folder = write()
    seal(folder, **{name: 64 * "0"})
    with pytest.raises(WeightsError, match=f"unknown entry {name}"):
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


@pytest.mark.parametrize("name", ["student.safetensors", "heads.safetensors"])
def test_flipped_weights_are_refused_by_the_file_they_are_in(name, write, tmp_path):
    folder = write()
    load_student(folder)
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1  # the last weight, by 2^-15 of itself: still finite, still the right shape
    (folder / name).write_bytes(content)
    for path in (folder, folder / name) if name == "student.safetensors" else (folder,):
        with pytest.raises(WeightsError, match=f"{name} is not the file that was written") as error:
            load_student(path, "evaluate.checkpoint")
        assert error.value.problems[0].where == "evaluate.checkpoint"
    load_student(folder, verify=False)
    (folder / checkpoint.MANIFEST).write_text("{")
    with pytest.raises(WeightsError, match="manifest.json cannot be read"):
        load_student(folder)
    (folder / checkpoint.MANIFEST).unlink()  # a folder without one, as `save_student` writes it, opens
    load_student(folder)


def test_what_is_still_being_written_does_not_count(write, tmp_path):
    done = write("model_epoch_001", 3)
    later = write("model_epoch_002", 6)
    later.rename(tmp_path / ".model_epoch_002.partial")  # killed just before the rename
    assert newest(tmp_path)[0] == done
    assert newest(tmp_path / "nothing") is None
    # The next attempt writes over what was left behind.
    assert newest(tmp_path)[0] != write("model_epoch_002", 6) and newest(tmp_path)[1].global_step == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model_epoch_001", "model_epoch_002"]


def test_no_moments_yet(student, tmp_path):
    folder = commit(tmp_path, snapshot("model_epoch_000", student, student.state_dict(), {}, RunState()))
    assert newest(tmp_path)[0] == folder and read_checkpoint(folder)[1] == {}


def test_a_state_knows_which_attempts_led_to_it():
    """Not those that began where a later one began, too; and nothing is made up for a run that did not record them."""
    state = RunState()
    for attempt, steps in ((1, 4), (2, 4), (3, 9), (3, 12), (7, 12)):
        state.begin(attempt)
        state.global_step = steps
    assert state.starts == [[1, 0], [3, 4], [7, 12]]
    assert state.reached == Reached(12, 7, ((1, 0), (3, 4), (7, 12)))
    old = RunState(global_step=6, attempt=2)
    old.begin(3)
    assert old.starts == [] and old.attempt == 3
    old.order_from = 6  # another order, or another folder, begins here
    old.begin(4)
    assert old.starts == [[4, 6]]
