"""The notebooks of docs/notebooks run from the first cell to the last, each in a process and a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

# Cells share their names; a traceback says which cell it was.
RUN = """
import json, sys
cells = [cell for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
names = {"__name__": "__main__"}
for number, cell in enumerate(cells, 1):
    exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
"""


def cells(path: Path) -> list[dict]:
    """The cells of a notebook."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return notebook["cells"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_compiles_and_shows_what_its_cells_print(path):
    found = cells(path)
    for number, cell in enumerate(found, 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            compile(source, f"{path.name}, cell {number}", "exec")
            errors = [output for output in cell["outputs"] if output["output_type"] == "error"]
            assert errors == [] and (cell["outputs"] or "print(" not in source.replace("    print(", ""))
    assert len({cell["id"] for cell in found}) == len(found) > 8


@pytest.mark.proof
@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", RUN, str(path)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    printed = [line for line in ended.stdout.splitlines() if line.strip()]
    shown = ["".join(o["text"]) for cell in cells(path) for o in cell.get("outputs", []) if "text" in o]
    assert len(printed) == len("".join(shown).splitlines())
