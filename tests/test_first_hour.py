"""The judge of the first hour takes the steps that a reader of a page would take."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.judges import first_hour
from benchmarks.judges.first_hour_page import steps

ROOT = Path(__file__).parents[1]
PAGE = """# A page

Save this as `a.yaml`:

```yaml
one: {two: 3}
```

`b.yaml` is `a.yaml` with another value:

```yaml
one: {four: 5}
```

Only an explanation:

```yaml
six: 7
```

```
mkdir -p out && \\
    cp a.yaml out/
export WORD=kept   # for the next block
```

```
$ cat b.yaml && echo "$WORD 12 times"
...
kept 3 times
│ nowhere │ 12 │
```

```python
print(open("b.yaml").read())
```

```
one: {two: 4}
```
"""


def test_blocks_become_files_commands_and_programs(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    taken = steps(tmp_path / "page.md")
    assert [step.kind for step in taken] == ["write", "merge", "run", "run", "run", "python"]
    assert [step.name for step in taken[:2]] == ["a.yaml", "b.yaml"] and taken[1].base == "a.yaml"
    assert taken[2].text.split() == ["mkdir", "-p", "out", "&&", "cp", "a.yaml", "out/"]
    assert taken[4].output == ["...", "kept 3 times", "│ nowhere │ 12 │"]
    assert taken[5].output == ["one: {two: 4}"]


def test_a_page_is_played_with_its_variables_and_what_it_does_not_print_is_named(tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "page.md").write_text(PAGE)
    (folder / "wrong.md").write_text("```\n$ python -c 'raise SystemExit(3)'\n```\n\n```\nscp -r out there:\n```\n")
    result = first_hour.played(folder, ["page.md", "wrong.md"])
    assert result.passed == 4 and result.commands == 5
    (failed,) = result.failed
    assert failed["status"] == 3 and "raise SystemExit" in failed["command"]
    assert list(result.left_out.values()) == ["it runs on a Jetson"]
    first, second = result.not_printed
    assert "nowhere" in first and second == "page.md:34 one: {two: 4}"
    assert (folder / "out" / "a.yaml").exists() and "four: 5" in (folder / "b.yaml").read_text()


def test_it_knows_nothing_of_the_package():
    code = "import sys, benchmarks.judges.first_hour; print({name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"'radioplat'", "'torch'"} & set(re.split(r"[{}, \n]+", done.stdout))


@pytest.mark.parametrize("kind", first_hour.KINDS)
def test_each_kind_of_user_has_commands(kind):
    taken = [step for page in first_hour.KINDS[kind] for step in steps(ROOT / page)]
    assert any(step.text.startswith("radioplat ") for step in taken)
    files = {step.name for step in taken if step.kind in ("write", "merge")} | {"spec.yaml"}
    for step in taken:
        words = step.text.split()
        if step.kind == "run" and "-e" in words and words[0] == "radioplat":
            spec = words[words.index("-e") + 1]
            assert spec in files or spec == "shared.yaml" or (ROOT / spec).exists(), f"line {step.line}: {spec}"
