"""The example of TAO's documents, word for word, made small by overrides alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.ledger_rows import read_consumed
from radioplat.data.loading.run_data import RunData
from radioplat.models.student.student import Student, StudentArchitecture, build_backbone
from radioplat.spec.loading.load import load_spec
from radioplat.teachers.base.teacher import FrozenTeacher
from radioplat.tracking.status import read_status

SPEC = Path(__file__).parents[2] / "specs" / "radio_two_teachers.yaml"
RADIO = {"embed_dim": 48, "depth": 1, "num_heads": 3}
CLIPA = {"embed_dim": 32, "depth": 1, "num_heads": 2}
POOL = {"summary": "mean"}  # the tower without the projection to the space of texts
STEPS = 6


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, crops, encode, write_shard) -> dict[str, Path]:
    """Two corpora of 224 px and more with a photograph seen four times and some too small; two tiny checkpoints."""
    root = tmp_path_factory.mktemp("two_teachers")
    for name, seed in (("a", 5), ("b", 6)):
        members = []
        for i, (_, pixels) in enumerate(crops(6, 240, seed) + crops(3, 100, seed)):
            members += [(f"{i}.jpg", encode(pixels, "JPEG")), (f"{i}.json", json.dumps({"uid": f"{name}{i}"}).encode())]
        for i in range(4):
            members += [(f"again{i}.jpg", members[0][1]), (f"again{i}.json", json.dumps({"uid": f"{name}0"}).encode())]
        write_shard(root / name / "0.tar", members)
    teachers = (
        ("dinov2", StudentArchitecture("c_radio_v3_vit_huge_patch16_reg4_dinov2", RADIO, img_size=432)),
        ("siglip", StudentArchitecture("vit_h_14_siglip_clipa_224", CLIPA, img_size=224)),
    )
    for name, architecture in teachers:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            backbone = build_backbone(architecture)
        torch.save({"state_dict": getattr(backbone, "model", backbone).state_dict()}, root / f"{name}.pth")
    return {"root": root}


@pytest.fixture(scope="module")
def run(inputs, distil, tmp_path_factory):
    """The run, and what its models were given: (class, dtype of the weights, shape of the images)."""
    root, results = inputs["root"], tmp_path_factory.mktemp("results")
    sources = "dataset.train_dataset.tar_data_sources"
    overrides = [
        f"results_dir={results}",
        "train.num_epochs=2",
        "dataset.batch_size=2",
        f"{sources}[0].root_dir={root / 'a'}",
        f"{sources}[1].root_dir={root / 'b'}",
        f"{sources}[0].steps_per_epoch=3",
        f"{sources}[1].steps_per_epoch=2",
        f"distill.teacher[0].pretrained_teacher_model_path={root / 'dinov2.pth'}",
        f"distill.teacher[1].pretrained_teacher_model_path={root / 'siglip.pth'}",
        f"model.backbone.kwargs={json.dumps(RADIO)}",
        f"distill.teacher[0].model.backbone.kwargs={json.dumps(RADIO)}",
        f"distill.teacher[1].model.backbone.kwargs={json.dumps(CLIPA | POOL)}",
        "teachers.vit_h_14_siglip_clipa_224.num_cpus=0.5",
        "cluster.cpu_hour_price=0.36",
        "cluster.gpu_hour_price=100",
    ]
    seen = set()

    def watch(module, arguments) -> None:
        if isinstance(module, (FrozenTeacher, Student)):
            name = module.name if isinstance(module, FrozenTeacher) else "student"
            seen.add((name, next(module.parameters()).dtype, tuple(arguments[0].shape)))

    before = SPEC.read_bytes()
    handle = register_module_forward_pre_hook(watch)
    try:
        trail = distil(SPEC, *overrides)
    finally:
        handle.remove()
    assert SPEC.read_bytes() == before
    trail.seen = seen
    return trail


def kpis(run) -> list[dict]:
    return [line["kpi"] for line in read_status(run.folder / "status.json") if "max_step" in line]


def test_it_trains_on_one_cpu_worker_and_says_so(run):
    assert run.result.global_step == STEPS  # the largest steps_per_epoch, twice
    assert any("no GPU" in line and "one CPU worker" in line for line in run.lines)


def test_each_model_sees_its_own_size(run):
    sizes = {name: shape for name, _, shape in run.seen}
    assert sizes == {
        "student": (2, 3, 224, 224),
        "c_radio_v3_vit_huge_patch16_reg4_dinov2": (2, 3, 432, 432),
        "vit_h_14_siglip_clipa_224": (2, 3, 224, 224),
    }


def test_what_the_teachers_cost(run):
    cpus = {"c_radio_v3_vit_huge_patch16_reg4_dinov2": 1, "vit_h_14_siglip_clipa_224": 0.5}
    dinov2, siglip = (run.result.teacher_costs.teachers[name] for name in cpus)
    images = len(read_consumed(run.folder / "ledger"))
    assert (dinov2.images, siglip.images, dinov2.cached) == (images, images, 0) and images == 2 * STEPS
    # The map of 48 numbers at the student's 14 x 14, though this teacher sees 27 x 27; the other's summary of 32.
    assert dinov2.bytes == images * 2 * 14 * 14 * 48 and siglip.bytes == images * 2 * 32
    assert 0 < dinov2.seconds <= dinov2.held_seconds
    assert dinov2.cpu_seconds == dinov2.seconds and siglip.cpu_seconds == pytest.approx(siglip.seconds / 2)
    assert dinov2.gpu_seconds == siglip.gpu_seconds == 0  # a GPU has a price, but there is none
    for kpi in kpis(run):
        for name, count in cpus.items():
            found = {key.split("/")[2]: value for key, value in kpi.items() if key.startswith(f"cost/{name}/")}
            seconds = found["seconds_per_1000_images"]
            assert found["price_per_1000_images"] == pytest.approx(seconds * count * 0.36 / 3600)
            assert found["gpu_seconds_per_1000_images"] == 0 and 0 < found["busy"] <= 1
    by_step = sum(kpi["seconds/teacher/vit_h_14_siglip_clipa_224"] for kpi in kpis(run))
    assert siglip.seconds == pytest.approx(by_step)


def test_the_student_computes_in_bf16(run):
    assert {dtype for name, dtype, _ in run.seen if name == "student"} == {torch.bfloat16}


def test_modes_and_inheritance(run):
    for kpi in kpis(run):
        terms = {name: value for name, value in kpi.items() if name.startswith("loss/")}
        assert terms.keys() == {
            "loss/c_radio_v3_vit_huge_patch16_reg4_dinov2/spatial",
            "loss/vit_h_14_siglip_clipa_224/summary",
        }
        assert kpi["loss"] == pytest.approx(0.5 * sum(terms.values()), rel=1e-4)  # the global loss_lambda


def test_cosine_policy(run):
    wanted = [6e-5 * (1 + math.cos(math.pi * step / STEPS)) / 2 for step in range(STEPS)]
    assert [kpi["lr"] for kpi in kpis(run)] == pytest.approx(wanted)


def test_filter_and_inverse_frequency(run):
    split = load_spec(run.folder / "experiment.yaml").dataset.train_dataset
    data = RunData.load(run.folder / "data", split)
    keys = np.array([data.index.key(row) for row in range(len(data.index))])
    small = np.isin(keys, ["6", "7", "8"])
    assert set(data.reasons[small]) == {"min_short_side"} and set(data.reasons[~small]) == {""}
    often = np.isin(keys, ["0", "again0", "again1", "again2", "again3"])
    assert data.weight[often] == pytest.approx(0.2) and data.weight[~often & ~small] == pytest.approx(1)
    consumed = read_consumed(run.folder / "ledger")["id"].to_numpy()
    assert len(consumed) == 2 * STEPS and not small[consumed].any()
    # 12 samples 2:1, a pass of 5 + 1 of each corpus: the five copies of one photograph share one place in it.
    first_pass = [row for row in consumed.tolist() if data.index.source[row] == 0][:6]
    assert often[first_pass].sum() == 1


def test_twice_as_many_from_the_first_corpus(run):
    split = load_spec(run.folder / "experiment.yaml").dataset.train_dataset
    consumed = read_consumed(run.folder / "ledger")["id"].to_numpy()
    source = RunData.load(run.folder / "data", split).index.source[consumed]
    assert (source == 0).sum() == 2 * (source == 1).sum()
