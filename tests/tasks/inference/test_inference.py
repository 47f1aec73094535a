"""``inference`` writes what torch, transformers and Pillow compute of the same images, from every format of a model."""

from __future__ import annotations

import csv
import json
import os
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import skimage.data
import timm
import torch
from drawn_detector import OPTIONS, SIZE, drawn_detector
from PIL import Image
from safetensors.torch import save_file

import radioplat
from benchmarks.composites import CLASSES
from radioplat.cli.main import main
from radioplat.data.images.decode import Decoded
from radioplat.data.views.crops import whole_image
from radioplat.data.views.render import render, view_matrix
from radioplat.errors import RadioplatError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.onnx.export import export_onnx
from radioplat.models.detectors.checkpoint import load_detector, save_detector
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.tasks.inference.inference import inference

SCENES = {"a/astronaut": skimage.data.astronaut, "a/cat": skimage.data.chelsea, "coffee": skimage.data.coffee}
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def write_files(model, folder) -> None:
    """Write the checkpoint ``model``, its ONNX file and an engine of it."""
    export_onnx(model, folder.with_suffix(".onnx"), height=SIZE, width=SIZE)
    config = TensorRTConfig(data_type="fp32", min_batch_size=1, opt_batch_size=2, max_batch_size=4)
    build_engine(folder.with_suffix(".onnx"), folder.with_suffix(".engine"), config, backend=EngineBackend.onnxruntime)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Photographs and two files that are none; a student, a classifier and a detector in three formats each."""
    root = tmp_path_factory.mktemp("inference")
    (root / "images/a").mkdir(parents=True)
    for name, scene in SCENES.items():
        Image.fromarray(scene()).save(root / f"images/{name}.png")
    (root / "images/cut.png").write_bytes((root / "images/coffee.png").read_bytes()[:5000])
    (root / "images/text.jpg").write_bytes(b"no image")
    torch.manual_seed(0)
    names = ("house", "cat", "cup", "sky")
    student = Student(StudentArchitecture("resnet10t", img_size=SIZE)).eval()
    classifier = Student(StudentArchitecture("resnet10t", img_size=SIZE, num_classes=4, class_names=names)).eval()
    torch.nn.init.normal_(classifier.backbone.model.get_classifier().weight)
    for model, name in ((student, "student"), (classifier, "classifier")):
        save_model(model, root / name)
        write_files(model, root / name)
    return root


@pytest.fixture(scope="module")
def detector(made):
    """The folder of a detector, beside its ONNX file and its engine."""
    pytest.importorskip("transformers")
    model = drawn_detector()
    save_detector(model, made / "detector")
    write_files(model, made / "detector")
    return made / "detector"


def spec_of(made, results, **section):
    return {
        "results_dir": str(results),
        "dataset": {"workers": 1, "batch_size": 2, "test_dataset": {"images_dir": str(made / "images")}},
        "inference": section,
    }


def rows_of(result) -> dict[str, dict]:
    """The table, as a stranger reads it."""
    return {row["image"]: row for row in pq.read_table(result.table).to_pylist()}


def seen(pixels: np.ndarray) -> torch.Tensor:
    """The input of a model, cut and resized by Pillow, normalised here: ``[1, 3, SIZE, SIZE]``."""
    height, width = pixels.shape[:2]
    assert width >= height
    left = (width - height) / 2
    first = int(left)  # pixels outside of the crop have no part in it
    cut = Image.fromarray(pixels[:, first : width - first])
    box = (left - first, 0, width - left - first, height)
    small = np.asarray(cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))
    return torch.from_numpy((small / 255 - MEAN) / STD).float().permute(2, 0, 1)[None]


def timm_model(made, name: str) -> torch.nn.Module:
    """The weights of a checkpoint in timm's own class."""
    classes = 4 if name == "classifier" else 0
    model = timm.create_model("resnet10t", num_classes=classes).eval()
    model.load_state_dict(load_student(made / name).backbone.model.state_dict())
    return model


