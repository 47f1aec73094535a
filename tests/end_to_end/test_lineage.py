"""An engine leads back to the images that taught it, and an image to the artifacts that come from it, by hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch

import radioplat
from benchmarks.judges.lineage import judged
from radioplat.cli import main as cli
from radioplat.errors import DataError, RadioplatError
from radioplat.tasks.lineage.card import CardInputs, write_card
from radioplat.tasks.lineage.lineage import lineage
from radioplat.tasks.lineage.node import Kind, Node, State
from radioplat.tasks.lineage.trace import Tracer

pytest.importorskip("onnxruntime")


def content(folder: Path) -> dict[str, str]:
    """The hash of each file in a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def of_kind(node: Node, kind: Kind) -> list[Node]:
    return [each for each in node.walk() if each.kind is kind]


@pytest.fixture(scope="module")
def chain(quiet_run, make_spec, tmp_path_factory) -> Path:
    """A results folder: distil, export, build an engine; prune the student, retrain it, quantize it, export it."""
    home = tmp_path_factory.mktemp("chain") / "results"
    shutil.copytree(quiet_run.folder.parent, home, symlinks=True)
    spec = make_spec(home)
    spec["export"] = {"input_height": 64, "input_width": 64}
    spec["gen_trt_engine"] = {"backend": "onnxruntime"}
    radioplat.export(spec)
    radioplat.build_engine(spec, ["gen_trt_engine.tensorrt.data_type=fp32"])
    radioplat.prune(spec, ["prune.amount=0.25"])
    again = ["results_dir=" + str(home / "again"), "train.num_epochs=1", "dataset.batch_size=3"]
    pruned = home / "prune" / "model_pruned"
    radioplat.distill(spec, [*again, f"train.pretrained_model_path={pruned}", "model.backbone.kwargs={}"])
    return home


@pytest.fixture
def copy(chain, tmp_path) -> Path:
    """A copy of it, of which files may be changed."""
    shutil.copytree(chain, tmp_path / "results", symlinks=True)
    return tmp_path / "results"


def test_an_engine_leads_to_the_images_of_its_run(chain, weights, tmp_path, capsys):
    before, engine = content(chain), chain / "gen_trt_engine" / "student.engine"
    out = tmp_path / "out"
    assert cli.main(["lineage", str(engine), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert content(chain) == before
    made = lineage(engine)
    kinds = [node.kind for node in made.artifact.walk()]
    assert kinds == [Kind.engine, Kind.onnx, Kind.student, Kind.run, Kind.teacher, Kind.teacher, Kind.images]
    assert [node.notes for node in made.artifact.walk() if node.notes] == []
    assert set(made.files) - {state for state in State if not made.files[state]} == {State.same}
    student, run = of_kind(made.artifact, Kind.student)[0], of_kind(made.artifact, Kind.run)[0]
    assert Path(student.path) == (chain / "distill" / "model_latest").resolve()
    assert run.facts["attempts"] == [{"attempt": 1, "from_step": 1, "to_step": 8, "workers": 1}]
    teachers = {node.facts["name"]: node for node in of_kind(made.artifact, Kind.teacher)}
    assert teachers["lite0"].facts["licence"] == "apache-2.0"
    hashes = {name: node.files[0].sha256 for name, node in teachers.items()}
    assert hashes == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in weights.items()}
    assert all(text in printed for text in ("└─ ONNX file student.onnx", "teacher lite0", hashes["vit"][:12]))
    # The images are those of the ledger, by a reader that imports nothing of radioplat.
    figures = judged(out)
    assert figures.pop("images") == made.images > 10
    assert figures == dict.fromkeys(figures, 1.0) and "lineage_images_vs_ledger" in figures
    facts = json.loads((out / "lineage.json").read_text())
    images = next(node for node in facts["nodes"].values() if node["kind"] == "images")
    assert facts["images"] == made.images == sum(shard["images"] for shard in images["facts"]["shards"])
    assert sum(shard["times"] for shard in images["facts"]["shards"]) == 48
    sums = subprocess.run(["sha256sum", "--check", "--strict", "--quiet", out / "SHA256SUMS"], capture_output=True)
    assert sums.returncode == 0 and len((out / "SHA256SUMS").read_text().splitlines()) > 7
    page = (out / "lineage.html").read_text()
    assert "Nothing: all files have the recorded hashes" in page and hashes["lite0"] in page
    assert {path.name for path in out.iterdir()} == {"SHA256SUMS", "images.parquet", "lineage.html", "lineage.json"}


@pytest.mark.parametrize("operation", [*(pytest.param(i, marks=pytest.mark.proof) for i in range(3)), 3, 4])
def test_a_command_that_is_killed_leaves_no_part_and_the_next_one_writes_all(chain, tmp_path, operation):
    out, student = tmp_path / "out", chain / "distill" / "model_latest"
    lineage(student, out=out)  # so that there is an older one
    child = os.fork()
    if child == 0:
        left, real = [operation], os.replace

        def replace(*names) -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            real(*names)

        os.replace = replace
        lineage(student, out=out)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) == (operation < 4)  # there are four files
    names = {path.name for path in out.iterdir()}
    assert ("lineage.json" in names) == (operation == 4)
    assert any(name.startswith(".") for name in names) == (operation < 4)
    lineage(student, out=out)
    assert {path.name for path in out.iterdir()} == {"SHA256SUMS", "images.parquet", "lineage.html", "lineage.json"}
    assert judged(out)["lineage_images_vs_ledger"] == 1.0


