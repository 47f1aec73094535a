"""Each recipe below ``specs/recipes``, and that of a node: `plan` lacks nothing but files; it trains at tiny widths."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch

import radioplat
from benchmarks.judges.pipeline import judged
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.pipeline.checks import plan_pipeline
from radioplat.tasks.plan.plan import plan
from radioplat.tracking.status import read_status

SPECS = Path(__file__).parents[2] / "specs"
PIPELINE = SPECS / "recipes" / "eupe.yaml"
SPEC_FILES = [path for path in (SPECS / "recipes").glob("*.yaml") if path != PIPELINE]
RECIPES = {path.stem: path for path in (*SPEC_FILES, SPECS / "node_8gpu.yaml")}
TINY = {"embed_dim": 48, "depth": 2, "num_heads": 3}
STEPS = 2
SMALL_RUN = [
    f"train.max_steps={STEPS}", "train.num_epochs=1", "train.precision=fp32", "train.zero_stage=0", "dataset.workers=1",
    "cluster.mode=local", "distill.mlp_hidden_size=32", "dataset.train_dataset.tar_data_sources[0].samples_per_file=12",
]  # fmt: skip


def of_timm(path: Path, name: str, **kwargs: Any) -> list[str]:
    """Write a tiny timm model; the overrides of its teacher, below ``distill.teacher[i].``."""
    torch.manual_seed(0)
    tensors = timm.create_model(name, **kwargs).state_dict()
    if path.suffix == ".pth":
        torch.save(tensors, path)
    else:
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    tiny = {k: v for k, v in kwargs.items() if k not in ("img_size", "num_classes")}
    return [f"pretrained_teacher_model_path={path}", f"model.backbone.kwargs={json.dumps(tiny)}"]


def am_radio(root: Path) -> tuple[list[list[str]], list[str]]:
    tower = dict(embed_dim=32, depth=1, num_heads=2, img_size=56)
    sam = dict(embed_dim=32, depth=2, num_heads=2, global_attn_indexes=[1])
    teachers = [
        of_timm(root / "clip.safetensors", "vit_huge_patch14_clip_quickgelu_378", num_classes=1024, **tower),
        of_timm(root / "openai.safetensors", "vit_large_patch14_clip_quickgelu_336", num_classes=768, **tower),
        of_timm(root / "dino.pth", "vit_giant_patch14_reg4_dinov2", **tower),
        of_timm(root / "sam.pth", "samvit_huge_patch16", **sam),
    ]
    teachers[3][1] = f"model.backbone.kwargs={json.dumps(sam | {'neck': False})}"
    for teacher in teachers[:3]:
        teacher.append("input_size=56")
    teachers[3].append("input_size=128")
    return teachers, [
        f"model.backbone.kwargs={json.dumps(TINY)}", "model.backbone.cpe_max_size=128", "dataset.img_size=64",
        "dataset.batch_size=1", "train.global_batch_size=8",
        "distill.partitions[0].img_size=64", "distill.partitions[1].img_size=128",
    ]  # fmt: skip


def c_radio_v4(root: Path) -> tuple[list[list[str]], list[str]]:
    import transformers

    backbone = {
        "model_type": "sam3_vit_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 112, "pretrain_image_size": 56, "patch_size": 14, "window_size": 4,
        "global_attn_indexes": [1],
    }  # fmt: skip
    torch.manual_seed(0)
    config = transformers.Sam3VisionConfig(backbone_config=backbone, fpn_hidden_size=16)
    transformers.Sam3VisionModel(config).save_pretrained(root / "sam3")
    tower = dict(embed_dim=32, depth=1, num_heads=2)
    teachers = [
        of_timm(root / "siglip.safetensors", "vit_giantopt_patch16_siglip_384", img_size=64, num_classes=0, **tower),
        of_timm(root / "dino.pth", "vit_7b_patch16_dinov3", num_classes=0, **tower),
        [f"pretrained_teacher_model_path={root / 'sam3'}", "input_size=112"],
    ]
    teachers[0].append("input_size=64")
    return teachers, [
        f"model.backbone.kwargs={json.dumps(TINY)}", "model.backbone.cpe_max_size=128", "dataset.img_size=64",
        "dataset.batch_size=2", "train.global_batch_size=8", "distill.target_norm.fit_batches=2",
        "distill.partitions[0].sizes=[64]", "distill.partitions[1].sizes=[128]", "distill.vitdet.window_sizes=[2]",
        "distill.vitdet.num_global=1",
    ]  # fmt: skip


def eupe_stage1(root: Path) -> tuple[list[list[str]], list[str]]:
    tower = dict(embed_dim=32, depth=1, num_heads=2)
    teachers = [
        of_timm(root / "pe.safetensors", "vit_pe_core_gigantic_patch14_448", num_classes=1280, img_size=56, **tower),
        of_timm(root / "dino.pth", "vit_huge_plus_patch16_dinov3", num_classes=0, **tower),
    ]
    teachers[0].append("input_size=56")
    return teachers, [
        f"model.backbone.kwargs={json.dumps(TINY)}", "model.backbone.cpe_max_size=128", "dataset.img_size=64",
        "dataset.batch_size=4", "train.global_batch_size=8", "distill.target_norm.fit_batches=2",
    ]  # fmt: skip


def eupe_stage2(root: Path) -> tuple[list[list[str]], list[str]]:
    torch.manual_seed(0)
    proxy = Student(StudentArchitecture("radio_vit_tiny_patch16", TINY | {"depth": 3}, img_size=64))
    (root / "proxy").mkdir()
    save_student(proxy, proxy.state_dict(), root / "proxy")
    return [[f"pretrained_teacher_model_path={root / 'proxy'}"]], [
        f"model.backbone.kwargs={json.dumps(TINY)}", "dataset.img_size=64", "dataset.batch_size=4",
        "train.global_batch_size=8", "distill.target_norm.fit_batches=2",
    ]  # fmt: skip


def node_8gpu(root: Path) -> tuple[list[list[str]], list[str]]:
    tower = dict(embed_dim=32, depth=1, num_heads=2, img_size=56)
    teachers = [
        of_timm(root / "clip.safetensors", "vit_huge_patch14_clip_quickgelu_224", num_classes=1024, **tower),
        of_timm(root / "siglip.safetensors", "vit_so400m_patch14_siglip_224", num_classes=0, **tower),
        of_timm(root / "dino.pth", "vit_giant_patch14_reg4_dinov2", **tower),
    ]
    for teacher in teachers:
        teacher.append("input_size=56")
    return teachers, [
        f"model.backbone.kwargs={json.dumps(TINY)}", "dataset.img_size=64", "dataset.batch_size=4", "train.num_gpus=1",
        "train.global_batch_size=8", "distill.target_norm.fit_batches=2", "train.optim.warmup_epochs=0",
    ]  # fmt: skip


PHI_S, CHANNELS = (f" after {kind} of its targets" for kind in ("phi_s", "standardize_channels"))
# Recipe -> what makes it tiny, and the losses that its paper has.
SMALL: dict[str, tuple[Callable[[Path], tuple[list[list[str]], list[str]]], dict[str, set[str]]]] = {
    "am_radio": (
        am_radio,
        {
            "clip": {"summary by CS", "spatial by BALANCED"},
            "openai_clip": {"summary by CS", "spatial by BALANCED"},
            "dino_v2": {"summary by CS", "spatial by BALANCED"},
            "sam": {"spatial by BALANCED"},
        },
    ),
    "c_radio_v4": (
        c_radio_v4,
        {
            "siglip2-g": {"summary by angle", f"spatial by MSE{PHI_S}"},
            "dino_v3": {"summary by angle", f"spatial by MSE{PHI_S}"},
            "sam3": {f"spatial by MSE{PHI_S}"},
        },
    ),
    "node_8gpu": (
        node_8gpu,
        {
            name: {*(f"{kind} by BALANCED{PHI_S}" for kind in ("summary", "spatial")), f"summary by similarity{PHI_S}"}
            for name in ("clip", "siglip", "dino_v2")
        },
    ),
    "eupe_stage1": (
        eupe_stage1,
        {name: {f"summary by CS{CHANNELS}", f"spatial by BALANCED{CHANNELS}"} for name in ("pe_core", "dino_v3")},
    ),
    "eupe_stage2": (eupe_stage2, {"proxy": {f"summary by CS{CHANNELS}", f"spatial by BALANCED{CHANNELS}"}}),
}


def test_every_recipe_is_tested():
    assert RECIPES.keys() == SMALL.keys()


def structures(name: str, root: Path) -> list[str]:
    """Folders that describe a teacher's structure: without them `plan` knows no sizes, and checks none."""
    if name == "c_radio_v4":
        import transformers

        transformers.Sam3VisionConfig().save_pretrained(root / "sam3")
        return [f"distill.teacher[2].pretrained_teacher_model_path={root / 'sam3'}"]
    if name == "eupe_stage2":
        [[field]], _ = eupe_stage2(root)
        return [f"distill.teacher[0].{field}"]
    return []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.proof] * (name == "c_radio_v4")) for name in SMALL]
)
def test_a_recipe_lacks_only_files(name, tmp_path):
    overrides = [f"results_dir={tmp_path / 'results'}", *structures(name, tmp_path)]
    problems = plan(load_spec(RECIPES[name], overrides)).problems
    assert problems
    missing = {p.where for p in problems}
    assert all(where.endswith((".pretrained_teacher_model_path", ".root_dir")) for where in missing), problems


