"""The modules of the spec: what is proved together.  ``MODULES`` is the table of contents for readings."""

from __future__ import annotations

from . import lengths, rings
from .language import Formula, State, either, every, forall
from .lemmas import LEMMAS
from .lengths import LENGTHS_MODULE
from .ownership import OWNERSHIP
from .records import RECORDS_MODULE
from .rows import ROWS
from .steps import Module, Theorem, theorem
from .storage import GIVEN, HAPPENING, MACHINE


def all_is_free(s: State) -> Formula:
    """Every usable block is free; there is no request, no work, no holder, and nothing can be hit."""
    return every(
        forall(lambda block: s.free(block) == s.usable(block)),
        forall(lambda block: ~s.cached(block)),
        forall(lambda request: ~s.live(request) & ~s.borrows(request)),
        forall(lambda request, index, block: ~s.table(request, index, block)),
        forall(lambda request, block: ~s.slot(request, block)),
        forall(lambda holder, block: ~s.held(holder, block)),
        forall(lambda holder: ~s.external(holder)),
        forall(lambda work: ~either(s.pending(work), s.copies(work), s.cancellable(work))),
        forall(lambda work: ~either(s.reads_in_order(work), s.writes_in_order(work))),
        forall(lambda work, request: ~s.on_behalf(work, request)),
        forall(lambda work, block: ~s.pinned(work, block)),
        forall(lambda work, block, offset: ~either(s.reads(work, block, offset), s.writes(work, block, offset))),
        forall(lambda work, other_work: ~s.before(work, other_work)),
        forall(
            lambda work, request, block, offset: (
                ~either(s.fills(work, request, block, offset), s.delivers(work, request, block, offset))
            )
        ),
        forall(lambda request, block, offset: ~s.blank(request, block, offset)),
        forall(
            lambda request, block, offset: (
                ~either(
                    s.uses(request, block, offset),
                    s.may_write(request, block, offset),
                    s.committed(request, block, offset),
                    s.filled(request, block, offset),
                )
            )
        ),
        forall(lambda block, key: ~s.key(block, key)),
        forall(lambda block, offset: ~s.stored(block, offset)),
    )


@theorem
def one_discipline_for_destinations(s: State) -> Formula:
    """Destinations are declared pinned, or cancelled, or ordered (neither of the two); not two at once."""
    return either(~s.destination_pinned(), ~s.destination_cancelled())


STORAGE_MODULE = Module(
    name="storage",
    about="who owns which block, what its rows hold, and what queued work does to them",
    states=MACHINE,
    events=HAPPENING,
    choices=GIVEN,
    actions={**OWNERSHIP, **ROWS},
    initial=all_is_free,
    rules=(
        "owned_xor_free",
        "counts_match_owners",
        "only_owners_release",
        "reads_keep_their_source",
        "writes_stay_home",
        "no_read_before_fill",
        "cache_tells_the_truth",
        "slot_has_one_writer",
        "nothing_lost",
        "reserved_ids_untouched",
    ),
    theorems=LEMMAS,
    assumes=(one_discipline_for_destinations,),
    not_carried={
        ("owned_xor_free", 2): "a free list is an order with repetitions: harness, model exploration",
        ("counts_match_owners", 0): (
            "first-order logic cannot count; proved instead: free_means_no_owner, only_named_owners_change. "
            "The equality of numbers: harness, model"
        ),
        ("only_owners_release", 3): "counts are a refinement of owners: harness, model",
        ("only_owners_release", 6): "counts are a refinement of owners: harness, model",
    },
)

MODULES: dict[str, Module] = {module.name: module for module in (STORAGE_MODULE, LENGTHS_MODULE, RECORDS_MODULE)}
"""Every module by name, in reading order."""

NUMBER_THEOREMS: tuple[Theorem, ...] = (*lengths.NUMBERS, *rings.NUMBERS)
"""Theorems about whole numbers, which need no state."""
