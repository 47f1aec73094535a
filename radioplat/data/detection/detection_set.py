"""Images with bounding boxes, independent of the annotation format."""

from __future__ import annotations

from dataclasses import dataclass, field

from radioplat.data.detection.boxes import Boxes, Faults
from radioplat.data.images.decode import MAX_PIXELS, Decoded, decode_rgb
from radioplat.data.storage.files import read_range


@dataclass(frozen=True)
class Picture:
    """One image and its objects.

    Attributes:
        name: shown in results.
        path, offset, length: file and byte range of the encoded image.
        width, height: pixels, after the EXIF orientation is applied.
        boxes: in pixels of the upright image, clipped to it.
        image_id: COCO's image id, or the position in the set.
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
        """Read and decode the image by :func:`radioplat.data.images.decode.decode_rgb`.

        Raises:
            BadSample: the image is damaged.
            OSError: the file cannot be read.
        """
        return decode_rgb(read_range(self.path, self.offset, self.length), reduction, max_pixels)


@dataclass
class DetectionSet:
    """Annotated images of one split.

    Attributes:
        classes: names; a label is an index into it.
        category_ids: the ids of the classes in the annotation file.
        pictures: the usable images.
        faults: images and boxes that were left out or changed.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    pictures: list[Picture] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def num_boxes(self) -> int:
        """Count the boxes of all pictures."""
        return sum(len(picture.boxes) for picture in self.pictures)

    @property
    def size(self) -> str:
        """Format the numbers of images, boxes and classes."""
        return f"{len(self)} images, {self.num_boxes} boxes of {len(self.classes)} classes"

    def __str__(self) -> str:
        return f"{self.size}; faults: {self.faults}"
