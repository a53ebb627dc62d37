"""Every way to use the model wrongly, by name.  A misuse is refused and changes nothing.

Messages follow one pattern: who offends, why it cannot be, what to do instead, and the rule of the
rule book that stands behind it.  Running out of storage is not a misuse: it is the answer LATER or
NEVER (:class:`kvproof.model.interface.Answer`).
"""

from __future__ import annotations


class Misuse(ValueError):
    """Base of all misuses; ``rule`` names the rule of the rule book that forbids it."""

    rule = "only_owners_release"

    def __init__(self, offender: str, reason: str, repair: str) -> None:
        super().__init__(f"{offender}: {reason}; {repair} (rule {self.rule})")


class ReservedBlock(Misuse):
    """Id 0 was named.  It is never issued, so nobody can own it (chapter, 4.1)."""

    rule = "reserved_ids_untouched"

    def __init__(self) -> None:
        super().__init__("block 0", "it is reserved and never issued", "0 means 'no block': leave it out")


class ForeignBlock(Misuse):
    """The id does not belong to the pool."""

    def __init__(self, block: object, usable: int) -> None:
        super().__init__(f"block {block!r}", f"this pool issues 1 to {usable}", "use ids that this pool handed out")


class DoubleRelease(Misuse):
    """A release of a block that has no owner left."""

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block}", "it has no owner left", "release it once for each owner")


class PinOfFreeBlock(Misuse):
    """A pin of a block that nobody owns: sharing must start from a live block (chapter, 4.3.2)."""

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block}", "it is free, so its contents belong to nobody", "pin only owned blocks")


class PoolExhausted(Misuse):
    """More blocks were taken than are free.  Ask ``answer`` first: running out is an answer."""

    rule = "progress"

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"allocate({wanted})", f"{free} blocks are free", "ask answer() first and wait on LATER")


class WrongAmount(Misuse):
    """A negative number of blocks, positions or rows."""

    rule = "table_covers_need"

    def __init__(self, what: str, amount: object) -> None:
        super().__init__(f"{what} = {amount!r}", "it must be a whole number of at least 0", "count positions from 0")


class UnknownRequest(Misuse):
    """The request is not live: never admitted, or released already."""

    def __init__(self, name: object) -> None:
        super().__init__(f"request {name!r}", "it is not live, so it owns nothing", "admit or fork it first")


class NameTaken(Misuse):
    """A new owner wants a name that a live owner has."""

    rule = "counts_match_owners"

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(f"{kind} {name!r}", "the name belongs to a live owner", "release that one or choose another")


class UnknownOwner(Misuse):
    """A pin or holder that does not exist gives something up."""

    def __init__(self, name: object) -> None:
        super().__init__(f"pin {name!r}", "it holds nothing", "take hold first, give up once")


class UnknownTicket(Misuse):
    """A copy or step that is not pending."""

    rule = "reads_keep_their_source"

    def __init__(self, ticket: object) -> None:
        super().__init__(f"ticket {ticket!r}", "no queued work has it", "use each ticket of a reply once")


class EventNotObserved(Misuse):
    """The source of a copy was to be released before the copy's event was observed (chapter, 4.3.7)."""

    rule = "reads_keep_their_source"

    def __init__(self, ticket: int) -> None:
        super().__init__(f"copy {ticket}", "its event was not observed, it may still read", "complete it first")


class ForkBeyondCommitted(Misuse):
    """A child wants rows that are not settled yet, or none at all."""

    rule = "no_read_before_fill"

    def __init__(self, parent: str, rows: int, settled: int) -> None:
        super().__init__(
            f"fork of {rows} rows of {parent!r}", f"1 to {settled} rows are committed and settled", "commit first"
        )


class UnsettledAdvance(Misuse):
    """A second optimistic advance before the first was settled (chapter, 4.3.5)."""

    rule = "advance_settles_once"

    def __init__(self, name: str) -> None:
        super().__init__(f"request {name!r}", "its last advance is not settled", "commit before the next advance")


class CommitOutOfRange(Misuse):
    """A commit below what is settled already, or above what was reserved or evaluated."""

    rule = "advance_settles_once"

    def __init__(self, name: str, rows: int, least: int, most: int) -> None:
        super().__init__(f"commit of {rows} rows of {name!r}", f"{least} to {most} are possible", "count from 0")


class AdvanceBeyondReserve(Misuse):
    """An advance over positions that nobody reserved."""

    rule = "table_covers_need"

    def __init__(self, name: str, rows: int, reserved: int) -> None:
        super().__init__(f"advance of {name!r} to {rows} rows", f"{reserved} are reserved", "extend first")


class StaleRecord(Misuse):
    """A reader kept the address of a record without cloning it, and the record is gone (chapter, 4.3.9)."""

    rule = "records_outlive_readers"

    def __init__(self, address: int) -> None:
        super().__init__(f"record {address}", "it was recycled since it was handed out", "clone before the sync point")


class NoPrefixCache(Misuse):
    """The engine was built without a prefix cache."""

    rule = "cache_tells_the_truth"

    def __init__(self) -> None:
        super().__init__("this engine", "it has no prefix cache", "build it with cache=True")
