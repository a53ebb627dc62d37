"""``kvproof prove``: the rules and theorems of the spec, for any number of blocks, requests and steps.

Induction: a sentence that holds in the empty system, and that every action keeps, holds in every
reachable state.  Each question goes to Z3 with nothing bounded; "proved" means that Z3 showed that no
counterexample of any size exists.

A proof of nothing is worth nothing: :mod:`kvproof.checks.proof.stories` shows that every action can happen
and that the premise of every clause is met in some reachable state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import z3

from kvproof.checks.proof.obligations import START, Obligation, at_the_start, of_action, premises, step_of
from kvproof.checks.proof.small import small_counterexample
from kvproof.checks.proof.stories import Vacuity, check_stories
from kvproof.checks.readings.spec_errors import UnknownName
from kvproof.checks.readings.z3_reading import Z3Reading, new_solver
from kvproof.spec.language import RULES, State
from kvproof.spec.modules import MODULES, NUMBER_THEOREMS
from kvproof.spec.mutants import MUTANTS, Mutant
from kvproof.spec.steps import FALSE_STATEMENTS, Module, Theorem

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
CERTIFIED, VIOLATED, UNDETERMINED = "certified", "violated", "undetermined"

Log = Callable[[str], None]
"""Where the proof log goes, a line at a time."""

ANY_SIZE = {
    "storage": "any size: blocks, requests, rows, queued work, holders, keys",
    "lengths": "any size: all whole numbers, any number of requests",
    "records": "any size: records, generations",
}
INTEGERS = "any size: all whole numbers"
STANDS_FOR = {"counts_match_owners": ("free_means_no_owner", "only_named_owners_change")}
"""Rules that first-order logic cannot state, and the theorems proved in their place."""


@dataclass
class TheoremResult:
    """What became of one theorem: ``verdict`` is proved, refuted or unknown."""

    name: str
    scope: str
    verdict: str
    seconds: float
    obligations: int = 0
    sentence: str = ""
    counterexample: str | None = None


@dataclass
class MutantResult:
    """What the prover says about a mutant: refuted, with the step that fails."""

    name: str
    rule: str
    verdict: str
    seconds: float
    obligation: str = ""
    counterexample: str | None = None


@dataclass
class ProveResult:
    """The whole run.  ``verdict``: certified if all is proved and nothing is vacuous."""

    verdict: str
    theorems: list[TheoremResult]
    seconds: float
    does_not_hold: list[TheoremResult] = field(default_factory=list)
    mutants: list[MutantResult] = field(default_factory=list)
    vacuity: list[Vacuity] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The object that ``kvproof prove --json`` prints."""
        return asdict(self)

    def exit_code(self) -> int:
        """0 certified, 1 violated, 3 undetermined."""
        return {CERTIFIED: 0, VIOLATED: 1}.get(self.verdict, 3)


def prove(
    theorem: str | None = None,
    mutants: bool = False,
    *,
    log: Log | None = None,
    timeout_ms: int = 20_000,
) -> ProveResult:
    """Prove everything, or one rule or theorem; with ``mutants``, show that each mutant is refuted instead.

    Raises :class:`UnknownName` for a theorem that does not exist.
    """
    say = log or (lambda _line: None)
    start = time.perf_counter()
    if theorem is not None and theorem not in theorem_names():
        raise UnknownName(f"no theorem is called {theorem!r}: choose one of {', '.join(theorem_names())}")
    if mutants:
        return _prove_mutants(say, start, timeout_ms)
    results = [result for module in MODULES.values() for result in _prove_module(module, theorem, say, timeout_ms)]
    results += [_prove_numbers(t, say, timeout_ms) for t in NUMBER_THEOREMS if theorem in (None, t.name)]
    false = [_refute_numbers(t, say, timeout_ms) for t in FALSE_STATEMENTS.values() if theorem in (None, t.name)]
    vacuity = [] if theorem is not None else check_stories(say)
    return ProveResult(_verdict(results, false, vacuity), results, time.perf_counter() - start, false, [], vacuity)


def theorem_names() -> list[str]:
    """Rules, theorems and false statements, in reading order."""
    names = [name for module in MODULES.values() for name in (*module.rules, *(t.name for t in module.theorems))]
    return [*names, *(t.name for t in NUMBER_THEOREMS), *FALSE_STATEMENTS]


def _verdict(results: Sequence[TheoremResult], false: Sequence[TheoremResult], vacuity: Sequence[Vacuity]) -> str:
    if any(result.verdict == REFUTED for result in results) or any(v.vacuous for v in vacuity):
        return VIOLATED
    if any(result.verdict != PROVED for result in results) or any(result.verdict != REFUTED for result in false):
        return UNDETERMINED
    return CERTIFIED