def test_a_student_that_was_pruned_and_taught_again_has_two_runs(chain, tmp_path):
    made = lineage(chain / "again" / "distill" / "model_latest", out=tmp_path / "out")
    assert [Path(node.path).name for node in of_kind(made.artifact, Kind.student)] == [
        "model_epoch_001",
        "model_pruned",
        "model_epoch_002",
    ]
    assert [run.folder.parent.name for run in made.runs] == ["again", "results"]
    rows = pq.read_table(tmp_path / "out" / "images.parquet").to_pylist()
    assert made.images == len({(row["shard"], row["key"]) for row in rows}) < len(rows)
    assert judged(tmp_path / "out")["lineage_images_vs_ledger"] == 1.0 and made.is_same


def test_a_run_that_goes_on_from_another_s_checkpoint_has_the_images_of_both(chain, make_spec, distil, tmp_path):
    start = chain / "distill" / "model_epoch_001"  # of four steps
    arm = distil(make_spec(tmp_path / "arm"), f"train.resume_training_checkpoint_path={start}")
    made = lineage(arm.result.checkpoint, out=tmp_path / "out")
    assert [Path(node.path).name for node in of_kind(made.artifact, Kind.student)] == ["model_epoch_002", start.name]
    assert [(run.folder.parent.name, run.total) for run in made.runs] == [("arm", 24), ("results", 24)]
    assert judged(tmp_path / "out")["lineage_images_vs_ledger"] == 1.0
    whole = lineage(chain / "distill" / "model_epoch_002")
    assert made.images == whole.images


def test_a_results_folder_has_all_that_nothing_in_it_was_made_of(chain):
    made = lineage(chain)
    names = [Path(node.path).relative_to(chain).as_posix() for node in made.artifact.made_from]
    assert names == ["gen_trt_engine/student.engine", "again/distill/model_epoch_001"]


@pytest.mark.parametrize(
    "form", ["safetensors", *(pytest.param(form, marks=pytest.mark.proof) for form in ("hf", "onnx"))]
)
def test_exported_weights_lead_to_the_smaller_student(chain, make_spec, tmp_path, form):
    pruned = chain / "prune" / "model_pruned"
    source = pruned if form != "hf" else chain / "distill" / "model_latest"
    made = radioplat.export(make_spec(tmp_path), [f"export.checkpoint={source}", f"export.format={form}"])
    traced = lineage(made.path).artifact
    assert traced.notes == [] and Path(traced.made_from[0].path) == source.resolve()
    assert of_kind(traced, Kind.images)[0].facts["samples"] == 48


def test_files_that_changed_since_are_named(copy, capsys):
    student = (copy / "distill" / "model_latest").resolve() / "student.safetensors"
    tensors = safetensors.torch.load_file(student)
    with safetensors.safe_open(student, "pt") as opened:
        metadata = opened.metadata()
    safetensors.torch.save_file({name: tensor + 1 for name, tensor in tensors.items()}, student, metadata)
    engine = copy / "gen_trt_engine" / "student.engine"
    assert cli.main(["lineage", str(engine)]) == 1
    printed = capsys.readouterr()
    assert f"changed since it was recorded: {student}" in printed.err and "changed since" in printed.out
    made = lineage(engine)
    assert [file.path for file in made.files[State.changed]] == [str(student)]
    assert of_kind(made.artifact, Kind.images)[0].facts["samples"] == 48  # its manifest still says which one it was


