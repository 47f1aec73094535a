"""What a placement of teachers costs in network and GPU time: closed forms, no measurement.

A cluster is nodes of eight GPUs with one network card each; figures are per image of the student, or images a second of
the whole cluster. Times are arithmetic over the GPU's peak times a utilisation (2 FLOP a parameter and token forward, 6
forward and backward: Kaplan et al. 2020), a micro-batch of b images runs at b / (b + HALF) of that, and exchange
overlaps with computing: a step takes as long as its slowest part. What is not in it: latencies, stragglers, decoding,
Ray Data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

PER_NODE = 8  # GPUs
PLACEMENTS = ("inline", "colocate", "separate", "cache")
HALF = 2.0  # images of a micro-batch at which a GPU is half as fast as at its best
GIB = 2**30


@dataclass(frozen=True)
class Network:
    """A model as arithmetic sees it.

    Attributes:
        parameters: how many.
        tokens: of one image.
        width: channels of its features.
        activations: bytes that one image needs on the GPU while it is computed.
    """

    parameters: float
    tokens: int
    width: int = 0
    activations: float = 0.0

    def flops(self, passes: int) -> float:
        """Of one image; ``passes``: 1 forward, 3 forward and backward."""
        return 2.0 * passes * self.parameters * self.tokens


# As in RADIO's recipes (Ranzinger et al. 2024): CLIP ViT-H/14 and DINOv2-g/14 at 224 px, SAM ViT-H/16 at 1024 px; the
# student is a ViT-L/16 at 256 px. Activations: 40 bytes a token and channel of each block with backward, 8 without.
STUDENT = Network(0.304e9, 257, 1024, 40 * 257 * 1024 * 24)
LARGE = Network(1.14e9, 257, 1536, 40 * 257 * 1536 * 40)  # a ViT-g/14 as the student
TEACHERS = (
    Network(0.632e9, 257, 1280, 8 * 257 * 1280),
    Network(1.14e9, 257, 1536, 8 * 257 * 1536),
    Network(0.637e9, 4096, 1280, 8 * 4096 * 1280),
)


@dataclass(frozen=True)
class Cluster:
    """The hardware and the run.

    Attributes:
        gpus: all of them, teachers' included; fewer than a node's are one node.
        flops, utilisation: peak of a GPU in bf16, and the share of it that models reach.
        memory: bytes of a GPU.
        network: bytes a second of a node's card, each way.
        host: bytes a second that a node's object store passes on, summed over its processes.
        storage: bytes a second that the whole cluster reads from the storage of shards and of a cache.
        batch: images of a micro-batch, where memory does not make it smaller.
        accumulate: micro-batches a step on each student's GPU, between two exchanges of gradients.
        image: bytes of an encoded image.
        views: pixels a side of the view of each teacher that is sent.
        grid: positions a side of the maps that are sent, as the losses need them.
        hits: share of samples whose features the cache has: (E - 1) / E over E epochs of the same views.
    """

    gpus: int
    flops: float = 989e12
    utilisation: float = 0.4
    memory: float = 80 * GIB
    network: float = 100e9 / 8
    host: float = 8e9
    storage: float = 20e9
    batch: int = 32
    accumulate: int = 1
    image: float = 110e3
    views: tuple[int, ...] = (224, 224, 1024)
    grid: int = 16
    hits: float = 0.9
    student: Network = STUDENT
    teachers: tuple[Network, ...] = field(default=TEACHERS)

    @property
    def nodes(self) -> int:
        """Of eight GPUs."""
        return max(1, self.gpus // PER_NODE)

    @property
    def node_gpus(self) -> int:
        """GPUs of a node."""
        return min(self.gpus, PER_NODE)

    @property
    def pixels(self) -> float:
        """Bytes of the teachers' views of one image, uint8; teachers of one size share a view."""
        return float(sum(3 * side**2 for side in set(self.views)))

    @property
    def features(self) -> float:
        """Bytes of all teachers' answers for one image: a summary and a map, bf16."""
        return float(sum(2 * t.width * (1 + self.grid**2) for t in self.teachers))

    def gradients(self, nodes: int) -> float:
        """Bytes that a node sends for one exchange of fp32 gradients: a ring over nodes, 2 (n - 1) / n of them."""
        return 2 * (nodes - 1) / nodes * 4 * self.student.parameters

    def seconds(self, flops: float, batch: float) -> float:
        """Of one GPU for one image, in micro-batches of ``batch``; infinite where none fits."""
        return flops / (self.flops * self.utilisation) * (1 + HALF / batch) if batch >= 1 else math.inf

    @property
    def student_state(self) -> float:
        """Bytes of a student on its GPU: bf16 weights and gradients; fp32 weights, gradients, two moments."""
        return 20 * self.student.parameters

    @property
    def teacher_state(self) -> float:
        """Bytes of all teachers' weights in bf16."""
        return 2 * sum(t.parameters for t in self.teachers)

    def fits(self, student: bool, teachers: bool) -> int:
        """Images of the micro-batch that fits a GPU with these on it: at most ``batch``, 0 where none fits."""
        left = self.memory - student * self.student_state - teachers * self.teacher_state
        each = student * self.student.activations + teachers * max(t.activations for t in self.teachers)
        return max(0, min(self.batch, math.floor(left / each)))

    def student_s(self, batch: float) -> float:
        """Seconds of one GPU for one image: forward and backward."""
        return self.seconds(self.student.flops(3), batch)

    def teachers_s(self, batch: float) -> float:
        """Seconds of one GPU for one image: all teachers' forwards."""
        return self.seconds(sum(t.flops(1) for t in self.teachers), batch)