def forms(name: str) -> list[dict[str, str]]:
    """The fields that name a model in each of its formats."""
    return [{"checkpoint": name}, {"checkpoint": f"{name}.onnx"}, {"trt_engine": f"{name}.engine"}]


def in_folder(made, form: dict[str, str]) -> dict[str, str]:
    return {field: str(made / file) for field, file in form.items()}


@pytest.mark.parametrize("form", forms("student"), ids=lambda form: next(iter(form.values())))
def test_features_are_those_of_timm(made, tmp_path, form):
    result = inference(spec_of(made, tmp_path, maps=True, **in_folder(made, form)))
    rows, model = rows_of(result), timm_model(made, "student")
    assert list(rows) == ["a/astronaut.png", "a/cat.png", "coffee.png", "cut.png", "text.jpg"]
    for name, scene in SCENES.items():
        row, pixels = rows[f"{name}.png"], scene()
        with torch.no_grad():
            spatial = model.forward_features(seen(pixels))
            summary = model.forward_head(spatial, pre_logits=True)[0].numpy()
        assert (row["height"], row["width"]) == pixels.shape[:2] and row["error"] is None
        # Pillow and our resizer differ by at most one of 255 in a pixel.
        assert np.abs(np.array(row["summary"]) - summary).max() < 0.01 * np.abs(summary).max()
        assert row["spatial_shape"] == [2, 2, 512]
        map_ = np.array(row["spatial"]).reshape(row["spatial_shape"])
        expected = spatial[0].permute(1, 2, 0).numpy()
        assert np.abs(map_ - expected).max() < 0.01 * np.abs(expected).max()
    for name, reason in (("cut.png", "corrupt_image"), ("text.jpg", "not_an_image")):
        assert rows[name]["error"].startswith(reason) and rows[name]["summary"] is None
    assert result.errors == {"corrupt_image": 1, "not_an_image": 1} and result.images == 5
    log = [json.loads(line) for line in (tmp_path / "inference/status.json").read_text().splitlines()]
    assert log[-1]["status"] == "SUCCESS" and log[-1]["kpi"] == {"images": 5, "unreadable": 2}


def test_the_api_and_the_task_give_the_same_numbers(made, tmp_path):
    student, images = made / "student", made / "images"
    rows = rows_of(inference(spec_of(made, tmp_path, maps=True, checkpoint=str(student))))
    found = radioplat.embed(student, images, maps=True, batch_size=2)
    assert found.names == list(rows) and sorted(found.errors) == [3, 4]
    for i, row in enumerate(rows.values()):
        if row["error"]:
            assert found.errors[i] == row["error"] and np.isnan(found.summary[i]).all()
        else:
            assert found.summary[i].tolist() == row["summary"]
            assert found.spatial[i].ravel().tolist() == row["spatial"]
    paths = [images / name for name in rows]
    again = radioplat.embed(load_student(student), paths, batch_size=2)
    assert again.spatial is None and again.names == [str(path) for path in paths]
    assert np.array_equal(again.summary, found.summary, equal_nan=True)
    arrays = radioplat.embed(student, [scene() for scene in SCENES.values()], batch_size=2)
    assert np.allclose(arrays.summary, found.summary[:3], atol=1e-6) and arrays.errors == {}


