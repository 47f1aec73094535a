"""A CLIP of a few thousand seeded weights with its tokenizer, written as ``transformers`` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

WORDS = ["a", "photo", "of", "an", "astronaut", "cup", "coffee", "cat", "rocket", "the", "picture", "."]


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory) -> Path:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    folder = tmp_path_factory.mktemp("clip")
    special = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}
    vocabulary = special | {word: len(special) + i for i, word in enumerate(WORDS)}
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
