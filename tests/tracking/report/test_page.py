import base64
import io
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from radioplat.tracking.report.page import write_report
from radioplat.tracking.table import Table, show_cell


class Page(HTMLParser):
    """Checks that tags nest, and collects attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.cells, self.text = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            (self.cells if self.open[-1] in ("td", "th") else self.text).append(data.strip())


def picture():
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (255, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write(tmp_path, **kwargs):
    path = write_report(tmp_path / "deep" / "report.html", title="A <run> & more", **kwargs)
    return path.read_text(encoding="utf-8")


def test_report_is_complete_and_self_contained(tmp_path):
    curves = {"loss/clip/summary": [(i, 1 / (i + 1)) for i in range(60)], "lr": [(0, 1.0)]}
    rows = [["student", 0.51234, "x"], ["teacher", None, "y"]]
    text = write(
        tmp_path,
        tables=[Table(["model", "kNN", "for"], rows, "Accuracy", "why")],
        curves=curves,
        pictures=[("PCA", picture())],
        spec_yaml="a: <b>\n",
        notes=["step 60"],
        headline="kNN 51 %",
        remarks=["not asked for"],
    )
    page = Page(text)
    assert page.cells == ["model", "kNN", "for", "student", "0.512", "x", "teacher", "\N{EN DASH}", "y"]
    for expected in ("A <run> & more", "a: <b>", "PCA", "step 60", "Accuracy", "why"):
        assert expected in page.text
    # The result and what one can see come first, what was not measured last.
    places = [page.text.index(each) for each in ("step 60", "kNN 51 %", "PCA", "Accuracy", "not asked for")]
    assert places == sorted(places)
    sources = [value for tag, name, value in page.attributes if tag == "img" and name == "src"]
    assert len(sources) == 3  # one picture, one chart a teacher, one for lr
    for source in sources:
        head, data = source.split(",", 1)
        assert head == "data:image/png;base64"
        Image.open(io.BytesIO(base64.b64decode(data, validate=True))).verify()
    assert base64.b64decode(sources[0].split(",", 1)[1]) == picture()
    assert not re.search(r"<script|<link|https?://|url\(|@import", text)


def test_user_text_cannot_become_markup(tmp_path):
    evil = "<script>alert(1)</script>\"'"
    text = write(
        tmp_path,
        tables=[Table([evil], [[evil]], evil, evil)],
        pictures=[(evil, picture())],
        spec_yaml=evil,
        notes=[evil],
        headline=evil,
        remarks=[evil],
        curves={evil: [(1, 1.0)]},
    )
    assert "<script" not in text
    Page(text)


def test_secrets_are_masked(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "0123456789abcdef")
    assert "0123456789abcdef" not in write(tmp_path, spec_yaml="key: 0123456789abcdef", notes=["0123456789abcdef"])


def test_empty_report(tmp_path):
    page = Page(write(tmp_path))
    assert page.cells == [] and "A <run> & more" in page.text and "Pictures" not in page.text


def test_row_that_does_not_fit_its_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        write(tmp_path, tables=[Table(["a"], [[1, 2]])])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.000"),
        (0.51234, "0.512"),
        (12.345, "12.35"),
        (1234567, "1,234,567"),
        (6e-5, "6e-05"),
        (123456.7, "123,457"),
        (float("nan"), "nan"),
        (True, "True"),
        ("x", "x"),
    ],
)
def test_cells(value, shown):
    assert show_cell(value) == shown
