"""Teachers inside the student's module, by closed forms: its average, its deeper layers, peers; and MESA."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from radioplat.design.models import design_models
from radioplat.design.student import compile_backbone
from radioplat.errors import SpecError
from radioplat.losses.base.grid import Overlap
from radioplat.models.modifiers import spectral
from radioplat.models.student.student import Student
from radioplat.objectives.distill import DistillObjective, MicroBatch
from radioplat.objectives.mesa import mesa_loss
from radioplat.objectives.objective import StepContext
from radioplat.objectives.peers import PREFIX, Peer, peer_buffers, peer_parameters, restore_peers
from radioplat.objectives.pieces import in_pieces
from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import AVERAGE
from radioplat.spec.schema.distill import Source
from radioplat.training.checkpoints.persistence import trainable
from radioplat.training.engine.batchnorm_state import BatchNormStatistics
from radioplat.training.engine.ema import Ema
from radioplat.training.engine.registry import build_engine
from radioplat.training.loop.average_student import AverageStudent

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
B, SIZE = 3, 32
RADIO = {
    "type": "c_radio_v3_vit_base_patch16_reg4_dinov2",
    "kwargs": {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8},
}
CNN = {"type": "test_resnet"}
MEAN = {"source": "ema", "name": "mean", "mode": "combo", "loss_type": "MSE", "summary_loss_type": "cosine"}
BOTH = frozenset({"summary", "spatial"})
STAGES = [("fp32", 1), ("fp32", 3), ("bf16", 2)]
OTHERS = [("fp32", 0), ("fp32", 2), ("bf16", 1), ("bf16", 3)]  # the two cover every stage


def spec_of(teachers: list[dict], backbone: dict = RADIO, train: dict | None = None, **distill):
    fields = {"teacher": teachers, "scheme": "self", "use_mlp": False, "loss_lambda": 1.0, **distill}
    data = {"img_size": SIZE, "batch_size": B}
    return load_spec(
        {
            "model": {"backbone": backbone},
            "dataset": data,
            "distill": fields,
            "train": {"enable_ema": True} | (train or {}),
        }
    )


def module_of(spec, averaged: bool = True) -> DistillObjective:
    """In evaluation, where nothing is drawn; the average stands at the starting weights."""
    models = design_models(spec, "distill")
    torch.manual_seed(0)
    student = Student(models.architecture)
    peers = {t.name: Peer(t, 5) for t in models.teachers if t.source is Source.peer}
    module = DistillObjective(student, models.teachers, str(SIZE), spec.distill, peers).eval()
    if averaged:
        module.average = AverageStudent(student)
    return module


def batch_of(shown: str = AVERAGE, label: tuple[int, ...] = (-1,) * B) -> MicroBatch:
    torch.manual_seed(1)
    own, other = (torch.randint(0, 256, (B, 3, SIZE, SIZE), dtype=torch.uint8) for _ in range(2))
    return MicroBatch(
        {str(SIZE): own, shown: other} if shown != str(SIZE) else {shown: own}, torch.ones(B), torch.tensor(label)
    )


def moved(module: DistillObjective) -> DistillObjective:
    """The student elsewhere than its average."""
    with torch.no_grad():
        for parameter in module.student.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("backbone", [RADIO, CNN], ids=["radio", "cnn"])
def test_mesa_of_a_student_that_has_not_moved_is_zero_on_one_view(backbone):
    module = module_of(spec_of([MEAN], backbone, mesa={"weight": 2.0, "view": "same"}))
    losses = module(batch_of(str(SIZE)))
    assert losses["loss/mesa"] == 0
    losses = moved(module)(batch_of(str(SIZE)))
    assert losses["loss/mesa"] > 1e-3
    teachers = losses["loss/mean/summary"] + losses["loss/mean/spatial"]
    torch.testing.assert_close(losses["loss"], teachers + 2.0 * losses["loss/mesa"])


def test_mesa_begins_at_its_step_and_looks_at_the_other_view():
    module = moved(module_of(spec_of([MEAN], mesa={"weight": 1.0, "start_step": 3})))
    given = batch_of()
    module.step = 2
    assert "loss/mesa" not in module(given) and not dataclasses.replace(given).inner_overlaps
    module.step = 3
    mine = module.student(given.views[str(SIZE)]).spatial
    theirs = module.average(given.views[AVERAGE], BOTH).spatial
    expected = F.mse_loss(F.layer_norm(mine, (16,)), F.layer_norm(theirs, (16,)))
    torch.testing.assert_close(module(given)["loss/mesa"], expected)


def test_mesa_is_taken_where_both_views_look():
    """The average's view lies one position to the right; what lies beyond changes nothing."""
    shift = torch.tensor([[1, 0, -0.25], [0, 1, 0], [0, 0, 1.0]]).expand(B, 3, 3)
    torch.manual_seed(0)
    mine, theirs = torch.randn(B, 4, 4, 6), torch.randn(B, 4, 4, 6)
    weight = torch.tensor([1.0, 0.0, 2.0])
    found = mesa_loss(mine, theirs, weight, Overlap(shift))
    a, b = (F.layer_norm(x, (6,)) for x in (mine[:, :, 1:], theirs[:, :, :3]))
    each = (a - b).square().mean((1, 2, 3))
    torch.testing.assert_close(found, (each[0] + 2 * each[2]) / 3)
    theirs[:, :, 3], mine[1] = 1e3, torch.nan
    torch.testing.assert_close(mesa_loss(mine, theirs, weight, Overlap(shift)), found)
    torch.testing.assert_close(
        mesa_loss(3 * mine + 2, mine, torch.tensor([1.0, 0, 1])), torch.tensor(0.0), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("count", [2, 3])
def test_mesa_in_pieces_adds_up_to_the_whole(count):
    """As after a halving for want of memory, with views that do not show the same part."""
    module = moved(module_of(spec_of([MEAN], mesa={"weight": 1.0})))
    given = batch_of()
    warp = torch.eye(3).repeat(B, 1, 1)
    warp[:, 0, 2] = torch.tensor([-0.25, 0.0, 0.25])
    given.inner_overlaps[AVERAGE] = Overlap(warp)
    whole = module(given)
    sums = {name: torch.zeros(()) for name in whole}
    for share, piece in in_pieces(given, count):
        for name, value in module(piece).items():
            sums[name] = sums[name] + share * value
    assert whole["loss/mesa"] > 1e-3
    torch.testing.assert_close(sums, dict(whole))


def test_mesa_has_a_gradient_on_the_students_side_alone():
    module = moved(module_of(spec_of([MEAN], mesa={"weight": 1.0})))
    before = copy.deepcopy(module.average._twin.state_dict())
    module(batch_of())["loss"].backward()
    assert module.student.backbone.blocks[0].attn.qkv.weight.grad.abs().sum() > 0
    twin = module.average._twin
    assert not any(p.requires_grad or p.grad is not None for p in twin.parameters())
    assert all(torch.equal(before[name], value) for name, value in twin.state_dict().items())
    assert not any("average" in name or "twin" in name for name, _ in module.named_parameters())


@pytest.mark.parametrize("backbone", [RADIO, CNN], ids=["radio", "cnn"])
def test_an_average_that_equals_the_student_is_met_by_heads_of_identity(backbone):
    module, given = module_of(spec_of([MEAN], backbone)), batch_of(str(SIZE))
    head = module.student.heads["mean"]
    with torch.no_grad():
        for linear in (head.summary, head.spatial):
            linear.weight.copy_(torch.eye(*linear.weight.shape))
            linear.bias.zero_()
    losses = module(given)
    assert losses["loss/mean/spatial"] == 0 and abs(losses["loss/mean/summary"]) < 1e-6
    assert moved(module)(given)["loss/mean/spatial"] > 1e-3


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_backbone_has_an_average_too():
    module = module_of(spec_of([MEAN]), averaged=False)
    compile_backbone(module.student.backbone, backend="eager")
    module.average = AverageStudent(module.student)
    given = batch_of(str(SIZE)).views[str(SIZE)]
    torch.testing.assert_close(module.average(given, BOTH).spatial, module.student(given).spatial)
    assert module.average._twin.backbone._compiled_call_impl is None


def test_the_averages_summary_is_made_of_the_taught_tokens():
    spec = spec_of([{**MEAN, "summary_token_idx": 1}, {**MEAN, "name": "map", "mode": "spatial"}])
    models = design_models(spec, "distill")
    assert models.infos["mean"].summary_dim == 16 and models.architecture.num_class_tokens == 2
    assert models.infos["mean"].grid == (4, 4) and models.grids["mean"] == (4, 4)
    module = module_of(spec)
    given = batch_of(str(SIZE))
    assert set(module(given)) == {"loss", "loss/mean/summary", "loss/mean/spatial", "loss/map/spatial"}
    said = module.average(given.views[str(SIZE)], BOTH)
    torch.testing.assert_close(said.summary, module.student(given.views[str(SIZE)]).named["tokens"][:, 1])


DEEP = {"source": "deeper", "name": "deep"}


def bind(deep: str, shallow: str, **more) -> dict:
    return {"teacher": "deep", "teacher_module_name": deep, "student_module_name": shallow, "criterion": "MSE", **more}


@pytest.mark.parametrize(
    ("backbone", "pair"), [(RADIO, ("blocks.1", "blocks.0")), (CNN, ("layer4", "layer1"))], ids=["radio", "cnn"]
)
def test_deeper_layers_teach_and_learn_nothing_from_it(backbone, pair):
    module = module_of(spec_of([DEEP], backbone, bindings=[bind(*pair, weight=3.0)]), averaged=False)
    given = batch_of(str(SIZE))
    losses = module(given)
    assert set(losses) == {"loss", "loss/deep/binding_0"}
    torch.testing.assert_close(losses["loss"], 3.0 * losses["loss/deep/binding_0"])
    losses["loss"].backward()
    deep, shallow = (module.student.backbone.target.get_submodule(name) for name in pair)
    assert sum(p.grad.abs().sum() for p in shallow.parameters()) > 0
    assert not any(p.grad is not None and p.grad.any() for p in deep.parameters())
    assert bool(module.student.heads["deep"].bindings) is (backbone is CNN), "a projection where the widths differ"


def test_a_binding_can_be_to_the_average():
    spec = spec_of([MEAN], bindings=[bind("blocks.1", "blocks.1") | {"teacher": "mean"}])
    module, given = module_of(spec), batch_of(str(SIZE))
    assert module(given)["loss/mean/binding_0"] == 0
    assert moved(module)(given)["loss/mean/binding_0"] > 1e-3


@pytest.mark.parametrize(
    ("pair", "where"),
    [(("blocks.9", "blocks.0"), "teacher_module_name"), (("blocks.1", "blocks.9"), "student_module_name")],
)
def test_modules_that_are_not_there_are_named(pair, where):
    with pytest.raises(SpecError, match="no module") as caught:
        design_models(spec_of([DEEP], bindings=[bind(*pair)]), "distill")
    assert caught.value.problems[0].where == f"distill.bindings[0].{where}"


class Trained:
    """A module with an engine and the average, driven as the worker drives them."""

    def __init__(self, precision: str, stage: int, backbone: dict, decay: float, begin: dict | None = None) -> None:
        train = {"precision": precision, "zero_stage": stage, "optim": {"lr": 0.02}, "ema_decay": decay}
        mesa = {"weight": 1.0, "view": "same"}
        spec = spec_of([MEAN], backbone, train, mesa=mesa)
        self.moments = MOMENTS[spec.train.optim.optim]
        self.module = module_of(spec, averaged=False).train()
        if begin:
            self.module.student.load_state_dict(begin["weights"])
        self.module.average = AverageStudent(self.module.student)
        self.running = BatchNormStatistics(self.module)
        self.engine = build_engine(self.module, spec, 1)
        self.names = trainable(self.module)
        if begin:
            state = begin["weights"] | begin["moments"]
            self.engine.load_full_state(self.names, self.moments, state, begin["steps"])
        self.running.sync()
        self.ema = self.module.average.ema = Ema(self.engine, self.names, self.statistics, decay)
        self.steps = begin["steps"] if begin else 0
        if begin:
            self.ema.load_state_dict(begin["average"])

    def statistics(self) -> dict[str, torch.Tensor]:
        return {name.removeprefix("student."): value for name, value in self.running.state_dict().items()}

    def look(self) -> None:
        self.module.begin_step(StepContext(self.steps))

    def step(self) -> float:
        torch.manual_seed(self.steps)
        given = batch_of(str(SIZE))
        given.views[str(SIZE)] = given.views[str(SIZE)].roll(self.steps, 0).roll(self.steps, 3)
        self.look()
        losses = self.engine(given)
        self.engine.backward(losses["loss"], last=True)
        self.engine.step()
        spectral.follow(self.module)
        self.running.step()
        self.ema.step()
        self.steps += 1
        return losses["loss/mesa"].item()

    def state(self) -> dict:
        whole = self.engine.full_state(self.names, self.moments)
        weights = {k: v.detach().clone() for k, v in self.module.student.state_dict().items() if k not in self.names}
        weights |= {k: whole.pop(k) for k in self.names} | self.statistics()
        return {"weights": weights, "moments": whole, "average": self.ema.state_dict(), "steps": self.steps}


SPECTRAL = {**RADIO, "spectral_reparam": True}


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("backbone", "precision", "stage"),
    [*((SPECTRAL, *pair) for pair in STAGES), *((CNN, *pair) for pair in OTHERS[:-1])],
)
def test_what_is_asked_is_the_average_at_every_stage(precision, stage, backbone):
    """With a decay of 0 it is the student; with another, what the checkpoint would hold, rounded; and a resumed run
    asks what the quiet one does."""
    follows = Trained(precision, stage, backbone, 0.0)
    quiet = Trained(precision, stage, backbone, 0.6)
    for _ in range(2):
        follows.step()
        quiet.step()
    follows.look()
    twin = follows.module.average._twin.state_dict()
    weights = follows.state()["weights"]
    for name in follows.names:
        if name.startswith("backbone."):
            assert torch.equal(twin[name], weights[name].to(twin[name].dtype)), name
    if precision == "fp32" and stage < 3:
        follows.module.eval()
        assert follows.module(batch_of(str(SIZE)))["loss/mesa"].item() < 1e-9
    saved = quiet.state()
    resumed = Trained(precision, stage, backbone, 0.6, copy.deepcopy(saved))
    losses = [(quiet.step(), resumed.step()) for _ in range(2)]
    assert all(a == b and a > 0 for a, b in losses), losses
    quiet.look()
    twin, average = quiet.module.average._twin.state_dict(), quiet.state()["average"]
    for name in set(twin) & set(average):
        assert torch.equal(twin[name].float(), average[name].to(twin[name].dtype).float()), name