def test_what_is_not_there_is_named_and_what_it_was_made_of_is_not_lost(copy):
    graph = copy / "export" / "student.onnx"
    graph.unlink()
    made = lineage(copy / "gen_trt_engine" / "student.engine")
    (lost,) = of_kind(made.artifact, Kind.onnx)
    assert [file.state for file in lost.files] == [State.absent]
    assert "no file with its hash is in the results folder" in lost.notes
    assert of_kind(made.artifact, Kind.images)[0].facts["samples"] == 48
    graph.write_bytes(b"another")
    (lost,) = of_kind(lineage(copy / "gen_trt_engine" / "student.engine").artifact, Kind.onnx)
    assert f"{graph} has its name, and other content" in lost.notes[0]
    shutil.rmtree((copy / "distill" / "model_latest").resolve())
    made = lineage(copy / "gen_trt_engine" / "student.engine")
    (lost,) = of_kind(made.artifact, Kind.student)
    assert {file.state for file in lost.files} == {State.absent} and of_kind(made.artifact, Kind.run) == []


def test_images_that_no_ledger_lists_make_the_answer_unknown(copy, make_spec, ids_by_step):
    early, steps = copy / "distill" / "model_epoch_000_step_00002", ids_by_step(copy / "distill")
    other = next(i for i in steps[2] if not any(i in steps[step] for step in range(2)))
    radioplat.prune(
        make_spec(copy), ["prune.amount=0.25", f"prune.checkpoint={early}", f"prune.results_dir={copy}/early"]
    )
    report = copy / "early" / "model_pruned" / "prune.json"

    def answers() -> list[bool | None]:
        history = lineage(copy, image=other).image
        contains = {each.path: each.contains for each in history.artifacts}
        return [contains[str(path)] for path in (early, report.parent, copy / "prune" / "model_pruned")]

    facts = json.loads(report.read_text()) | {"reconstructed": [], "batchnorm_images": 0}
    report.write_text(json.dumps(facts))
    assert answers() == [False, False, True]
    report.write_text(json.dumps(facts | {"batchnorm_images": 64}))
    assert answers() == [False, None, True]


def test_the_card_of_a_smaller_student_names_both_runs_and_no_path(chain):
    checkpoint = chain / "again" / "distill" / "model_epoch_001"
    student = radioplat.load_student(checkpoint)
    traced = Tracer(verify=False, with_images=False).trace(checkpoint)
    card = write_card(CardInputs("me/small", student.architecture, 1000, traced, {}))
    source = hashlib.sha256((chain / "prune" / "model_pruned" / "student.safetensors").read_bytes()).hexdigest()
    line = next(line for line in card.splitlines() if line.startswith("- model_pruned, by prune: "))
    assert f"student.safetensors, sha256 {source[:12]}" in line and "prune.json" not in line
    assert card.index("8 steps, 48 samples") < card.index("4 steps, 24 samples") and "## Training 2" in card
    assert card.count("| lite0 |") == 1 and str(chain) not in card and "optimizer" not in card


def test_a_checkpoint_that_was_moved_is_found_by_its_hash(copy):
    there = (copy / "distill" / "model_latest").resolve()
    shutil.move(there, copy / "distill" / "kept")
    made = lineage(copy / "gen_trt_engine" / "student.engine")
    assert Path(of_kind(made.artifact, Kind.student)[0].path).name == "kept" and made.is_same


def test_artifacts_of_earlier_versions_are_not_guessed(copy, tmp_path):
    onnx = pytest.importorskip("onnx")
    graph = copy / "export" / "student.onnx"
    model = onnx.load(str(graph))
    del model.metadata_props[:]
    onnx.save(model, str(graph))
    traced = lineage(graph).artifact
    assert traced.made_from == [] and "not recorded by the version that wrote it" in traced.notes[0]
    for name in ("source.json", "manifest.json"):
        (copy / "prune" / "model_pruned" / name).unlink()
    traced = lineage(copy / "prune" / "model_pruned").artifact
    assert traced.made_from == [] and "not recorded by the version that wrote it (its path then: " in traced.notes[0]
    (copy / "distill" / "sources.json").unlink()
    made = lineage(copy / "distill" / "model_latest", out=tmp_path / "out")
    assert len(made.files[State.unrecorded]) == 2 and made.is_same
    assert "not recorded by the version" in (tmp_path / "out" / "lineage.html").read_text()