@pytest.mark.proof
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), "8 worker(s) with clip, siglip, dino_v2 inline"),
        (
            (
                "train.num_gpus=4",
                "teachers.clip={placement: spread, num_gpus: 0.5, replicas: 2}",
                "teachers.siglip={placement: spread, num_gpus: 0.5}",
                "teachers.dino_v2={placement: spread, num_gpus: 0.5, replicas: 5}",
            ),
            "4 worker(s) + clip 2 x 0.5 + siglip 1 x 0.5 + dino_v2 5 x 0.5",
        ),
    ],
    ids=["inline", "shares of a GPU"],
)
def test_the_recipe_of_a_node_fits_its_gpus(tmp_path, overrides, words):
    """Said on a machine without any: what the run would take where there are some."""
    planned = plan(load_spec(RECIPES["node_8gpu"], [f"results_dir={tmp_path}", *overrides]))
    needed, _, rest = planned.facts["GPUs"].partition(" ")
    assert 0 < float(needed) <= 8 and rest.endswith(words)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, crops, encode, write_shard) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    images = enumerate(crops(12, 160, 3))
    write_shard(root / "0.tar", [(f"{i}.jpg", encode(pixels, "JPEG")) for i, (_, pixels) in images])
    return root


# The pipeline below trains both stages of EUPE.
@pytest.mark.parametrize(
    "name",
    [name if name in ("am_radio", "node_8gpu") else pytest.param(name, marks=pytest.mark.proof) for name in SMALL],
)
def test_a_recipe_trains_at_tiny_widths(name, tmp_path, shards, distil):
    make, losses = SMALL[name]
    (tmp_path / "weights").mkdir()
    teachers, fields = make(tmp_path / "weights")
    overrides = [
        f"results_dir={tmp_path}", *SMALL_RUN, f"dataset.train_dataset.tar_data_sources[0].root_dir={shards}", *fields,
        *(f"distill.teacher[{i}].{field}" for i, tiny in enumerate(teachers) for field in tiny),
    ]  # fmt: skip
    planned = plan(load_spec(RECIPES[name], overrides))
    assert planned.problems == []
    found = {}
    for line in planned.facts["losses"].split("; "):
        teacher, _, terms = line.partition(": ")
        if terms:
            found[teacher] = set(terms.split(", "))
    assert found == losses
    run = distil(RECIPES[name], *overrides)
    assert run.result.global_step == STEPS
    kpis = [line["kpi"] for line in read_status(run.folder / "status.json") if "max_step" in line]
    terms = {f"{t}/{term.split()[0]}" for t, of_teacher in losses.items() for term in of_teacher}
    for kpi in kpis:
        of_run = {key.removeprefix("loss/"): value for key, value in kpi.items() if key.startswith("loss/")}
        assert terms <= of_run.keys() and all(math.isfinite(value) and value > 0 for value in of_run.values())


