"""The judge of embeddings against closed forms and scikit-learn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.judges import embed, knn
from benchmarks.judges.embeddings import Task, UnfitFile, read_tasks
from benchmarks.judges.probes import Hits, dense, linear, probes
from benchmarks.judges.probes import knn as knn_labels
from benchmarks.judges.resampling import difference, one_side, paired_floor, unpaired_floor

ROOT = Path(__file__).parents[1]


def flat_task(spread: float, classes: int = 8, each: int = 30, width: int = 16, seed: int = 0) -> Task:
    """Clusters around random directions, `spread` wide."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), each)
    bank, queries = (centres[labels] + spread * rng.normal(size=(len(labels), width)) for _ in range(2))
    return Task("flat", bank, labels, queries, labels.copy())


def saved(path: Path, task: Task) -> Path:
    what = "maps" if task.dense else "features"
    arrays = {f"{task.name}.bank.{what}": task.bank, f"{task.name}.bank.labels": task.bank_labels}
    arrays |= {f"{task.name}.queries.{what}": task.queries, f"{task.name}.queries.labels": task.queries_labels}
    np.savez(path, **arrays)
    return path


def right(values: np.ndarray) -> Hits:
    answers = np.asarray(values, np.float64)[:, None]
    return Hits(answers, np.ones_like(answers), 0.5)


def test_separable_clusters_are_all_named():
    assert {name: hits.figure for name, hits in probes(flat_task(0.01))} == {"flat.knn": 1.0, "flat.linear": 1.0}


def test_random_labels_are_named_by_chance():
    rng = np.random.default_rng(3)
    task = flat_task(0.5, each=120)
    task = Task("flat", task.bank, rng.permutation(task.bank_labels), task.queries, rng.permutation(task.bank_labels))
    for _, hits in probes(task):
        interval = one_side([hits])
        assert interval.lower < 1 / 8 < interval.upper
        assert hits.chance == 1 / 8


@pytest.mark.parametrize("neighbours", [1, 5, 20, 400])
def test_knn_is_scikit_learns(neighbours):
    from sklearn.neighbors import KNeighborsClassifier

    task = flat_task(1.5)
    k = min(neighbours, len(task.bank))
    theirs = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    wanted = theirs.fit(task.bank, task.bank_labels).predict(task.queries)
    assert 0.3 < (wanted == task.queries_labels).mean() < 0.99
    assert np.array_equal(knn_labels(task, neighbours), wanted)


@pytest.mark.parametrize("width", [16, 400])  # fewer and more features than samples
def test_the_linear_probe_is_scikit_learns_ridge_of_one_of_its_strengths(width):
    from sklearn.linear_model import RidgeClassifier

    from benchmarks.judges.probes import STRENGTHS

    task = flat_task(3.0, width=width)
    ours = linear(task)
    mean, spread = task.bank.mean(0), task.bank.std(0)
    bank, queries = (task.bank - mean) / spread, (task.queries - mean) / spread
    unit = len(bank)  # the covariance of standardised features has mean eigenvalue N
    agree = [
        (RidgeClassifier(alpha=strength * unit).fit(bank, task.bank_labels).predict(queries) == ours).mean()
        for strength in STRENGTHS
    ]
    assert max(agree) == 1.0


def test_dense_names_positions_and_weighs_classes_alike():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 8))
    labels = rng.choice([0, 1, 2, -1], size=(80, 4, 4), p=[0.8, 0.1, 0.05, 0.05])
    maps = centres[np.maximum(labels, 0)] + 0.01 * rng.normal(size=(80, 4, 4, 8))
    task = Task("d", maps[:40], labels[:40], maps[40:], labels[40:])
    hits = dense(task)
    assert hits.figure == 1.0 and hits.chance == 1 / 3
    assert hits.given.sum() == (labels[40:] >= 0).sum()
    blind = Task("d", rng.normal(size=task.bank.shape), labels[:40], rng.normal(size=task.queries.shape), labels[40:])
    interval = one_side([dense(blind)])
    assert interval.lower < 1 / 3 < interval.upper  # not 0.8, the share of the commonest


