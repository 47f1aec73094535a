"""Encoders of one student with several numbers of tokens are used at a time, by threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from radioplat.evaluation.models.evaluated_model import student_encoder
from radioplat.models.student.student import Student, StudentArchitecture

SMALL = {"embed_dim": 48, "depth": 3, "num_heads": 3, "decoder_depth": 2}


def test_one_forward_within_another_keeps_its_number_of_tokens():
    torch.manual_seed(0)
    student = Student(StudentArchitecture("radio1d_vit_tiny_patch16", kwargs=SMALL, img_size=64)).eval()
    student.backbone.num_tokens = 3
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    encoders = [student_encoder(student, count) for count in (1, 2, None)]
    alone = [encode(images) for encode in encoders]
    assert len({float(features.spatial.sum()) for features in alone}) == 3

    def meanwhile(module: torch.nn.Module, arguments: tuple) -> None:
        hook.remove()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(encoders[2], images).result()

    hook = student.backbone.blocks[0].register_forward_pre_hook(meanwhile)
    assert torch.equal(encoders[0](images).spatial, alone[0].spatial)
    assert student.backbone.num_tokens == 3, "the student's own number is not changed"
