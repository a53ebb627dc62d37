"""What an implementation offers: the operations of a KV-cache block allocator, as small protocols.

An *allocator* is anything with the five methods of :class:`Allocator`.  Everything else is a
*capability*: one more small protocol, found by looking whether its methods are there.  A *target*
is a factory ``factory(configuration) -> allocator``.

Verbs speak of requests and tokens, never of block ids: which free block is taken is the
implementation's own business.  Ids appear only in what can be observed, :class:`Pool`.

Words (block, row, need, pin, LATER, ...) are those of the chapter "State needs an owner".
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

BLOCKS = "blocks"
"""Name of the pool of paged KV blocks: every allocator has it."""
SLOTS = "slots"
"""Name of the pool of state slots, one slot a request; present when the configuration asks for it."""
RECORDS = "records"
"""Name of the pool of output records."""

Reason = Literal["finish", "preempt", "abort"]
ReleaseRule = Literal["event", "stream"]
Destination = Literal["pinned", "cancelled", "ordered"]
Publish = Literal["at_allocation", "after_step", "never"]
Surplus = Literal["exact", "pages", "kept"]
Order = Literal["fifo", "lifo", "lru", "none"]
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "release_rule": get_args(ReleaseRule),
    "destination": get_args(Destination),
    "publish": get_args(Publish),
    "surplus": get_args(Surplus),
    "order": get_args(Order),
}


class Answer(enum.Enum):
    """The answer to an admission question (chapter, section 4.1)."""

    OK = "ok"
    """Done: the storage is reserved."""
    LATER = "later"
    """Refused, nothing changed: waiting for others to finish can help."""
    NEVER = "never"
    """Refused, nothing changed: no amount of waiting helps."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a factory is asked to build.  Counts are usable ids: reserved ones come on top.

    ``surplus`` of the declaration may still round what a request owns; ``seed`` is for
    implementations that choose at random and must then choose the same again.
    """

    blocks: int = 7
    block_size: int = 4
    max_requests: int = 4
    state_slots: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("blocks", 1), ("block_size", 1), ("max_requests", 1), ("state_slots", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"Configuration.{name} is {value!r}: a whole number of at least {least} is needed")


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy that the implementation queued and that has not been observed complete.

    ``rows`` counts the rows copied from the start of the block (for a state slot: the whole slot,
    0).  ``destination`` 0 means "release the source, copy nothing" (chapter, 4.3.6), unless 0 is usable.
    ``ticket`` names the event that tells when it is done; copies of one operation may share it.
    """

    source: int
    destination: int
    rows: int
    ticket: int
    pool: str = BLOCKS


