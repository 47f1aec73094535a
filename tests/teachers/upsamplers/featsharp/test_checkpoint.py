"""An upsampler on disk: it comes back as it was, fits its teacher, and says what is wrong where it does not."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from radioplat.errors import SpecError, WeightsError
from radioplat.teachers.base.teacher import FrozenTeacher, check_weights, describe, enlarge
from radioplat.teachers.upsamplers.featsharp.checkpoint import load_upsampler, read_config
from radioplat.teachers.upsamplers.featsharp.featsharp import FeatSharpConfig

WHERE = "distill.teacher[0].upsampler_checkpoint"
CONFIG = FeatSharpConfig(dim=64, factor=2, grid=(4, 4), width=16, heads=2, window=3)
KEY = "radioplat_upsampler"


@pytest.fixture
def saved(save_featsharp):
    """An upsampler for test_vit at 64 pixels with weights that do something, and its file."""
    return save_featsharp()


def rewritten(path, **changes):
    """The file with other metadata; None takes a field away."""
    said = {**dataclasses.asdict(CONFIG), "kind": "featsharp", "version": 1, **changes}
    save_file(load_file(path), path, {KEY: json.dumps({k: v for k, v in said.items() if v is not None})})
    return path


def test_it_comes_back(saved):
    model, path = saved
    again = load_upsampler(path, WHERE)
    assert again.config == CONFIG == read_config(path, WHERE)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())
    assert not again.training and not any(p.requires_grad for p in again.parameters())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version is 2, not 1"),
        ({"kind": "other"}, "kind is 'other'"),
        ({"window": None}, "window is missing"),
        ({"window": "x"}, "window cannot be 'x'"),
        ({"grid": [4]}, r"grid cannot be \[4\]"),
        ({"debias": 1}, "debias cannot be 1"),
        ({"window": 4}, "odd side, not 4"),
        ({"width": 32}, "does not fit"),
    ],
)
def test_metadata_that_cannot_be(saved, changes, said):
    path = rewritten(saved[1], **changes)
    with pytest.raises(WeightsError, match=said) as caught:
        load_upsampler(path, WHERE)
    assert caught.value.problems[0].where == WHERE and str(path) in str(caught.value)
    assert "train_upsampler" in caught.value.problems[0].hint


def test_files_that_are_none(saved, tmp_path):
    path = saved[1]
    tensors = load_file(path)
    save_file(tensors, tmp_path / "plain.safetensors")
    save_file(tensors | {"refinement.share": torch.full((64,), torch.nan)}, path, {KEY: json.dumps(_said())})
    for name, said in (("plain", "is no upsampler"), ("absent", "no such file"), ("up", "refinement.share")):
        with pytest.raises(WeightsError, match=said) as caught:
            load_upsampler(tmp_path / f"{name}.safetensors", WHERE)
        assert caught.value.problems[0].where == WHERE
    save_file({k: v for k, v in tensors.items() if k != "mean"}, path, {KEY: json.dumps(_said())})
    with pytest.raises(WeightsError, match="missing: mean"):
        load_upsampler(path, WHERE)


def test_a_checkpoint_of_nvlabs_is_refused_by_name(tmp_path):
    """The layout that NVlabs/FeatSharp's train.py saves: its names, and names that a wrapper for several GPUs adds."""
    state = {
        "upsampler.module.ups.0.tile_pos": torch.zeros(1, 64, 2, 2),
        "upsampler.module.ups.0.jafar.query_encoder.0.weight": torch.zeros(8, 3, 1, 1),
        "upsampler.module.ups.0.block.attn.qkv.weight": torch.zeros(3 * 128, 128),
        "normalizer.mean": torch.zeros(64),
        "bias_buffer.module.buffer": torch.zeros(1, 64, 4, 4),
    }
    args = {"type": "featsharp.no-ln.inputs-jafar-tiles", "factor": 2, "normalizer": "phi-s"}
    path = tmp_path / "last.pth"
    torch.save({"model_state": state, "global_step": 9000, "upsample_args": args, "train_config": {"seed": 1}}, path)
    with pytest.raises(WeightsError, match="of NVlabs' FeatSharp, which has attention as wide.*JAFAR") as caught:
        read_config(path, WHERE)
    assert caught.value.problems[0].where == WHERE and "train_upsampler" in caught.value.problems[0].hint


