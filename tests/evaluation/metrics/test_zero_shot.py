from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.errors import RadioplatError, SpecError, WeightsError
from radioplat.evaluation.metrics.zero_shot import text_embeddings, text_width, zero_shot_accuracy

transformers = pytest.importorskip("transformers")

NAMES = ["astronaut", "cup of coffee", "cat"]
TEMPLATES = ["a photo of a {}.", "the {}"]


def by_hand(folder, names, templates):
    """Each prompt alone, so without padding, through transformers' own text tower."""
    tower = transformers.CLIPTextModelWithProjection.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    for name in names:
        tokens = [tokenizer(t.format(name), return_tensors="pt")["input_ids"] for t in templates]
        with torch.no_grad():
            embeddings = torch.cat([F.normalize(tower(input_ids=each).text_embeds, dim=1) for each in tokens])
        rows.append(F.normalize(embeddings.mean(0), dim=0))
    return torch.stack(rows)


def test_embeddings_are_the_tower_s_and_do_not_depend_on_the_batch(clip_folder):
    expected = by_hand(clip_folder, NAMES, TEMPLATES)
    for batch_size in (1, 4, 64):
        found = text_embeddings(clip_folder, NAMES, TEMPLATES, batch_size=batch_size)
        assert torch.allclose(found, expected, atol=1e-5)
    assert found.shape == (3, text_width(clip_folder)) == (3, 24)
    assert not torch.allclose(found[0], found[1], atol=1e-3)


def test_a_text_tower_alone(clip_folder, tmp_path):
    tower = transformers.CLIPTextModelWithProjection.from_pretrained(clip_folder)
    tower.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(clip_folder).save_pretrained(tmp_path)
    expected = text_embeddings(clip_folder, NAMES, TEMPLATES)
    assert torch.allclose(text_embeddings(tmp_path, NAMES, TEMPLATES), expected, atol=1e-5)
    assert text_width(tmp_path) == 24


def test_siglip_is_padded_as_it_was_trained(clip_folder, tmp_path):
    size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    text, vision = dict(size, vocab_size=16, max_position_embeddings=20), dict(size, image_size=64, patch_size=16)
    torch.manual_seed(0)
    model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)).eval()
    model.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip_folder)
    tokenizer.save_pretrained(tmp_path)
    found = text_embeddings(tmp_path, NAMES, ["a photo of {}"])
    ids = tokenizer([f"a photo of {n}" for n in NAMES], padding="max_length", max_length=20, return_tensors="pt")
    with torch.no_grad():
        pooled = model.text_model(input_ids=ids["input_ids"]).pooler_output
    assert torch.allclose(found, F.normalize(pooled, dim=1), atol=1e-5) and text_width(tmp_path) == 32


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 9), st.floats(0.01, 100))
def test_the_nearest_class_is_the_answer(seed, count, scale):
    generator = torch.Generator().manual_seed(seed)
    classes, images = (torch.randn(n, 6, generator=generator) for n in (7, count))
    labels = torch.randint(-1, 7, (count,), generator=generator)
    labels[0] = 0
    cosine = torch.stack([F.cosine_similarity(images, each[None], dim=1) for each in classes], 1)
    rank = (cosine > cosine.gather(1, labels.clamp_min(0)[:, None])).sum(1)[labels >= 0]
    found = zero_shot_accuracy(images * scale, labels, classes)
    assert found.top1 == pytest.approx(float((rank == 0).float().mean()))
    assert found.top5 == pytest.approx(float((rank < 5).float().mean()))
    assert (found.count, found.classes) == (int((labels >= 0).sum()), 7)


def test_what_is_no_text_tower_is_told(clip_folder, tmp_path):
    with pytest.raises(WeightsError, match="config.json"):
        text_width(tmp_path)
    copy = shutil.copytree(clip_folder, tmp_path / "copy")
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(WeightsError, match="no tokenizer"):
        text_width(copy)
    raw = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(raw | {"model_type": "dinov2"}))
    with pytest.raises(SpecError, match="no text tower"):
        text_width(copy)


def test_what_cannot_be_judged_is_told():
    classes = torch.eye(3)
    with pytest.raises(RadioplatError, match="labelled"):
        zero_shot_accuracy(torch.eye(3), torch.full((3,), -1), classes)
    with pytest.raises(RadioplatError, match="3 class names"):
        zero_shot_accuracy(torch.eye(3), torch.tensor([0, 1, 3]), classes)
    with pytest.raises(RadioplatError, match="4 dimensions"):
        zero_shot_accuracy(torch.eye(4), torch.arange(4), classes)
    with pytest.raises(RadioplatError, match="not finite"):
        zero_shot_accuracy(torch.full((3, 3), float("nan")), torch.arange(3), classes)
