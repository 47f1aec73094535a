"""Our files in NVlabs/RADIO's own loader, which is not in this repository.

``NVLABS_RADIO=/path/to/a/checkout python -m pytest -m proof tests/exporting/weights/test_nvlabs.py`` runs its code on
what we write and prints the largest differences.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib
import os
import warnings

import pytest
import torch

from radioplat.exporting.weights.hf import write_hf
from radioplat.exporting.weights.radio import write_radio
from radioplat.models.heads import MLP2, AttentionHead, HeadArchitecture
from radioplat.models.pretrained.initial_weights import architecture_of, start_notes, start_student
from radioplat.models.student.student import StudentArchitecture, build_backbone
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.export import AdaptorTypes

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not os.environ.get("NVLABS_RADIO"), reason="NVLABS_RADIO names no checkout of NVlabs/RADIO"),
]
SIZES = [(48, 48), (64, 64), (24, 56), (80, 32), (128, 96)]
VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2}


@pytest.fixture
def theirs(monkeypatch):
    """theirs(module) -> a module of the checkout."""
    monkeypatch.syspath_prepend(os.environ["NVLABS_RADIO"])
    return importlib.import_module  # what it imports stays: its models can be registered with timm but once


def compare(student, model, names: list[str], pixels: torch.Tensor, capsys, label: str) -> None:
    """Summary, features and every adaptor, to 1e-4."""
    with torch.no_grad():
        features, said = student(pixels), model(pixels)
        said = said if isinstance(said, dict) else {"backbone": said}
        own = {"backbone": features} | {name: student.head(name, features) for name in names}
        assert set(said) == set(own)
        worst = {}
        for name, ours in own.items():
            summary, patches = said[name]
            assert patches.shape == ours.spatial.flatten(1, 2).shape
            worst[f"{name}.features"] = float((patches - ours.spatial.flatten(1, 2)).abs().max())
            if ours.summary is not None:
                assert summary.shape == ours.summary.shape
                worst[f"{name}.summary"] = float((summary - ours.summary).abs().max())
            else:
                assert not summary.any()
    with capsys.disabled():
        largest = float(features.spatial.abs().max())
        print(f"\n{label} {tuple(pixels.shape[-2:])} (largest feature {largest:.1f}):", end=" ")
        print(", ".join(f"{k} {v:.1e}" for k, v in worst.items()))
    assert all(v <= 1e-4 for v in worst.values()), worst


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"cpe_max_size": 48},
        {"cpe_max_size": 100},
        {"cpe_max_size": 8},
        {"cpe_max_size": 128, "num_registers": 0},
        {"num_registers": None, "register_multiple": 4},
        {"kwargs": {**VIT, "init_values": 1e-2, "qk_norm": True, "final_norm": False, "drop_path_rate": 0.1}},
        {"heads": (), "num_class_tokens": 2},
        {"kwargs": {**VIT, "mlp_norm": True}, "heads": (), "num_class_tokens": 2},
    ],
    ids=lambda change: ",".join(change) or "as is",
)
def test_hubconf(change, radio_student, image_batch, theirs, tmp_path, capsys):
    student = radio_student(**change)
    write_radio(student, tmp_path / "s.pth")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="(Missing|Unexpected) keys")
        model = theirs("hubconf").radio_model(version=str(tmp_path / "s.pth"), adaptor_names=student.head_names).eval()
    for size in SIZES:
        compare(student, model, student.head_names, image_batch(*size), capsys, f"radio {change}")


def test_an_attention_head(radio_student, image_batch, theirs, tmp_path, capsys):
    heads = list(radio_student().architecture.heads)
    heads[2] = dataclasses.replace(heads[2], spatial_version="attn", spatial_num_inner=0)
    student = radio_student(heads=tuple(heads))
    write_radio(student, tmp_path / "s.pth")
    model = theirs("hubconf").radio_model(version=str(tmp_path / "s.pth"), adaptor_names=student.head_names).eval()
    for size in SIZES:
        compare(student, model, student.head_names, image_batch(*size), capsys, "radio attn")


def test_a_finer_map(radio_student, image_batch, theirs, tmp_path, capsys):
    heads = list(radio_student().architecture.heads)
    heads[0] = dataclasses.replace(heads[0], upsample=2)
    heads[1] = dataclasses.replace(heads[1], upsample=3)
    student = radio_student(heads=tuple(heads))
    write_radio(student, tmp_path / "s.pth")
    model = theirs("hubconf").radio_model(version=str(tmp_path / "s.pth"), adaptor_names=student.head_names).eval()
    for size in SIZES:
        compare(student, model, student.head_names, image_batch(*size), capsys, "radio finer")


def test_what_we_refuse_of_attention_heads_fails_there(theirs):
    """A finer map, because the MLP gets no images; inner blocks, because none are built."""
    head = theirs("radio.adaptor_attn").AttnFDHead(32, 16, 40, upsample_factor=2)
    with pytest.raises(ValueError, match="`images` cannot be `None`"):
        head(torch.zeros(1, 4, 32), images=torch.zeros(1, 3, 16, 16), patch_size=8)
    ours = AttentionHead(32, MLP2(32, 16, 20, num_inner=1)).state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\).*mlp.blocks.0"):
        theirs("radio.adaptor_module_factory").create_mlp_from_state("attn", ours, is_summary=False)


def test_their_text_towers(radio_student, image_batch, theirs, tmp_path, capsys, monkeypatch):
    """OpenCLIP's model by the names that we write, with a small text tower in place of the download."""
    open_clip = pytest.importorskip("open_clip")
    heads = list(radio_student().architecture.heads)
    heads[0] = dataclasses.replace(heads[0], text_tower="ViT-B-32-quickgelu:openai")
    heads[2] = dataclasses.replace(heads[2], text_tower="ViT-gopt-16-SigLIP2-384:webli")
    student = radio_student(heads=tuple(heads))
    write_radio(student, tmp_path / "s.pth", types=AdaptorTypes.own)

    config = open_clip.get_model_config("ViT-B-32-quickgelu")
    small = {"layers": 1, "width": 64, "heads": 1}
    config |= {"embed_dim": 12, "text_cfg": config["text_cfg"] | small}
    config["vision_cfg"] = config["vision_cfg"] | {"layers": 1, "width": 64}
    monkeypatch.setitem(importlib.import_module("open_clip.factory")._MODEL_CONFIGS, "ViT-B-32-quickgelu", config)
    torch.save(open_clip.create_model("ViT-B-32-quickgelu").state_dict(), tmp_path / "tower.pt")
    asked = []

    def download(cfg, **kwargs):
        asked.append(cfg["hf_hub"])
        return str(tmp_path / "tower.pt")

    monkeypatch.setattr("open_clip.factory.download_pretrained", download)
    model = theirs("hubconf").radio_model(version=str(tmp_path / "s.pth"), adaptor_names=["clip", "sam"]).eval()
    assert asked == ["timm/vit_base_patch32_clip_224.openai/"]
    adaptor = model.adaptors["clip"]
    with torch.no_grad():
        text = adaptor.encode_text(adaptor.tokenizer(["a photo of a cat"]), normalize=True)
        summary = model(image_batch())["clip"].summary
    assert text.shape[-1] == summary.shape[-1] == 12
    compare(student, model, ["clip", "sam"], image_batch(24, 56), capsys, "radio with a text tower")
    dino = torch.load(tmp_path / "s.pth", weights_only=False)["args"].teachers[2]
    assert theirs("radio.siglip2_adaptor")._VERSION_MAP[dino["model"]] == "google/siglip2-giant-opt-patch16-384"