@dataclass(frozen=True)
class Cost:
    """One placement on one cluster.

    Attributes:
        images_s: of the whole cluster; 0 where it cannot be.
        network_bytes: for one image, over the cards of all nodes (what one sends another receives: counted once), with
            reads from storage.
        host_bytes: for one image, through a node's object store.
        bound: what the rate is limited by, or why there is none.
        teacher_gpus: GPUs that hold teachers alone.
    """

    placement: str
    images_s: float
    network_bytes: float
    host_bytes: float
    bound: str
    teacher_gpus: int = 0


def costs(cluster: Cluster) -> list[Cost]:
    """All placements."""
    return [inline(cluster), colocate(cluster), separate(cluster), cache(cluster)]


def best(found: list[Cost]) -> Cost:
    """The fastest; of equals the first."""
    return max(found, key=lambda cost: cost.images_s)


def _cost(name: str, c: Cluster, limits: dict[str, float], students: int, batch: int, *, host: float = 0.0,
          more: float = 0.0, stored: float = 0.0, teacher_gpus: int = 0) -> Cost:  # fmt: skip
    """The least of the limits (images a second), with the exchange of gradients and the reading of shards among them.

    Args:
        students: GPUs with students.
        batch: their micro-batch.
        more: bytes of an image that its own node's card carries beside shards and gradients.
        stored: of these, what storage gives or takes.
    """
    nodes = max(1, students // PER_NODE)
    if teacher_gpus and name == "colocate":
        nodes = c.nodes
    step = max(1, students * batch * c.accumulate)  # images between two exchanges
    exchange = c.gradients(nodes) * nodes / step
    limits = limits | {
        "network": nodes * c.network / (c.image + more + exchange),
        "storage": c.storage / (c.image + stored),
    }
    bound = min(limits, key=limits.get)
    rate = limits[bound]
    return Cost(name, rate, c.image + more + exchange, host, bound if rate else "does not fit", teacher_gpus)


def inline(c: Cluster) -> Cost:
    """Teachers on the GPU of every student, one after another: nothing is sent."""
    batch = c.fits(True, True)
    each = c.student_s(batch) + c.teachers_s(batch)
    return _cost("inline", c, {"GPUs": c.gpus / each}, c.gpus, batch)


def colocate(c: Cluster) -> Cost:
    """Some GPUs of each node teach the others: pixels and features stay in the node's object store."""
    host = c.pixels + c.features
    batch, theirs = c.fits(True, False), c.fits(False, True)
    found = [_cost("colocate", c, {"GPUs": 0.0}, c.gpus, 1, host=host)]
    for k in range(1, c.node_gpus):
        limits = {
            "students": c.nodes * (c.node_gpus - k) / c.student_s(batch),
            "teachers": c.nodes * k / c.teachers_s(theirs),
            "object store": c.nodes * c.host / host,
        }
        students = c.nodes * (c.node_gpus - k)
        found.append(_cost("colocate", c, limits, students, batch, host=host, teacher_gpus=c.nodes * k))
    return best(found)


def separate(c: Cluster) -> Cost:
    """Whole nodes teach: pixels go to them and features come back over the network."""
    moved = c.pixels + c.features
    batch, theirs = c.fits(True, False), c.fits(False, True)
    found = [Cost("separate", 0.0, 0.0, 0.0, "needs a second node")]
    for k in range(1, c.nodes):
        limits = {
            "students": PER_NODE * (c.nodes - k) / c.student_s(batch),
            "teachers": PER_NODE * k / c.teachers_s(theirs),
            "teachers' network": k * c.network / max(c.pixels, c.features),  # cards send and receive at once
            "object store": min(k, c.nodes - k) * c.host / moved,
        }
        students = PER_NODE * (c.nodes - k)
        found.append(
            _cost("separate", c, limits, students, batch, host=2 * moved, more=moved, teacher_gpus=PER_NODE * k)
        )
    return best(found)


def cache(c: Cluster) -> Cost:
    """Features are read from storage for the samples that have them there; the rest is asked inline."""
    batch = c.fits(True, True)
    misses = 1 - c.hits
    each = c.student_s(batch) + (c.teachers_s(batch) * misses if misses else 0.0)
    # A miss is written where a hit is read.
    return _cost("cache", c, {"GPUs": c.gpus / each}, c.gpus, batch, more=c.features, stored=c.features)
