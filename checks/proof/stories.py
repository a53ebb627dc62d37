"""No reading is vacuous: every action happens in some run, and the premise of every clause is met in one.

The runs are the stories of the spec, replayed on small machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kvproof.checks.proof.unroll import Run, Unrolling, along
from kvproof.checks.readings.formulas import premise_of, reads
from kvproof.checks.readings.ground import tells
from kvproof.checks.readings.machine import Machine, Scope, state_clauses
from kvproof.spec import language as L
from kvproof.spec.language import RULES
from kvproof.spec.modules import MODULES
from kvproof.spec.steps import Module, nothing
from kvproof.spec.stories import LENGTH_STORIES, RECORD_STORIES, STORIES, Story


@dataclass(frozen=True)
class Vacuity:
    """Whether one action or premise was met: ``met_by`` names the story, or is empty."""

    kind: str
    name: str
    met_by: str

    @property
    def vacuous(self) -> bool:
        """Nothing met it."""
        return not self.met_by


def machine_of(module: Module, story: Story) -> Machine:
    """A machine large enough for a story."""
    sizes = {**dict.fromkeys(module.states.sorts, 1), **story.sizes}
    actions = tuple(dict.fromkeys(story.actions))
    return Machine(
        module,
        Scope(
            sizes,
            declared=story.declared,
            slots=story.slots,
            reserved_blocks=story.reserved_blocks,
            actions=actions,
        ),
    )


def check_stories(say: Callable[[str], None]) -> list[Vacuity]:
    """Replay all stories; report every action, and every premise of the storage and record modules."""
    found: list[Vacuity] = []
    for module, stories in ((MODULES["storage"], STORIES), (MODULES["records"], RECORD_STORIES)):
        runs = {story.about: (machine_of(module, story), story) for story in stories}
        told: dict[str, _Told] = {}
        for about, (machine, story) in runs.items():
            unrolling = along(machine, story.actions)
            run = unrolling.solve()
            if run is not None:
                told[about] = _Told(machine, run, unrolling)
            say(f"story: {about} ... {'told' if run else 'IMPOSSIBLE'}")
        found += _actions(module, stories, told)
        found += _premises(module, told)
    found += _lengths(say)
    for vacuity in found:
        if vacuity.vacuous:
            say(f"{vacuity.kind} {vacuity.name} ... never met: what is said of it is empty")
    return found


def _lengths(say: Callable[[str], None]) -> list[Vacuity]:
    """The stories of lengths, which speak of numbers."""
    module = MODULES["lengths"]
    acted: dict[str, str] = {}
    met: dict[str, str] = {}
    for story in LENGTH_STORIES:
        sizes = {**dict.fromkeys(module.states.sorts, 1), **story.sizes}
        told = tells(module, story.actions, sizes, story.declared | {"surplus_exact"})
        say(f"story: {story.about} ... {'told' if told is not None else 'IMPOSSIBLE'}")
        for name, possible in (told or {}).items():
            met[name] = met.get(name, "") or (story.about if possible else "")
        if told is not None:
            acted |= {name: story.about for name in story.actions if name not in acted}
    return [
        *(Vacuity("action", f"lengths.{name}", acted.get(name, "")) for name in module.actions),
        *(Vacuity("premise", name, about) for name, about in met.items()),
    ]


@dataclass(frozen=True)
class _Told:
    """A story on a machine, one run that tells it, and all runs that do."""

    machine: Machine
    run: Run
    runs: Unrolling

    def can_end_in(self, node: int) -> bool:
        """Some run with these actions ends in a state in which the node is true."""
        return self.runs.solve(self.runs.moments[-1].term(node)) is not None


def _actions(module: Module, stories: tuple[Story, ...], told: Mapping[str, object]) -> Iterator[Vacuity]:
    for name in module.actions:
        met = [story.about for story in stories if name in story.actions and story.about in told]
        yield Vacuity("action", name, met[0] if met else "")


def _premises(module: Module, told: Mapping[str, _Told]) -> Iterator[Vacuity]:
    wanted = {f"{n}: {c.broken}": premise_of(c.formula) for n, clauses in state_clauses(module) for c in clauses}
    met: dict[str, str] = {}
    for about, story in told.items():
        for name, premise in wanted.items():
            if name not in met and not _numbers(premise) and _seen(story, story.machine.node(premise)):
                met[name] = about
        for name, about_step in _step_premises(module, story.machine, story.run):
            if name not in met and about_step:
                met[name] = about
    for about, story in told.items():
        for name, premise in wanted.items():
            if name not in met and not _numbers(premise) and story.can_end_in(story.machine.node(premise)):
                met[name] = about
    for name in [*wanted, *_step_names(module)]:
        yield Vacuity("premise", name, met.get(name, ""))


def _numbers(formula: L.Formula) -> bool:
    return any(relation in reads(formula) for relation in ("listed", "count", "generation", "seen"))


def _seen(story: _Told, node: int) -> bool:
    machine = story.machine
    inputs = dict(zip(machine.cells, machine.inputs, strict=True))
    return any(machine.circuit.evaluate(node, {inputs[cell]: True for cell in state}) for state in story.run.states)


def _step_names(module: Module) -> list[str]:
    return [
        f"{name}: {clause.broken}"
        for name, clause in _step_clauses(module, module.states.state("s"), nothing("event", module.events))
    ]


def _step_clauses(
    module: Module, s: L.State, event: L.State, t: L.State | None = None
) -> Iterator[tuple[str, L.Clause]]:
    for name in module.rules:
        if RULES[name].step:
            for i, clause in enumerate(RULES[name].clauses(s, event, t or s)):
                if (name, i) not in module.not_carried:
                    yield name, clause


def _step_premises(module: Module, machine: Machine, run: Run) -> Iterator[tuple[str, bool]]:
    """For each step of the run, whether the premises of the step rules hold in it."""
    inputs = dict(zip(machine.cells, machine.inputs, strict=True))
    s = module.states.state("s")
    for happened, before in zip(run.steps, run.states, strict=False):
        action = module.actions[happened.action]
        step = action.step(s, module.choices.state("given"), nothing("event", module.events))
        env = dict(zip(action.variables, (number for _, number in happened.things), strict=True))
        for name, clause in _step_clauses(module, s, step.event, step.after):
            premise = premise_of(clause.formula)
            if _numbers(premise):
                continue
            node = machine.reading().formula(premise, env)
            values = {inputs[cell]: True for cell in before}
            values |= {n: True for n, cell in machine.choice_names().items() if cell in happened.chosen}
            yield f"{name}: {clause.broken}", machine.circuit.evaluate(node, values)