def test_the_pipeline_lacks_only_files(tmp_path):
    planned = plan_pipeline(PIPELINE, [f"results_dir={tmp_path / 'results'}"])
    missing = {p.where.rpartition(": ")[2] for p in planned.problems}
    assert missing and all(where.endswith((".pretrained_teacher_model_path", ".root_dir")) for where in missing)


@pytest.mark.timeout(300)
def test_the_pipeline_runs_at_tiny_widths(tmp_path, shards):
    """Experts, their proxy, two students of it, and each at two sizes from the one before."""
    (tmp_path / "weights").mkdir()
    experts, _ = eupe_stage1(tmp_path / "weights")
    overrides = [
        f"results_dir={tmp_path / 'eupe'}", "concurrent=2", *SMALL_RUN, "dataset.img_size=64", "dataset.batch_size=4",
        "train.global_batch_size=8", "distill.target_norm.fit_batches=2", f"model.backbone.kwargs={json.dumps(TINY)}",
        f"dataset.train_dataset.tar_data_sources[0].root_dir={shards}", "nodes.proxy.model.backbone.cpe_max_size=128",
        "nodes.vit_s.model.backbone.kwargs.depth=1", "nodes.vit_s_sizes.model.backbone.kwargs.depth=1",
        *(f"nodes.proxy.distill.teacher[{i}].{field}" for i, tiny in enumerate(experts) for field in tiny),
        *(f"nodes.{name}_sizes.dataset.augmentation.multi_scales=[64,96]" for name in ("vit_b", "vit_s")),
    ]  # fmt: skip
    report = radioplat.pipeline(PIPELINE, overrides)
    assert [entry.name for entry in report.nodes] == ["proxy", "vit_b", "vit_s", "vit_b_sizes", "vit_s_sizes"]
    assert all(entry.step == STEPS for entry in report.nodes)
    depths = {name: radioplat.load_student(path).architecture.kwargs["depth"] for name, path in report.results.items()}
    assert depths == {"proxy": 2, "vit_b": 2, "vit_s": 1, "vit_b_sizes": 2, "vit_s_sizes": 1}
    started = (report.folder / "vit_b_sizes" / "distill" / "experiment.yaml").read_text()
    assert str(report.results["vit_b"]) in started and str(report.results["proxy"]) in started
    assert judged(report.folder)["ran"] == {1: [entry.name for entry in report.nodes]}
