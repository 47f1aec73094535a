"""Tasks that make a student smaller start from pretrained weights, without a training before them."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import conv2d

import radioplat
from radioplat.data.loading.sample_images import sample_images
from radioplat.design.automatic import PRUNED_LR
from radioplat.errors import EngineError, SpecError, WeightsError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.shared.find_checkpoint import find_checkpoint

pytestmark = pytest.mark.timeout(180)
TYPE = "test_efficientnet"


@pytest.fixture(scope="module")
def spec(quiet_run, tmp_path_factory):
    changes = (f"model.backbone.type={TYPE}", f"results_dir={tmp_path_factory.mktemp('results')}")
    loaded = load_spec(quiet_run.file, changes)
    loaded.model.backbone.kwargs = {}
    return loaded


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(3)
    model = timm.create_model(TYPE, num_classes=7).eval()
    for module in model.modules():  # statistics that are not those of a new model
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def cnn_file(reference, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "cnn.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in reference.state_dict().items()}, path)
    return path


def test_it_computes_what_timm_computes(spec, cnn_file, reference):
    found = find_checkpoint(spec, str(cnn_file), "prune.checkpoint")
    student = radioplat.load_student(found)
    images = torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8)
    mean, std = (torch.tensor(getattr(student.architecture, name)).view(1, 3, 1, 1) for name in ("mean", "std"))
    with torch.inference_mode():
        maps = reference.forward_features((images / 255 - mean) / std).permute(0, 2, 3, 1)
        torch.testing.assert_close(student(images).spatial, maps, atol=1e-4, rtol=1e-4)
    assert list(student.architecture.mean) == pytest.approx(reference.pretrained_cfg["mean"])
    written = (found / "student.safetensors").stat().st_mtime_ns
    assert find_checkpoint(spec, str(cnn_file), "export.checkpoint") == found
    assert (found / "student.safetensors").stat().st_mtime_ns == written


def test_statistics_after_pruning_are_those_of_the_training_images(spec, cnn_file, tmp_path):
    """The first convolution keeps its inputs, so the mean of what it gives has a closed form."""
    parts = ("prune.parts=[hidden,width]", "prune.amount=0.25", "prune.granularity=4", f"prune.checkpoint={cnn_file}")
    report = prune(spec, (*parts, f"prune.results_dir={tmp_path / 'a'}", "prune.batchnorm_images=16"))
    assert report.batchnorm_images == 16 and report.after.params < report.before.params
    student = radioplat.load_student(report.path)
    size = student.architecture.img_size
    images = torch.from_numpy(sample_images(spec, {size}, 16)[size])
    mean, std = (torch.tensor(getattr(student.architecture, name)).view(1, 3, 1, 1) for name in ("mean", "std"))
    stem, norm = student.backbone.model.conv_stem, student.backbone.model.bn1
    with torch.inference_mode():
        given = conv2d((images / 255 - mean) / std, stem.weight, stride=stem.stride, padding=stem.padding)
    torch.testing.assert_close(norm.running_mean, given.mean((0, 2, 3)), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(norm.running_var, given.var((0, 2, 3)), atol=1e-4, rtol=1e-3)
    kept = prune(spec, (*parts, f"prune.results_dir={tmp_path / 'b'}", "prune.batchnorm_images=0"))
    old = radioplat.load_student(kept.path).backbone.model.bn1.running_mean
    assert kept.batchnorm_images == 0 and not torch.allclose(old, norm.running_mean)


def test_blocks_that_are_fitted_again_are_nearer_to_the_original(quiet_run, weights, tmp_path):
    """By timm's own EfficientNet-Lite0 with its ImageNet weights, on images that were not fitted."""
    kind, file = "tf_efficientnet_lite0", str(weights["lite0"])
    spec = load_spec(quiet_run.file, (f"model.backbone.type={kind}", f"results_dir={tmp_path}"))
    spec.model.backbone.kwargs = {}
    reference = timm.create_model(kind, num_classes=0).eval()
    reference.load_state_dict({name: t for name, t in load_file(file).items() if not name.startswith("classifier")})
    parts = ("prune.parts=[]", "prune.blocks=8", "prune.exclude=[model.blocks.3.1]", f"prune.checkpoint={file}")
    errors = {}
    for count in (0, 48):
        asked = (f"prune.reconstruction_images={count}", "prune.batchnorm_images=0")
        report = prune(spec, (*parts, *asked, f"prune.results_dir={tmp_path / str(count)}"))
        assert bool(report.reconstructed) == bool(count) and not [one for one in report.reconstructed if one.reason]
        student = radioplat.load_student(report.path)
        assert student.architecture.pruned.kept["model.blocks.3"] == [0, 1]  # one that was excluded
        size = student.architecture.img_size
        images = torch.from_numpy(sample_images(spec, {size}, 8, "val")[size])
        mean, std = (torch.tensor(getattr(student.architecture, name)).view(1, 3, 1, 1) for name in ("mean", "std"))
        with torch.inference_mode():
            maps = reference.forward_features((images / 255 - mean) / std).permute(0, 2, 3, 1)
            errors[count] = float((student(images).spatial - maps).norm())
    assert errors[48] < 0.9 * errors[0]


@pytest.mark.parametrize(("lr", "used"), [pytest.param("null", PRUNED_LR, marks=pytest.mark.proof), ("1e-3", 1e-4)])
def test_it_is_retrained_by_the_teachers_of_the_spec(spec, cnn_file, tmp_path, lr, used):
    """It has neither heads nor classes, so that nothing but teachers can train it."""
    changes = (f"prune.checkpoint={cnn_file}", f"prune.results_dir={tmp_path}", "prune.retrain.steps=1")
    report = prune(spec, (*changes, "prune.amount=0.25", f"train.optim.lr={lr}"), say=lambda line: None)
    student = radioplat.load_student(report.path)
    assert student.head_names == [teacher.name for teacher in spec.distill.teacher]
    written = load_spec(tmp_path / "round_1" / "distill" / "experiment.yaml")
    assert written.train.optim.lr == pytest.approx(used)


def test_what_is_no_such_weights_is_named(spec, cnn_file, tmp_path):
    with pytest.raises(EngineError, match=r"prune.checkpoint: there is no checkpoint .*pretrained weights"):
        find_checkpoint(spec, str(tmp_path / "none.safetensors"), "prune.checkpoint")
    save_file({"fc.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match=r"^prune.checkpoint: "):
        find_checkpoint(spec, str(tmp_path / "other.safetensors"), "prune.checkpoint")
    untyped = load_spec(spec, ("model.backbone.type=null",))
    with pytest.raises(SpecError, match=r"model.backbone.type"):
        find_checkpoint(untyped, str(cnn_file), "prune.checkpoint")