PEER = {
    "source": "peer",
    "model": {"backbone": {"type": "test_vit2", "output_dim": [4]}},
    "loss_type": "KL",
    "extra_losses": [{"type": "MSE", "kind": "spatial", "weight": 0.5}],
    "input_size": SIZE,
    "match_student_resolution": True,
}
LABELS = (2, -1, 1)


def peers(*names: str, **distill) -> DistillObjective:
    spec = spec_of([{**PEER, "name": name} for name in names], alpha=0.25, scheme="online", **distill)
    return module_of(spec, averaged=False)


def kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """TAO's, ``[B]``."""
    return F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="none").mean(-1)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_peers_learn_from_labels_and_from_the_others(names):
    """Equation 8 of Zhang et al. 2018, with the loss and the share of labels that the spec names."""
    module, given = peers(*names), batch_of(str(SIZE), LABELS)
    losses = module(given)
    images = given.views[str(SIZE)]
    features = module.student(images)
    said = {n: module.peers[n](images, frozenset({"logits", "spatial"})) for n in names}
    heads = {n: module.student.head(n, features) for n in names}
    share = torch.tensor([0.25, 0.0, 0.25])
    total = 0.0
    for n in names:
        mine, theirs = heads[n].named["logits"], said[n].named["logits"]
        labelled = [F.cross_entropy(x, given.label, ignore_index=-1, reduction="none") for x in (mine, theirs)]
        other = [kl(theirs, x) for x in (mine, *(said[o].named["logits"] for o in names if o != n))]
        maps = F.mse_loss(
            F.adaptive_avg_pool2d(heads[n].spatial.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1), said[n].spatial
        )
        torch.testing.assert_close(losses[f"loss/{n}/logits"], kl(mine, theirs).mean())
        torch.testing.assert_close(losses[f"loss/{n}/peer_logits"], torch.stack(other).mean())
        torch.testing.assert_close(losses[f"loss/{n}/peer_labels"], labelled[1].sum() / 2)
        torch.testing.assert_close(losses[f"loss/{n}/peer_spatial_MSE"], maps)
        student = (share * labelled[0] + (1 - share) * kl(mine, theirs)).mean() + 0.5 * maps
        peer = (share * labelled[1] + (1 - share) * torch.stack(other).mean(0)).mean() + 0.5 * maps
        total = total + student + peer
    torch.testing.assert_close(losses["loss"], total)


