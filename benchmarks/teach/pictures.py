"""Pictures of Debian's wallpaper packages, and their cut into cells that share no pixel.

A picture is scaled to a short side of at most 1440 pixels and cut into a chessboard of cells. The black cells are for
teaching, the white ones are held out; half of a white cell is for the bank, half for the queries. A **scene** is a
white cell, and its label. A cell is a fair label because what continues from one of its halves into the other (an
object, a texture, a light) does not continue into another scene: its four neighbours are black, and the white cells of
the same picture are there to be confused with it. Cells in which one half shows next to nothing are no scenes, and
crops that show next to nothing are drawn again.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from radioplat.errors import DataError
from radioplat.quickstart.photographs import Box, random_box, relight

WALLPAPERS = ("gnome-backgrounds", "mate-backgrounds", "plasma-workspace-wallpapers")
GARMENTS = "dataset-fashion-mnist"
PACKAGES = (*WALLPAPERS, GARMENTS)

SHORT_SIDE = 1440  # pixels of a picture; what is larger shows little at the size of a crop
CELL = (512, 360)  # width, height
GAP = 16  # pixels between any two parts: two blocks of a JPEG
LEAST_DETAIL = 6.0  # of a scene's poorer half, see `detail`
MOST_SCENES = 12  # of one picture, so that none of them decides a figure
SAME = 0.95  # correlation of two thumbnails that show the same picture

SHORT_SIDES = (112, 232)  # range of the short side of a crop, pixels
SHAPES = (0.7, 1.4)  # range of width / height of a training crop; those held out are square
LEAST_OF_CROP, TRIES = 4.0, 12  # a crop with less detail is drawn again, so often; then the best of them is taken
LIGHT = (0.75, 1.25), (0.7, 1.2)  # contrasts and exposures: less than the quickstart's, so that paper stays below white
_VARIANT = re.compile(r"([-_]?\d{3,5}x\d{3,5}|-[dl])$")  # size, or dark and light, at the end of a file's name


@dataclass(frozen=True)
class Picture:
    """A picture in RGB, scaled.

    Attributes:
        name: package and name, without size.
        image: the pixels.
    """

    name: str
    image: Image.Image


@dataclass(frozen=True)
class Scene:
    """A white cell.

    Attributes:
        name: of its picture, with row and column.
        picture: index of its picture.
        bank, queries: boxes in the picture.
    """

    name: str
    picture: int
    bank: Box
    queries: Box


@dataclass(frozen=True)
class Lesson:
    """A black cell: index of its picture and box."""

    picture: int
    box: Box


def unpack(folder: Path, debs: Path | None = None) -> dict[str, str]:
    """Unpack the four packages below ``folder/<package>`` without installing them; return their versions.

    Args:
        debs: a folder that holds the ``.deb`` files; None: ``apt-get download``.

    Raises:
        DataError: apt or dpkg is missing, or a package cannot be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for tool in ("dpkg-deb",) if debs else ("dpkg-deb", "apt-get"):
        if shutil.which(tool) is None:
            raise DataError(
                f"{tool} is not on this machine, and the pictures are in Debian's packages {', '.join(PACKAGES)}",
                hint="Run it on Debian or Ubuntu, or fetch the files there with `apt-get download` and give --debs.",
            )
    versions = {}
    with tempfile.TemporaryDirectory(prefix="teach_debs") as scratch:
        for package in PACKAGES:
            deb = _find(package, debs) if debs else _download(package, Path(scratch))
            for command in (["dpkg-deb", "-x", deb, folder / package], ["dpkg-deb", "-f", deb, "Version"]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise DataError(f"cannot unpack: {_last_line(done.stderr)}", where=str(deb), hint="Fetch it again.")
            versions[package] = done.stdout.strip()
    return versions


def _find(package: str, debs: Path) -> Path:
    found = sorted(debs.glob(f"{package}_*.deb"))
    if not found:
        raise DataError(
            f"no {package}_*.deb in this folder", where=str(debs), hint=f"apt-get download {package}, in this folder"
        )
    return found[-1]


def _download(package: str, folder: Path) -> Path:
    command = ["apt-get", "download", "-q", package]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = sorted(folder.glob(f"{package}_*.deb"))
    if done.returncode or not found:
        raise DataError(
            f"apt-get cannot download {package}: {_last_line(done.stderr)}",
            hint=f"Try `apt-get update`; or fetch {package}_*.deb elsewhere and give its folder with --debs.",
        )
    return found[-1]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("W:")]
    return lines[-1] if lines else "no reason given"


