"""Messages of real libraries that mean that memory ran out, and such that mean something else."""

from __future__ import annotations

import pytest
import torch
from ray.exceptions import OutOfMemoryError

from radioplat.common.out_of_memory import names_memory, ran_out
from radioplat.errors import TrainingError

NCCL = "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
UNHANDLED = f"{NCCL}\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of ..."),
        torch.OutOfMemoryError("some other words"),
        MemoryError(),
        OutOfMemoryError("Task was killed due to the node running low on memory."),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA ran out of memory outside PyTorch's allocator."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        torch.distributed.DistBackendError(f"{UNHANDLED}Cuda failure 2 'out of memory'"),
        torch.distributed.DistBackendError(f"{UNHANDLED}Failed to CUDA calloc async 608 bytes"),
        torch.distributed.DistBackendError(f"{UNHANDLED}Failed to CUDA host alloc 4096 bytes"),
        torch.distributed.DistBackendError(f"{UNHANDLED}Failed to CUDA malloc 2097152 bytes"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("unable to mmap 8 bytes from file: Cannot allocate memory (12)"),
    ],
    ids=str,
)
def test_lack_of_memory(error):
    assert ran_out(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        torch.distributed.DistBackendError(f"{UNHANDLED}Cuda failure 1 'invalid argument'"),
        torch.distributed.DistBackendError(f"{NCCL}\nncclRemoteError: A call failed possibly due to a network error"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 4x4)"),
        ValueError("out of memory"),
        KeyError("out of memory"),
    ],
    ids=str,
)
def test_other_errors(error):
    assert not ran_out(error)


def test_memory_that_runs_out_names_the_field_and_other_errors_pass():
    with pytest.raises(TrainingError) as caught, names_memory("dataset.val_batch_size"):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    assert str(caught.value) == (
        "dataset.val_batch_size: memory ran out: CUDA out of memory. Tried to allocate 2 GiB. Take a smaller one."
    )
    with pytest.raises(RuntimeError, match="shapes"), names_memory("dataset.val_batch_size"):
        raise RuntimeError("shapes differ")
    passed = names_memory("dataset.val_batch_size")(lambda: 3)
    assert passed() == passed() == 3
