import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.errors import RadioplatError
from radioplat.tracking.results import TaskFolder

LEAF = st.none() | st.booleans() | st.integers() | st.text(alphabet="abc-:1 ", max_size=5)
TREE = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(
        LEAF, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.sampled_from("xyz"), t, max_size=3), max_leaves=8
    ),
)


def test_folder_and_override(tmp_path):
    assert TaskFolder(tmp_path / "r", "distill").path == tmp_path / "r" / "distill"
    folder = TaskFolder(tmp_path / "r", "distill", tmp_path / "elsewhere")
    assert folder.path == tmp_path / "elsewhere" and folder.path.is_dir()


def test_a_folder_that_cannot_be_made_names_the_field(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RadioplatError) as error:
        TaskFolder(tmp_path / "file", "distill")
    assert error.value.problems[0].where == "results_dir" and "file" in str(error.value)


def test_checkpoint_names_sort_as_they_were_made():
    name = TaskFolder.checkpoint_name
    assert name(7) == "model_epoch_007" and name(7, 42) == "model_epoch_007_step_00042"
    made = [name(0, 100), name(1, 90), name(2, 7), name(2, 11), name(10, 5)]
    assert sorted(made) == made


def test_latest_follows_the_link_and_survives_a_move(tmp_path):
    folder = TaskFolder(tmp_path / "r", "distill")
    assert folder.latest() is None
    for epoch in (0, 1):
        name = folder.checkpoint_name(epoch)
        (folder.path / name).mkdir()
        folder.point_latest(name)
        assert folder.latest() == (folder.path / name).resolve()
    (tmp_path / "r").rename(tmp_path / "moved")
    moved = TaskFolder(tmp_path / "moved", "distill")
    assert moved.latest() == (moved.path / "model_epoch_001").resolve()
    assert {p.name for p in moved.path.iterdir()} == {"model_epoch_000", "model_epoch_001", "model_latest"}
    assert [p.name for p in moved.checkpoints()] == ["model_epoch_000", "model_epoch_001"]


def test_latest_is_none_when_the_checkpoint_is_gone(tmp_path):
    folder = TaskFolder(tmp_path, "distill")
    (folder.path / "model_epoch_000").mkdir()
    folder.point_latest("model_epoch_000")
    (folder.path / "model_epoch_000").rmdir()
    assert folder.latest() is None


@pytest.mark.parametrize("name", ["model_epoch_009", "../distill", ""])
def test_link_to_what_is_no_checkpoint_is_refused(tmp_path, name):
    with pytest.raises(FileNotFoundError):
        TaskFolder(tmp_path, "distill").point_latest(name)


def test_spec_changes_name_the_fields(tmp_path):
    folder = TaskFolder(tmp_path, "distill")
    old = {"train": {"optim": {"lr": 0.001, "betas": [0.9, 0.999]}, "seed": 1}}
    new = {"train": {"optim": {"lr": 0.002, "betas": [0.9, 0.95]}}}
    old["distill"], new["distill"] = {"teacher": [{"name": "a"}]}, {"teacher": [{"name": "a"}, {"name": "b"}]}
    assert folder.spec_changes(yaml.safe_dump(new)) == []  # nothing is saved yet
    folder.write_experiment(yaml.safe_dump(old))
    assert sorted(folder.spec_changes(yaml.safe_dump(new))) == [
        "distill.teacher[1].name: (absent) -> b",
        "train.optim.betas: [0.9, 0.999] -> [0.9, 0.95]",
        "train.optim.lr: 0.001 -> 0.002",
        "train.seed: 1 -> (absent)",
    ]


@settings(max_examples=40, deadline=None)
@given(TREE, TREE)
def test_spec_changes_are_empty_exactly_for_equal_specs(tmp_path_factory, old, new):
    folder = TaskFolder(tmp_path_factory.mktemp("r"), "distill")
    folder.write_experiment(yaml.safe_dump(old))
    assert folder.spec_changes(yaml.safe_dump(old)) == []
    assert bool(folder.spec_changes(yaml.safe_dump(new))) == (old != new)


def test_experiment_is_replaced_whole_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "0123456789abcdef")
    folder = TaskFolder(tmp_path, "distill")
    folder.write_experiment("a: 1\n")
    folder.write_experiment("a: 0123456789abcdef\n")
    assert yaml.safe_load(folder.experiment_path.read_text()) == {"a": "(secret)"}
    assert folder.spec_changes("a: 0123456789abcdef\n") == []
    assert [p.name for p in folder.path.iterdir()] == ["experiment.yaml"]
