"""Students whose branches are fused before they are pruned or quantized."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from radioplat.compression.pruning.prune import prune_model
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.exporting.onnx.flat_student import FlatStudent
from radioplat.models.modifiers.fuse_branches import count_convolutions
from radioplat.models.student.checkpoint import load_student
from radioplat.models.vision_model import save_model
from radioplat.spec.schema.prune import PruneConfig, PruneScore
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.tasks.prune.cut import fuse_unless_trained
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.prune.show import show
from tests.helpers.drawn_student import drawn_student

SIZE = 64
FAMILIES = ["mobileone_s0", "repvgg_a0", "repvit_m0_9", "fastvit_t8"]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_features_stay_and_the_checkpoint_is_read_back(name, tmp_path):
    student = drawn_student(name, SIZE)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        wanted = student(images)
        fused = student.fuse_branches()
        features = fused(images)
    for output in ("summary", "spatial"):
        value = getattr(wanted, output)
        assert (getattr(features, output) - value).abs().max() <= 1e-5 * value.abs().max()
    assert fused.architecture.fused_branches
    save_model(fused, tmp_path / "fused")
    with torch.no_grad():
        again = load_student(tmp_path / "fused").eval()(images)
    assert torch.equal(again.summary, features.summary)
    with torch.no_grad():  # a second time is without effect
        assert torch.equal(fused.fuse_branches()(images).summary, features.summary)
        assert load_student(tmp_path / "fused").fuse_branches().architecture == fused.architecture


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "repvit_m0_9"])  # timm fuses it in fp32
def test_in_double_precision_nothing_but_rounding_is_left(name):
    student = drawn_student(name, SIZE).double()
    images = torch.rand(1, 3, SIZE, SIZE, dtype=torch.float64)
    with torch.no_grad():
        wanted = student(images)
        features = student.fuse_branches()(images)
    for output in ("summary", "spatial"):
        value = getattr(wanted, output)
        assert value.dtype is torch.float64
        assert (getattr(features, output) - value).abs().max() <= 1e-12 * value.abs().max()


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv4_conv_small_050"])
def test_a_student_without_branches_stays_as_it_is(name):
    student = drawn_student(name, SIZE)
    before = copy.deepcopy(student.state_dict())
    student.fuse_branches()
    assert not student.architecture.fused_branches
    after = student.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


class Refusing(nn.Identity):
    """A block of which timm's re-parameterization fails, as those of some families that it cannot fuse."""

    def reparameterize(self) -> None:
        """Raise."""
        raise ValueError("a stride of 3 is unknown")


def cancelling_branches():
    """A student in a block of which two large branches cancel: their sum in fp32 has lost the small digits."""
    student = drawn_student("repvgg_a0", SIZE)
    block = student.get_submodule("backbone.model.stages.3.0")
    three, one = block.conv_kxk, block.conv_1x1
    one.bn.load_state_dict(three.bn.state_dict())
    with torch.no_grad():
        large = 1e5 * torch.randn(one.conv.weight.shape, generator=torch.Generator().manual_seed(0))
        three.conv.weight[:, :, 1:2, 1:2] += large
        one.conv.weight -= large
    return student


def refusing_block():
    student = drawn_student("repvgg_a0", SIZE)
    student.get_submodule("backbone.model.stages.1").add_module("last", Refusing())
    return student


@pytest.mark.parametrize(
    ("make", "reason"),
    [(cancelling_branches, "they change an output by"), (refusing_block, "timm cannot fuse them (a stride of 3")],
)
def test_branches_that_cannot_be_fused_stay_and_every_record_says_so(make, reason, tmp_path):
    student = make()
    before = count_convolutions(student)
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        wanted = student(images).summary
        assert torch.equal(copy.deepcopy(student).fuse_branches()(images).summary, wanted)
    fused = copy.deepcopy(student).fuse_branches()
    assert count_convolutions(fused) == before and not fused.architecture.fused_branches
    config = PruneConfig()
    (of_prune,) = fuse_unless_trained(copy.deepcopy(student), config, ChannelScore(config))
    exported = FlatStudent(student)
    (of_export,) = exported.branch_notes
    with torch.no_grad():
        assert torch.equal(exported(images)[0], wanted) and exported.convolutions == (before, before)
    for note in (of_prune, of_export):
        assert note.startswith(f"branches of its blocks stay, {before} convolutions: ") and reason in note


