"""What several folders need: a student, an object store, a broken disk, a Ray cluster; and the seconds of each file."""

from __future__ import annotations

import copy
import functools
import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else runs on the machine: that is no property of the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

SECONDS_BY_FILE: Counter[str] = Counter()
IMPORTED = 0  # modules when garbage collection last left out what there was


def pytest_sessionstart() -> None:
    """Collect no garbage while modules are imported: there is none, and looking for it takes a quarter of the time.

    Ray's processes get their share of the cores: beside two busy lanes its own niceness of 15 leaves them a twentieth.
    """
    gc.disable()
    os.environ.setdefault("RAY_worker_niceness", "0")


def pytest_collection_finish() -> None:
    """From here on garbage is collected among what the tests make, not among all that was imported."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Leave what tests imported out of garbage collection too: DeepSpeed's stage 3 collects at each start."""
    global IMPORTED
    if nextitem is not None and len(sys.modules) > IMPORTED + 50:
        IMPORTED = len(sys.modules)
        gc.collect()
        gc.freeze()
        _list_onnx_functions_once()


def _list_onnx_functions_once() -> None:
    """Let ``torch.onnx`` look up its 600 functions once a process, not a third of a second at each export."""
    module = sys.modules.get("torch.onnx._internal.exporter._registration")
    registry = getattr(module, "ONNXRegistry", None)
    if registry is None or not hasattr(registry.from_torchlib, "__func__"):
        return  # not imported yet, or done
    listed = functools.cache(registry.from_torchlib)

    def from_torchlib(*args, **kwargs):
        """A copy: exports of quantized students add functions to it."""
        own = copy.copy(listed(*args, **kwargs))
        own.functions = {target: list(found) for target, found in own.functions.items()}
        return own

    registry.from_torchlib = staticmethod(from_torchlib)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a test's seconds to those of its file."""
    SECONDS_BY_FILE[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Print the seconds of each file that took at least one, the slowest first."""
    if hasattr(config, "workerinput") or len(SECONDS_BY_FILE) < 2:
        return
    terminalreporter.section("seconds of each file")
    for file, seconds in SECONDS_BY_FILE.most_common():
        if seconds >= 1:
            terminalreporter.line(f"{seconds:7.1f}  {file}")


CLIP_WORDS = ["a", "photo", "of", "an", "astronaut", "cup", "coffee", "cat", "rocket", "the", "picture", "."]


class S3Store:
    """moto's S3 on loopback.

    Attributes:
        refuses: (method, path of the request) -> whether it is denied.
        written: paths of all PUTs.
        client: boto3's.
    """

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.refuses = lambda method, path: False
        self.written: list[str] = []
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if self.refuses(method, path):
            body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            start_response("403 Forbidden", [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))])
            return [body]
        if method == "PUT":
            self.written.append(path)
        return [b"".join(self._app(environ, start_response))]

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def s3_store(monkeypatch) -> Iterator[S3Store]:
    """A store with the bucket ``kept``; the environment says where it is."""
    import boto3
    from botocore.config import Config

    from radioplat.data.storage import retry

    store = S3Store()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": store.url,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.01)
    store.client = boto3.client("s3", endpoint_url=store.url, config=Config(retries={"max_attempts": 1}))
    store.client.create_bucket(Bucket="kept")
    yield store
    store.close()


class FailingReads:
    """Reads of local files that fail or hang, in processes that are started with :attr:`environment`."""

    def __init__(self, library: Path, switch: Path) -> None:
        self._switch = switch
        self.environment = {"LD_PRELOAD": str(library), "RADIOPLAT_TEST_FAULT": str(switch)}

    def fail(self, word: str) -> None:
        """From now on a read of a file with ``word`` in its path is EIO."""
        self._say(f"fail {word}")

    def hang(self, word: str) -> None:
        """From now on it hangs."""
        self._say(f"hang {word}")

    def cut(self, word: str) -> None:
        """From now on it finds the end of the file."""
        self._say(f"part {word}")

    def mend(self) -> None:
        """Reads are as ever."""
        self._switch.unlink(missing_ok=True)

    def _say(self, text: str) -> None:
        aside = self._switch.with_suffix(".aside")
        aside.write_text(text)
        os.replace(aside, self._switch)


@pytest.fixture(scope="session")
def failing_reads_library(tmp_path_factory) -> Path:
    """What is preloaded for :class:`FailingReads`; the machine's C compiler makes it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("preload") / "failing_reads.so"
    source = Path(__file__).with_name("failing_reads.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def failing_reads(failing_reads_library, tmp_path) -> Iterator[FailingReads]:
    """See :class:`FailingReads`."""
    reads = FailingReads(failing_reads_library, tmp_path / "fault")
    yield reads
    reads.mend()


@pytest.fixture
def radio_student():
    """radio_student(**changes) -> a student, by default a RADIO ViT of 32 numbers a token with three teachers.

    Every parameter is drawn, so that nothing is 0 or 1 by chance, and every head has a mean and a scale. The third
    teacher reads the third class token, the second has no summary.
    """
    import torch

    from radioplat.models.heads import HeadArchitecture
    from radioplat.models.student.student import Student, StudentArchitecture

    heads = (
        HeadArchitecture("clip", summary_dim=12, spatial_dim=10, hidden=16, num_inner=2),
        HeadArchitecture("sam", spatial_dim=8, token_slot=1, hidden=24),
        HeadArchitecture("dino", summary_dim=20, spatial_dim=20, token_slot=2, hidden=16, num_inner=1),
    )
    usual = dict(
        type="radio_vit_tiny_patch8",
        kwargs={"embed_dim": 32, "depth": 2, "num_heads": 2},
        num_class_tokens=3,
        num_registers=5,
        cpe_max_size=64,
        img_size=48,
        mean=(0.4, 0.5, 0.6),
        std=(0.2, 0.3, 0.4),
        heads=heads,
    )

    def make(seed: int = 0, **changes) -> Student:
        torch.manual_seed(seed)
        student = Student(StudentArchitecture(**{**usual, **changes})).eval()
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            for name, buffer in student.named_buffers():
                if name.startswith("heads.") and name.endswith("_mean"):
                    buffer.copy_(3 * torch.randn_like(buffer))
                elif name.startswith("heads.") and name.endswith("_scale"):
                    buffer.fill_(2.5)
        return student

    return make


@pytest.fixture
def image_batch():
    """image_batch(height, width) -> two images, floats in [0, 1]."""
    import torch

    def make(height: int = 48, width: int = 48) -> torch.Tensor:
        return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(1))

    return make


@pytest.fixture
def process_group(monkeypatch):
    """gloo, one rank, on a free loopback port; the environment that names it goes away with the test."""
    import torch.distributed as dist

    from radioplat.training.loop import process_group

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, LOCAL_WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    for name, value in alone.items():
        monkeypatch.setenv(name, str(value))
    if not dist.is_initialized():
        process_group.join("gloo")
    assert dist.get_world_size() == 1


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray cluster of four CPUs in this process; its workers can import the modules in ``tests/helpers``."""
    import ray

    before = dict(os.environ)
    modules = Path(__file__).with_name("helpers")
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(modules))
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=4, num_gpus=0, **quiet)
    yield
    ray.shutdown()
    sys.path.remove(str(modules))
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory) -> Path:
    """A CLIP of a few thousand seeded weights with its tokenizer, as ``transformers`` writes them."""
    import torch

    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    folder = tmp_path_factory.mktemp("clip")
    special = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}
    vocabulary = special | {word: len(special) + i for i, word in enumerate(CLIP_WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    text = dict(size, vocab_size=len(vocabulary), max_position_embeddings=16, bos_token_id=1, eos_token_id=2)
    text["projection_dim"] = 24
    vision = dict(size, image_size=64, patch_size=16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
        transformers.CLIPModel(config).eval().save_pretrained(folder)
    return folder
