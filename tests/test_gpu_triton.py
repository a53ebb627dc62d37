"""The Triton kernels, as far as a machine without a GPU can tell: they compile for one, and mean the same.

The interpreter runs programs one after another, so it says nothing about order; and it is slow, so
the shapes are tiny.  It is chosen when a kernel is decorated, hence the processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

SAME_MEANING = """
import torch
from kvproof.gpu import kernels, ops, triton_kernels
from kvproof.gpu.memory import Pages
from kvproof.gpu.stamps import words_of

for layout in ("block-major", "layer-major"):
    torch.manual_seed(5)
    pages = Pages("blocks", 7, 4, 3, 2, layout)
    pages.rows.copy_(torch.randint(0, 2**40, pages.rows.shape))
    pairs = torch.tensor([[1, 4, 4], [2, 5, 3], [3, 0, 4]])
    slots = torch.tensor([9, -1, 17, 30, 12])
    stamps = torch.randint(0, 2**40, (5,))
    values = words_of(stamps, 3, 2)
    for loop, fused, arguments in (
        (ops.copy_rows, triton_kernels.copy_rows, (pairs,)),
        (ops.scatter_rows, triton_kernels.scatter_rows, (values, slots)),
        (ops.fill_pages, triton_kernels.fill_pages, (pairs[:, 0], -7)),
    ):
        one, other = (Pages("blocks", 7, 4, 3, 2, layout).rows.copy_(pages.rows) for _ in range(2))
        loop(one, *arguments)
        fused(other, *arguments)
        assert torch.equal(one, other), fused
    ops.scatter_rows(pages.rows, values, slots)
    pages.rows[1, 4, 1, 1] += 1
    one, other = torch.zeros_like(values), torch.zeros_like(values)
    ops.gather_rows(pages.rows, slots, one)
    triton_kernels.gather_rows(pages.rows, slots, other)
    assert torch.equal(one, other)
    one, other = kernels.clean_result("cpu"), kernels.clean_result("cpu")
    ops.verify_rows(pages.rows, slots, stamps, one)
    triton_kernels.verify_rows(pages.rows, slots, stamps, other)
    assert one.tolist() == other.tolist() == [1, 2]
try:
    triton_kernels.copy_rows(torch.zeros(2, 3, 4, 5, dtype=torch.int64).transpose(2, 3), pairs)
except triton_kernels.WrongStrides:
    print("done")
"""

COMPILES = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kvproof.gpu import triton_kernels

POINTERS = {"rows", "others", "pairs", "slots", "stamps", "result", "which"}
for kernel, constants in (
    (triton_kernels._copy, {"TILE": 1024}),
    (triton_kernels._move, {"SCATTER": True, "WIDE": 64}),
    (triton_kernels._move, {"SCATTER": False, "WIDE": 64}),
    (triton_kernels._verify, {"LAYERS": 16, "WIDE": 64}),
    (triton_kernels._fill, {"TILE": 1024}),
):
    signature = {
        name: "constexpr" if name in constants else "*i64" if name in POINTERS else "i64" for name in kernel.arg_names
    }
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert built.asm["cubin"]
print("done")
"""


def in_a_process(code: str, folder: object, **environment: str) -> str:
    """What the code prints, in a Python of its own."""
    variables = {**os.environ, "TRITON_CACHE_DIR": str(folder), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_interpreted_they_mean_the_same_as_the_cpu_loops(tmp_path: object) -> None:
    assert in_a_process(SAME_MEANING, tmp_path, TRITON_INTERPRET="1") == "done"


def test_they_compile_for_a_gpu_of_the_h200s_generation(tmp_path: object) -> None:
    assert in_a_process(COMPILES, tmp_path) == "done"
