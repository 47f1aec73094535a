"""Every field is explained, and editors, `default_specs` and `explain` say what the schema's comments say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from radioplat.cli.main import main
from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.reference import comments
from radioplat.spec.reference.commented_yaml import commented_yaml
from radioplat.spec.reference.fields import all_fields, find_fields
from radioplat.spec.reference.json_schema import json_schema
from radioplat.spec.schema.root import Spec

ROOT = Path(__file__).parents[2]
# Without pipelines, which are files of another kind.
SPECS = [path for path in sorted((ROOT / "specs").rglob("*.yaml")) if "\nnodes:" not in path.read_text()]
SCHEMA = json_schema()


@pytest.fixture(scope="module")
def validator():
    Draft202012Validator.check_schema(SCHEMA)
    return Draft202012Validator(SCHEMA)


def test_every_field_has_a_meaning():
    """A field that is added without a comment, and a section without a docstring, is named here."""
    assert [path for path, field in all_fields().items() if len(field.text) < 8] == []


def test_a_comment_above_and_one_on_the_line_are_read():
    @dataclasses.dataclass
    class Own:
        a: int = 1

    assert comments.comment_of(Own, "a") == ""  # of another program: its source is not read
    lr, stage = all_fields()["train.optim.lr"], all_fields()["train.zero_stage"]
    assert lr.text.startswith("learning rate; unset: for a taught student") and lr.addition and lr.default is None
    assert lr.accepts == "a number, above 0; or null: unset"
    assert stage.text.endswith("1 optimizer states, 2 gradients, 3 weights") and not stage.addition
    assert stage.accepts == "a whole number, at least 0 and at most 3"
    assert all_fields()["train.dealing"].words["even"] == "number j goes to worker j modulo their number"
    assert all_fields()["prune.score"].words["magnitude"] == "the norm of its weights"
    assert all_fields()["train.optim.betas"].accepts == "a list of numbers, each at least 0 and below 1"


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("distill.teacher.0.mode", "distill.teacher[].mode"),
        ("distill.teacher[1].mode", "distill.teacher[].mode"),
        ("distill.teacher.mode", "distill.teacher[].mode"),
        ("teachers.clip.num_cpus", "teachers.NAME.num_cpus"),
        ("teachers.clip", "teachers"),
        ("offload", "train.offload"),
        ("train", "train"),
    ],
)
def test_a_field_is_found_as_an_override_names_it(asked, path):
    assert find_fields(asked)[0].path == path


def test_a_section_has_the_fields_below_it_and_no_others():
    (train,) = find_fields("train")
    assert {field.path.partition(".")[0] for field in train.below} == {"train"}  # not train_upsampler
    (teachers,) = find_fields("distill.teacher")
    assert all(field.path.startswith("distill.teacher[].") for field in teachers.below)  # not teacher_drop_prob
    assert [field.path for field in find_fields("retrain")] == ["prune.retrain", "low_rank.retrain"]
    (lr,) = find_fields("train.optim.lr")
    assert lr.below == [] and lr.entry == lr.path


@pytest.mark.parametrize(
    ("asked", "near"),
    [("train.optim.lrr", "train.optim.lr"), ("train.lr", "train.optim.lr"), ("trian", "train"), ("zzzz", "default_sp")],
)
def test_an_unknown_field_is_answered_with_the_nearest(asked, near):
    with pytest.raises(SpecError, match=f"{asked}: there is no such field.*{near}"):
        find_fields(asked)


def test_the_commented_defaults_are_the_defaults(tmp_path, capsys):
    """Also text that looks like a number or a truth value, or has several lines."""
    overrides = ["wandb.tags=[a, b]", "wandb.name='1e5'", "wandb.group='no'", 'wandb.entity="a: b\\n c"']
    assert main(["default_specs", *overrides]) == 0
    (file := tmp_path / "spec.yaml").write_text(text := capsys.readouterr().out)
    assert load_spec(file) == load_spec(None, overrides)
    assert "  # learning rate; unset: for a taught student" in text and "input_dim: [3, 224, 224]" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_commented_form_of_each_spec_is_the_spec():
    for path in SPECS:
        spec = load_spec(path)
        assert load_spec(yaml.safe_load(commented_yaml(spec))) == spec, path


def test_editors_accept_our_specs_and_the_commented_defaults(validator):
    assert len(SPECS) > 5
    for path in SPECS:
        tree = yaml.safe_load(path.read_text())
        assert [f"{path.name} {error.json_path}: {error.message[:200]}" for error in validator.iter_errors(tree)] == []
    validator.validate(yaml.safe_load(commented_yaml(Spec())))


@pytest.mark.parametrize(
    "wrong",
    [
        {"train": {"num_epoch": 3}},
        {"train": {"num_epochs": "many"}},
        {"train": {"num_epochs": 0}},
        {"train": {"optim": {"policy": "cosin"}}},
        {"distill": {"teacher": [{"mod": "spatial"}]}},
        {"teachers": {"clip": {"replica": 2}}},
        {"dataset": {"train_dataset": {"tar_data_sources": {"root_dir": "x"}}}},
    ],
)
def test_editors_mark_what_the_loader_refuses(validator, wrong):
    assert not validator.is_valid(wrong)
    with pytest.raises(SpecError):
        load_spec(wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"train": {"num_epochs": "${dataset.workers}", "optim": {"lr": "auto"}}},
        {"prune": {"scope": "global", "sparsity": {"type": "2:4"}}, "evaluate": {"models": {"a": "b"}}},
        {"distill": {"teacher": {"name": "a"}}},
        {},
    ],
)
def test_editors_accept_interpolations_and_auto(validator, right):
    assert validator.is_valid(right) and isinstance(load_spec(right), Spec)


def test_the_committed_schema_is_this_one(capsys):
    """Editors read it by the first line of each spec. `radioplat default_specs --json-schema > specs/schema.json`."""
    assert main(["default_specs", "--json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((ROOT / "specs" / "schema.json").read_text())
    for path in SPECS:
        up = "../" * (len(path.relative_to(ROOT / "specs").parts) - 1)
        assert f"# yaml-language-server: $schema={up}schema.json" in path.read_text().splitlines(), path


def test_explain_prints_fields_and_sections(capsys):
    assert main(["explain", "train.optim.lr", "cluster"]) == 0
    out = capsys.readouterr().out
    assert "train.optim.lr: learning rate" in out and "a number, above 0; or null: unset; default null" in out
    assert "cpus_per_decode" in out and "CPUs that Ray reserves for each process" in out
    assert main(["explain", "distill.teacher.0.loss_typ"]) == 1
    assert "Did you mean distill.teacher[].loss_type?" in capsys.readouterr().err