def test_the_interval_is_that_of_a_binomial():
    rng = np.random.default_rng(1)
    for share in (0.1, 0.5, 0.9):
        hits = right(rng.permutation(np.arange(2000) < share * 2000))
        interval = one_side([hits])
        error = np.sqrt(share * (1 - share) / 2000)
        assert interval.value == pytest.approx(share)
        assert interval.error == pytest.approx(error, rel=0.05)
        assert (interval.upper - interval.lower) == pytest.approx(2 * 1.96 * error, rel=0.08)
        assert unpaired_floor(interval) == pytest.approx(1.96 * np.sqrt(2) * error, rel=0.05)


def test_the_interval_covers_a_binomials_share_as_often_as_it_says():
    rng = np.random.default_rng(2)
    covered = 0
    for number in range(300):
        interval = one_side([right(rng.random(300) < 0.7)], draws=400, seed=number)
        covered += interval.lower <= 0.7 <= interval.upper
    assert 0.91 <= covered / 300 <= 0.98


def test_a_paired_difference_of_the_same_answers_is_nothing():
    rng = np.random.default_rng(4)
    seeds = [right(rng.random(500) < share) for share in (0.5, 0.6, 0.7)]
    for side in (seeds[:1], seeds):
        found = difference(side, side)
        assert (found.value, found.lower, found.upper, paired_floor(found)) == (0, 0, 0, 0)


def test_pairing_takes_away_what_both_sides_find_hard():
    """Ours is right wherever theirs is, and on 20 queries more: McNemar's error of the difference."""
    theirs = np.arange(1000) < 500
    ours = np.arange(1000) < 520
    found = difference([right(ours)], [right(theirs)])
    assert found.value == pytest.approx(0.02)
    assert found.error == pytest.approx(np.sqrt(0.02 * 0.98 / 1000), rel=0.05)
    assert found.lower > 0.01


def test_seeds_widen_the_interval_without_bias():
    """The variance over draws of the seeds is s^2 / S, which a draw of S of S seeds would miss."""
    constant = [right(np.r_[np.ones(n), np.zeros(100 - n)]) for n in (40, 50, 60)]
    certain = [Hits(np.full((50, 1), hits.figure), np.ones((50, 1)), 0.5) for hits in constant]  # no noise of queries
    found = one_side(certain)
    assert found.value == pytest.approx(0.5)
    assert found.error == pytest.approx(0.1 / np.sqrt(3), rel=0.05)
    shifted = [Hits(hits.right + 0.03, hits.given, 0.5) for hits in certain]
    paired = difference(shifted, certain)  # each seed is 0.03 better than its own
    assert (paired.lower, paired.upper) == (pytest.approx(0.03), pytest.approx(0.03))
    unpaired = difference(shifted, certain[:2])  # other numbers of seeds: they do not cancel
    assert unpaired.upper - unpaired.lower > 0.1