@dataclass(frozen=True, slots=True)
class Reply:
    """What an operation that asks for storage answers.

    ``hit_rows``: rows from position 0 on whose contents are already there (shared or cached).
    ``copies``: device copies of this operation, queued or done already (then the implementation has no
    capability ``copies``); a child's private tail is filled by nothing else.  ``evicted``: cached blocks whose contents
    were dropped to make room, ``None`` when the implementation does not say.
    """

    answer: Answer
    hit_rows: int = 0
    copies: tuple[Copy, ...] = ()
    evicted: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool, observed at a quiet point: everything the rules need to know about it."""

    usable: frozenset[int]
    """Ids that a request may own.  Reserved ids are not among them."""
    free: Sequence[int]
    """Ids that may be issued next, in hand-out order where that is known; duplicates must show."""
    tables: Mapping[str, Sequence[int]]
    """Block table of every request that owns something (or may: the table can be empty)."""
    reserved: frozenset[int] = frozenset()
    """Null, padding and scratch ids: they may sit in tables as placeholders, nowhere else."""
    evictable: frozenset[int] = frozenset()
    """Ids that nobody owns and whose contents can still be hit; inside ``free`` or outside it."""
    holds: Mapping[Hashable, Sequence[int]] = field(default_factory=dict)
    """Every other owner by name: pin, cache node, copy endpoint, deferred release, holder.

    What ``pin`` and ``hold`` named stands here under exactly that name."""
    counts: Mapping[int, int] | None = None
    """Owner counts where the implementation keeps them; an absent key is an unknown count."""
    keys: Mapping[int, Hashable] | None = None
    """Content key of each block that can be hit, where the implementation has a prefix cache."""
    committed: Mapping[str, int] | None = None
    """Committed count of each request, where the implementation keeps it."""
    queued: Sequence[int] | None = None
    """Tickets of the copies in this pool that are not done; needed where copies are ``cancelled``."""


Snapshot = Mapping[str, Pool]
"""One :class:`Pool` per pool name (``"blocks"``, ``"slots"``, ``"records"``)."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an implementation promises.  Declared, then checked; the defaults suit a plain allocator.

    ``release_rule``: when the source of a queued copy may be released: ``event``, after the copy
    was observed complete; ``stream``, at once, because every later writer runs on the same stream.
    ``destination``: what protects the destination of a queued copy (see ``spec/README.md``).
    ``publish``: when the contents of a block become visible to the prefix cache.
    ``surplus``: what a table may hold beyond its need.  ``never``: whether NEVER is ever answered.
    ``order``: the hand-out order of the free list, certified only if declared.
    ``capabilities``: names of optional protocols; ``None`` means "those whose methods are there".
    """

    release_rule: ReleaseRule = "event"
    destination: Destination = "ordered"
    publish: Publish = "never"
    surplus: Surplus = "exact"
    never: bool = False
    order: Order = "none"
    capabilities: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"Declaration.{name} is {getattr(self, name)!r}: choose one of {', '.join(choices)}")
        if not isinstance(self.never, bool):
            raise ValueError(f"Declaration.never is {self.never!r}: True or False belongs there")
        if self.capabilities is not None:
            if isinstance(self.capabilities, str):
                raise ValueError(f"Declaration.capabilities is {self.capabilities!r}: a set of names belongs there")
            object.__setattr__(self, "capabilities", frozenset(self.capabilities))


@runtime_checkable
class Allocator(Protocol):
    """The minimum.  A class that has these five methods is an allocator; nothing is inherited."""

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Reserve storage for the whole prompt ``tokens`` of a new request, or refuse.

        ``Reply.hit_rows`` says how many leading rows are already there (prefix cache).
        """

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Append ``tokens`` to a live request and reserve ``drafts`` positions behind them.

        The table must then cover history + in-flight + drafts; surplus goes back as declared.
        """

    def commit(self, request: str, rows: int) -> None:
        """A step is done: positions below ``rows`` (absolute) are valid, drafts above are dropped."""

    def release(self, request: str, reason: Reason) -> None:
        """The request gives back all that it owns; its name may be used again afterwards."""

    def snapshot(self) -> Snapshot:
        """Observe the pools.  Must not change anything."""


@runtime_checkable
class Forks(Protocol):
    """Capability ``forks``: a child request continues the parent's prefix."""

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """Start ``child`` with the first ``rows`` positions of ``parent`` (``rows`` <= committed)."""


@runtime_checkable
class Copies(Protocol):
    """Capability ``copies``: queued copies, and sources released only after them."""

    def complete(self, tickets: Sequence[int]) -> None:
        """The host observed that these copies are done; what was held for them may go."""


@runtime_checkable
class Drafts(Protocol):
    """Capability ``drafts``: ``extend(..., drafts=k)`` with k > 0 is supported.  A marker."""

    supports_drafts: bool


@runtime_checkable
class Advances(Protocol):
    """Capability ``advances``: an optimistic count before ``commit`` settles it (section 4.3.5)."""

    def advance(self, request: str, rows: int) -> None:
        """``rows`` more positions were evaluated; the next ``commit`` says how many count."""


@runtime_checkable
class Pins(Protocol):
    """Capability ``pins``: one more owner, by name."""

    def pin(self, request: str, name: str) -> Reply:
        """``name`` becomes an owner of every block in the request's table."""

    def unpin(self, name: str) -> None:
        """``name`` gives up what it pinned."""


@runtime_checkable
class Steps(Protocol):
    """Capability ``steps``: forward passes enter and leave a device stream of the implementation."""

    def submit(self, request: str) -> int:
        """Queue the step that writes the reserved rows not yet written; returns its ticket."""

    def complete(self, tickets: Sequence[int]) -> None:
        """As in :class:`Copies`: these tickets were observed done."""


@runtime_checkable
class Rows(Protocol):
    """Capability ``rows``: the contents can be read back, as stamps."""

    def read(self, request: str) -> Sequence[int]:
        """Token stamps of the committed rows, position 0 first, as a step would read them now."""


@runtime_checkable
class StateSlots(Protocol):
    """Capability ``slots``: a second pool, one slot a request, in ``snapshot()["slots"]``.  A marker."""

    supports_slots: bool


