"""A pipeline's file: what each mistake in it is called, what nodes need, and what overrides reach."""

from __future__ import annotations

import json

import pytest

from radioplat.errors import SpecError
from radioplat.tasks.pipeline.checks import plan_pipeline
from radioplat.tasks.pipeline.dag import load_pipeline
from radioplat.tasks.pipeline.kinds import TASKS, NodeTask, product_of

FROM = "train.pretrained_model_path="


def nodes(**named) -> dict:
    """A pipeline of these nodes, each with an empty spec."""
    return {"spec": {}, "nodes": named}


def problems(tree, overrides=()) -> dict[str, str]:
    """The problems of a pipeline by field: message and hint."""
    with pytest.raises(SpecError) as refused:
        load_pipeline(tree, overrides)
    return {p.where: f"{p.message}. {p.hint}" for p in refused.value.problems}


def test_every_task_has_a_definition():
    assert list(TASKS) == list(NodeTask)
    assert {task.value: product_of(task) for task in NodeTask if product_of(task) != "student"} == {
        "evaluate": None,
        "export": "onnx",
        "gen_trt_engine": "engine",
    }


WRONG = {
    "no node": ({"spec": {}}, {"nodes": "there is no node"}),
    "an unknown field": (
        nodes(a={"task": "distill", "chagnes": []}),
        {"nodes.a.chagnes": "unknown field. Did you mean nodes.a.changes"},
    ),
    "an unknown task": (nodes(a={"task": "distil"}), {"nodes.a.task": "distil"}),
    "no spec": ({"nodes": {"a": {}}}, {"nodes.a.spec": "the node has no spec"}),
    "a name that is no folder": (nodes(**{"a/b": {}}), {"nodes.a/b": "no node can have this name"}),
    "a need that does not exist": (
        nodes(proxy={}, b={"needs": ["proxi"]}),
        {"nodes.b.needs[0]": "no node is called 'proxi'. Did you mean 'proxy'?"},
    ),
    "a need of itself": (nodes(a={"needs": ["a"]}), {"nodes.a.needs[0]": "a node cannot need itself"}),
    "a node that teaches itself": (
        nodes(a={"changes": ["train.seed=1", "distill.teacher=[{pretrained_teacher_model_path: ${nodes.a.student}}]"]}),
        {"nodes.a.changes[1]": "a node cannot teach itself, or start from itself"},
    ),
    "a circle": (
        nodes(a={"needs": ["c"]}, b={"changes": [FROM + "${nodes.a.student}"]}, c={"needs": ["b"]}, d={"needs": ["a"]}),
        {"nodes.a": "these nodes need one another: a -> c -> b -> a"},
    ),
    "a product that there is not": (
        nodes(a={}, b={"changes": [FROM + "${nodes.a.onnx}", FROM + "${nodes.c.student}", FROM + "${nodes.a}"]}),
        {
            "nodes.b.changes[0]": "a, a node of task distill, has no onnx. Write ${nodes.a.student}.",
            "nodes.b.changes[1]": "no node is called 'c'",
            "nodes.b.changes[2]": "a, a node of task distill, has only named results. Write ${nodes.a.student}.",
        },
    ),
    "the result of an evaluation": (
        nodes(a={"task": "evaluate"}, b={"changes": [FROM + "${nodes.a.student}"]}),
        {"nodes.b.changes[0]": "a is a node of task evaluate, whose result no other task reads"},
    ),
    "an object store": (nodes(a={}) | {"results_dir": "s3://bucket/out"}, {"results_dir": "results need a folder"}),
    "no places": (nodes(a={}) | {"concurrent": 0}, {"concurrent": "0"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named_by_its_field(name):
    tree, expected = WRONG[name]
    refused = problems(tree)
    assert refused.keys() == expected.keys()
    for where, words in expected.items():
        assert words in refused[where]


def test_equal_names_are_refused(tmp_path):
    path = tmp_path / "dag.yaml"
    path.write_text("spec: {}\nnodes:\n  proxy: {task: distill}\n  other: {}\n  proxy: {task: train}\n")
    assert problems(path) == {f"{path}: nodes.proxy": "2 nodes have this name. Give each node its own."}


@pytest.mark.parametrize(
    ("text", "words"),
    [("nodes: [", "not valid YAML"), ("- a", "the top level must be a mapping"), (None, "cannot read the pipeline")],
)
def test_a_file_that_is_none(text, words, tmp_path):
    path = tmp_path / "dag.yaml"
    if text is not None:
        path.write_text(text)
    assert words in problems(path)[str(path)]


def test_what_is_no_pipeline():
    assert "this is a int, not a pipeline" in problems(3)["dag"]


def test_references_are_needs_and_become_paths(tmp_path):
    (tmp_path / "spec.yaml").write_text("train: {seed: 3}\n")
    tree = {
        "spec": "spec.yaml",
        "changes": ["train.num_epochs=2"],
        "nodes": {
            "late": {"needs": ["b"], "changes": [f"{FROM}${{nodes.a.student}}"]},
            "b": {"task": "export", "changes": ["export.checkpoint=${nodes.a.student}"]},
            "a": {"spec": {"train": {"seed": 5}}},
        },
    }
    (tmp_path / "dag.yaml").write_text(json.dumps(tree))
    made = load_pipeline(tmp_path / "dag.yaml", ["results_dir=out", "nodes.late.train.seed=7", "train.num_epochs=4"])
    assert [(node.name, node.needs) for node in made.graph] == [("a", ()), ("b", ("a",)), ("late", ("a", "b"))]
    assert made.home.name == "out" and made.home.is_absolute() and made.concurrent is None
    specs = {node.name: node.spec(lambda name, product: f"/there/{name}") for node in made.graph}
    assert specs["late"].train.pretrained_model_path == "/there/a" == specs["b"].export.checkpoint
    assert {name: spec.train.seed for name, spec in specs.items()} == {"a": 5, "b": 3, "late": 7}
    assert {spec.train.num_epochs for spec in specs.values()} == {4}
    assert made.fields(made.graph["late"]).train.pretrained_model_path == "nodes.a"


def test_overrides_of_unknown_nodes_and_fields():
    tree = nodes(proxy={}, student={})
    assert "Did you mean 'proxy'?" in problems(tree, ["nodes.proxi.train.seed=1"])["nodes.proxi.train.seed"]
    refused = problems(tree, ["nodes.proxy.train.sed=1", "nodes.student.train.num_epochs=0"])
    assert refused.keys() == {"nodes.proxy: train.sed", "nodes.student: train.num_epochs"}
    assert "unknown field. Did you mean train.seed" in refused["nodes.proxy: train.sed"]


def test_one_student_of_several():
    several = {"distill": {"students": [{"name": "small"}, {"name": "edge"}]}}
    tree = nodes(family={"spec": several}, next={"changes": [FROM + "${nodes.family.students.small}"]})
    made = load_pipeline(tree)
    assert made.fields(made.graph["next"]).train.pretrained_model_path == "nodes.family.students.small"
    assert made.graph["next"].needs == ("family",)
    tree["nodes"]["next"]["changes"] = [FROM + "${nodes.family.students.smal}"]
    refused = problems(tree)
    assert refused.keys() == {"nodes.next.changes"} and "Did you mean 'small'?" in refused["nodes.next.changes"]


def test_a_relative_results_folder_in_a_ray_job_is_refused(tmp_path, monkeypatch):
    """Ray deletes its copy of the working directory, and the results with it."""
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    given = nodes(a={}) | {"results_dir": "results/family"}
    assert "results_dir=$PWD/results/family where you submit" in problems(given)["results_dir"]
    assert "results/pipeline is relative" in problems(nodes(a={}))["results_dir"]
    absolute = [f"results_dir={tmp_path}/out"]
    assert load_pipeline(given, absolute).home == tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    assert load_pipeline(given).home == tmp_path / "results/family"


def test_a_nodes_own_results_folder_does_not_count_in_a_ray_job(tmp_path, monkeypatch):
    """It is replaced by a folder below the pipeline's, also for a node that is checked for contradictions only."""
    copy = tmp_path / "working_dir_files" / "_ray_pkg_1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    tree = nodes(a={}, after={"changes": [FROM + "${nodes.a.student}"]}) | {"results_dir": str(tmp_path / "out")}
    found = [problem.where for problem in plan_pipeline(tree).problems]
    assert any(where.startswith("nodes.after") for where in found)
    assert not any("results_dir" in where for where in found)