def test_a_shard_that_changed_or_is_not_there_is_named(copy, corpora, tmp_path):
    moved = tmp_path / "corpora"
    shutil.copytree(corpora, moved)
    spec = copy / "distill" / "experiment.yaml"
    spec.write_text(spec.read_text().replace(str(corpora), str(moved)))
    # The run's index has the shards' folders: of a run on the copies.
    run = lineage(copy / "distill" / "model_latest").runs[0]
    table = pq.read_table(copy / "distill" / "data" / "shards.parquet")
    roots = [root.replace(str(corpora), str(moved)) for root in table["root"].to_pylist()]
    paths = [Path(root) / name for root, name in zip(roots, table["name"].to_pylist(), strict=True)]
    for name, values in (("root", roots), ("mtime_ns", [path.stat().st_mtime_ns for path in paths])):
        column = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), column, [pa.array(values, column.type)])
    pq.write_table(table, copy / "distill" / "data" / "shards.parquet")
    assert lineage(copy / "distill" / "model_latest").is_same and run.distinct
    os.utime(moved / "a" / "shard-000.tar", ns=(1, 1))
    (moved / "b" / "shard-001.tar").unlink()
    made = lineage(copy / "distill" / "model_latest")
    states = {shard["path"]: shard["state"] for shard in of_kind(made.artifact, Kind.images)[0].facts["shards"]}
    assert states[str(moved / "a" / "shard-000.tar")] == "changed since" and not made.is_same
    assert states[str(moved / "b" / "shard-001.tar")] == "not there"


def test_an_image_leads_to_its_steps_and_to_what_comes_from_it(chain, ids_by_step, tmp_path, capsys):
    steps = ids_by_step(chain / "distill")
    late = next(i for i in steps[2] if not any(i in steps[step] for step in range(2)))
    first = next(step for step in steps if late in steps[step])
    history = lineage(chain / "distill" / "model_latest", image=late).image
    own = [use for use in history.uses if use.run == str(chain / "distill")]
    assert [use.step for use in own] == [step + 1 for step in steps for i in steps[step] if i == late]
    assert all(use.kept and not use.reason and use.id == late for use in own)
    contains = {Path(each.path).relative_to(chain).as_posix(): each.contains for each in history.artifacts}
    assert first == 2 and contains["distill/model_epoch_000_step_00002"] is False
    later = ("distill/model_epoch_001", "distill/model_epoch_002", "again/distill/model_epoch_001")
    assert all(contains[name] is True for name in (*later, "prune/model_pruned"))
    assert contains["export/student.onnx"] is contains["gen_trt_engine/student.engine"] is True
    again = ids_by_step(chain / "again" / "distill")
    theirs = [use for use in history.uses if use.run == str(chain / "again" / "distill")]
    expected = [step + 1 for step in again for i in again[step] if i == theirs[0].id]
    assert [use.step for use in theirs] == expected != []
    name = f"{Path(history.shard).name}/{history.key}"
    out = tmp_path / "out"
    assert cli.main(["lineage", str(chain), "--image", name, "--out", str(out)]) == 0
    assert history.key in capsys.readouterr().out and history.key in (out / "image.html").read_text()
    written = json.loads((out / "image.json").read_text())
    assert (written["shard"], written["key"]) == (history.shard, history.key)
    assert len(written["uses"]) == len(history.uses)


def test_wrong_artifacts_and_images_are_errors_by_name(chain, tmp_path, capsys):
    (tmp_path / "photo.jpg").write_bytes(b"jpeg")
    (tmp_path / "no.onnx").write_bytes(b"graph")
    (tmp_path / "empty").mkdir()
    for path, words in (("photo.jpg", "no artifact"), ("no.onnx", "not an ONNX file"), ("empty", "no artifact here")):
        with pytest.raises(RadioplatError, match=words) as caught:
            lineage(tmp_path / path)
        assert caught.value.problems[0].where == str(tmp_path / path)
    assert cli.main(["lineage", str(tmp_path / "nothing")]) == 1
    assert "does not exist" in capsys.readouterr().err
    for image in (1000, "shard-000.tar/nothing", "no.tar/0001", "-1"):
        with pytest.raises(DataError, match="has no image") as caught:
            lineage(chain, image=image)
        assert caught.value.problems[0].where == "--image"
    with pytest.raises(DataError, match="no run with an index"):
        shutil.copyfile(chain / "export" / "student.onnx", tmp_path / "empty" / "student.onnx")
        lineage(tmp_path / "empty" / "student.onnx", image=1)