@pytest.mark.parametrize("form", forms("classifier"), ids=lambda form: next(iter(form.values())))
def test_classes_are_those_of_timm(made, tmp_path, form):
    names = ["house", "cat", "cup", "sky"]
    spec = spec_of(made, tmp_path, top_k=2, **in_folder(made, form))
    spec["dataset"]["classes"] = names  # a file does not have them
    result = inference(spec)
    rows, model = rows_of(result), timm_model(made, "classifier")
    with (tmp_path / "inference/result.csv").open() as file:
        csv_rows = {row["img_name"]: row for row in csv.DictReader(file)}
    assert len(csv_rows) == len(SCENES)
    for name, scene in SCENES.items():
        row = rows[f"{name}.png"]
        with torch.no_grad():
            scores = model(seen(scene())).softmax(1)[0]
        best = scores.argsort(descending=True)[:2].tolist()
        assert row["labels"] == best and row["class_names"] == [names[i] for i in best]
        assert row["scores"] == pytest.approx(scores[best].tolist(), abs=0.02)
        assert "spatial" not in row and len(row["summary"]) == 512
        written = csv_rows[str(made / f"images/{name}.png")]  # TAO's columns and its full path
        assert written["pred_label"] == names[best[0]]
        assert float(written["pred_score"]) == pytest.approx(row["scores"][0])
    (model_path,) = in_folder(made, form).values()
    found = radioplat.predict(model_path, made / "images", top_k=2, batch_size=2)
    assert [one.name for one in found] == list(rows)
    for one, row in zip(found, rows.values(), strict=True):
        assert (one.error or None) == row["error"] and one.summary is None
        assert row["error"] or (one.labels.tolist() == row["labels"] and one.scores.tolist() == row["scores"])


@pytest.mark.parametrize("form", forms("detector"), ids=lambda form: next(iter(form.values())))
def test_boxes_are_those_of_transformers_in_pixels_of_the_image(made, detector, tmp_path, form):
    """Its post-processing of RT-DETR, given the sizes of the images, on the view that an evaluation has."""
    from transformers import RTDetrImageProcessor

    spec = spec_of(made, tmp_path, conf_threshold=0.6, **in_folder(made, form))
    spec["dataset"]["classes"] = list(CLASSES)
    rows, model = rows_of(inference(spec)), load_detector(detector)
    queries = OPTIONS["num_queries"]
    for name, scene in SCENES.items():
        row, pixels = rows[f"{name}.png"], scene()
        height, width = pixels.shape[:2]
        matrix = view_matrix(whole_image(width, height).matrix(), SIZE)
        small = render(Decoded(pixels, width, height), matrix, SIZE)[0].transpose(2, 0, 1)
        with torch.no_grad():
            output = model(torch.from_numpy(small.copy())[None])
        outputs = SimpleNamespace(logits=output.logits, pred_boxes=output.pred_boxes)
        (expected,) = RTDetrImageProcessor().post_process_object_detection(
            outputs, threshold=0.0, target_sizes=[(height, width)]
        )
        assert len(row["boxes"]) == min(100, queries * len(CLASSES)) > queries == len(expected["scores"])
        assert row["scores"][:queries] == pytest.approx(expected["scores"].tolist(), abs=1e-4)
        assert row["labels"][:queries] == expected["labels"].tolist()
        assert np.abs(np.array(row["boxes"][:queries]) - expected["boxes"].numpy()).max() < 0.05
        assert row["class_names"] == [CLASSES[label] for label in row["labels"]]
        sure = [box for box, score in zip(row["boxes"], row["scores"], strict=True) if score >= 0.6]
        lines = (tmp_path / f"inference/labels/{name}.txt").read_text().splitlines()
        fields = [line.split() for line in lines]
        assert len(fields) == len(sure) and all(len(field) == 16 for field in fields)  # KITTI's 15, and the score
        assert [[float(x) for x in field[4:8]] for field in fields] == [pytest.approx(box, abs=1e-3) for box in sure]
    assert not (tmp_path / "inference/labels/cut.txt").exists()
    (path,) = in_folder(made, form).values()
    found = radioplat.predict(path, made / "images", batch_size=2)
    for one, row in zip(found, rows.values(), strict=True):
        assert row["error"] or (one.boxes.tolist() == row["boxes"] and one.labels.tolist() == row["labels"])


