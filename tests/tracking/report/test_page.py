import base64
import io
import re
from html.parser import HTMLParser
from importlib import resources

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


def test_columns_of_numbers_are_on_the_right_and_those_of_words_on_the_left_also_where_a_cell_is_missing(tmp_path):
    rows = [["a", 1.5, "13.79", "-14.3", "88.6 %", None, "here", "2"], ["b", None, None, None, None, None, None, "x"]]
    text = write(tmp_path, tables=[Table(["model", "1", "2", "3", "4", "5", "6", "7"], rows, "t")])
    for tag in ('th scope="col"', "td"):
        cells = re.findall(rf'<{tag}( class="number")?>', text)[tag != "td" :]
        assert [bool(each) for each in cells[:7]] == [True] * 4 + [False] * 3, tag
    assert len(re.findall(r'<td class="number">', text)) == 8


def test_a_wide_picture_is_scrolled_on_a_phone(tmp_path):
    wide = io.BytesIO()
    Image.new("RGB", (2000, 10)).save(wide, "png")
    text = write(tmp_path, pictures=[("wide", wide.getvalue()), ("PCA", picture())])
    assert re.findall(r"min-width: (\d+)px", text) == ["666", str(Image.open(io.BytesIO(picture())).width // 3)]
    assert rules()[".card"]["overflow-x"] == "auto" and text.count('<figure class="card">') == 2


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


def rules() -> dict[str, dict[str, str]]:
    """The style of all pages: properties by selector; those for phones under ``phone SELECTOR``."""
    text = (resources.files("radioplat.tracking.report") / "page.css").read_text(encoding="utf-8")
    (narrow,) = re.findall(r"@media \(max-width: (\d+)px\) \{((?: *[^{}]+\{[^{}]*\})+) *\}", text)
    assert 360 <= int(narrow[0]) <= 800
    found: dict[str, dict[str, str]] = {}
    for prefix, part in (("", text.replace(narrow[1], "")), ("phone ", narrow[1])):
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", part):
            pairs = dict(map(str.strip, each.split(":", 1)) for each in body.split(";") if each.strip())
            for selector in selectors.split(","):
                found.setdefault(prefix + selector.strip(), {}).update(pairs)
    return found


def luminance(colour: str) -> float:
    """Relative luminance of ``#rgb`` or ``#rrggbb``, by WCAG 2.1."""
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_text_is_readable_on_every_ground():
    assert contrast("#000", "#ffffff") == pytest.approx(21) and contrast("#777", "#fff") == pytest.approx(
        4.48, abs=0.01
    )
    style = rules()
    grounds = {each["background"] for each in style.values() if "background" in each}
    colours = {each["color"] for each in style.values() if "color" in each}
    assert len(grounds) == 2 and len(colours) >= 4
    poor = [(text, ground) for text in colours for ground in grounds if contrast(text, ground) < 4.5]
    assert poor == []


def test_a_phone_scrolls_no_more_than_a_table(tmp_path):
    style = rules()
    assert style[".card"]["overflow-x"] == style["pre"]["overflow-x"] == "auto"
    assert style["img"]["max-width"] == "100%"
    assert style["phone .charts"]["grid-template-columns"] == "1fr"
    for selector in ("h1", "h3", "p", "figcaption", ".notes"):
        assert style[selector]["overflow-wrap"] == "anywhere", selector
    # Nothing else is wide: each table is in a card, and so is the spec.
    text = write(tmp_path, tables=[Table(["a"], [[1]], "t")], pictures=[("PCA", picture())], spec_yaml="a: 1")
    assert re.search(r'<meta name="viewport" content="width=device-width', text)
    for tag in ("table", "pre"):
        for place in (match.start() for match in re.finditer(f"<{tag}", text)):
            opened = text[:place].rindex('class="card"')
            assert text.count("</div>", opened, place) == 0, tag
    assert all("px" not in value for selector, each in style.items() for name, value in each.items() if name == "width")


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