# ---------------------------------------------------------------------------------------------- induction


class Induction:
    """The obligations of one module, asked one action at a time."""

    def __init__(self, module: Module, timeout_ms: int) -> None:
        self.module, self.timeout_ms = module, timeout_ms
        self.reading = Z3Reading()
        self.s: State = module.states.state("s")
        self.known = [self.reading.formula(formula) for formula in premises(module, self.s).formulas]

    def start(self, wanted: set[str] | None = None) -> Iterable[tuple[Obligation, str]]:
        """The obligations of the initial states."""
        assumed = [theorem.formula(self.s) for theorem in self.module.assumes]
        terms = [self.reading.formula(formula) for formula in (self.module.initial(self.s), *assumed)]
        yield from self._ask(at_the_start(self.module, self.s), terms, wanted)

    def action(self, name: str, wanted: set[str] | None = None) -> Iterable[tuple[Obligation, str]]:
        """The obligations of one action."""
        step = step_of(self.module, name, self.s)
        terms = [*self.known, *(self.reading.formula(guard) for guard in step.guards)]
        yield from self._ask(of_action(self.module, name, self.s, step), terms, wanted)

    def _ask(
        self, obligations: Iterable[Obligation], terms: list[Any], wanted: set[str] | None
    ) -> Iterable[tuple[Obligation, str]]:
        solver = new_solver()
        solver.set("timeout", self.timeout_ms)
        solver.add(*terms)
        facts = 0
        for obligation in obligations:
            if wanted is not None and obligation.theorem not in wanted:
                continue
            if obligation.trivial:
                yield obligation, PROVED
                continue
            goal = z3.Not(self.reading.formula(obligation.clause.formula))
            solver.add(*self.reading.facts[facts:])
            facts = len(self.reading.facts)
            solver.push()
            solver.add(goal)
            answer = solver.check()
            solver.pop()
            yield obligation, _word(answer)


def _word(answer: Any) -> str:
    """No counterexample exists: proved.  One was found: refuted.  The solver gave up: unknown."""
    return PROVED if answer == z3.unsat else REFUTED if answer == z3.sat else UNKNOWN


@dataclass
class _Tally:
    """What is known of one theorem so far."""

    verdict: str = PROVED
    seconds: float = 0.0
    obligations: int = 0
    failed: list[Obligation] = field(default_factory=list)

    def add(self, obligation: Obligation, answer: str, seconds: float) -> None:
        self.obligations += 1
        self.seconds += seconds
        if answer != PROVED:
            self.failed.append(obligation)
            self.verdict = REFUTED if REFUTED in (answer, self.verdict) else UNKNOWN


def _prove_module(module: Module, theorem: str | None, say: Log, timeout_ms: int) -> list[TheoremResult]:
    names = [*module.rules, *(t.name for t in module.theorems)]
    if theorem is not None and theorem not in names:
        return []
    wanted = None if theorem is None else {theorem, *STANDS_FOR.get(theorem, ())}
    tallies = {name: _Tally() for name in names}
    induction = Induction(module, timeout_ms)
    say(f"-- {module.name}: {module.about}")
    _record(induction.start(wanted), START, tallies, say)
    for action in module.actions:
        _record(induction.action(action, wanted), action, tallies, say)
    for rule, stands in STANDS_FOR.items():
        if rule in tallies:
            for name in stands:
                for failed in tallies[name].failed:
                    tallies[rule].add(failed, tallies[name].verdict, 0.0)
                tallies[rule].obligations += tallies[name].obligations
                tallies[rule].seconds += tallies[name].seconds
    return [_result(module, name, tallies[name]) for name in names if wanted is None or name == theorem]


def _record(answers: Iterable[tuple[Obligation, str]], action: str, tallies: dict[str, _Tally], say: Log) -> None:
    began = time.perf_counter()
    spoken: dict[str, list[str]] = {}
    for obligation, answer in answers:
        now = time.perf_counter()
        tallies[obligation.theorem].add(obligation, answer, now - began)
        began = now
        spoken.setdefault(obligation.theorem, []).append("unchanged" if obligation.trivial else answer)
    for theorem, heard in spoken.items():
        word = next((w for w in (REFUTED, UNKNOWN, PROVED) if w in heard), "proved (nothing it speaks of changes)")
        verb = "establishes" if action == START else "preserves"
        say(f"{action} {verb} {theorem} ... {word}")


