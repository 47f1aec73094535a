"""Read a pipeline: a YAML file of nodes, and overrides; every mistake in it is named by its field."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.errors import Problem, SpecError, did_you_mean, problems_of
from radioplat.spec.loading.fields import faults, first_line
from radioplat.spec.loading.job_paths import relative_in_copy
from radioplat.spec.loading.load import dump, load_spec
from radioplat.spec.loading.overrides import apply_override
from radioplat.spec.ranges import number, range_problems
from radioplat.spec.resolved.paths import results_problems
from radioplat.spec.schema.root import Spec
from radioplat.tasks.graph.node import Graph, Node, circles
from radioplat.tasks.pipeline.kinds import NodeTask, product_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_REFERENCE = re.compile(r"\$\{nodes\.([^.}]*)\.?([^}]*)\}")  # ${nodes.proxy.student}
STUDENT_OF_SEVERAL = "students."  # ${nodes.family.students.small}
_OVERRIDE = re.compile(r"nodes\.([^.=\[]+)\.(.+)", re.DOTALL)  # nodes.proxy.train.max_steps=2


@dataclass
class NodeConfig:
    """One node of the file."""

    task: NodeTask = NodeTask.distill
    spec: Any = None  # a YAML file, relative to the pipeline's, or sections of a spec; default: the pipeline's spec
    changes: list[str] = field(default_factory=list)  # overrides; ${nodes.NAME.student} is the student of another node
    needs: list[str] = field(default_factory=list)  # further nodes that must be finished before


@dataclass
class PipelineConfig:
    """The file of a pipeline."""

    results_dir: str = "results/pipeline"  # results of each node are in a folder of its name
    spec: Any = None  # of nodes that name none
    changes: list[str] = field(default_factory=list)  # overrides of all nodes, before their own
    concurrent: int | None = number(None, at_least=1)  # nodes at once; default: as many as fit on the cluster, else one
    nodes: dict[str, NodeConfig] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskNode(Node):
    """A node of a pipeline.

    Attributes:
        source: its spec: a path, or a mapping of sections.
        changes: overrides, with references.
    """

    task: NodeTask = NodeTask.distill
    source: Any = None
    changes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The field of the node, for messages."""
        return f"nodes.{self.name}"

    def spec(self, path_of: Callable[[str, str], str]) -> Spec:
        """Return its spec.

        Args:
            path_of: the path of the result of a node, by its name and the word of the product.

        Raises:
            SpecError: with the node in front of each field.
        """
        changes = [_REFERENCE.sub(lambda match: path_of(match[1], match[2]), change) for change in self.changes]
        try:
            return load_spec(self.source, changes)
        except SpecError as error:
            raise SpecError(*(of_node(self, problem) for problem in error.problems)) from None


@dataclass(frozen=True)
class Pipeline:
    """A checked pipeline.

    Attributes:
        home: ``results_dir``, absolute.
        concurrent: largest number of nodes at once; None: as many as fit.
        text: the file with all overrides, as YAML.
    """

    home: Path
    graph: Graph[TaskNode]
    concurrent: int | None
    text: str

    def fields(self, node: TaskNode) -> Spec:
        """Return the spec of a node with names in place of the paths of other nodes' results."""
        return node.spec(lambda name, product: f"nodes.{key_of(name, product)}")


def key_of(name: str, product: str) -> str:
    """Return the key of a node's result: its name, and for one student of several ``NAME.students.STUDENT``."""
    return f"{name}.{product}" if product.startswith(STUDENT_OF_SEVERAL) else name


def of_node(node: TaskNode, problem: Problem) -> Problem:
    """Return a problem with its node in front of the field."""
    where = f"{node.where}: {problem.where}" if problem.where else node.where
    return dataclasses.replace(problem, where=where)


