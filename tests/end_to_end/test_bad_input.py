"""What users really have: each piece of bad input gives one clear message, or is counted and skipped."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from PIL import Image

from benchmarks.ledger_rows import read_consumed
from radioplat.cli import main as cli
from radioplat.data.ledger.ledger import read_rejected
from radioplat.data.loading.run_data import RunData, dataset_to_json, open_reader
from radioplat.errors import DataError, RadioplatError, SpecError, TrainingError, WeightsError
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tracking.status import read_status
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import verified_state

TARS = "dataset.train_dataset.tar_data_sources"
TEACHER = "distill.teacher[1].pretrained_teacher_model_path"


@pytest.fixture(scope="module")
def odd_images(crops, encode) -> dict[str, bytes]:
    """Images that a careless loader dies of, by name."""
    (_, pixels), *_ = crops(1, 80, 9)

    def save(image: Image.Image, kind: str, **options) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()

    png = encode(pixels, "PNG")
    huge = png[:12] + b"IHDR" + struct.pack(">II", 30_000, 30_000) + png[24:29]
    deep = (pixels[..., 0].astype(np.uint16) << 8) + 77
    frames = [Image.fromarray(np.roll(pixels, 8 * i, axis=1)) for i in range(3)]
    return {
        "cmyk.jpg": save(Image.fromarray(pixels).convert("CMYK"), "JPEG"),
        "deep.png": save(Image.fromarray(deep), "PNG"),
        "animated.gif": save(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "torn.png": png[: len(png) // 2],
        "huge.png": huge + struct.pack(">I", zlib.crc32(huge[12:])) + png[33:],
        "text.jpg": b"this is not an image at all",
        "nothing.jpg": b"",
    }


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, corpora, odd_images, write_shard) -> Path:
    """Good shards beside an empty one, one cut in half, one that is no tar, and one of odd images."""
    folder = tmp_path_factory.mktemp("mixed")
    for shard in (corpora / "a").glob("*.tar"):
        (folder / shard.name).write_bytes(shard.read_bytes())
    whole = (corpora / "b" / "shard-000.tar").read_bytes()
    (folder / "half.tar").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.tar").write_bytes(b"")
    (folder / "words.tar").write_bytes(b"not a tar " * 200)
    write_shard(folder / "odd.tar", odd_images.items())
    return folder


@pytest.fixture(scope="module")
def mixed_run(mixed, make_spec, distil, tmp_path_factory):
    """More than one pass over that folder."""
    results = tmp_path_factory.mktemp("mixed_run")
    return distil(make_spec(results), f"{TARS}=[{{root_dir: {mixed}, steps_per_epoch: 4}}]", "train.num_epochs=2")


def test_what_cannot_be_used_is_counted_and_the_rest_trains(mixed_run, mixed):
    assert mixed_run.result.global_step == 8
    rejects = pq.read_table(mixed_run.folder / "ledger" / "rejects.parquet").to_pylist()
    found = {(Path(row["shard"]).name, row["key"], row["reason"]) for row in rejects}
    assert found == {
        ("half.tar", "0008.png", "truncated_tar"),
        ("empty.tar", "", "empty_tar"),
        ("words.tar", "", "not_a_tar"),
        ("odd.tar", "huge", "too_many_pixels"),
        ("odd.tar", "text", "not_an_image"),
        ("odd.tar", "nothing", "empty_member"),
    }
    assert all(Path(row["shard"]).parent == mixed for row in rejects)


def test_an_image_that_breaks_on_decoding_keeps_its_place(mixed_run):
    bad = read_rejected(mixed_run.folder / "ledger").to_pylist()
    assert bad and all(row["reason"].startswith("corrupt_image") for row in bad)
    assert len({row["id"] for row in bad}) == 1
    proof = prove_run(mixed_run.folder)
    assert proof.unlearned == {"corrupt_image": len(bad)} and proof.holds and proof.consumed == 48


def test_odd_but_valid_images_are_learned_from(mixed_run):
    spec = load_spec(mixed_run.folder / "experiment.yaml")
    index = RunData.load(mixed_run.folder / "data", spec.dataset.train_dataset).index
    consumed = set(read_consumed(mixed_run.folder / "ledger")["id"].to_pylist())
    bad = set(read_rejected(mixed_run.folder / "ledger")["id"].to_pylist())
    learned = {index.key(row) for row in consumed - bad}
    assert {"cmyk", "deep", "animated"} <= learned


def test_too_many_broken_images_end_the_run_with_a_report(
    make_spec, distil, write_shard, odd_images, crops, encode, tmp_path
):
    good = [(f"{i}.png", encode(pixels, "PNG")) for i, (_, pixels) in enumerate(crops(4, 80, 11))]
    write_shard(tmp_path / "tars" / "0.tar", [*good, *((f"torn{i}.png", odd_images["torn.png"]) for i in range(4))])
    spec = make_spec(tmp_path / "results")
    with pytest.raises(DataError, match="proved unreadable") as caught:
        distil(spec, f"{TARS}=[{{root_dir: {tmp_path / 'tars'}}}]", "dataset.max_bad_fraction=0.003")
    text = str(caught.value)
    assert "dataset.max_bad_fraction" in text and "0.tar" in text and "torn" in text and "corrupt_image" in text


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda folder: None, "does not exist"),
        (lambda folder: folder.mkdir(), "contains no tar shard"),
        (lambda folder: folder.write_bytes(b"x"), "is a file, not a folder"),
        (lambda folder: (folder.mkdir(), (folder / "0.tar").write_bytes(b"")), "empty_tar"),
        (lambda folder: (folder.mkdir(), (folder / "0.tar").write_bytes(b"no tar" * 400)), "not_a_tar"),
    ],
    ids=["missing", "no shard", "a file", "only an empty tar", "only a broken tar"],
)
def test_a_source_without_any_image(make_spec, distil, tmp_path, make, words):
    make(tmp_path / "tars")
    with pytest.raises(DataError) as caught:
        distil(make_spec(tmp_path / "results"), f"{TARS}[1].root_dir={tmp_path / 'tars'}")
    (problem,) = caught.value.problems
    assert problem.where == f"{TARS}[1].root_dir" and str(tmp_path / "tars") in problem.message
    assert words in str(problem)


def test_a_filter_that_leaves_nothing(make_spec, distil, tmp_path, corpora):
    with pytest.raises(DataError, match="native_resolution_filter: no image of .* is left .*24 min_short_side"):
        distil(make_spec(tmp_path), "dataset.train_dataset.native_resolution_filter.min_short_side=500")


def test_shards_that_changed_since(quiet_run, make_spec, distil, write_shard, corpora, tmp_path):
    copy = tmp_path / "a"
    copy.mkdir()
    for shard in (corpora / "a").glob("*.tar"):
        (copy / shard.name).write_bytes(shard.read_bytes())
    overrides = [f"{TARS}[0].root_dir={copy}", "train.checkpoint_interval=2", "train.checkpoint_interval_unit=step"]
    spec = make_spec(tmp_path / "results")
    distil(spec, *overrides, "train.max_steps=2")
    with open(copy / "shard-000.tar", "ab") as shard:
        shard.write(b"\0" * 10240)
    with pytest.raises(SpecError, match="another order of samples; what differs: the shards"):
        distil(spec, *overrides)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _nan(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    poisoned = {name: value.clone() for name, value in tensors.items()}
    poisoned["norm.weight"][3] = float("nan")
    return poisoned


@pytest.fixture
def bad_weights(weights, tmp_path) -> dict[str, Path]:
    """Checkpoints that no run may begin with, by what is wrong."""
    good = safetensors.torch.load_file(weights["vit"])
    paths = {name: tmp_path / f"{name}.pth" for name in ("code", "torn", "words", "other", "empty", "nan", "gone")}
    torch.save({"state_dict": Trap(tmp_path / "sprung")}, paths["code"])
    torch.save(good, paths["torn"])
    paths["torn"].write_bytes(paths["torn"].read_bytes()[:-2000])
    paths["words"].write_text("weights")
    torch.save({"conv.weight": torch.zeros(3)}, paths["other"])
    torch.save({}, paths["empty"])
    torch.save({"state_dict": _nan(good)}, paths["nan"])
    paths["cut"] = tmp_path / "cut.safetensors"
    paths["cut"].write_bytes(weights["vit"].read_bytes()[:5000])
    return paths


@pytest.mark.parametrize(
    "kind, words",
    [
        ("code", "posix.mkdir"),
        pytest.param("torn", "not a whole checkpoint", marks=pytest.mark.proof),
        pytest.param("words", "not a whole|other than tensors", marks=pytest.mark.proof),
        pytest.param("other", "does not fit the architecture", marks=pytest.mark.proof),
        pytest.param("empty", "no tensors", marks=pytest.mark.proof),
        ("nan", "'norm.weight' holds NaN"),
        ("gone", "no such file"),
        ("cut", "not a whole safetensors file"),
    ],
)
def test_weights_that_cannot_teach(make_spec, distil, bad_weights, tmp_path, kind, words, capfd):
    path = bad_weights[kind]
    spec = make_spec(tmp_path / "results")
    with pytest.raises(WeightsError) as caught:
        distil(spec, f"{TEACHER}={path}")
    text = str(caught.value)
    assert TEACHER in text and str(path) in text and any(word in text for word in words.split("|"))
    assert not (tmp_path / "sprung").exists()
    last = read_status(tmp_path / "results" / "distill" / "status.json")[-1]
    assert last["status"] == "FAILURE" and str(path) in last["message"]
    assert str(path) in diagnose(tmp_path / "results").cause  # no start got further
    assert not list((tmp_path / "results" / "distill").glob("model_*"))


def test_plan_names_bad_weights_too(make_spec, bad_weights, tmp_path, capfd):
    import yaml

    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(make_spec(tmp_path / "results")))
    for kind in ("code", "nan", "other"):
        assert cli.main(["plan", "-e", str(tmp_path / "spec.yaml"), f"{TEACHER}={bad_weights[kind]}"]) == 1
        _, err = capfd.readouterr()
        assert TEACHER in err and str(bad_weights[kind]) in err and "Traceback" not in err
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "field",
    ["model.backbone.pretrained_backbone_path", "train.pretrained_model_path", "train.resume_training_checkpoint_path"],
)
def test_a_student_that_cannot_begin(make_spec, distil, bad_weights, tmp_path, field):
    for kind in ("gone", "other"):
        with pytest.raises((WeightsError, SpecError)) as caught:
            distil(make_spec(tmp_path / f"results_{kind}"), f"{field}={bad_weights[kind]}")
        assert field in str(caught.value) and str(bad_weights[kind]) in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp16 trains here")
def test_fp16_needs_a_gpu(make_spec, distil, tmp_path, capfd):
    import yaml

    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(make_spec(tmp_path / "results")))
    assert cli.main(["plan", "-e", str(tmp_path / "spec.yaml"), "train.precision=fp16"]) == 1
    assert "train.precision: fp16 needs a GPU" in capfd.readouterr().err
    with pytest.raises(SpecError, match="train.precision: fp16 needs a GPU"):
        distil(make_spec(tmp_path / "results"), "train.precision=fp16")


def test_results_where_nothing_can_be_written(make_spec, distil, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RadioplatError, match="results_dir: cannot create the results folder"):
        distil(make_spec(tmp_path / "file" / "results"))


@pytest.fixture(scope="module")
def overflowing(quiet_run, weights, tmp_path_factory) -> tuple[list[str], int, list[int]]:
    """The teacher ``vit`` with its last gain raised until, in fp16, exactly one micro-batch of the run overflows.

    Returns the overrides that name it, and the step (from 0) and the sample ids of that micro-batch.
    """
    spec = load_spec(quiet_run.folder / "experiment.yaml")
    reader = open_reader(str(quiet_run.folder / "data"), dataset_to_json(spec.dataset), (("64", 64),))
    teacher = TimmBackbone("test_vit", img_size=64).eval()
    teacher.model.load_state_dict(safetensors.torch.load_file(weights["vit"]))
    normal = resolve_teachers(spec)[1]
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (normal.norm_mean, normal.norm_std))
    batches = [reader.read(micro_batch) for micro_batch in range(24)]
    peaks = []
    with torch.inference_mode():
        for batch in batches:
            images = (torch.tensor(batch.views["64"].pixels) / 255 - mean) / std
            peaks.append(float(teacher(images, frozenset({"spatial"})).spatial.abs().max()))
    second, top = sorted(peaks)[-2:]
    assert top > 1.01 * second, "fp16 must tell the two apart"
    tensors = safetensors.torch.load_file(weights["vit"])
    for name in ("norm.weight", "norm.bias"):
        tensors[name] = tensors[name] * 65504 / (top * second) ** 0.5
    path = tmp_path_factory.mktemp("overflow") / "vit.safetensors"
    safetensors.torch.save_file(tensors, path)
    micro_batch = peaks.index(top)
    overrides = [f"{TEACHER}={path}", "teachers.vit.precision=fp16"]
    return overrides, micro_batch // 3, sorted(batches[micro_batch].sample_id.tolist())


def test_a_step_that_is_not_finite_is_skipped(overflowing, make_spec, distil, student_tensors, tmp_path):
    overrides, step, ids = overflowing
    trail = distil(make_spec(tmp_path), *overrides)
    losses = {e.step: e.metrics.get("loss") for e in trail.events if hasattr(e, "metrics")}
    assert [s for s, loss in losses.items() if loss is None] == [step + 1]
    state = verified_state(trail.result.checkpoint)
    assert (state.global_step, state.optimizer_steps) == (8, 7)
    lines = read_status(trail.folder / "status.json")
    assert [line["message"] for line in lines if line["verbosity"] == "WARNING"] == [
        f"step {step + 1} was skipped: a loss term was not finite"
    ]
    rows = read_rejected(trail.folder / "ledger").to_pylist()
    blamed = [row for row in rows if row["reason"].startswith("non_finite")]
    assert {row["step"] for row in rows} == {step} and len(rows) == 6
    assert sorted(row["id"] for row in blamed) == ids and "loss/vit/spatial" in blamed[0]["reason"]
    assert "lite0" not in blamed[0]["reason"]
    assert {row["reason"] for row in rows} - {blamed[0]["reason"]} == {"skipped_step"}
    assert all(torch.isfinite(value).all() for value in student_tensors(trail.result.checkpoint).values())
    proof = prove_run(trail.folder)
    assert proof.holds and proof.unlearned == {"skipped_step": 4, "non_finite": 2}


def test_a_teacher_that_is_not_finite_is_quarantined(overflowing, make_spec, distil, tmp_path):
    overrides, step, _ = overflowing
    spec = make_spec(tmp_path, {"train": {"non_finite": "quarantine_teacher", "zero_stage": 2, "precision": "bf16"}})
    trail = distil(spec, *overrides)
    named = {e.step: {n for n in e.metrics if n.startswith("loss/")} for e in trail.events if hasattr(e, "metrics")}
    assert all("loss/vit/spatial" in named[s] for s in range(1, step + 1))
    assert all(named[s] == {"loss/lite0/summary", "loss/lite0/spatial"} for s in range(step + 2, 9))
    assert verified_state(trail.result.checkpoint).quarantined == ["vit"]
    then = distil(spec, *overrides, "train.num_epochs=3")  # and stays so when the run goes on
    assert then.result.resumed_from == 8 and then.result.global_step == 12
    assert all("loss/vit/spatial" not in e.metrics for e in then.events if hasattr(e, "metrics"))


def test_policy_fail_ends_the_run(overflowing, make_spec, distil, tmp_path):
    overrides, step, ids = overflowing
    with pytest.raises(TrainingError, match=f"train.non_finite: step {step}: not finite: .*loss/vit/spatial"):
        distil(make_spec(tmp_path, {"train": {"non_finite": "fail"}}), *overrides)
    blamed = read_rejected(tmp_path / "distill" / "ledger").to_pylist()
    assert sorted(row["id"] for row in blamed if row["reason"].startswith("non_finite")) == ids
    assert read_status(tmp_path / "distill" / "status.json")[-1]["status"] == "FAILURE"


@pytest.mark.proof
def test_a_teacher_that_never_gives_a_number_ends_the_run(weights, make_spec, distil, tmp_path):
    tensors = safetensors.torch.load_file(weights["vit"])
    tensors["norm.weight"] = tensors["norm.weight"] + 3e38
    safetensors.torch.save_file(tensors, tmp_path / "vit.safetensors")
    spec = make_spec(tmp_path / "results", {"train": {"max_non_finite_steps": 3}})
    with pytest.raises(TrainingError, match="train.max_non_finite_steps: 3 steps in a row .*loss/vit/spatial"):
        distil(spec, f"{TEACHER}={tmp_path / 'vit.safetensors'}")
