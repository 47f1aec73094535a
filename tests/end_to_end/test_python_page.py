"""The code of docs/use/python.md, run as it is printed, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import skimage.data
import yaml
from PIL import Image

PAGE = Path(__file__).parents[2] / "docs" / "use" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_the_code_of_the_page_runs_as_printed(make_spec, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(yaml.safe_dump(make_spec("results")))
    Path("photographs").mkdir()
    Image.fromarray(skimage.data.coffee()).save("photographs/coffee.png")
    Path("photographs/broken.jpg").write_bytes(b"no image")
    names: dict = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert names["planned"].can_start and names["result"].global_step == 4
    assert "train.num_epochs Value 'two'" in printed
    assert names["features"].summary.shape[0] == 2 and names["embeddings"].errors == {}
    assert names["table"].images == 2 and "broken.jpg" in names["table"].errors
    assert names["small"].after.macs < names["small"].before.macs and names["onnx"].path.is_file()
    assert names["engine"].path.is_file()
