"""A student with drawn weights, and statistics of BatchNorm as after training: else it is nearly the identity."""

from __future__ import annotations

import torch
from torch import nn

from radioplat.models.student.student import Student, StudentArchitecture


def drawn_student(name: str, size: int) -> Student:
    """Return a timm backbone for images of ``size`` pixels, in evaluation mode; always the same."""
    torch.manual_seed(0)
    student = Student(StudentArchitecture(name, img_size=size)).eval()
    for module in student.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return student