def test_a_quantized_student_keeps_branches_that_cannot_be_fused():
    student = refusing_block()
    done = quantize_model(student, QuantizeConfig(), [some_images()])
    (note,) = done.notes
    assert "timm cannot fuse them" in note and count_convolutions(done.model) == count_convolutions(student)


def some_images() -> torch.Tensor:
    return torch.randint(0, 256, (4, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_a_quantized_student_has_one_scale_a_block(tmp_path):
    student = drawn_student("mobileone_s0", SIZE)
    done = quantize_model(student, QuantizeConfig(), [some_images()])
    assert done.model.architecture.fused_branches and not student.architecture.fused_branches
    assert len(done.model.architecture.quantized.layers) <= 43
    assert done.cosine["summary"] > 0.98
    left, before = count_convolutions(done.model), count_convolutions(student)
    assert left < before
    assert done.notes == [f"branches of its blocks are one convolution each: {left} convolutions instead of {before}"]
    save_model(done.model, tmp_path / "quantized")
    with torch.no_grad():
        images = some_images()
        assert torch.equal(load_student(tmp_path / "quantized").eval()(images).summary, done.model(images).summary)


def test_mobilenetv4_has_no_branches_and_each_batchnorm_is_folded():
    done = quantize_model(drawn_student("mobilenetv4_conv_small_050", SIZE), QuantizeConfig(), [some_images()])
    assert not done.notes and not done.unfolded and done.folded == len(done.model.architecture.quantized.folded) > 30


def test_a_student_that_was_pruned_with_its_branches_keeps_them_and_the_note_says_so():
    student, config = drawn_student("repvgg_a0", SIZE), PruneConfig(amount=0.25)
    small = prune_model(student, config, ChannelScore(config))[0]
    fused = copy.deepcopy(student).fuse_branches()
    counts = count_convolutions(student), count_convolutions(fused)
    done = quantize_model(small, QuantizeConfig(), [some_images()])
    assert count_convolutions(done.model) == counts[0] > counts[1]
    stays = f"branches of its blocks stay, {counts[0]} convolutions instead of {counts[1]}: it was pruned with them"
    assert done.notes == [f"{stays}; prune the student that it was made of again"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [("repvgg_a0", "width"), ("mobileone_s0", "width"), ("repvit_m0_9", "hidden"), ("fastvit_t8", "hidden")],
)
def test_branches_are_fused_before_a_student_is_pruned_and_the_report_says_so(name, parts, tmp_path, capsys):
    student = drawn_student(name, SIZE)
    save_model(student, tmp_path / "whole")
    settings = {"checkpoint": str(tmp_path / "whole"), "parts": [parts], "amount": 0.25}
    report = prune({"results_dir": str(tmp_path / "results"), "prune": settings})
    small = load_student(report.path).eval()
    assert small.architecture.fused_branches and small.architecture.pruned is not None
    left, before = count_convolutions(small), count_convolutions(student)
    assert left < before and report.after.params < 0.9 * report.before.params
    note = f"branches of its blocks are one convolution each: {left} convolutions instead of {before}"
    assert report.notes == (note,) and json.loads((report.path / "prune.json").read_text())["notes"] == [note]
    show(report)
    assert note in " ".join("".join(capsys.readouterr()).split())
    done = quantize_model(small, QuantizeConfig(), [some_images()])  # it has no branches left to name
    assert not done.notes and done.model.architecture.fused_branches


def test_a_score_by_gradients_keeps_the_branches_and_the_note_says_so():
    student, config = drawn_student("mobileone_s0", SIZE), PruneConfig(score=PruneScore.taylor)
    before = count_convolutions(student)
    (note,) = fuse_unless_trained(student, config, ChannelScore(config))
    assert count_convolutions(student) == before and not student.architecture.fused_branches
    assert f"branches of its blocks stay, {before} convolutions instead of" in note and "prune.score=taylor" in note
    assert fuse_unless_trained(drawn_student("resnet18", SIZE), config, ChannelScore(config)) == []
