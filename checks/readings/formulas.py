"""Questions about a formula that every reading asks: which variables are free, which relations it reads."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.spec import language as L


def free_variables(node: L.Formula | L.Number) -> frozenset[L.Variable]:
    """The variables that the node leaves open."""
    match node:
        case L.Atom() | L.Measure():
            return frozenset(node.variables)
        case L.Equal() | L.Less():
            return frozenset((node.left, node.right))
        case L.Not():
            return free_variables(node.body)
        case L.And() | L.Or():
            return frozenset[L.Variable]().union(*(free_variables(part) for part in node.parts))
        case L.Iff() | L.Compare() | L.Arithmetic():
            return free_variables(node.left) | free_variables(node.right)
        case L.ForAll() | L.Exists() | L.HowMany():
            return free_variables(node.body) - frozenset(node.variables)
        case L.Choice():
            return free_variables(node.condition) | free_variables(node.then) | free_variables(node.otherwise)
        case _:
            return frozenset()


def atoms_of(node: L.Formula | L.Number) -> Iterator[tuple[str, L.Relation]]:
    """All (state, relation) pairs that a formula reads, with repetitions."""
    match node:
        case L.Atom():
            yield node.state, node.relation
        case L.Measure():
            yield node.state, node.function
        case L.Not() | L.ForAll() | L.Exists() | L.HowMany():
            yield from atoms_of(node.body)
        case L.And() | L.Or():
            for part in node.parts:
                yield from atoms_of(part)
        case L.Iff() | L.Compare() | L.Arithmetic():
            yield from atoms_of(node.left)
            yield from atoms_of(node.right)
        case L.Choice():
            yield from atoms_of(node.condition)
            yield from atoms_of(node.then)
            yield from atoms_of(node.otherwise)
        case _:
            return


def reads(*formulas: L.Formula) -> frozenset[str]:
    """Names of the relations that formulas read, in whatever state."""
    return frozenset(relation.name for formula in formulas for _, relation in atoms_of(formula))


def counts(node: L.Formula | L.Number) -> bool:
    """Does the formula count things (``how_many``)?  First-order logic cannot."""
    match node:
        case L.HowMany():
            return True
        case L.Not() | L.ForAll() | L.Exists():
            return counts(node.body)
        case L.And() | L.Or():
            return any(counts(part) for part in node.parts)
        case L.Iff() | L.Compare() | L.Arithmetic():
            return counts(node.left) or counts(node.right)
        case L.Choice():
            return counts(node.condition) or counts(node.then) or counts(node.otherwise)
        case _:
            return False


def premise_of(formula: L.Formula) -> L.Formula:
    """What must be there for a clause to say anything: of ``forall x: p -> q``, that some ``x`` has ``p``."""
    if isinstance(formula, L.ForAll):
        return L.Exists(formula.variables, premise_of(formula.body))
    if isinstance(formula, L.Or) and len(formula.parts) == 2:
        return ~formula.parts[0]
    return L.TRUE