def load_pipeline(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline and check its graph, and the spec of each node by itself.

    Args:
        source: a YAML file, or a mapping with the same fields.
        overrides: ``results_dir=...`` and ``concurrent=...`` of the pipeline, ``nodes.NAME.FIELD=value`` of one node's
            spec, and ``FIELD=value`` of the specs of all nodes, after their own changes.

    Raises:
        SpecError: with all problems.
    """
    if not isinstance(source, (str, os.PathLike, Mapping)):
        hint = "Give the path of a YAML file, or a mapping."
        raise SpecError(f"this is a {type(source).__name__}, not a pipeline", where="dag", hint=hint)
    name, folder = ("", Path()) if isinstance(source, Mapping) else (str(source), Path(source).parent)
    tree = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else _read(Path(source))
    later = _apply(tree, overrides)
    problems = list(faults(tree, PipelineConfig, "", PipelineConfig))
    config = None
    if not problems:
        try:
            merged = OmegaConf.merge(OmegaConf.structured(PipelineConfig), _escaped(tree))
            config = _unescaped(typing.cast(PipelineConfig, OmegaConf.to_object(merged)))
        except OmegaConfBaseException as error:
            raise SpecError(first_line(error), where=name) from None
        for each, node in config.nodes.items():
            node.changes += [*later[None], *later.get(each, ())]
        problems = [*range_problems(config), *_problems(config)]
    if problems or config is None:
        raise SpecError(*(dataclasses.replace(p, where=f"{name}: {p.where}" if name else p.where) for p in problems))
    graph = Graph(_node(config, each, folder) for each in config.nodes)
    nodes = {name: vars(node) | {"task": node.task.value} for name, node in config.nodes.items()}
    text = dump(vars(config) | {"nodes": nodes})
    pipeline = Pipeline(Path(config.results_dir).absolute(), graph, config.concurrent, text)
    problems = [problem for node in graph for problem in problems_of(pipeline.fields, node)]
    if problems := problems or list(_unknown_students(pipeline)):
        raise SpecError(*problems)
    return pipeline


def _unknown_students(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield references to students of ``distill.students`` that there are not."""
    for node in pipeline.graph:
        for match in (each for change in node.changes for each in _REFERENCE.finditer(change)):
            if match[2].startswith(STUDENT_OF_SEVERAL):
                name = match[2].removeprefix(STUDENT_OF_SEVERAL)
                students = [each.name for each in pipeline.fields(pipeline.graph[match[1]]).distill.students]
                if name not in students:
                    hint = did_you_mean(name, students) or "It has no distill.students: write ${nodes.NAME.student}."
                    yield Problem(f"node {match[1]} has no student {name!r}", f"{node.where}.changes", hint)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        hint = "Name an existing YAML file; specs/recipes/eupe.yaml is one."
        raise SpecError(f"cannot read the pipeline: {error.strerror}", where=str(path), hint=hint) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SpecError("not valid YAML", where=str(path)) from None
    if twice := [Problem(message, f"{path}: {where}", hint) for message, where, hint in _equal_names(root)]:
        raise SpecError(*twice)
    try:
        tree = OmegaConf.to_container(OmegaConf.create(text))
    except (yaml.YAMLError, OmegaConfBaseException):
        raise SpecError("not valid YAML", where=str(path)) from None
    if not isinstance(tree, dict):
        raise SpecError("the top level must be a mapping with the field nodes", where=str(path))
    return typing.cast("dict[str, Any]", tree)


def _equal_names(root: yaml.Node | None) -> Iterator[tuple[str, str, str]]:
    """Yield message, field and hint for each name that two nodes have; YAML would keep the last one of them."""
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == "nodes" and isinstance(value, yaml.MappingNode):
            names = [each.value for each, _ in value.value]
            for name in dict.fromkeys(n for n in names if names.count(n) > 1):
                yield f"{names.count(name)} nodes have this name", f"nodes.{name}", "Give each node its own."


def _apply(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str | None, list[str]]:
    """Apply overrides of the pipeline's own fields to ``tree``; return those of specs, by node, None for all nodes."""
    later: dict[str | None, list[str]] = {None: []}
    own = {f.name for f in dataclasses.fields(PipelineConfig)} - {"spec", "changes", "nodes"}
    for override in overrides:
        path = override.partition("=")[0]
        if match := _OVERRIDE.fullmatch(override):
            known = tree.get("nodes")
            if match[1] not in (known if isinstance(known, dict) else ()):
                raise SpecError("no node has this name", where=path, hint=did_you_mean(match[1], known or ()))
            later.setdefault(match[1], []).append(match[2])
        elif path.partition(".")[0] in own:
            apply_override(tree, override, PipelineConfig)
        else:
            later[None].append(override)
    return later


def _escaped(tree: Any) -> Any:  # noqa: ANN401
    """Return ``tree`` without the signs by which OmegaConf would look up references in it."""
    return _replaced(tree, "${", "$\0{")


def _unescaped(config: PipelineConfig) -> PipelineConfig:
    entries: list[PipelineConfig | NodeConfig] = [config, *config.nodes.values()]
    for entry in entries:
        entry.spec, entry.changes = _replaced(entry.spec, "$\0{", "${"), _replaced(entry.changes, "$\0{", "${")
    return config


def _replaced(tree: Any, old: str, new: str) -> Any:  # noqa: ANN401
    if isinstance(tree, dict):
        return {key: _replaced(value, old, new) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_replaced(value, old, new) for value in tree]
    return tree.replace(old, new) if isinstance(tree, str) else tree


def _references(config: PipelineConfig, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield field, node and product of each reference of a node."""
    changes = {"changes": config.changes, f"nodes.{name}.changes": config.nodes[name].changes}
    for where, words in changes.items():
        for i, change in enumerate(words):
            for match in _REFERENCE.finditer(change):
                yield f"{where}[{i}]", match[1], match[2]


def _problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield what is wrong with the graph, and with the folder."""
    yield from results_problems(config.results_dir, "results_dir")
    yield from relative_in_copy([("results_dir", config.results_dir)])
    if not config.nodes:
        yield Problem("there is no node", "nodes", "For example nodes: {proxy: {task: distill, spec: proxy.yaml}}.")
    needs: dict[str, list[str]] = {}
    for name, node in config.nodes.items():
        where = f"nodes.{name}"
        if not _NAME.fullmatch(name):
            hint = "Use letters, digits, _ and -: it is the name of a folder."
            yield Problem("no node can have this name", where, hint)
        if node.spec is None and config.spec is None:
            yield Problem("the node has no spec", f"{where}.spec", "Name a YAML file, or give spec for all nodes.")
        for i, other in enumerate(node.needs):
            if other == name:
                yield Problem("a node cannot need itself", f"{where}.needs[{i}]", "Leave it out.")
            elif other not in config.nodes:
                yield Problem(f"no node is called {other!r}", f"{where}.needs[{i}]", did_you_mean(other, config.nodes))
        for field_, other, product in _references(config, name):
            if problem := _wrong_reference(config, name, other, product):
                yield Problem(problem[0], field_, problem[1])
        referred = [other for _, other, _ in _references(config, name)]
        needs[name] = [other for other in dict.fromkeys([*node.needs, *referred]) if other != name]
    for circle in circles(needs):
        hint = "Remove one of these needs or references."
        yield Problem(f"these nodes need one another: {' -> '.join(circle)}", f"nodes.{circle[0]}", hint)


def _wrong_reference(config: PipelineConfig, name: str, other: str, product: str) -> tuple[str, str] | None:
    """Return why a node cannot refer to a result, and a hint; None if it can."""
    if other == name:
        return "a node cannot teach itself, or start from itself", "Refer to another node."
    if other not in config.nodes:
        return f"no node is called {other!r}", did_you_mean(other, config.nodes)
    task = config.nodes[other].task
    known = product_of(task)
    if known is None:
        return f"{other} is a node of task {task.value}, whose result no other task reads", "List it in needs instead."
    if task is NodeTask.distill and product.startswith(STUDENT_OF_SEVERAL):
        return None  # of these names the spec decides
    if product != known:
        lacking = f"no {product}" if product else "only named results"
        return f"{other}, a node of task {task.value}, has {lacking}", f"Write ${{nodes.{other}.{known}}}."
    return None


def _node(config: PipelineConfig, name: str, folder: Path) -> TaskNode:
    node = config.nodes[name]
    source = node.spec if node.spec is not None else config.spec
    if isinstance(source, str):
        source = str(folder / source)
    needs = tuple(sorted({*node.needs, *(other for _, other, _ in _references(config, name))}))
    return TaskNode(name, needs, needs, node.task, source, (*config.changes, *node.changes))