def test_hugging_face_class(radio_student, image_batch, theirs, tmp_path, capsys):
    student = radio_student()
    write_hf(student, tmp_path)
    model, info = theirs("radio.hf_model").RADIOModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    for size in SIZES:
        compare(student, model.eval(), student.head_names, image_batch(*size), capsys, "hf")


@pytest.mark.parametrize("spectral", [False, True], ids=["plain", "spectral"])
@pytest.mark.parametrize("model", ["vit_base_patch16_v2_224", "vit_tiny_patch14_224", "vit_huge_patch16_224_mlpnorm"])
def test_their_file_starts_our_student(model, spectral, theirs, image_batch, tmp_path, capsys):
    """A file that their own classes make, of their own architectures: LayerScale, unused tokens, no norm, spectral."""
    args = argparse.Namespace(
        **dict.fromkeys(("drop_block", "gp", "bn_momentum", "bn_eps", "damp", "in_chans")),
        model=model,
        pretrained=False,
        input_size=[3, 224, 224],
        num_classes=0,
        drop=0.0,
        drop_path=0.0,
        torchscript=False,
        initial_checkpoint="",
        model_kwargs={"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8},
        cpe_max_size=64,
        cls_token_per_teacher=True,
        register_multiple=8,
        mlp_version="v2",
        spectral_reparam=spectral,
        spectral_heads=False,
        teachers=[
            {"name": "clip", "type": "x"},
            {"name": "sam", "type": "x", "use_summary": False, "fd_upsample_factor": 2},
            {"name": "dino", "type": "x"},
            {"name": "clip", "type": "x"},
        ],
    )
    torch.manual_seed(0)
    hubconf = theirs("hubconf")
    base = theirs("radio.radio_model").create_model_from_args(copy.deepcopy(args))
    if spectral:
        theirs("radio.enable_spectral_reparam").configure_spectral_reparam_from_args(base, args)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for module in base.modules():  # their loader takes one more step of the power method: let it have converged
            for _ in range(300 if torch.nn.utils.parametrize.is_parametrized(module) else 0):
                module.weight  # noqa: B018
    tensors = {f"base_model.{k}": v for k, v in base.state_dict().items()}
    for name, hidden, inner, summary, spatial in (
        ("clip", 16, 1, 12, 10),
        ("sam", 24, 0, 6, 4 * 6),
        ("dino", 16, 0, 9, 9),
    ):
        for prefix, width in (("_heads", summary), ("_feature_projections", spatial)):
            head = theirs("radio.adaptor_mlp").MLP2(32, hidden, width, inner)
            tensors |= {f"{prefix}.{name}.{k}": v for k, v in head.state_dict().items()}
    tensors |= {
        "input_conditioner.norm_mean": torch.rand(3, 1, 1),
        "input_conditioner.norm_std": torch.rand(3, 1, 1) + 0.5,
    }
    path = tmp_path / "released.pth"
    torch.save({"state_dict": tensors, "args": args, "epoch": 3}, path)
    loaded = hubconf.radio_model(version=str(path), adaptor_names=["clip", "sam", "dino"]).eval()

    heads = (
        HeadArchitecture("dino", 9, 9, hidden=16),
        HeadArchitecture("clip", 12, 10, token_slot=1, hidden=16, num_inner=1),
    )
    known = architecture_of(str(path), "x")
    mean, std = (tuple(tensors[f"input_conditioner.norm_{k}"].flatten().tolist()) for k in ("mean", "std"))
    architecture = dataclasses.replace(known, heads=heads, mean=mean, std=std, img_size=48)
    spec = load_spec(None, [f"train.pretrained_model_path={path}"])
    student = start_student(spec, architecture).eval()
    assert start_notes(spec, architecture) == [
        "train.pretrained_model_path: left out: the heads of sam; no teacher is called so"
    ]
    worst = 0.0
    for size in SIZES:
        with torch.no_grad():
            said, features = loaded(image_batch(*size)), student(image_batch(*size))
            for name in student.head_names:
                own = student.head(name, features)
                worst = max(worst, float((said[name].features - own.spatial.flatten(1, 2)).abs().max()))
                worst = max(worst, float((said[name].summary - own.summary).abs().max()))
            worst = max(worst, float((said["backbone"].features - features.spatial.flatten(1, 2)).abs().max()))
    with capsys.disabled():
        print(f"\nin: {model}, spectral {spectral}: {worst:.1e}", end=" ")
    assert worst <= 1e-4


@pytest.mark.parametrize(
    ("model", "ours", "teachers", "multiple"),
    [
        ("vit_base_patch16_v2_224", "c_radio_v3_vit_base_patch16_reg4_dinov2", 4, 8),
        ("vit_base_patch16_224", "c_radio_v2_vit_base_patch16", 4, 8),
        ("vit_so400m_patch16_224", "c_radio_v4_vit_so400m_patch16", 3, 10),
    ],
)
def test_what_a_name_builds_takes_their_tensors(model, ours, teachers, multiple, theirs, image_batch, capsys):
    """Of a model that their own classes make, as they do for C-RADIO: the same names and shapes, the same tokens."""
    kwargs = {"embed_dim": 32, "depth": 2, "num_heads": 2}
    args = argparse.Namespace(
        **dict.fromkeys(("drop_block", "gp", "bn_momentum", "bn_eps", "in_chans")),
        model=model,
        pretrained=False,
        input_size=[3, 224, 224],
        num_classes=0,
        drop=0.0,
        drop_path=0.0,
        torchscript=False,
        initial_checkpoint="",
        model_kwargs=dict(kwargs),
        cpe_max_size=2048,
        cls_token_per_teacher=True,
        register_multiple=multiple,
        teachers=[{"name": f"t{i}"} for i in range(teachers)],
    )
    theirs("radio.extra_timm_models")
    torch.manual_seed(0)
    base = theirs("radio.radio_model").create_model_from_args(args).eval()
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    unused = ("reg_token", "cls_token", "pos_embed")
    tensors = {k.replace(".grandma", ".gamma"): v for k, v in base.state_dict().items() if k not in unused}
    backbone = build_backbone(StudentArchitecture(ours, kwargs, num_class_tokens=teachers)).eval()
    backbone.load_state_dict(tensors)
    prefix, worst = backbone.patch_generator.num_prefix, 0.0
    for size in ((96, 96), (64, 160)):
        with torch.no_grad():
            said, found = base.forward_features(image_batch(*size)), backbone(image_batch(*size))
        worst = max(worst, float((said[:, :teachers] - found.named["tokens"]).abs().max()))
        worst = max(worst, float((said[:, prefix:] - found.spatial.flatten(1, 2)).abs().max()))
    with capsys.disabled():
        print(f"\n{ours}: {worst:.1e}", end=" ")
    assert worst <= 1e-4


def test_at_the_size_of_vit_b(radio_student, theirs, tmp_path, capsys):
    """768 numbers a token, 12 blocks, a table of 2048 pixels, heads as wide as CLIP's, SAM's and DINOv2's."""
    heads = (
        HeadArchitecture("clip", 1024, 1280, hidden=1280, num_inner=1),
        HeadArchitecture("sam", None, 1280, token_slot=1, hidden=1280),
        HeadArchitecture("dino_v2", 1536, 1536, token_slot=2, hidden=1536, num_inner=1),
    )
    kwargs = {"patch_size": 16}
    student = radio_student(
        type="radio_vit_base_patch16", kwargs=kwargs, cpe_max_size=2048, num_registers=5, heads=heads, img_size=256
    )
    write_radio(student, tmp_path / "b.pth")
    model = theirs("hubconf").radio_model(version=str(tmp_path / "b.pth"), adaptor_names=student.head_names).eval()
    for size in ((256, 256), (192, 320)):
        compare(student, model, student.head_names, torch.rand(1, 3, *size), capsys, "ViT-B")
