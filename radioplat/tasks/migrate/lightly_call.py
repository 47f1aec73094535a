"""Arguments of a call of LightlyTrain's ``pretrain`` or ``train``: of a script, a YAML or JSON file, or in words.

A script is parsed, never executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from radioplat.errors import SpecError

FUNCTIONS = ("pretrain", "train")
_HINT = (
    "Give a script that calls lightly_train.pretrain(...), a YAML or JSON file of its arguments, or out=... data=..."
)


@dataclass
class LightlyCall:
    """The arguments of one call.

    Attributes:
        arguments: plain values by name.
        unreadable: source text of the arguments whose values only a running script would have, by name.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def read_call(words: Sequence[str]) -> LightlyCall:
    """Read the arguments.

    Args:
        words: the path of a file, or ``name=value`` as for the command ``lightly-train``.

    Raises:
        SpecError: there is no such file, or no such call in it.
    """
    if words and all("=" in word for word in words):
        dotted = [word for word in words if not word.startswith("-")]
        return LightlyCall(_plain(OmegaConf.from_dotlist, dotted, "the arguments"))
    path = Path(words[0]) if len(words) == 1 else None
    if path is None:
        raise SpecError("a file, or arguments as name=value, are expected", where=" ".join(words), hint=_HINT)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", where=str(path), hint=_HINT) from None
    except UnicodeDecodeError:
        raise SpecError("this is not a text file", where=str(path), hint=_HINT) from None
    if path.suffix == ".py":
        return _of_script(text, path)
    return LightlyCall(_plain(OmegaConf.create, text, str(path)))


def _plain(create: Any, source: Any, where: str) -> dict[str, Any]:
    try:
        tree = OmegaConf.to_container(create(source), resolve=True)
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise SpecError(f"not valid YAML: {str(error).splitlines()[0]}", where=where, hint=_HINT) from None
    if not isinstance(tree, dict):
        raise SpecError("the top level must be a mapping of arguments", where=where, hint=_HINT)
    return {str(name): value for name, value in tree.items()}


def _of_script(text: str, path: Path) -> LightlyCall:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise SpecError(f"not a Python file: {error}", where=str(path), hint=_HINT) from None
    calls = list(_calls(module))
    if len(calls) != 1:
        lines = ", ".join(str(call.lineno) for call in calls)
        message = f"several calls of lightly_train, at lines {lines}" if calls else "no call of lightly_train.pretrain"
        raise SpecError(message, where=str(path), hint="Give a file with one call, or its arguments as YAML.")
    known = _constants(module)
    read = LightlyCall()
    for i, argument in enumerate(calls[0].args):
        read.unreadable[f"argument {i + 1}"] = ast.unparse(argument)
    for keyword in calls[0].keywords:
        name = keyword.arg or f"**{ast.unparse(keyword.value)}"
        try:
            value = _value(keyword.value, known)
            if keyword.arg:
                read.arguments[name] = value
            else:
                read.arguments |= value
        except (ValueError, TypeError):
            read.unreadable[name] = ast.unparse(keyword.value)
    return read


def _calls(module: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of ``lightly_train.pretrain`` and ``train``, by whatever name the script imports them."""
    modules, functions = set[str](), set[str]()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name for each in node.names if each.name == "lightly_train"}
        elif isinstance(node, ast.ImportFrom) and node.module == "lightly_train":
            functions |= {each.asname or each.name for each in node.names if each.name in FUNCTIONS}
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        of_module = isinstance(called, ast.Attribute) and called.attr in FUNCTIONS
        if of_module and isinstance(called.value, ast.Name) and called.value.id in modules:  # type: ignore[attr-defined]
            yield node
        elif isinstance(called, ast.Name) and called.id in functions:
            yield node


def _constants(module: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the names that the script sets once."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        values.setdefault(name.id, []).append(node.value if target is name else ast.Name("?"))
        elif isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)) and isinstance(node.target, ast.Name):
            values.setdefault(node.target.id, []).append(ast.Name("?"))
        elif isinstance(node, ast.arg):
            values.setdefault(node.arg, []).append(ast.Name("?"))
    return {name: each[0] for name, each in values.items() if len(each) == 1}


def _value(node: ast.expr, known: dict[str, ast.expr]) -> Any:  # noqa: ANN401
    """Return the value of literals, of names of literals, of ``Path(...)`` and of ``dict(...)`` around them.

    Raises:
        ValueError, TypeError: it is something else.
    """
    if isinstance(node, ast.Name) and node.id in known:
        return _value(known[node.id], {name: value for name, value in known.items() if name != node.id})
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key else None for key in node.keys]
        return {key: _value(value, known) for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(each, known) for each in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "dict" and not node.args and all(each.arg for each in node.keywords):
            return {str(each.arg): _value(each.value, known) for each in node.keywords}
        if node.func.id == "Path" and len(node.args) == 1 and not node.keywords:
            return str(_value(node.args[0], known))
    return ast.literal_eval(node)