def test_the_command_compares_and_ends_with_json(tmp_path, capsys):
    a, b = saved(tmp_path / "a.npz", flat_task(1.0)), saved(tmp_path / "b.npz", flat_task(3.0))
    assert knn.main([str(a), "--against", str(b)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["differences"]["flat.knn"]["better"] and found["differences"]["flat.knn"]["lower"] > 0.1
    assert found["figures"]["flat.knn"]["noise_floor"] > 0
    assert knn.main([str(a), "--against", str(a)]) == 0
    same = json.loads(capsys.readouterr().out.splitlines()[-1])["differences"]["flat.linear"]
    assert (same["difference"], same["lower"], same["upper"]) == (0, 0, 0) and same["not_worse"] and not same["better"]


def test_answers_are_judged_like_the_embeddings_that_they_are_of(tmp_path, capsys):
    a, b = saved(tmp_path / "a.npz", flat_task(1.0)), saved(tmp_path / "b.npz", flat_task(3.0))
    kept = tmp_path / "kept" / "a.npz"
    assert knn.main([str(a), "--answers", str(kept)]) == 0
    capsys.readouterr()
    found = []
    for ours in (a, kept):
        assert knn.main([str(ours), "--against", str(b)]) == 0
        found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert {**found[0], "files": None} == {**found[1], "files": None}
    other = saved(tmp_path / "other.npz", flat_task(1.0, each=20))
    assert knn.main([str(kept), "--against", str(other)]) == 2
    assert "different queries" in capsys.readouterr().err
    np.savez(kept, **{"flat.knn.right": np.zeros((3, 2))})
    assert knn.main([str(kept)]) == 2
    assert "flat.knn.given is missing" in capsys.readouterr().err


def test_a_curve_is_sorted_by_images_seen(tmp_path, capsys):
    files = [saved(tmp_path / f"step_{step:05d}.npz", flat_task(spread)) for step, spread in ((1000, 0.5), (90, 3.0))]
    assert knn.main(["--curve", "--images-per-step", "16", *map(str, files)]) == 0
    points = json.loads(capsys.readouterr().out.splitlines()[-1])["curve"]
    assert [point["images"] for point in points] == [1440, 16000]
    values = [point["figures"]["flat.knn"]["value"] for point in points]
    assert values[0] < values[1]


def damaged(task: Task, **changes) -> Task:
    return Task(**{**task.__dict__, **changes})


TASK = flat_task(1.0)
UNFIT = {
    "bank: 1 of 240 embeddings are not finite": damaged(
        TASK, bank=np.where(np.arange(240)[:, None] == 7, np.nan, TASK.bank)
    ),
    "expected integers [240]": damaged(TASK, queries_labels=TASK.queries_labels[:9]),
    "queries have labels that the bank has not: [99]": damaged(TASK, queries_labels=np.full(240, 99)),
    "differ in shape: (16,) and (5,)": damaged(TASK, queries=TASK.queries[:, :5]),
    "expected floats [N, D], found int64": damaged(TASK, bank=TASK.bank.astype(np.int64)),
    "fewer than two labels": damaged(TASK, bank_labels=np.zeros(240, int), queries_labels=np.zeros(240, int)),
}


@pytest.mark.parametrize("message", UNFIT)
def test_an_unfit_file_is_named(tmp_path, capsys, message):
    path = saved(tmp_path / "unfit.npz", UNFIT[message])
    assert knn.main([str(path)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and str(path) in printed.err and not printed.out


def test_files_that_are_none_or_do_not_belong_together_are_named(tmp_path, capsys):
    good = saved(tmp_path / "good.npz", TASK)
    text, empty, cut = tmp_path / "text.npz", tmp_path / "empty.npz", tmp_path / "cut.npz"
    text.write_text("no")
    np.savez(empty, something=np.zeros(3))
    cut.write_bytes(good.read_bytes()[:900])
    for path in (text, empty, cut, tmp_path / "missing.npz", tmp_path):
        with pytest.raises(UnfitFile, match=path.name):
            read_tasks(path)
    other = saved(tmp_path / "other.npz", flat_task(1.0, each=20))
    assert knn.main([str(good), "--against", str(other)]) == 2
    assert "labels of flat.bank" in capsys.readouterr().err
    assert knn.main(["--curve", str(good)]) == 2
    assert "step_125" in capsys.readouterr().err


def corpora(folder: Path) -> Path:
    """Images of one grey a class, at 12 pixels, and composites of two greys at 48."""
    folder.mkdir()
    labels = np.repeat(np.arange(4), 6)
    images = np.broadcast_to((40 + 50 * labels)[:, None, None, None], (24, 12, 12, 3)).astype(np.uint8)
    for task in ("scenes", "fashion"):
        np.savez(
            folder / f"{task}.npz",
            **{
                f"{split}.{key}": value
                for split in ("bank", "queries")
                for key, value in (("images", images), ("labels", labels))
            },
        )
    masks = np.zeros((24, 48, 48), np.uint8)
    masks[:, :, 24:] = 1
    both = np.where(masks[..., None] > 0, 200, 50).astype(np.uint8).repeat(3, 3)
    np.savez(
        folder / "composites.npz",
        **{f"{s}.{k}": v for s in ("bank", "queries") for k, v in (("images", both), ("masks", masks))},
    )
    return folder


def graph(path: Path, size: int | str, batch: int | str) -> Path:
    """An ONNX student: its map is the mean of blocks of six pixels, its summary the mean of that, and of its square."""
    pool = helper.make_node("AveragePool", ["images"], ["pooled"], kernel_shape=[6, 6], strides=[6, 6])
    nodes = [
        pool,
        helper.make_node("Transpose", ["pooled"], ["spatial"], perm=[0, 2, 3, 1]),
        helper.make_node("Mul", ["pooled", "pooled"], ["square"]),
        helper.make_node("Concat", ["pooled", "square"], ["both"], axis=1),
        helper.make_node("GlobalAveragePool", ["both"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["summary"]),
    ]
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, size, size])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("summary", "spatial")]
    model = helper.make_model(
        helper.make_graph(nodes, "student", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("size", "batch", "grid"), [("side", "batch", 8), (12, 5, 2)])
def test_an_onnx_student_is_embedded_and_judged(tmp_path, capsys, size, batch, grid):
    student = graph(tmp_path / "step_3.onnx", size, batch)
    folder = corpora(tmp_path / "corpora")
    assert embed.main([str(student), "--corpora", str(folder), "--out", str(tmp_path / "e.npz")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["images"] == 6 * 24
    tasks = {task.name: task for task in read_tasks(tmp_path / "e.npz")}
    assert tasks["scenes"].bank[:, 0] == pytest.approx((40 + 50 * tasks["scenes"].bank_labels) / 255)
    assert tasks["composites"].bank.shape == (24, grid, grid, 3)
    assert {name: hits.figure for task in tasks.values() for name, hits in probes(task) if "linear" not in name} == {
        "composites.dense": 1.0,
        "fashion.knn": 1.0,
        "scenes.knn": 1.0,
    }
    assert knn.main(["--curve", str(student), "--corpora", str(folder)]) == 0
    assert (tmp_path / "step_3.embeddings.npz").is_file()


def test_a_timm_model_is_embedded_and_wrong_weights_are_named(tmp_path, capsys):
    import safetensors.torch
    import timm

    folder = corpora(tmp_path / "corpora")
    weights = tmp_path / "w.safetensors"
    safetensors.torch.save_file(timm.create_model("test_resnet").state_dict(), weights)
    arguments = [
        "--corpora",
        str(folder),
        "--only",
        "composites",
        "--out",
        str(tmp_path / "e.npz"),
        "--mean",
        "0.5",
        "--std",
        "0.5",
    ]
    assert embed.main(["--timm", "test_resnet", "--weights", str(weights), *arguments]) == 0
    assert [task.dense for task in read_tasks(tmp_path / "e.npz")] == [True]
    for wrong in (["--timm", "test_efficientnet", "--weights", str(weights)], ["--timm", "no_such_model"]):
        assert embed.main([*wrong, *arguments]) == 2
    errors = capsys.readouterr().err
    assert "no weights of test_efficientnet" in errors and "no_such_model" in errors
    assert embed.main([str(weights), *arguments]) == 2
    assert "onnxruntime cannot load it" in capsys.readouterr().err


def test_a_position_has_the_label_of_half_its_pixels():
    masks = np.zeros((1, 4, 4), np.uint8)
    masks[0, :2, :2] = [[2, 2], [2, 0]]
    masks[0, 2:, 2:] = [[1, 2], [3, 0]]
    assert embed.position_labels(masks, 2, 2).tolist() == [[[2, 0], [0, -1]]]
    assert embed.position_labels(masks, 4, 4).tolist() == masks.tolist()


def test_the_judge_imports_nothing_of_radioplat():
    code = "import sys, benchmarks.judges.knn, benchmarks.judges.embed; print({m.split('.')[0] for m in sys.modules})"
    assert "'radioplat'" not in subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
