"""Models side by side: a checkpoint, what was made of it and what it left as, by the same metrics on real images."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import skimage.data
import timm
import torch
from crowded_cells import crowded_cells
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from radioplat.compression.pruning.prune import ChannelScore, prune_model
from radioplat.design.models import design_models
from radioplat.errors import RadioplatError, SpecError
from radioplat.evaluation.models.checkpoints import open_models
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_record import read_record
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.layers import can_be_quantized
from radioplat.models.quantized.quantizer import in_float
from radioplat.models.student.checkpoint import load_student, save_student
from radioplat.models.student.student import Student
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.side_by_side import model_notes, models_tables
from radioplat.tracking.status import read_status

SCENES = {"astronaut": skimage.data.astronaut, "cat": skimage.data.chelsea, "coffee": skimage.data.coffee}


def crops(folder: Path, count: int, seed: int) -> str:
    """``count`` crops of 80 pixels a scene, one folder a class."""
    rng = np.random.default_rng(seed)
    for name, scene in SCENES.items():
        picture = scene()
        (folder / name).mkdir(parents=True)
        for i in range(count):
            y, x = (int(rng.integers(0, limit - 80)) for limit in picture.shape[:2])
            Image.fromarray(picture[y : y + 80, x : x + 80]).save(folder / name / f"{i}.png")
    return str(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, str]:
    """Paths by name; ``root`` is where they lie."""
    root = tmp_path_factory.mktemp("models")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = timm.create_model("test_vit", num_classes=0, img_size=64).state_dict()
    safetensors.torch.save_file(vit, root / "vit.safetensors")
    return {"root": str(root), "train": crops(root / "train", 8, 0), "val": crops(root / "val", 5, 1)}


@pytest.fixture(scope="module")
def base(made) -> dict:
    """A spec without models; a ViT as teacher, batches of 7 of which the last is not full."""
    teacher = {
        "name": "vit",
        "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": 64}}},
        "pretrained_teacher_model_path": f"{made['root']}/vit.safetensors",
        "mode": "combo",
        "loss_type": "BALANCED",
        "summary_loss_type": "cosine",
    }
    kwargs = {"embed_dim": 48, "depth": 2, "num_heads": 3}
    return {
        "results_dir": f"{made['root']}/results",
        "model": {"backbone": {"type": "radio_vit_tiny_patch16", "kwargs": kwargs}},
        "dataset": {
            "img_size": 64,
            "batch_size": 7,
            "workers": 1,
            "train_dataset": {"images_dir": made["train"]},
            "val_dataset": {"images_dir": made["val"]},
        },
        "train": {"global_batch_size": 7},
        "distill": {"mlp_hidden_size": 32, "teacher": [teacher]},
        "cluster": {"mode": "local"},
        "evaluate": {"knn_k": 5, "pictures": 2, "linear_probe": {"enable": True, "max_iter": 50}},
    }


def fake_quantized(student: Student, folder: str) -> Student:
    """``student`` with every backbone layer in int8, ranges by their largest magnitude on a few training images."""
    names = [n for n, m in student.named_modules() if n.startswith("backbone.") and can_be_quantized(m)]
    how = Quantization({name: LayerFormats() for name in names})
    made = Student(replace(student.architecture, quantized=how)).eval()
    made.load_state_dict(student.state_dict(), strict=False)
    for name in names:
        layer = made.get_submodule(name)
        layer.weight_quantizer.set_amax(layer.weight.detach().flatten(1).abs().amax(1))
        layer.input_quantizer.register_forward_pre_hook(lambda q, x: q.set_amax(x[0].abs().max()[None]))
    files = sorted(Path(folder).rglob("*.png"))
    pixels = np.stack([np.array(Image.open(file).resize((64, 64))) for file in files]).transpose(0, 3, 1, 2)
    with torch.no_grad(), in_float(made):
        made(torch.from_numpy(pixels.copy()))
    for module in made.modules():
        module._forward_pre_hooks.clear()
    return made


@pytest.fixture(scope="module")
def paths(base, made) -> dict[str, str]:
    """Models by name: a student with a classifier, a pruned one, and ONNX files with and without heads."""
    loaded, root = load_spec(base), Path(made["root"])
    architecture = replace(design_models(loaded, "distill").architecture, num_classes=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        student = start_student(loaded, architecture).eval()
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    loaded.prune.granularity, loaded.prune.amount = 1, 0.5
    pruned = prune_model(student, loaded.prune, ChannelScore(loaded.prune, 0), None)[0]
    found = {}
    for name, each in {"plain": student, "pruned": pruned, "fake": fake_quantized(student, made["train"])}.items():
        (root / name).mkdir()
        save_student(each, each.state_dict(), root / name)
        found[name] = str(root / name)
    again = load_student(found["plain"])
    for name, options in {
        "open": {"adaptors": ["vit"]},
        "fixed": {"adaptors": ["vit"], "batch_size": 4, "data_type": "fp16"},
        "bare": {},
        "bf16": {"opset": 22, "data_type": "bf16"},
    }.items():
        found[name] = str(export_onnx(again, root / f"{name}.onnx", height=64, width=64, **options).path)
    student = load_student(found["fake"])
    found["int8"] = str(export_onnx(student, root / "int8.onnx", height=64, width=64, adaptors=["vit"]).path)
    config = TensorRTConfig(min_batch_size=2, opt_batch_size=4, max_batch_size=5)
    for name, backend in {"cpu": EngineBackend.onnxruntime, "rtx": EngineBackend.tensorrt_rtx}.items():
        if backend is EngineBackend.onnxruntime or importlib.util.find_spec("tensorrt_rtx_bindings"):
            found[name] = str(build_engine(found["open"], root / f"{name}.engine", config, backend=backend).path)
    if importlib.util.find_spec("openvino"):
        options = {"backend": EngineBackend.openvino, "latency_seconds": 0.05}
        found["vino"] = str(build_engine(found["bare"], root / "vino.engine", config, **options).path)
    return found


def spec_of(base: dict, results: Path, *models: dict) -> dict:
    spec = copy.deepcopy(base)
    spec["results_dir"] = str(results)
    spec["evaluate"]["models"] = list(models)
    return spec


@pytest.fixture(scope="module")
def judged(base, paths, made):
    names = [("half", "plain", "fp16"), ("brain", "plain", "bf16"), *((n, n, None) for n in paths)]
    models = [{"name": n, "path": paths[p], **({"precision": q} if q else {})} for n, p, q in names]
    return evaluate(spec_of(base, Path(made["root"]) / "judged", models[2], *models[:2], *models[3:]))


@pytest.mark.proof
def test_a_file_has_the_figures_of_the_checkpoint_that_it_came_from(judged):
    rows = {row.name: row for row in judged.models}
    made = ["plain", "half", "brain", "pruned", "fake", "open", "fixed", "bare", "bf16", "int8", "cpu"]
    assert list(rows)[: len(made)] == made
    plain = rows["plain"].figures()
    heads = {"fidelity/vit/summary", "fidelity/vit/spatial"}
    assert {"knn", "shared_index", "linear_probe", "accuracy"} | heads == set(plain)
    for name, tolerance in (("open", 1e-3), ("cpu", 1e-3), ("half", 1e-2), ("fixed", 1e-2)):
        figures = rows[name].figures()
        assert {key: figures[key] for key in plain} == pytest.approx(plain, abs=tolerance), name
        assert figures["likeness/summary"] > 0.999 and figures["likeness/spatial"] > 0.999
    kinds = [row.kind for row in judged.models]
    assert kinds[:5] == ["torch fp32", "torch fp16", "torch bf16", "torch fp32", "torch fake-quant int8"]
    assert kinds[5:10] == ["ONNX fp32", "ONNX fp16", "ONNX fp32", "ONNX bf16", "ONNX int8"]
    assert kinds[10] == "engine onnxruntime fp32"


@pytest.mark.proof
def test_single_and_side_by_side_agree(judged, base, paths, tmp_path):
    alone = copy.deepcopy(base) | {"results_dir": str(tmp_path)}
    alone["evaluate"] |= {"checkpoint": paths["plain"], "baseline": False}
    found, row = evaluate(alone), judged.models[0]
    assert (found.knn["student"].top1, found.findings.results["linear"]["student"].top1) == (
        row.measured["knn"],
        row.measured["linear_probe"],
    )
    assert found.accuracy == row.measured["accuracy"] and len({r.measured["accuracy"] for r in judged.models}) > 1
    own = {f"vit/{kind}": value.centered for kind, value in found.fidelity["student"]["vit"].items()}
    assert row.measured["fidelity"] == pytest.approx(own, abs=1e-6)


def test_precision_is_real(judged):
    """fp16 moves the features, and bf16 more."""
    likeness = {row.name: row.measured["likeness"] for row in judged.models}
    assert 1e-8 < 1 - likeness["half"]["spatial"] < 1 - likeness["brain"]["spatial"] < 0.05


def test_fake_quantization_is_in_the_figures_and_is_judged_in_fp32(judged, base, paths, tmp_path):
    row, plain = {row.name: row for row in judged.models}["fake"], judged.models[0].measured["fidelity"]
    assert 1e-6 < 1 - row.measured["likeness"]["spatial"] < 0.1 and row.measured["fidelity"].keys() == plain.keys()
    file = {row.name: row for row in judged.models}["int8"]
    assert file.measured["fidelity"] == pytest.approx(row.measured["fidelity"], abs=5e-3)
    assert file.measured["knn"] == pytest.approx(row.measured["knn"], abs=1.5 / 15)
    assert file.measured["likeness"] == pytest.approx(row.measured["likeness"], abs=5e-3)
    assert (row.params, row.macs) == (judged.models[0].params, judged.models[0].macs)
    spec = spec_of(base, tmp_path, {"name": "a", "path": paths["fake"], "precision": "fp16"})
    with pytest.raises(SpecError, match=r"evaluate.models\[0\].precision: a quantized model is evaluated in fp32"):
        evaluate(spec)


def test_what_a_model_takes(judged, paths):
    rows = {row.name: row for row in judged.models}
    assert 0 < rows["pruned"].params < rows["plain"].params and 0 < rows["pruned"].macs < rows["plain"].macs
    assert rows["pruned"].bytes < rows["plain"].bytes and rows["fixed"].bytes < 0.7 * rows["open"].bytes
    assert rows["open"].bytes == Path(paths["open"]).stat().st_size
    whole = load_student(paths["plain"])
    assert rows["plain"].params == sum(p.numel() for p in whole.backbone.parameters())
    assert rows["plain"].bytes == pytest.approx(4 * sum(t.numel() for t in whole.state_dict().values()), rel=0.05)


def test_what_cannot_be_told_is_a_dash_and_a_reason(judged, capsys):
    rows = {row.name: row for row in judged.models}
    assert not rows["bare"].measured["fidelity"] and "name them in export.adaptors" in rows["bare"].absent[0]
    assert rows["bare"].measured["knn"] == rows["open"].measured["knn"]
    assert rows["bf16"].size is None and not rows["bf16"].figures() and "onnxruntime" in rows["bf16"].absent[0]
    from radioplat.tasks.evaluate.show import show

    show(judged)
    told = capsys.readouterr().out
    assert "Models side by side" in told and "kNN on held-out" not in told
    page = judged.report.read_text(encoding="utf-8")
    for text in (told, page):
        assert "bf16: onnxruntime cannot run the file here" in text and "bare: fidelity" in text
        assert f"Difference from {judged.models[0].name} in percentage points" in text and crowded_cells(text) == []
    assert page.count("data:image/png") == 2 and "kNN on held-out images" in page  # neighbours, and maps


def test_an_engine_is_written_executed_and_evaluated_each_for_itself(judged, paths):
    rows = {row.name: row for row in judged.models}
    assert rows["cpu"].state == "executed on cpu, evaluated" and not rows["open"].state
    record = read_record(paths["cpu"])
    layers = record["coverage"]["eligible"]
    assert set(rows["cpu"].kernels) == {"fp32"} and rows["cpu"].kernels["fp32"] >= layers > 8
    assert any(line.startswith("cpu: convolution and GEMM kernels: ") for line in model_notes(judged.models))
    assert record["evaluated"] and record["evaluation"] == rows["cpu"].figures()
    if "rtx" not in rows:
        pytest.skip("no TensorRT for RTX")
    if rows["rtx"].size is not None:
        pytest.skip("a GPU that runs it")
    assert rows["rtx"].state == "written, never executed" and not rows["rtx"].figures() and len(rows["rtx"].absent) == 1
    assert not read_record(paths["rtx"])["evaluated"]
    assert f"rtx: {rows['rtx'].absent[0]}" in judged.report.read_text(encoding="utf-8").replace("&#39;", "'")


def test_an_openvino_engine_has_the_figures_of_its_file_and_a_latency(judged, paths, capsys):
    from radioplat.tasks.evaluate.show import show

    if "vino" not in paths:
        pytest.skip("no OpenVINO")
    rows = {row.name: row for row in judged.models}
    row, wanted = rows["vino"], rows["bare"].figures()
    assert (row.kind, row.state) == ("engine openvino fp32", "executed on cpu, evaluated")
    assert wanted and row.figures() == pytest.approx(wanted, abs=1e-3)
    record = read_record(paths["vino"])
    assert record["evaluation"] == row.figures()
    milliseconds = record["latency"]["batches"]["2"]["fp32"]["p50"]
    other = read_record(paths["cpu"])["latency"]  # it was built without, and measured by the evaluation
    assert row.milliseconds == milliseconds > 0 and rows["cpu"].milliseconds == other["batches"]["2"]["fp32"]["p50"]
    assert other["device"] == "cpu" and other["cpu"] == record["latency"]["cpu"]
    table = models_tables(judged.models)[0]
    cells = {line[0]: line[table.columns.index("ms")] for line in table.rows}
    assert cells["vino"] == f"{milliseconds:.3g}" and cells["cpu"] and cells["plain"] is None
    show(judged)
    said, page = capsys.readouterr().out, judged.report.read_text(encoding="utf-8")
    assert re.search(r"<th[^>]*>ms</th>", page) and f"{milliseconds:.3g}" in page and "ms" in said.split()
    assert "median latency for its smallest batch" in page


def test_an_engine_without_its_record_or_with_another_is_refused(base, paths, tmp_path):
    for name in ("alone", "torn"):
        shutil.copy(paths["cpu"], tmp_path / f"{name}.engine")
    record = json.loads(Path(f"{paths['cpu']}.json").read_text())
    (tmp_path / "torn.engine.json").write_text(json.dumps(record | {"engine_sha256": "0"}))
    models = [{"name": name, "path": str(tmp_path / f"{name}.engine")} for name in ("alone", "torn")]
    with pytest.raises(SpecError) as error:
        open_models(load_spec(spec_of(base, tmp_path, *models)), "cpu")
    assert told(error.value.problems, "evaluate.models[0].path", "record of the engine is missing")
    assert told(error.value.problems, "evaluate.models[1].path", "SHA-256 differs")


def test_results_and_diary(judged):
    results = json.loads((judged.folder / "results.json").read_text())
    assert [m["name"] for m in results["models"]] == [row.name for row in judged.models]
    knn = [row.measured["knn"] for row in judged.models]
    assert results["models"][3]["difference"]["knn"] == 100 * (knn[3] - knn[0])
    assert results["knn"].keys() == {row.name for row in judged.models if row.size} | {"vit"}
    kpi = read_status(judged.folder / "status.json")[-1]["kpi"]
    assert kpi["models/open/fidelity/vit/summary"] == judged.models[5].measured["fidelity"]["vit/summary"]
    assert "models/pruned/knn" in kpi and "knn/vit" in kpi and "models/bf16/knn" not in kpi


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 999))
def test_another_order_of_models_is_another_order_of_rows(judged, base, paths, tmp_path, seed):
    names = random.Random(seed).sample(["plain", "pruned", "open", "bare"], 4)
    found = evaluate(spec_of(base, tmp_path / str(seed), *({"name": n, "path": paths[n]} for n in names)))
    before = {row.name: row for row in judged.models}
    assert [row.name for row in found.models] == names and not found.models[0].difference
    for row in found.models:
        figures = {k: v for k, v in row.figures().items() if not k.startswith(("likeness", "shared_index"))}
        assert figures == pytest.approx({k: before[row.name].figures()[k] for k in figures}, abs=1e-6)
        for key, points in row.difference.items():
            assert points == pytest.approx(100 * (row.figures()[key] - found.models[0].figures()[key]))


@pytest.mark.proof
def test_two_processes(judged, base, paths, tmp_path):
    spec = spec_of(base, tmp_path, *({"name": n, "path": paths[n]} for n in ("plain", "fixed")))
    found = evaluate(spec, ("evaluate.num_gpus=2",))
    for row in found.models:
        (before,) = (r for r in judged.models if r.name == row.name)
        assert row.figures() == pytest.approx(before.figures(), abs=1e-4)


def test_a_mapping_of_names_will_do(base, paths):
    named = spec_of(base, Path("r")) | {}
    named["evaluate"]["models"] = {"a": paths["plain"], "b": {"path": paths["plain"], "precision": "fp16"}}
    spec = load_spec(named)
    assert [(m.name, m.path) for m in spec.evaluate.models] == [("a", paths["plain"]), ("b", paths["plain"])]
    assert load_spec(to_dict(spec)).evaluate.models == spec.evaluate.models


def to_dict(spec) -> dict:
    import yaml

    return yaml.safe_load(to_yaml(spec))


def told(problems, where: str, words: str) -> bool:
    return any(p.where == where and words in str(p) for p in problems)


def test_entries_that_contradict_are_named(base, paths):
    models = [
        {"name": "vit", "path": paths["plain"]},
        {"name": "a", "path": paths["open"], "precision": "fp16"},
        {"name": "a", "path": paths["plain"]},
        {"name": "a/b", "path": paths["plain"]},
    ]
    spec = spec_of(base, Path("r"), *models)
    spec["evaluate"] |= {"checkpoint": paths["plain"], "resolutions": [32]}
    problems = check(load_spec(spec))
    for where, words in {
        "evaluate.models[0].name": "a teacher has the name",
        "evaluate.models[1].precision": "file is fixed",
        "evaluate.models[2].name": "given twice",
        "evaluate.models[3].name": "is not a valid name",
        "evaluate.checkpoint": "no effect together with evaluate.models",
        "evaluate.resolutions": "no effect together with evaluate.models",
    }.items():
        assert told(problems, where, words), (where, problems)
    with pytest.raises(SpecError, match="given twice"):
        evaluate(spec)


def test_files_that_are_no_models_are_named_all_at_once(base, paths, made, tmp_path):
    foreign, text, lame = tmp_path / "foreign.onnx", tmp_path / "text.onnx", tmp_path / "lame.onnx"
    graph = onnx.load(paths["bare"])
    graph.graph.output.remove(next(value for value in graph.graph.output if value.name == "spatial"))
    onnx.save(graph, str(lame))
    graph.graph.input[0].name = "pixel_values"
    onnx.save(graph, str(foreign))
    text.write_text("no graph")
    names = {
        "/nowhere": "there is no /nowhere",
        f"{made['root']}/vit.safetensors": "is no model that can be evaluated",
        made["train"]: "is no model that can be evaluated",
        str(foreign): "only input must be `images`.*has pixel_values",
        str(lame): "lacks the outputs spatial; it has summary, logits",
        str(text): "is not an ONNX file",
    }
    spec = load_spec(spec_of(base, tmp_path, *({"name": str(i), "path": p} for i, p in enumerate(names))))
    with pytest.raises(SpecError) as error:
        open_models(spec, "cpu")
    assert [p.where for p in error.value.problems] == [f"evaluate.models[{i}].path" for i in range(len(names))]
    for problem, words in zip(error.value.problems, names.values(), strict=True):
        with pytest.raises(RadioplatError, match=words):
            raise RadioplatError(problem)


@pytest.mark.parametrize(
    ("change", "said"), [({"val_img_size": 96}, "takes 64 pixels a side"), ({"val_img_size": 65}, "multiple")]
)
def test_sizes_that_do_not_fit(base, paths, tmp_path, change, said):
    path = paths["open"] if change["val_img_size"] == 96 else paths["plain"]
    spec = spec_of(base, tmp_path, {"name": "a", "path": path})
    spec["dataset"] |= change
    with pytest.raises(SpecError, match=said):
        evaluate(spec)


def test_what_overflows_in_fp16_is_named(base, paths, tmp_path):
    student = load_student(paths["plain"])
    student.backbone.norm.weight.data.mul_(1e6)
    (tmp_path / "loud").mkdir()
    save_student(student, student.state_dict(), tmp_path / "loud")
    loud = {"name": "loud", "path": str(tmp_path / "loud"), "precision": "fp16"}
    with pytest.raises(RadioplatError, match=r"models\[1\].path: its features are not finite \(torch fp16\). .* bf16"):
        evaluate(spec_of(base, tmp_path, {"name": "plain", "path": paths["plain"]}, loud))


def test_a_head_of_another_width(base, paths, tmp_path):
    spec = spec_of(base, tmp_path, {"name": "a", "path": paths["open"]})
    with torch.random.fork_rng(devices=[]):
        vit = timm.create_model("test_vit", num_classes=0, img_size=64, embed_dim=128).state_dict()
    safetensors.torch.save_file(vit, tmp_path / "wide.safetensors")
    teacher = spec["distill"]["teacher"][0]
    teacher["model"]["backbone"]["kwargs"]["embed_dim"] = 128
    teacher["pretrained_teacher_model_path"] = str(tmp_path / "wide.safetensors")
    with pytest.raises(RadioplatError, match=r"evaluate.models\[0\].path: its .* head for vit is 64 wide, and .* 128"):
        evaluate(spec)