def _result(module: Module, name: str, tally: _Tally) -> TheoremResult:
    sentence = RULES[name].statement if name in RULES else next(t for t in module.theorems if t.name == name).sentence
    counterexample = None
    if tally.failed:
        failed = tally.failed[0]
        small = None if failed.action == START else small_counterexample(module, failed)
        counterexample = f"{failed.action}: {failed.clause.broken}\n{small or '  (no small state was found)'}"
    return TheoremResult(
        name,
        scope_of(module, name),
        tally.verdict,
        round(tally.seconds, 3),
        tally.obligations,
        sentence,
        counterexample,
    )


def scope_of(module: Module, name: str) -> str:
    """How far a proof reaches, with what it leaves to other tools."""
    scope = ANY_SIZE[module.name]
    left = [reason for (rule, _), reason in module.not_carried.items() if rule == name]
    if name in STANDS_FOR:
        scope += f"; in the first-order form of {' and '.join(STANDS_FOR[name])}"
    return scope + "".join(f"; not proved here: {reason}" for reason in dict.fromkeys(left))


# ---------------------------------------------------------------------------------------- whole numbers


def _ask_numbers(theorem: Theorem, timeout_ms: int) -> tuple[str, str | None, float]:
    began = time.perf_counter()
    reading = Z3Reading()
    solver = new_solver()
    solver.set("timeout", timeout_ms)
    solver.add(z3.Not(reading.formula(theorem.formula())))
    answer = solver.check()
    found = None
    if answer == z3.sat:
        model = solver.model()
        values = {name: model.eval(term, model_completion=True) for name, term in reading.wholes.items()}
        found = ", ".join(f"{name} = {value}" for name, value in values.items())
    return _word(answer), found, time.perf_counter() - began


def _prove_numbers(theorem: Theorem, say: Log, timeout_ms: int) -> TheoremResult:
    verdict, found, seconds = _ask_numbers(theorem, timeout_ms)
    say(f"{theorem.name} ... {verdict}" + (f" ({found})" if found else ""))
    return TheoremResult(theorem.name, INTEGERS, verdict, round(seconds, 3), 1, theorem.sentence, found)


def _refute_numbers(theorem: Theorem, say: Log, timeout_ms: int) -> TheoremResult:
    verdict, found, seconds = _ask_numbers(theorem, timeout_ms)
    say(f"{theorem.name} does not hold ... {verdict}" + (f": {found}" if found else ""))
    return TheoremResult(theorem.name, INTEGERS, verdict, round(seconds, 3), 1, theorem.sentence, found)


# ----------------------------------------------------------------------------------------------- mutants


def mutated(mutant: Mutant) -> Module:
    """The mutant's module with its action replaced."""
    return MODULES[mutant.module].with_action(mutant.replaces, mutant.by)


def _prove_mutants(say: Log, start: float, timeout_ms: int) -> ProveResult:
    results = [prove_mutant(mutant, min(timeout_ms, 2_000)) for mutant in MUTANTS.values()]
    for result in results:
        say(f"{result.name} breaks {result.rule} ... {result.verdict}")
    all_refuted = all(result.verdict == REFUTED for result in results)
    proved = any(result.verdict == PROVED for result in results)
    verdict = CERTIFIED if all_refuted else VIOLATED if proved else UNDETERMINED
    return ProveResult(verdict, [], time.perf_counter() - start, [], results)


def prove_mutant(mutant: Mutant, timeout_ms: int = 2_000) -> MutantResult:
    """Ask for the mutant what is asked for the spec.  It is refuted when its action does not keep its rule, or
    a theorem without which the rule is not inductive; the failing step is shown."""
    began = time.perf_counter()
    module = mutated(mutant)
    induction = Induction(module, timeout_ms)
    failed = [(o, a) for o, a in induction.action(mutant.replaces) if a != PROVED]
    own = (mutant.rule, mutant.seen_as)
    failed.sort(key=lambda pair: pair[0].theorem not in own)
    verdict, text, shown = (UNKNOWN if failed else PROVED), "", None
    for obligation, answer in failed:
        small = small_counterexample(module, obligation)
        if small is not None or answer == REFUTED:
            verdict = REFUTED
            text = f"{mutant.replaces} does not preserve {obligation.theorem}: {obligation.clause.broken}"
            shown = None if small is None else str(small)
            break
    return MutantResult(mutant.name, mutant.rule, verdict, round(time.perf_counter() - began, 3), text, shown)


def run(theorem: str | None = None, mutants: bool = False, json_output: bool = False) -> int:
    """The command ``kvproof prove``: prints, and returns the exit code."""
    from kvproof.checks.proof import present

    result = prove(theorem, mutants, log=present.log_to_stderr())
    if json_output:
        present.show_json(result.to_json())
    else:
        present.show_proof(result)
    return result.exit_code()
