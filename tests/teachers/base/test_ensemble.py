"""Several weights that teach as one: their mean, wherever a teacher goes."""

from __future__ import annotations

import dataclasses

import pytest
import timm
import torch
from safetensors.torch import save_file

from radioplat.cli.main import main
from radioplat.errors import SpecError, WeightsError
from radioplat.spec.resolved.terms import MODULE, Bound
from radioplat.spec.schema.distill import LossType
from radioplat.teachers.base.teacher import FrozenTeacher, check_weights, describe
from radioplat.teachers.cache.key import teacher_key, weights_hash
from radioplat.teachers.serving.pool import fingerprint
from radioplat.teachers.serving.teacher_runner import TeacherRunner

ALL = frozenset({"summary", "spatial", "logits"})
SCORES = {"mode": "logits", "extra_losses": [{"type": "MSE", "kind": kind} for kind in ("summary", "spatial")]}


@pytest.fixture
def files(tmp_path):
    """Two sets of weights of test_vit with 5 classes, and one with 6."""
    found = []
    for seed, classes in ((0, 5), (1, 5), (2, 6)):
        torch.manual_seed(seed)
        found.append(str(tmp_path / f"{seed}.safetensors"))
        save_file(timm.create_model("test_vit", num_classes=classes).state_dict(), found[-1])
    return found


@pytest.fixture
def make(resolve):
    """make(*paths, **teacher) -> test_vit with one set of weights, or with several."""

    def of(*paths, **teacher):
        backbone = {"type": "test_vit", "output_dim": [5]}
        weights = {"ensemble": list(paths)} if len(paths) > 1 else {"pretrained_teacher_model_path": paths[0]}
        return resolve(model={"backbone": backbone}, input_size=64, **weights, **SCORES | teacher)

    return of


def pixels(count: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def each(features) -> dict[str, torch.Tensor]:
    return {"summary": features.summary, "spatial": features.spatial, **features.named}


def test_two_equal_members_are_one(make, files):
    one, two = (each(FrozenTeacher(make(*paths))(pixels(), ALL)) for paths in (files[:1], files[:1] * 2))
    assert set(one) == set(two) == ALL
    for name, value in one.items():
        assert value.dtype is torch.bfloat16 and torch.equal(value, two[name]), name


def test_two_members_are_their_mean(make, files):
    a, b, both = (each(FrozenTeacher(make(*paths))(pixels(), ALL)) for paths in (files[:1], files[1:2], files[:2]))
    for name, value in both.items():
        # bf16 of the mean of fp32 against the mean of two bf16.
        torch.testing.assert_close(value.float(), (a[name].float() + b[name].float()) / 2, rtol=2e-2, atol=2e-2)
        assert not torch.equal(value, a[name]), name
    again = each(FrozenTeacher(make(*files[1::-1]))(pixels(), ALL))
    assert all(torch.equal(value, again[name]) for name, value in both.items()), "the order does not matter"


def test_outputs_of_modules_are_averaged_too(make, files):
    bound = Bound("binding_0", "distill.bindings[0]", "blocks.2", "blocks.2", LossType.L2, 1.0)

    def said(*paths):
        teacher = dataclasses.replace(make(*paths), bindings=(bound,))
        return FrozenTeacher(teacher)(pixels(), teacher.wanted).named[MODULE + "blocks.2"].float()

    torch.testing.assert_close(said(*files[:2]), (said(files[0]) + said(files[1])) / 2, rtol=2e-2, atol=2e-2)


def test_normalisation_reaches_all_members(make, files):
    model, mean, std = FrozenTeacher(make(*files[:2])), [0.5] * 3, [0.5] * 3
    model.normalise_by(mean, std)
    plain = FrozenTeacher(make(*files[:2], norm_mean=mean, norm_std=std))
    torch.testing.assert_close(model(pixels(), ALL).summary, plain(pixels(), ALL).summary)


def test_the_runner_answers_for_all(make, files):
    runner = TeacherRunner(make(*files[:2], service={"max_batch": 2}), "cpu")
    assert len(runner(pixels(3).numpy(), (2, 2), frozenset({"spatial"}))) == 3


def test_it_is_described_as_one_with_the_weights_of_all(make, files):
    one, both = describe(make(files[0])), describe(make(*files[:2]))
    assert both == dataclasses.replace(one, parameters=2 * one.parameters)
    check_weights(make(*files[:2]))


def test_members_of_another_structure_are_named(make, files, tmp_path):
    with pytest.raises(WeightsError, match="does not fit") as caught:
        check_weights(make(files[0], files[2]))
    assert caught.value.problems[0].where == "distill.teacher[0].ensemble[1]"
    with pytest.raises(WeightsError, match="no such file") as caught:
        FrozenTeacher(make(files[0], str(tmp_path / "none.pth")))
    assert caught.value.problems[0].where == "distill.teacher[0].ensemble[1]"


def test_checkpoints_of_ours_of_two_widths_are_named(resolve, radio_student, tmp_path):
    from radioplat.models.student.checkpoint import save_student

    folders = []
    for i, width in enumerate((32, 64)):
        student = radio_student(kwargs={"embed_dim": width, "depth": 1, "num_heads": 2}, heads=())
        folders.append(tmp_path / str(i))
        folders[-1].mkdir()
        save_student(student, student.state_dict(), folders[-1])
    teacher = resolve(ensemble=list(map(str, folders)), input_size=48, mode="summary", loss_type="CS")
    with pytest.raises(SpecError, match="summary_dim is 192, and that of the first member 96") as caught:
        describe(teacher)
    assert caught.value.problems[0].where == "distill.teacher[0].ensemble[1]"


def test_every_member_is_in_the_key_of_the_cache_and_of_the_pool(make, files):
    single, same, both = make(files[0]), make(files[0], files[0]), make(*files[:2])
    hashes = [weights_hash(teacher) for teacher in (single, same, both)]
    assert len(set(hashes)) == 3
    keys = {teacher_key(t, (4, 4), "float32", h) for t, h in zip((single, same, both), hashes, strict=True)}
    assert len(keys) == 3
    before = fingerprint(both)["weights"]
    save_file(timm.create_model("test_vit", num_classes=5).state_dict(), files[1])
    assert weights_hash(both) != hashes[2] and weights_hash(single) == hashes[0]
    assert fingerprint(both)["weights"] != before and files[1] in before


def test_inspect_says_whether_files_can_be_one(files, capsys):
    assert main(["weights", "inspect", *files[:2]]) == 0
    assert "2 files can be one ensemble" in capsys.readouterr().out
    assert main(["weights", "inspect", *files]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 files cannot be one ensemble" in said and "head.bias is [6] there, and [5] in" in said
