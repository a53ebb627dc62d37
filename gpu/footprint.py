"""Is a kernel's declaration true?  Non-interference, tried on random contents.

A declaration is true if nothing outside the declared writes ever changes, and if nothing outside
the declared reads matters for what is written.  Both are tried out: run the kernel on random
contents, run it again with everything outside its reads replaced, and compare.  The same is done
with its items in another order, because a launch promises none.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .cells import Footprint, Span
from .device import Kernel

Arena = Mapping[tuple[str, int], torch.Tensor]
"""All memory that a kernel could touch: (space, page) -> a view whose first dimension is the row."""


def fault_of(kernel: Kernel, arena: Arena, tries: int = 10, seed: int = 0) -> str | None:
    """What is wrong with the kernel's declaration, in words; ``None`` if nothing was found.

    The arena's present contents are what the kernel reads (lists must hold valid numbers); all
    other rows are randomised.  The contents are restored afterwards.
    """
    original = {key: view.clone() for key, view in arena.items()}
    reads, writes = _masks(arena, kernel.reads), _masks(arena, kernel.writes)
    generator = torch.Generator().manual_seed(seed)
    try:
        for _ in range(tries):
            if fault := _try_once(kernel, arena, original, reads, writes, generator):
                return fault
    finally:
        for key, view in arena.items():
            view.copy_(original[key])
    return None


def needless_reads(kernel: Kernel, arena: Arena, seed: int = 0) -> list[tuple[str, int, int]]:
    """Declared reads that do not matter: (space, page, row), each replaced alone without any effect.

    A needless read makes no sanitizer blind, but it makes it complain about correct programs.
    """
    original = {key: view.clone() for key, view in arena.items()}
    generator = torch.Generator().manual_seed(seed)

    def outcome(changed: tuple[str, int, int] | None) -> dict[Span, torch.Tensor] | None:
        for key, view in arena.items():
            view.copy_(original[key])
        if changed is not None:
            row = arena[changed[:2]][changed[2]]
            row.copy_(torch.randint(0, 2**40, row.shape, generator=generator))
        try:
            kernel.run(0, kernel.items)
        except (IndexError, RuntimeError):
            return None
        return {span: arena[span.space, span.page][span.first : span.stop].clone() for span in kernel.writes}

    usual = outcome(None)
    needless = []
    for space, page, first, stop in kernel.reads:
        for row in range(first, stop):
            other = outcome((space, page, row))
            if usual is not None and other is not None and all(torch.equal(other[key], usual[key]) for key in usual):
                needless.append((space, page, row))
    for key, view in arena.items():
        view.copy_(original[key])
    return needless


Masks = Mapping[tuple[str, int], torch.Tensor]


def _try_once(
    kernel: Kernel, arena: Arena, original: Arena, reads: Masks, writes: Masks, generator: torch.Generator
) -> str | None:
    """One comparison of three runs on contents that agree on the declared reads only."""
    _scramble(arena, original, reads, generator)
    before = {key: view.clone() for key, view in arena.items()}
    try:
        kernel.run(0, kernel.items)
    except (IndexError, RuntimeError) as error:
        return f"{kernel.name} depends on rows that it does not declare as read: {error}"
    after = {key: view.clone() for key, view in arena.items()}
    for key, view in after.items():
        if changed := _rows_that_differ(view, before[key], ~writes[key]):
            return f"{kernel.name} writes {key[0]}[{key[1]}] rows {changed}, which it does not declare"

    _scramble(arena, original, reads, generator)
    kernel.run(0, kernel.items)
    for key, view in arena.items():
        if changed := _rows_that_differ(view, after[key], writes[key]):
            return f"{kernel.name} gives {key[0]}[{key[1]}] rows {changed} contents that depend on undeclared rows"

    for key, view in arena.items():
        view.copy_(before[key])
    for item in torch.randperm(kernel.items, generator=generator).tolist():
        kernel.run(item, item + 1)
    for key, view in arena.items():
        if changed := _rows_that_differ(view, after[key], writes[key]):
            return f"the items of {kernel.name} have an order: {key[0]}[{key[1]}] rows {changed} depend on it"
    return None


def _masks(arena: Arena, footprint: Footprint) -> Masks:
    """For each page, which rows the footprint holds."""
    masks = {key: torch.zeros(view.shape[0], dtype=torch.bool) for key, view in arena.items()}
    for space, page, first, stop in footprint:
        masks[space, page][first:stop] = True
    return masks


def _scramble(arena: Arena, original: Arena, keep: Masks, generator: torch.Generator) -> None:
    """Random contents, except for the kept rows."""
    for key, view in arena.items():
        view.copy_(torch.randint(0, 2**40, view.shape, generator=generator))
        view[keep[key]] = original[key][keep[key]]


def _rows_that_differ(one: torch.Tensor, other: torch.Tensor, among: torch.Tensor) -> list[int]:
    """Rows of a page that differ in any word."""
    differs = (one != other).flatten(1).any(dim=1) & among
    return [int(row) for row in differs.nonzero().flatten()]