def test_pictures_show_the_first_images(made, detector, tmp_path):
    for name in ("student", "classifier", "detector"):
        heights = []
        for count in (1, 3):
            inference(spec_of(made, tmp_path / name, checkpoint=str(made / name), pictures=count, conf_threshold=0))
            heights.append(np.asarray(Image.open(tmp_path / name / "inference/pictures.png")).shape[0])
        assert heights[1] > 2 * heights[0]
    coloured = np.asarray(Image.open(tmp_path / "detector/inference/pictures.png").convert("RGB")).reshape(-1, 3)
    assert (coloured == (60, 220, 90)).all(1).sum() > 100, "boxes are drawn"
    inference(spec_of(made, tmp_path / "none", checkpoint=str(made / "student"), pictures=0))
    assert not (tmp_path / "none/inference/pictures.png").exists()


def test_the_command_reads_the_latest_checkpoint(made, tmp_path, capsys):
    (tmp_path / "results/distill").mkdir(parents=True)
    (tmp_path / "results/distill/model_latest").symlink_to(made / "student")
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(spec_of(made, tmp_path / "results", batch_size=-1)))  # as TAO writes: dataset.batch_size
    given = [f"inference.results_dir={tmp_path}/here", "inference.num_gpus=2"]
    assert main(["inference", "-e", str(spec), *given]) == 0
    printed, noted = capsys.readouterr()
    assert "inference.num_gpus has no effect here: images are computed by one process" in noted
    assert "5 images" in printed and "1 corrupt_image, 1 not_an_image" in printed and "cut.png" in printed
    assert pq.read_table(tmp_path / "here/predictions.parquet").num_rows == 5
    assert main(["inference", "-e", str(spec), "inference.checkpoint=nowhere"]) == 1
    error = capsys.readouterr().err
    assert "inference.checkpoint: there is no checkpoint nowhere" in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["inference.trt_engine=x.engine"], "inference.trt_engine: there is a checkpoint and an engine"),
        (["dataset.test_dataset.images_dir=null"], "images_dir: inference needs a folder of images"),
        (["dataset.test_dataset.images_dir={made}/student"], "images_dir: .* contains no image"),
        (["dataset.test_dataset.images_dir={made}/nowhere"], "images_dir: the folder .* does not exist"),
        (["dataset.test_dataset.images_dir={made}/bad"], "none of the 1 images can be read; x.jpg: not_an_image"),
        (["dataset.test_dataset.dedup=true"], "dataset.test_dataset.dedup: inference reads every image"),
        (["inference.checkpoint=null"], "inference.checkpoint: no trained student"),
        (["inference.checkpoint={made}/student.txt"], "inference.checkpoint: .* is no model"),
        (["inference.checkpoint=null", "inference.trt_engine={made}/no.engine"], "inference.trt_engine: there is no"),
        (["inference.checkpoint=null", "inference.trt_engine={made}/student"], "trt_engine: .*student is no .engine"),
        (["inference.checkpoint=null", "inference.trt_engine={made}/student.onnx"], "given in inference.checkpoint"),
        (["inference.checkpoint=null", "inference.trt_engine={made}/d.engine"], "d.engine is a folder, not a model"),
        (["inference.checkpoint={made}/pipe.safetensors"], "checkpoint: .*pipe.safetensors is a pipe, not a model"),
        (["inference.checkpoint={made}/pipe.onnx"], "checkpoint: .*pipe.onnx is a pipe, not a model"),
        (["inference.checkpoint={made}/student.onnx", "dataset.val_img_size=32"], "inference.checkpoint: it takes 64"),
        (["inference.checkpoint={made}/classifier.onnx", "dataset.classes=[a]"], "dataset.classes: 1 classes"),
    ],
)
def test_what_cannot_be_used_is_refused(made, tmp_path, overrides, says):
    (made / "student.txt").write_text("no model")
    (made / "d.engine").mkdir(exist_ok=True)
    for name in ("pipe.safetensors", "pipe.onnx"):
        (made / name).exists() or os.mkfifo(made / name)
    (made / "bad").mkdir(exist_ok=True)
    (made / "bad/x.jpg").write_bytes(b"no image")
    spec = spec_of(made, tmp_path, checkpoint=str(made / "student"))
    with pytest.raises(RadioplatError, match=says):
        inference(spec, [override.format(made=made) for override in overrides])
    assert not list(tmp_path.rglob("*.parquet*")) and not list(tmp_path.rglob("result.csv*"))