def _said():
    return {**dataclasses.asdict(CONFIG), "kind": "featsharp", "version": 1}


class TestTeacher:
    FIELDS = dict(mode="combo", loss_type="MSE", adaptor="featsharp", upsample_factor=2)

    def test_its_map_is_finer_and_its_summary_the_same(self, saved, timm_teacher):
        teacher, _ = timm_teacher("test_vit", 64, upsampler_checkpoint=str(saved[1]), **self.FIELDS)
        plain, _ = timm_teacher("test_vit", 64, mode="combo", loss_type="MSE")
        info, before = describe(teacher), describe(plain)
        assert (info.grid, info.stride, info.spatial_dim) == ((8, 8), 8, 64)
        assert (before.grid, before.stride) == ((4, 4), 16)
        assert info.parameters == before.parameters + sum(p.numel() for p in saved[0].parameters())
        assert teacher.view_size == 128 and teacher.view == "128" and plain.view == "64"
        check_weights(teacher)
        fine = torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8)
        model, backbone = FrozenTeacher(teacher), FrozenTeacher(plain)
        found = model(fine, teacher.wanted)
        assert found.spatial.shape == (2, 8, 8, 64) and found.spatial.dtype is torch.bfloat16
        shrunk = torch.nn.functional.avg_pool2d(fine.float(), 2)
        torch.testing.assert_close(found.summary, backbone(shrunk, teacher.wanted).summary, rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            expected = saved[0](backbone.normalise(fine), backbone.encode)
        torch.testing.assert_close(found.spatial.float(), expected, rtol=2e-2, atol=2e-2)
        assert not any(p.requires_grad for p in model.parameters())
        assert model(fine, frozenset({"summary"})).spatial is None

    def test_a_size_that_is_drawn_is_enlarged(self, saved, timm_teacher):
        teacher, _ = timm_teacher("test_vit", 64, upsampler_checkpoint=str(saved[1]), **self.FIELDS)
        drawn = dataclasses.replace(teacher, sizes=((64, 1.0),))
        assert drawn.view_size == 64
        pixels = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
        found = FrozenTeacher(drawn)(pixels, drawn.wanted).spatial
        expected = FrozenTeacher(teacher)(enlarge(pixels.float(), 2), teacher.wanted).spatial
        assert found.shape == (1, 8, 8, 64)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)

    def test_of_another_factor(self, saved, timm_teacher):
        fields = self.FIELDS | {"upsample_factor": 4}
        teacher, _ = timm_teacher("test_vit", 64, upsampler_checkpoint=str(saved[1]), **fields)
        for use in (describe, FrozenTeacher):
            with pytest.raises(SpecError, match="2 times finer, not 4") as caught:
                use(teacher)
            assert caught.value.problems[0].where == "distill.teacher[0].upsample_factor"

    def test_of_another_teacher(self, saved, timm_teacher):
        teacher, _ = timm_teacher("test_efficientnet", 64, upsampler_checkpoint=str(saved[1]), **self.FIELDS)
        for use in (describe, FrozenTeacher):
            with pytest.raises(WeightsError, match="width 64, and this teacher's has") as caught:
                use(teacher)
            assert caught.value.problems[0].where == WHERE

    def test_switched_off(self, saved, timm_teacher):
        teacher, _ = timm_teacher("test_vit", 64, upsampler_checkpoint=str(saved[1]), do_upsample=False, **self.FIELDS)
        assert describe(teacher).grid == (4, 4) and teacher.view_size == 64
        assert FrozenTeacher(teacher).upsampler is None
