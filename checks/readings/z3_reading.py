"""The Z3 reading: sorts are uninterpreted, relations are functions to Bool, numbers are integers.

Nothing bounds the number of blocks, requests, rows or pieces of work.  A post-state needs no axioms:
the text gives its relations as formulas over the pre-state, and those are translated.
"""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec import language as L
from kvproof.spec.steps import Whole


class Z3Reading:
    """Translates formulas; atoms of states called ``s``, ``given``, ... become functions of that name."""

    def __init__(self) -> None:
        self.sorts: dict[str, Any] = {}
        self.functions: dict[tuple[str, str], Any] = {}
        self.orders: dict[str, Any] = {}
        self.wholes: dict[str, Any] = {}
        self._constants: dict[int, tuple[L.Variable, Any]] = {}
        self.facts: list[Any] = []
        self._fresh = 0

    # -- names

    def sort(self, sort: L.Sort) -> Any:
        """The Z3 sort."""
        if sort.name not in self.sorts:
            self.sorts[sort.name] = z3.DeclareSort(sort.name)
        return self.sorts[sort.name]

    def function(self, state: str, relation: L.Relation) -> Any:
        """The Z3 function that stands for a relation of a state."""
        name = ("", relation.name) if relation.fixed else (state, relation.name)
        if name not in self.functions:
            target = z3.IntSort() if relation.numeric else z3.BoolSort()
            spelled = f"{name[0]}.{name[1]}" if name[0] else name[1]
            self.functions[name] = z3.Function(spelled, *map(self.sort, relation.sorts), target)
        return self.functions[name]

    def order(self, sort: L.Sort) -> Any:
        """The strict total order of an ordered sort."""
        if sort.name not in self.orders:
            kind = self.sort(sort)
            less = self.orders[sort.name] = z3.Function(f"{sort.name}<", kind, kind, z3.BoolSort())
            a, b, c = z3.Consts("a b c", kind)
            self.facts += [
                z3.ForAll([a], z3.Not(less(a, a))),
                z3.ForAll([a, b, c], z3.Implies(z3.And(less(a, b), less(b, c)), less(a, c))),
                z3.ForAll([a, b], z3.Or(less(a, b), less(b, a), a == b)),
            ]
        return self.orders[sort.name]

    def constant(self, variable: L.Variable) -> Any:
        """The constant (or, under a quantifier, the bound variable) of a variable of the text."""
        found = self._constants.get(id(variable))
        if found is None:
            self._fresh += 1
            made = z3.Const(f"{variable.name}_{self._fresh}", self.sort(variable.sort))
            self._constants[id(variable)] = found = (variable, made)
        return found[1]

    def whole(self, name: str) -> Any:
        """The integer of a theorem about numbers."""
        return self.wholes.setdefault(name, z3.Int(name))

    # -- formulas

    def formula(self, formula: L.Formula) -> Any:
        """The formula as a Z3 term."""
        match formula:
            case L.Truth():
                return z3.BoolVal(formula.value)
            case L.Atom():
                return self.function(formula.state, formula.relation)(*map(self.constant, formula.variables))
            case L.Equal():
                return self.constant(formula.left) == self.constant(formula.right)
            case L.Less():
                return self.order(formula.left.sort)(self.constant(formula.left), self.constant(formula.right))
            case L.Not():
                return z3.Not(self.formula(formula.body))
            case L.And():
                return z3.And([self.formula(part) for part in formula.parts])
            case L.Or():
                return z3.Or([self.formula(part) for part in formula.parts])
            case L.Iff():
                return self.formula(formula.left) == self.formula(formula.right)
            case L.ForAll():
                return z3.ForAll([self.constant(v) for v in formula.variables], self.formula(formula.body))
            case L.Exists():
                return z3.Exists([self.constant(v) for v in formula.variables], self.formula(formula.body))
            case L.Compare():
                left, right = self.number(formula.left), self.number(formula.right)
                return left == right if formula.op == "==" else left < right if formula.op == "<" else left <= right
        raise L.SpecError(f"first-order logic has no {type(formula).__name__}")

    def number(self, number: L.Number) -> Any:
        """The number as a Z3 integer."""
        match number:
            case L.Literal():
                return z3.IntVal(number.value)
            case Whole():
                return self.whole(number.name)
            case L.Measure():
                return self.function(number.state, number.function)(*map(self.constant, number.variables))
            case L.Choice():
                return z3.If(self.formula(number.condition), self.number(number.then), self.number(number.otherwise))
            case L.Arithmetic():
                left, right = self.number(number.left), self.number(number.right)
                match number.op:
                    case "+":
                        return left + right
                    case "-":
                        return left - right
                    case "*":
                        return left * right
                    case "//":
                        return left / right
                    case _:
                        return left % right
        raise L.SpecError(f"first-order logic has no {type(number).__name__}: only finite readings count")


def new_solver(milliseconds: int | None = None) -> z3.Solver:
    """A solver that leaves Ctrl-C to Python, with an optional time limit."""
    solver = z3.Solver()
    solver.set("ctrl_c", False)
    if milliseconds is not None:
        solver.set("timeout", milliseconds)
    return solver