@runtime_checkable
class PrefixCache(Protocol):
    """Capability ``cache``: contents of unowned blocks can be hit by a later ``admit``."""

    def evict(self, blocks: int) -> int:
        """Drop the contents of ``blocks`` cached blocks, or of all there are; returns how many were dropped.

        An implementation that evicts all or nothing may drop more.
        """


@runtime_checkable
class Holders(Protocol):
    """Capability ``holders``: an external owner (connector, storage) that acknowledges later."""

    def hold(self, request: str, holder: str) -> Reply:
        """``holder`` starts to read every block in the request's table."""

    def ack(self, holder: str) -> None:
        """``holder`` is done."""


@runtime_checkable
class Tiers(Protocol):
    """Capability ``tiers``: a request's contents move between memories."""

    def move(self, request: str, tier: str) -> Reply:
        """Move the request to ``tier`` (``"host"`` or ``"device"``)."""


@runtime_checkable
class Records(Protocol):
    """Capability ``records``: pooled output records, recycled at a later synchronisation point."""

    def take(self, request: str, value: Any) -> int:
        """Build an output record that holds ``value``; returns its address."""

    def clone(self, address: int) -> Any:
        """An independent copy of the record's value (section 4.3.9)."""

    def recycle(self) -> None:
        """A synchronisation point: records handed out before it may be reused from here on."""


@runtime_checkable
class Strict(Protocol):
    """Capability ``strict``: misuse can be provoked, to see that it is refused."""

    def probe(self, request: str, misuse: str) -> bool:
        """Try one of :data:`MISUSES` against the request; True when it was refused."""


@runtime_checkable
class Closes(Protocol):
    """Optional: called once when the harness is done with the allocator."""

    def close(self) -> None:
        """Give back what the allocator itself holds (threads, memory)."""


MISUSES = ("release_twice", "pin_free_block", "release_foreign_block", "release_reserved_block")
"""What :meth:`Strict.probe` can be asked to try."""

Factory = Callable[[Configuration], Allocator]
"""A target: builds a fresh allocator."""

CAPABILITIES: Mapping[str, type] = {
    "forks": Forks,
    "copies": Copies,
    "drafts": Drafts,
    "advances": Advances,
    "pins": Pins,
    "steps": Steps,
    "rows": Rows,
    "slots": StateSlots,
    "cache": PrefixCache,
    "holders": Holders,
    "tiers": Tiers,
    "records": Records,
    "strict": Strict,
}
"""Every optional capability by name."""


class NotAnAllocator(TypeError):
    """The object lacks the minimum, or a capability that it declares."""


def declaration_of(allocator: Allocator) -> Declaration:
    """The allocator's ``declaration`` attribute, or the defaults.

    Raises :class:`NotAnAllocator` when the attribute is something else.
    """
    declared = getattr(allocator, "declaration", None)
    if declared is None:
        return Declaration()
    if not isinstance(declared, Declaration):
        raise NotAnAllocator(
            f"{type(allocator).__name__}.declaration is a {type(declared).__name__}: "
            "set it to a kvproof.model.interface.Declaration, or leave it out for the defaults"
        )
    return declared


def capabilities_of(allocator: Allocator) -> frozenset[str]:
    """Names of the optional capabilities: those declared, or those whose methods are there.

    A marker attribute (``supports_drafts``, ``supports_slots``) counts only when it is true.
    Raises :class:`NotAnAllocator` when a minimum method is missing or a declared capability has
    no methods.
    """
    if not isinstance(allocator, Allocator):
        lacking = [n for n in ("admit", "extend", "commit", "release", "snapshot") if not hasattr(allocator, n)]
        raise NotAnAllocator(
            f"{type(allocator).__name__} has no {', '.join(lacking)}: an allocator needs admit, extend, commit, "
            "release and snapshot (see kvproof.model.interface.Allocator)"
        )
    present = frozenset(
        name
        for name, protocol in CAPABILITIES.items()
        if isinstance(allocator, protocol) and getattr(allocator, f"supports_{name}", True)
    )
    declared = declaration_of(allocator).capabilities
    if declared is None:
        return present
    if unknown := sorted(declared - CAPABILITIES.keys()):
        raise NotAnAllocator(
            f"{type(allocator).__name__} declares unknown capabilities {unknown}: known are {sorted(CAPABILITIES)}"
        )
    if hollow := sorted(declared - present):
        raise NotAnAllocator(
            f"{type(allocator).__name__} declares {hollow} but lacks the methods: see "
            + ", ".join(f"kvproof.model.interface.{CAPABILITIES[name].__name__}" for name in hollow)
        )
    return declared