def test_plan_finds_a_contradiction_of_the_section():
    spec = load_spec({"inference": {"checkpoint": "a", "trt_engine": "b.engine"}})
    assert "inference.trt_engine" in [problem.where for problem in check(spec)]
    assert "inference.trt_engine" not in [problem.where for problem in check(load_spec({}))]


def test_pretrained_weights_need_no_training(made, tmp_path):
    """A file of timm's weights, opened as the backbone that the spec names."""
    model = timm.create_model("resnet10t", num_classes=0).eval()
    save_file(model.state_dict(), tmp_path / "timm.safetensors")
    spec = spec_of(made, tmp_path / "results", checkpoint=str(tmp_path / "timm.safetensors"))
    spec["model"] = {"backbone": {"type": "resnet10t"}}
    spec["dataset"]["val_img_size"] = SIZE
    spec["dataset"]["augmentation"] = {"mean": MEAN.tolist(), "std": STD.tolist()}
    row = rows_of(inference(spec))["coffee.png"]
    with torch.no_grad():
        summary = model(seen(skimage.data.coffee()))[0].numpy()
    assert np.abs(np.array(row["summary"]) - summary).max() < 0.01 * np.abs(summary).max()


def test_a_model_is_asked_for_what_it_has(made, detector):
    with pytest.raises(RadioplatError, match="this student has no classifier"):
        radioplat.predict(made / "student", made / "images")
    with pytest.raises(RadioplatError, match="this is a detector"):
        radioplat.embed(detector, made / "images")
    with pytest.raises(RadioplatError, match="no image can be read; .*cut.png: corrupt_image"):
        radioplat.embed(made / "student", [made / "images/cut.png"])
    loaded = radioplat.predict(load_detector(detector), [skimage.data.coffee()])
    (same,) = radioplat.predict(detector, [skimage.data.coffee()])
    assert np.array_equal(loaded[0].boxes, same.boxes)
    with pytest.raises(RadioplatError, match="not a multiple of the detector's stride"):
        radioplat.predict(load_detector(detector), made / "images", size=65)


@pytest.mark.parametrize("name", ["student", "student.onnx", "student.engine"])
def test_a_wrong_size_is_that_of_the_argument(made, name):
    for size in (0, -1, SIZE + 1) if "." in name else (0, -1):
        with pytest.raises(RadioplatError, match="size") as caught:
            radioplat.embed(made / name, made / "images", size=size)
        assert "val_img_size" not in str(caught.value) and str(size) in str(caught.value)


def test_a_size_that_the_patches_or_strides_do_not_divide(tmp_path, made, detector):
    save_model(Student(StudentArchitecture("vit_tiny_patch16_224", img_size=SIZE)).eval(), tmp_path / "vit")
    for call, model in ((radioplat.embed, tmp_path / "vit"), (radioplat.predict, detector)):
        with pytest.raises(RadioplatError, match="65 is not a multiple") as caught:
            call(model, made / "images", size=65)
        (problem,) = caught.value.problems
        assert "val_img_size" not in str(problem) and "size" in (problem.where, *problem.hint.split())


def test_a_pipe_among_images(made, tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    found = radioplat.embed(made / "student", [tmp_path / "pipe.jpg", made / "images", made / "images/coffee.png"])
    assert found.errors == {
        0: "not_a_file: it is a pipe",
        1: "not_a_file: it is a folder; give its files, or the folder alone",
    }
    assert np.isfinite(found.summary[2]).all()
    with pytest.raises(RadioplatError, match="no image can be read; .*pipe.jpg: not_a_file: it is a pipe"):
        radioplat.embed(made / "student", tmp_path / "pipe.jpg")
    with pytest.raises(RadioplatError, match="model: .*pipe.jpg is a pipe, not a model"):
        radioplat.embed(tmp_path / "pipe.jpg", made / "images")