def pictures(folder: Path) -> list[Picture]:
    """Read the pictures that `unpack` left in ``folder``, each once, sorted by name.

    Of one picture in several sizes the largest is taken, of a light and a dark variant one. Pictures with transparent
    parts, vector drawings and formats that Pillow cannot read are left out, and so are previews.
    """
    variants: dict[str, list[tuple[int, bool, str, Path]]] = {}
    for package in WALLPAPERS:
        for path in sorted((folder / package).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stem != "screenshot":
                area = _area(path)
                if area:
                    name = _name(package, path.relative_to(folder / package))
                    light = not path.stem.endswith("-d") and path.parent.name != "images_dark"
                    variants.setdefault(name, []).append((area, light, path.name, path))
    found: list[Picture] = []
    thumbnails: list[np.ndarray] = []
    # The largest first: it stays where two show the same.
    for name, files in sorted(variants.items(), key=lambda item: (-max(item[1])[0], item[0])):
        image = _open(max(files)[-1])
        thumbnail = _thumbnail(image)
        if all(float((thumbnail * other).sum()) < SAME for other in thumbnails):
            found.append(Picture(name, image))
            thumbnails.append(thumbnail)
    return sorted(found, key=lambda picture: picture.name)


def _name(package: str, path: Path) -> str:
    """``plasma-workspace-wallpapers/Altai`` of ``usr/share/wallpapers/Altai/contents/images/5120x2880.png``."""
    parts = [part for part in path.parent.parts if part not in ("contents", "images", "images_dark")]
    stem = _VARIANT.sub("", path.stem)
    return f"{package}/{stem or parts[-1]}"


def _area(path: Path) -> int:
    """Pixels of an opaque image that is no icon; 0 of everything else."""
    try:
        with Image.open(path) as image:
            if min(image.size) < max(CELL):
                return 0
            if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] < 255:
                return 0
            return image.width * image.height
    except (UnidentifiedImageError, OSError):
        return 0


def _open(path: Path) -> Image.Image:
    with Image.open(path) as image:
        scale = min(1.0, SHORT_SIDE / min(image.size))
        size = (round(image.width * scale), round(image.height * scale))
        image.draft("RGB", size)
        return image.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _thumbnail(image: Image.Image) -> np.ndarray:
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), np.float64)
    grey -= grey.mean()
    return grey / max(float(np.linalg.norm(grey)), 1e-9)


def cells(picture: Image.Image) -> Iterator[tuple[int, int, Box]]:
    """Yield row, column and box of each cell; the chessboard lies in the middle of the picture."""
    width, height = CELL
    left, top = (picture.width % width) // 2, (picture.height % height) // 2
    for row in range(picture.height // height):
        for column in range(picture.width // width):
            x, y = left + column * width, top + row * height
            yield row, column, (x, y, x + width, y + height)


def split(found: Sequence[Picture], count: int) -> tuple[list[Scene], list[Lesson]]:
    """Return ``count`` scenes, those that show the most, and all black cells that show anything.

    Raises:
        DataError: there are fewer scenes.
    """
    scenes: list[tuple[float, Scene]] = []
    lessons = []
    for index, picture in enumerate(found):
        own: list[tuple[float, Scene]] = []
        for row, column, box in cells(picture.image):
            if (row + column) % 2:
                inner = _inside(box)
                if detail(picture.image.crop(inner)) >= LEAST_DETAIL / 2:
                    lessons.append(Lesson(index, inner))
                continue
            bank, queries = halves(box)
            least = min(detail(picture.image.crop(bank)), detail(picture.image.crop(queries)))
            if least >= LEAST_DETAIL:
                own.append((least, Scene(f"{picture.name}/{row}_{column}", index, bank, queries)))
        scenes += sorted(own, key=lambda item: (-item[0], item[1].name))[:MOST_SCENES]
    if len(scenes) < count:
        raise DataError(
            f"{len(found)} pictures have {len(scenes)} scenes, and {count} were asked for",
            where=", ".join(WALLPAPERS),
            hint="Packages of another release may hold formats that Pillow cannot read: take Debian 12's, by --debs.",
        )
    best = sorted(scenes, key=lambda item: (-item[0], item[1].name))[:count]
    return sorted((scene for _, scene in best), key=lambda scene: scene.name), lessons


def _inside(box: Box) -> Box:
    left, top, right, bottom = box
    return left + GAP // 2, top + GAP // 2, right - GAP // 2, bottom - GAP // 2


def halves(box: Box) -> tuple[Box, Box]:
    """Return the left and the right half of a cell, for bank and queries, a gap from each other and from its edges."""
    left, top, right, bottom = _inside(box)
    middle = (left + right) // 2
    return (left, top, middle - GAP // 2, bottom), (middle + GAP // 2, top, right, bottom)


def detail(image: Image.Image) -> float:
    """How much an image shows: standard deviation (0 to 128) of what remains of it, eight times smaller, without its
    plane of best fit. Grain, flat areas and even gradients count nothing."""
    small = image.resize((max(2, image.width // 8), max(2, image.height // 8)), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float64).reshape(small.height * small.width, -1)
    rows, columns = np.mgrid[: small.height, : small.width].reshape(2, -1)
    plane = np.stack([rows, columns, np.ones_like(rows)], 1).astype(np.float64)
    rest = pixels - plane @ np.linalg.lstsq(plane, pixels, rcond=None)[0]
    return float(np.sqrt((rest**2).mean()))


def crop(image: Image.Image, part: Box, rng: np.random.Generator, square: bool) -> Image.Image:
    """Return a crop of ``part`` with random position, size, colours and orientation, at its own size."""
    best, most = None, -1.0
    for _ in range(TRIES):
        box = random_box(part, SHORT_SIDES, None if square else SHAPES, rng)
        found = relight(image.crop(box), rng, *LIGHT)
        shown = detail(found)
        if best is None or shown > most:
            best, most = found, shown
        if most >= LEAST_OF_CROP:
            break
    assert best is not None
    return best
