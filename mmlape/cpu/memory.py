"""Memory that a CPU process frees stays with it. This imports nothing of mmlape: benchmarks run this file alone.

glibc hands large blocks back to the kernel when they are freed, and the next pass gets them again page by page, filled
with zeros: a fifth of a training step, measured (docs/training.md). A GPU's memory is PyTorch's own matter.
"""

import contextlib
import ctypes
import os

# mallopt's names, in malloc.h: free memory at the end of the heap, and sizes from which a block is not in the heap.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# glibc up to 2.34 refuses more than half of its HEAP_MAX_SIZE, 32 MiB on 64-bit machines.
BLOCK_SIZES = (2**30, 2**25)
FREE = 2**31 - 1


def keep_freed_memory() -> bool:
    """Ask glibc for it, unless there is an accelerator or the environment says how memory is managed.

    Returns:
        Whether glibc does it.
    """
    from mmengine.device import get_device

    tuned = {'MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_'} & os.environ.keys()
    if get_device() != 'cpu' or tuned or 'glibc.malloc' in os.environ.get('GLIBC_TUNABLES', ''):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another library, or another system
        return False
    # In this order: any of them freezes the other, which otherwise grows by itself. With M_TRIM_THRESHOLD alone, every
    # block above 128 KiB would come from the kernel, and training would be a third slower than untouched.
    if not any(mallopt(M_MMAP_THRESHOLD, size) == 1 for size in BLOCK_SIZES):
        return False
    return mallopt(M_TRIM_THRESHOLD, FREE) == 1


def return_freed_memory() -> None:
    """Hand all freed memory back to the kernel once, where the C library is glibc."""
    # Another library, or another system, has no such function.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
