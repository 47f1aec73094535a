"""A user's own step hook by its import path: in a real run, over a restart, and where it is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import radioplat
from radioplat.data.ledger.ledger import read_rejected
from radioplat.errors import SpecError, TrainingError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import HOOKS
from radioplat.training.hooks.own_hook import OwnHook, hook_problems
from radioplat.training.hooks.step_record import CONTINUE, StepRecord

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
LABELS = "images_of_labels:ImagesOfLabels"
OTHERS = """
from radioplat.training.hooks.step_hook import StepDecision, StepHook


class NoSecondStep(StepHook):
    def losses(self, step, batch, losses, last):
        return StepDecision("the user says so", "own_reason") if step == 1 else StepDecision()


class NoNumber(StepHook):
    def sums(self):
        return {"seen": "many"}


class SkipsWhatIsNotSmall(StepHook):
    def losses(self, step, batch, losses, last):
        small = bool(losses["loss"] < 1e6)
        return StepDecision() if small else StepDecision("the user says so", "own_reason")


class Broken(StepHook):
    def end_step(self, record):
        if record.step == 1:
            raise ZeroDivisionError("of the user")


class HalfAHook:
    def begin_step(self, step):
        pass


class Builds(StepHook):
    def __init__(self, context):
        raise KeyError("no such thing")


class Unwritable(StepHook):
    def state_dict(self):
        return {"file": open(__file__)}


class NoDecision(StepHook):
    def before_update(self, record):
        return True


def function(): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    (tmp_path / "others.py").write_text(OTHERS)
    for folder in (tmp_path, Path(__file__).parent):
        monkeypatch.syspath_prepend(folder)
    yield
    for name in ("others", "images_of_labels"):
        sys.modules.pop(name, None)


@pytest.fixture
def spec(tmp_path):
    """spec(name, *hooks) -> a run of 4 steps over two classes of eight images."""
    draw = np.random.default_rng(0)
    for label in ("bright", "dark"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(8):
            pixels = draw.integers(0, 128, (32, 32, 3), dtype=np.uint8) + (100 if label == "bright" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / label / f"{i}.png")

    def make(name: str, *hooks: str) -> dict:
        return {
            "results_dir": str(tmp_path / name),
            "model": {"backbone": {"type": "test_resnet"}},
            "dataset": {
                "img_size": 32,
                "batch_size": 4,
                "workers": 1,
                "num_classes": 2,
                "train_dataset": {"images_dir": str(tmp_path / "images")},
            },
            "train": {"max_steps": 4, "global_batch_size": 8, "hooks": list(hooks), "optim": {"policy": "step"}},
            "cluster": {"mode": "local"},
        }

    return make


def figures(folder: Path) -> list[dict]:
    return [line["kpi"] for line in read_status(folder / "status.json") if "max_step" in line]


def test_it_sees_every_step_and_goes_on_where_a_checkpoint_left_it(spec):
    first = radioplat.train(spec("run", LABELS), ["train.max_steps=2"], say=lambda line: None)
    assert (first.checkpoint / HOOKS).is_file()
    found = radioplat.train(spec("run", LABELS), say=lambda line: None)
    assert found.resumed_from == 2 and found.global_step == 4
    seen = [[kpi["images_of_label/0"], kpi["images_of_label/1"]] for kpi in figures(found.folder)]
    assert [sum(counts) for counts in seen] == [8, 16, 24, 32] and seen[-1] == [16, 16]
    without = radioplat.train(spec("run"), ["train.max_steps=5"], say=lambda line: None)
    assert without.resumed_from == 4 and not (without.checkpoint / HOOKS).exists()
    assert "images_of_label/0" not in figures(found.folder)[-1]
    plain = radioplat.train(spec("plain"), say=lambda line: None)
    losses = [[kpi["loss"] for kpi in figures(folder)][:4] for folder in (found.folder, plain.folder)]
    assert losses[0] == losses[1], "a hook that only looks changes nothing"


def test_it_may_skip_a_step(spec):
    found = radioplat.train(spec("run", "others:NoSecondStep"), say=lambda line: None)
    lines = [line["message"] for line in read_status(found.folder / "status.json")]
    assert "step 2 was skipped: the user says so" in lines
    rejected = read_rejected(found.folder / "ledger")
    assert rejected["reason"].to_pylist() == ["own_reason"] * 8 and set(rejected["step"].to_pylist()) == {1}


def test_a_skip_of_the_user_hides_no_loss_that_is_not_finite(spec):
    """A NaN is not small: the hook skips its step, and train.non_finite still applies."""
    path = "others:SkipsWhatIsNotSmall"
    overrides = ["train.non_finite=fail", "train.optim.lr=1e30", "train.clip_grad_norm=0"]
    with pytest.raises(TrainingError, match="not finite: .*loss") as caught:
        radioplat.train(spec("run", path), overrides, say=lambda line: None)
    assert caught.value.problems[0].where == "train.non_finite"


def test_an_error_in_it_names_hook_and_field(spec):
    with pytest.raises(TrainingError, match="others:Broken.end_step raised ZeroDivisionError: of the user") as caught:
        radioplat.train(spec("run", LABELS, "others:Broken"), say=lambda line: None)
    assert caught.value.problems[0].where == "train.hooks[1]"


def test_a_sum_that_is_no_number_names_hook_and_field(spec):
    with pytest.raises(TrainingError, match="others:NoNumber.sums raised ValueError") as caught:
        radioplat.train(spec("run", "others:NoNumber"), say=lambda line: None)
    assert caught.value.problems[0].where == "train.hooks[0]"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:Hook", "cannot import"),
        ("others:NoSuchClass", "cannot import"),
        ("others:function", "is no class"),
        ("others:HalfAHook", "lacks the methods after_step, before_update, begin_micro_batch"),
    ],
)
def test_a_wrong_path_is_found_before_the_run(spec, tmp_path, path, message):
    for problems in (
        hook_problems(load_spec(spec("run", path))),
        plan(load_spec(spec("run", path)), task="train").problems,
    ):
        assert [(p.where, message in p.message) for p in problems] == [("train.hooks[0]", True)]
    with pytest.raises(SpecError, match=message):
        radioplat.train(spec("run", path), say=lambda line: None)
    assert not (tmp_path / "run" / "train" / "data").exists()


def test_a_hook_is_named_once(spec):
    [problem] = hook_problems(load_spec(spec("run", LABELS, LABELS)))
    assert problem.where == "train.hooks[1]" and "twice" in problem.message


def own(path: str) -> OwnHook:
    class Context:
        device = torch.device("cpu")

    return OwnHook(path, "train.hooks[0]", Context())


def test_what_it_returns_is_checked():
    with pytest.raises(SpecError, match="Builds.__init__ raised KeyError"):
        own("others:Builds")
    with pytest.raises(TrainingError, match="Unwritable.state_dict raised TypeError"):
        own("others:Unwritable").state_dict()
    with pytest.raises(TrainingError, match="NoDecision.before_update returned bool"):
        own("others:NoDecision").before_update(StepRecord(0, 0.1))
    assert own("others:Broken").before_update(StepRecord(0, 0.1)) == CONTINUE
