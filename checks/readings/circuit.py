"""Boolean circuits: what a formula becomes when every sort is a small finite set.

Nodes are numbers.  Equal nodes are one node, constants are folded, so two formulas that say the same
thing in the same way cost once.  Node 0 is false, node 1 is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FALSE, TRUE = 0, 1
CONSTANT, VARIABLE, NOT, AND, OR = range(5)


class Circuit:
    """A growing set of nodes: ``kind``, ``left`` and ``right`` of each, by number."""

    def __init__(self) -> None:
        self.kind: list[int] = [CONSTANT, CONSTANT]
        self.left: list[int] = [0, 1]
        self.right: list[int] = [0, 0]
        self._known: dict[tuple[int, int, int], int] = {}
        self._variables = 0

    def _node(self, kind: int, left: int, right: int) -> int:
        key = (kind, left, right)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.kind)
            self.kind.append(kind)
            self.left.append(left)
            self.right.append(right)
        return found

    def variable(self) -> int:
        """A new input."""
        self._variables += 1
        return self._node(VARIABLE, self._variables - 1, 0)

    def negate(self, a: int) -> int:
        """Not a."""
        if a <= TRUE:
            return 1 - a
        return self.left[a] if self.kind[a] == NOT else self._node(NOT, a, 0)

    def both(self, a: int, b: int) -> int:
        """a and b."""
        if a > b:
            a, b = b, a
        if a == FALSE:
            return FALSE
        if a in (TRUE, b):
            return b
        if self.kind[b] == NOT and self.left[b] == a:
            return FALSE
        if self.kind[a] == NOT and self.left[a] == b:
            return FALSE
        return self._node(AND, a, b)

    def either(self, a: int, b: int) -> int:
        """a or b."""
        if a > b:
            a, b = b, a
        if a == TRUE:
            return TRUE
        if a in (FALSE, b):
            return b
        if self.kind[b] == NOT and self.left[b] == a:
            return TRUE
        if self.kind[a] == NOT and self.left[a] == b:
            return TRUE
        return self._node(OR, a, b)

    def every(self, parts: Iterable[int]) -> int:
        """All parts; contradicting parts are noticed."""
        seen: set[int] = set()
        for part in parts:
            if part == FALSE:
                return FALSE
            if part == TRUE or part in seen:
                continue
            if self.negate(part) in seen:
                return FALSE
            seen.add(part)
        result = TRUE
        for part in sorted(seen):
            result = self.both(result, part)
        return result

    def any(self, parts: Iterable[int]) -> int:
        """At least one part."""
        return self.negate(self.every([self.negate(part) for part in parts]))

    def same(self, a: int, b: int) -> int:
        """a if and only if b."""
        return self.either(self.both(a, b), self.both(self.negate(a), self.negate(b)))

    def choose(self, condition: int, then: int, otherwise: int) -> int:
        """``then`` where the condition holds, ``otherwise`` elsewhere."""
        return self.either(self.both(condition, then), self.both(self.negate(condition), otherwise))

    def cone(self, roots: Iterable[int]) -> list[int]:
        """All nodes that the roots depend on, each after what it depends on."""
        order: list[int] = []
        seen: set[int] = set()
        for root in roots:
            stack = [root]
            while stack:
                node = stack[-1]
                if node in seen:
                    stack.pop()
                    continue
                waiting = [below for below in self.below(node) if below not in seen]
                if waiting:
                    stack.extend(waiting)
                else:
                    seen.add(node)
                    order.append(node)
                    stack.pop()
        return order

    def below(self, node: int) -> Sequence[int]:
        """What the node is computed from."""
        kind = self.kind[node]
        if kind == NOT:
            return (self.left[node],)
        if kind in (AND, OR):
            return (self.left[node], self.right[node])
        return ()

    def evaluate(self, node: int, inputs: dict[int, bool]) -> bool:
        """The value of a node for given values of the input nodes (absent ones are false)."""
        values: dict[int, bool] = {}
        for here in self.cone([node]):
            kind = self.kind[here]
            if kind == CONSTANT:
                values[here] = here == TRUE
            elif kind == VARIABLE:
                values[here] = inputs.get(here, False)
            elif kind == NOT:
                values[here] = not values[self.left[here]]
            elif kind == AND:
                values[here] = values[self.left[here]] and values[self.right[here]]
            else:
                values[here] = values[self.left[here]] or values[self.right[here]]
        return values[node]