def test_who_teaches_gets_no_gradient_from_it():
    """Of the student's terms nothing reaches the peer, of the peer's nothing the student."""
    module, given = peers("a"), batch_of(str(SIZE), LABELS)
    own = [p for n, p in module.named_parameters() if n.startswith(PREFIX)]
    mine = list(module.student.parameters())
    losses = module(given)
    for name, unmoved in (("logits", own), ("spatial_MSE", own), ("peer_logits", mine), ("peer_labels", mine)):
        found = torch.autograd.grad(losses[f"loss/a/{name}"], unmoved, retain_graph=True, allow_unused=True)
        assert all(g is None for g in found), name
    losses["loss"].backward()
    assert all(p.grad is not None and p.grad.any() for p in own if p.ndim > 1)


def test_a_peer_starts_from_its_seed_or_from_weights(tmp_path):
    from safetensors.torch import save_file

    a, again, b = peers("a"), peers("a"), peers("b")
    first = {n: p for n, p in a.peers["a"].named_parameters()}
    assert all(torch.equal(p, first[n]) for n, p in again.peers["a"].named_parameters())
    assert not all(torch.equal(p, first[n]) for n, p in b.peers["b"].named_parameters())
    weights = {n.removeprefix("model.backbone.model."): p + 1 for n, p in a.peers["a"].state_dict().items()}
    save_file(weights, tmp_path / "w.safetensors")
    spec = spec_of([{**PEER, "name": "a", "pretrained_teacher_model_path": str(tmp_path / "w.safetensors")}])
    found = module_of(spec, averaged=False).peers["a"].state_dict()
    assert all(torch.equal(found[n], p + 1) for n, p in a.peers["a"].state_dict().items())


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("precision", "stage"), OTHERS)
def test_peers_are_in_checkpoints_at_every_stage(precision, stage):
    bn = {**PEER, "name": "a", "model": {"backbone": {"type": "test_resnet", "output_dim": [4]}}}
    train = {"precision": precision, "zero_stage": stage, "optim": {"lr": 0.02}}
    spec = spec_of([bn], train=train, alpha=0.25, scheme="online")

    def start(saved: dict | None = None):
        module = module_of(spec, averaged=False).train()
        if saved:
            module.student.load_state_dict({k: saved[f"student.{k}"] for k in module.student.state_dict()})
        current = restore_peers(module, saved or {})
        running = BatchNormStatistics(module)
        engine = build_engine(module, spec, 1)
        names = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if saved:
            engine.load_full_state(names, MOMENTS[spec.train.optim.optim], saved | current, 2)
        running.sync()
        return module, engine, running, names

    def step(module, engine, running, names, number: int) -> float:
        torch.manual_seed(number)
        losses = engine(batch_of(str(SIZE), LABELS))
        engine.backward(losses["loss"], last=True)
        engine.step()
        running.step()
        return losses["loss/a/peer_logits"].item()

    quiet = start()
    assert set(peer_parameters(quiet[0])) == {n for n in quiet[3] if n.startswith(PREFIX)} and peer_buffers(quiet[0])
    seen = [step(*quiet, number) for number in range(2)]
    saved = quiet[1].full_state(quiet[3], MOMENTS[spec.train.optim.optim])
    saved |= {f"student.{k}": v for k, v in quiet[0].student.named_buffers() if "mean" not in k and "std" not in k}
    saved |= {f"student.{k}": v for k, v in quiet[0].student.state_dict().items() if f"student.{k}" not in saved}
    saved = {k: v.detach().clone() for k, v in (saved | peer_buffers(quiet[0]) | quiet[2].state_dict()).items()}
    resumed = start(saved)
    for number in range(2, 4):
        seen.append(step(*quiet, number))
        assert step(*resumed, number) == seen[-1]
    assert len(set(seen)) == 4


def test_peers_of_unlike_classes_or_kinds_are_named(tmp_path):
    other = {**PEER, "name": "b", "model": {"backbone": {"type": "test_vit2", "output_dim": [3]}}}
    with pytest.raises(SpecError, match="3 classes, and the peer a has 4"):
        design_models(spec_of([{**PEER, "name": "a"}, other], scheme="online"), "distill")
