"""Images with the boxes of their objects, from wherever they come."""

from __future__ import annotations

from dataclasses import dataclass, field

from radioplat.data.detection.boxes import Boxes, Faults
from radioplat.data.images.decode import MAX_PIXELS, Decoded, decode_rgb
from radioplat.data.storage.files import read_range


@dataclass(frozen=True)
class Picture:
    """One image and its objects.

    Attributes:
        name: by which results speak of it.
        path, offset, length: where its bytes are.
        width, height: pixels, upright.
        boxes: in its pixels, inside of it.
        image_id: COCO's number, or its place in the set.
    """

    name: str
    path: str
    offset: int
    length: int
    width: int
    height: int
    boxes: Boxes
    image_id: int

    def decode(self, reduction: float = 1.0, max_pixels: int = MAX_PIXELS) -> Decoded:
        """See :func:`radioplat.data.images.decode.decode_rgb`.

        Raises:
            BadSample: the image is damaged.
            OSError: the file cannot be read.
        """
        return decode_rgb(read_range(self.path, self.offset, self.length), reduction, max_pixels)


@dataclass
class DetectionSet:
    """Pictures of one split.

    Attributes:
        classes: names; a label is a place in it.
        category_ids: the numbers that the annotation file gives the classes.
        faults: what was left out or changed.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    pictures: list[Picture] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def num_boxes(self) -> int:
        """Boxes of all pictures."""
        return sum(len(picture.boxes) for picture in self.pictures)

    @property
    def size(self) -> str:
        """How much it is, in words."""
        return f"{len(self)} images, {self.num_boxes} boxes of {len(self.classes)} classes"

    def __str__(self) -> str:
        return f"{self.size}; faults: {self.faults}"
