import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.common.redact import MASK, redact, redact_tree, redact_yaml

ENVIRON = {"WANDB_API_KEY": "s3cr3t-key-value", "HF_TOKEN": "s3cr3t-key-value-longer"}
ENVIRON |= {"MODE_KEY": "on", "HOME": "/home/someone"}


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_no_secret_survives(before, after):
    text = redact(before + ENVIRON["WANDB_API_KEY"] + " " + ENVIRON["HF_TOKEN"] + after, ENVIRON)
    assert ENVIRON["WANDB_API_KEY"] not in text and ENVIRON["HF_TOKEN"] not in text and MASK in text


def test_ordinary_values_stay():
    assert redact("turned on in /home/someone", ENVIRON) == "turned on in /home/someone"


def test_longer_secret_is_masked_whole():
    assert redact("a s3cr3t-key-value-longer b", ENVIRON) == "a (secret) b"


def test_tree_masks_fields_by_name_and_values_by_content():
    tree = {"encryption_key": "tlt", "wandb": {"tags": ["s3cr3t-key-value", 3]}, "num_key": 4, "empty_key": None}
    assert redact_tree(tree, ENVIRON) == {
        "encryption_key": MASK,
        "wandb": {"tags": [MASK, 3]},
        "num_key": 4,
        "empty_key": None,
    }


def test_yaml_masks_secret_fields_and_still_parses():
    tree = {"encryption_key": "tlt encode " * 20, "a": {"x_token": "t", "empty_key": None, "keys": 3}, "monkey": "b"}
    text = redact_yaml(yaml.safe_dump(tree), {})
    assert yaml.safe_load(text) == {
        "encryption_key": MASK,
        "a": {"x_token": MASK, "empty_key": None, "keys": 3},
        "monkey": "b",
    }
