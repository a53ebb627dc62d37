"""The set reading says what the text says: checked against plain enumeration on random small states."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Mapping
from typing import Any

import pytest

from kvproof.checks.readings.sets import CompiledRule, Facts, RuleBook
from kvproof.spec import EVENT, RULES, STATE
from kvproof.spec import language as L

UNIVERSE: Mapping[str, tuple[Any, ...]] = {
    "request": ("A", "B"),
    "index": (0, 1),
    "block": (0, 1, 2),
    "offset": (0, 1),
    "work": ("copy", "step"),
    "holder": ("pin", "node"),
    "key": ("k",),
    "record": (1, 2),
}


def random_facts(rnd: random.Random, vocabulary: L.Vocabulary) -> Facts:
    """Each relation gets few tuples, so that premises are sometimes true and sometimes not."""
    relations, measures = {}, {}
    densities = rnd.choice(((0.02, 0.1, 0.3, 0.7, 0.97), (0.0, 0.02)))
    for name, relation in vocabulary.relations.items():
        rows = list(itertools.product(*(UNIVERSE[sort.name] for sort in relation.sorts)))
        if relation.numeric:
            measures[name] = {row: rnd.randint(-1, 3) if name == "count" else rnd.randint(1, 3) for row in rows}
        else:
            density = rnd.choice(densities)
            relations[name] = [row for row in rows if rnd.random() < density]
    return Facts(relations, measures, vocabulary=vocabulary)


def truth(formula: L.Formula, env: dict[int, Any], states: Mapping[str, Facts]) -> bool:
    """The meaning of a formula by enumeration: slow, and as plain as it gets."""
    match formula:
        case L.Truth():
            return formula.value
        case L.Atom():
            row = tuple(env[id(v)] for v in formula.variables)
            return row in states[formula.state].table(formula.relation.name).rows
        case L.Equal():
            return bool(env[id(formula.left)] == env[id(formula.right)])
        case L.Less():
            return bool(env[id(formula.left)] < env[id(formula.right)])
        case L.Not():
            return not truth(formula.body, env, states)
        case L.And():
            return all(truth(part, env, states) for part in formula.parts)
        case L.Or():
            return any(truth(part, env, states) for part in formula.parts)
        case L.Iff():
            return truth(formula.left, env, states) == truth(formula.right, env, states)
        case L.Compare():
            left, right = number(formula.left, env, states), number(formula.right, env, states)
            return {"==": left == right, "<": left < right, "<=": left <= right}[formula.op]
        case L.ForAll():
            return all(truth(formula.body, extended, states) for extended in choices(formula.variables, env))
        case L.Exists():
            return any(truth(formula.body, extended, states) for extended in choices(formula.variables, env))
    raise AssertionError(type(formula))


def choices(variables: tuple[L.Variable, ...], env: dict[int, Any]) -> list[dict[int, Any]]:
    values = itertools.product(*(UNIVERSE[v.sort.name] for v in variables))
    return [env | {id(v): x for v, x in zip(variables, row, strict=True)} for row in values]


def number(term: L.Number, env: dict[int, Any], states: Mapping[str, Facts]) -> Any:
    match term:
        case L.Literal():
            return term.value
        case L.Measure():
            return states[term.state].number(term.function.name, tuple(env[id(v)] for v in term.variables))
        case L.Arithmetic():
            left, right = number(term.left, env, states), number(term.right, env, states)
            names = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
            return getattr(operator, names[term.op])(left, right)
        case L.HowMany():
            return sum(truth(term.body, extended, states) for extended in choices(term.variables, env))
    raise AssertionError(type(term))


@pytest.mark.parametrize("name", list(RULES))
def test_every_clause_is_read_on_sets_as_enumeration_reads_it(name: str) -> None:
    rule = RULES[name]
    vocabularies = {"s": STATE, "event": EVENT, "t": STATE} if rule.step else {"s": STATE}
    clauses = rule.clauses(*(vocabulary.state(state) for state, vocabulary in vocabularies.items()))
    compiled = CompiledRule(rule)
    rnd = random.Random(name)
    seen: list[set[bool]] = [set() for _ in clauses]
    for _ in range(200):
        states = {state: random_facts(rnd, vocabulary) for state, vocabulary in vocabularies.items()}
        for at, clause in enumerate(clauses):
            holds = truth(clause.formula, {}, states)
            found = list(compiled.clauses[at].breaches(states))
            assert holds == (not found), f"{name}, clause {at}: enumeration says {holds}"
            seen[at].add(holds)
    # Otherwise the comparison would say nothing about a clause that is always kept, or always broken.
    assert seen == [{True, False}] * len(clauses)


def test_a_breach_names_the_things_that_break_the_rule() -> None:
    facts = Facts(
        {"usable": [(1,), (2,)], "free": [(1,), (2,)], "live": [("A",)], "table": [("A", 0, 1)]},
        {"listed": {(1,): 1, (2,): 1}, "block_size": {(): 4}, "entries": {("A",): 1}, "history": {("A",): 1}},
    )
    (breach,) = RuleBook(RULES.values()).first_breaches(None, None, facts)
    assert (breach.rule, str(breach)) == ("owned_xor_free", "block 1 is owned and may be issued again")


def test_a_rule_is_not_evaluated_again_while_nothing_it_reads_has_changed() -> None:
    book = RuleBook([RULES["cache_tells_the_truth"]])
    first = Facts({"key": [(1, "k")], "matches": [(1, "k")]})
    assert book.first_breaches(None, None, first) == []
    same = Facts({"key": [(1, "k")], "matches": [(1, "k")], "free": [(2,)]}, last=first)
    assert same.table("key") is first.table("key")
    assert book.first_breaches(None, None, same) == []
    changed = Facts({"key": [(1, "k")], "matches": []}, last=same)
    assert [breach.rule for breach in book.first_breaches(None, None, changed)] == ["cache_tells_the_truth"]


def test_an_owner_counts_once_however_often_its_table_names_the_block() -> None:
    sliding = Facts(
        {"table": [("A", 0, 1), ("A", 1, 1)], "counted": [(1,)]},
        {"count": {(1,): 1}},
    )
    assert RuleBook([RULES["counts_match_owners"]]).first_breaches(None, None, sliding) == []


def test_a_relation_that_the_vocabulary_lacks_is_refused_by_name() -> None:
    with pytest.raises(L.SpecError, match="ownership"):
        Facts({"ownership": [("A", 1)]})
