"""The RADIO 1D ViT: what a sequence's first tokens hold, and NVlabs' own model with the same weights."""

from __future__ import annotations

import os

import onnxruntime
import pytest
import torch

from radioplat.compression.pruning.prune import dry_run
from radioplat.errors import EngineError, SpecError
from radioplat.exporting.onnx.export import export_onnx
from radioplat.exporting.weights.export import export_weights
from radioplat.models.backbones.radio_1d import Radio1D
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.export import ExportFormat
from radioplat.spec.schema.prune import PruneConfig

TINY = dict(patch_size=8, embed_dim=16, depth=3, num_heads=2, num_class_tokens=2, num_registers=2, cpe_max_size=64)


def built(**kwargs) -> Radio1D:
    torch.manual_seed(0)
    return Radio1D(**{**TINY, "merge_at": 2, "decoder_depth": 3, **kwargs}).eval()


def test_shapes_also_of_odd_grids():
    features = built()(torch.rand(2, 3, 40, 24))  # 5 x 3 patches, 3 x 2 tokens
    assert features.spatial.shape == (2, 5, 3, 16) and features.summary.shape == (2, 32)
    assert features.named["sequence"].shape == (2, 6, 32)


def test_tokens_that_are_cut_off_change_nothing():
    """Two images whose first tokens are equal have equal features, class tokens too."""
    vit = built()
    first, second = torch.rand(2, 1, 3, 32, 32)
    vit.num_tokens = 3
    sequences = [vit._encode(images, 4, 4) for images in (first, second)]
    mixed = torch.cat([sequences[0][:, :3], sequences[1][:, 3:]], dim=1)
    torch.testing.assert_close(vit._decode(mixed, 3, 2, 2), vit._decode(sequences[0], 3, 2, 2))
    assert not torch.allclose(vit._decode(mixed, 4, 2, 2), vit._decode(sequences[0], 4, 2, 2))
    assert vit(first).named["sequence"].shape[1] == 3


def test_training_draws_every_number_alike():
    torch.manual_seed(0)
    drawn = torch.bincount(torch.stack([Radio1D._draw(16) for _ in range(8000)]).long())
    assert drawn[0] == 0 and len(drawn) == 17
    assert (torch.arange(4, device="meta") < Radio1D._draw(4)).is_meta  # it compares with tensors of another device
    torch.testing.assert_close(drawn[1:] / 500, torch.ones(16), atol=4 * 0.044, rtol=0)  # four standard errors


def test_one_token_holds_less_than_two():
    """Of 48 images whose maps are noise to be learned by heart."""
    vit = built().train()
    images, targets = torch.rand(48, 3, 32, 32), torch.randn(48, 4, 4, 16)
    optimizer = torch.optim.Adam(vit.parameters(), 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        (vit(images).spatial - targets).square().mean().backward()
        optimizer.step()
    vit.eval()
    errors = []
    for vit.num_tokens in (1, 2, 4):
        errors.append((vit(images).spatial - targets).square().mean().item())
    assert 0.9 > errors[0] > 1.2 * max(errors[1:]), errors


def test_every_weight_is_taught():
    vit = built().train()
    features = vit(torch.rand(2, 3, 32, 32))
    (features.spatial.square().sum() + features.summary.square().sum()).backward()
    assert not [name for name, p in vit.named_parameters() if p.grad is None]


WRONG = [("merge_at", 3), ("merge_at", 0), ("merge_at", "a"), ("decoder_depth", 1), ("decoder_depth", None)]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_numbers_out_of_range_are_named(field, value):
    with pytest.raises(SpecError, match=f"not {value}") as error:
        built(**{field: value})
    assert error.value.problems[0].where == f"model.backbone.kwargs.{field}"


@pytest.mark.proof
def test_a_file_keeps_the_first_tokens(tmp_path):
    head = HeadArchitecture("t", 8, 12)
    kwargs = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    student = Student(StudentArchitecture("radio1d_vit_tiny_patch16", kwargs, img_size=64, heads=(head,))).eval()
    student.backbone.num_tokens = 2
    path = tmp_path / "student.onnx"
    report = export_onnx(student, path, height=64, width=96, batch_size=-1, adaptors=["t"])
    assert list(report.outputs) == ["summary", "spatial", "sequence", "t.summary", "t.spatial"]
    images = torch.rand(3, 3, 64, 96)
    arrays = onnxruntime.InferenceSession(path).run(None, {"images": images.numpy()})
    answers = dict(zip(report.outputs, arrays, strict=True))
    assert answers["sequence"].shape == (3, 2, 32)
    torch.testing.assert_close(torch.tensor(answers["spatial"]), student(images).spatial, atol=1e-4, rtol=1e-4)
    for form in (ExportFormat.radio, ExportFormat.hf, ExportFormat.timm):
        with pytest.raises(EngineError, match="decoder of a radio1d_vit"):
            export_weights(student, form, tmp_path / "other", height=64, width=64)


@pytest.mark.proof
@pytest.mark.skipif(not os.environ.get("NVLABS_RADIO"), reason="NVLABS_RADIO names no checkout of NVlabs/RADIO")
@pytest.mark.parametrize("count", [1, 3, 7])
def test_it_computes_what_nvlabs_model_does(monkeypatch, count):
    monkeypatch.syspath_prepend(os.environ["NVLABS_RADIO"])
    from radio.radio1d import RADIO1D

    sizes = {name: TINY[name] for name in ("patch_size", "embed_dim", "depth", "num_heads", "num_registers")}
    options = dict(num_cls_tokens=2, cpe_max_size=64, downscale_levels=[2], decoder_depth=3, **sizes)
    theirs = RADIO1D(img_size=256, num_classes=0, global_pool="", **options).eval()
    ours = built()
    tensors = {_ours(name): tensor for name, tensor in theirs.state_dict().items() if not name.startswith("_")}
    tensors["filler"] = tensors["filler"].reshape(ours.filler.shape)
    ours.load_state_dict(tensors)
    ours.num_tokens = count
    images = torch.rand(2, 3, 40, 48)  # theirs rounds the number of tokens down: 7 of 9
    with torch.no_grad():
        found, expected = ours(images), theirs.forward_features(images, num_tokens=count)
    torch.testing.assert_close(found.named["sequence"], expected["encoder"][:, 4:])
    torch.testing.assert_close(found.spatial.flatten(1, 2), expected["decoder"][:, 4:])
    torch.testing.assert_close(found.named["tokens"], expected["decoder"][:, :2])


def _ours(name: str) -> str:
    names = {
        "decoder.filler_tokens": "filler",
        "decoder.prefix_tokens": "decoder_prefix",
        "decoder.prefix_proj_blocks.0": "split_prefix",
        "decoder.upscale_blocks.0": "splitting",
        "decoder.": "decoder_",
        "downscale_blocks.0": "merging",
        "prefix_proj_blocks.0": "merged_prefix",
    }
    theirs = next((theirs for theirs in names if name.startswith(theirs)), "")
    return names.get(theirs, "") + name.removeprefix(theirs)


def test_channels_are_pruned_and_blocks_are_not():
    kwargs = {"embed_dim": 48, "depth": 3, "num_heads": 3}
    architecture = StudentArchitecture("radio1d_vit_tiny_patch16", kwargs, img_size=64)
    dry_run(architecture, PruneConfig(amount=0.3))
    with pytest.raises(SpecError, match="numbered places"):
        dry_run(architecture, PruneConfig(blocks=1))
