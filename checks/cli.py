"""The program ``kvproof``: one typed subcommand for each thing it can do.

Reports for people go to standard output as tables and text; with ``--json`` exactly one JSON object goes
there and everything else to standard error.  Exit codes: 0 holds, 1 violated, 2 usage, input or target
cannot be built, 3 undetermined.  Undetermined is never a pass.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, ParamSpec, TextIO

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvproof.checks.console import silence_stdout, stderr_console, stdout_console

P = ParamSpec("P")

USAGE = 2
"""Exit code for a usage error, an input that cannot be used, or a target that cannot be built."""

app = typer.Typer(
    name="kvproof",
    help=(
        "Certifies KV-cache block allocators: who owns a block, and when it may be reused.\n\n"
        "Start with `kvproof certify` (the built-in model), then `kvproof certify mypackage.module:factory` for your "
        "own. `kvproof targets` lists what can be certified. A violation comes with the shortest run found, as a "
        "program and as a trace that `kvproof replay` runs again.\n\n"
        "Exit codes: 0 holds, 1 violated, 2 usage or target error, 3 undetermined (never a pass)."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
lab_app = typer.Typer(
    help='The two experiments of the chapter "State needs an owner", run on the model.',
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(lab_app, name="lab")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Decides every choice of the run.")]
CallLimit = Annotated[float, typer.Option(min=0.01, max=86_400, help="Seconds that one call to the target may take.")]
Order = Annotated[
    str, typer.Option("--release-order", help="How a list of blocks is released: reverse (as DeepInfer) or forward.")
]
_out = stdout_console()
_err = stderr_console()


def main() -> None:
    """Entry point of the program ``kvproof``."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the program runs
    try:
        app()
    except KeyboardInterrupt:
        _err.print("kvproof: stopped", markup=False)
        sys.exit(130)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()


# --------------------------------------------------------------------------------------------- error lines


def _fail(message: str) -> NoReturn:
    """One clear line on standard error, exit code 2."""
    _err.print(f"kvproof: {' '.join(message.split())}", markup=False)
    raise typer.Exit(USAGE)


def _user_errors() -> tuple[type[BaseException], ...]:
    """Errors that are about what the user gave, not about this program."""
    from kvproof.checks.adapters import registry
    from kvproof.checks.certification.replay import ReplayError
    from kvproof.checks.certification.workload import WorkloadError
    from kvproof.checks.lockstep import harness
    from kvproof.checks.readings.spec_errors import AskedWrong
    from kvproof.model.trace import TraceError

    return harness.TargetError, registry.TargetError, WorkloadError, TraceError, ReplayError, AskedWrong


def _clean(command: Callable[P, None]) -> Callable[P, None]:
    """The command with user errors as one line and exit code 2 instead of a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **named: P.kwargs) -> None:
        try:
            command(*args, **named)
        except _user_errors() as error:
            _fail(str(error))
        except OSError as error:
            _fail(f"{error.filename or 'file'}: {error.strerror or error}")
        except KeyboardInterrupt:
            _err.print("kvproof: stopped", markup=False)
            raise typer.Exit(130) from None
        except typer.Exit:
            raise
        except Exception as error:
            if os.environ.get("KVPROOF_DEBUG"):
                raise
            # Python would exit with 1, which means "violated": an error of this program is no verdict.
            _fail(f"internal error, please report it: {type(error).__name__}: {error} (KVPROOF_DEBUG=1 shows where)")

    return run


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")


# ---------------------------------------------------------------------------------------------------- labs


def _order(value: str) -> Literal["reverse", "forward"]:
    if value == "reverse":
        return "reverse"
    if value == "forward":
        return "forward"
    _fail(f"--release-order {value}: choose reverse or forward")


@lab_app.command("blocks")
@_clean
def lab_blocks(
    drafts: Annotated[int, typer.Option(help="Drafts reserved at length 11 (exercise 1: 5).")] = 2,
    release_order: Order = "reverse",
) -> None:
    """Section 4.1: seven blocks of four positions, two requests, and the answers OK, LATER and NEVER."""
    from kvproof.checks import labs

    _lab(lambda: labs.lab_blocks(drafts, _order(release_order)))


@lab_app.command("share")
@_clean
def lab_share(
    processed: Annotated[int, typer.Option(help="Prompt tokens that the child shares (exercise 2: 8).")] = 10,
    release_order: Order = "reverse",
) -> None:
    """Section 4.2: a child shares a prefix; its pin on the copied tail goes too early, then in time."""
    from kvproof.checks import labs

    _lab(lambda: labs.lab_share(processed, _order(release_order)))


def _lab(run: Callable[[], str]) -> None:
    try:
        sys.stdout.write(run())
    except ValueError as error:
        _fail(str(error))


# ------------------------------------------------------------------------------------------------- certify


@app.command()
@_clean
def certify(
    target: Annotated[
        str, typer.Argument(help="reference, reference:MUTANT, transformers, or package.module:factory.")
    ] = "reference",
    workload: Annotated[
        Path | None,
        typer.Option(help="Workload file: Mooncake JSON lines or Azure CSV. Default: a bundled synthetic one."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds after which the run is cut short (then it is undetermined)."),
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Directory for certificate.json, report, trace, program, regression test.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Workload rows that the run promises (default 700).")] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Hypothesis runs for each small pool (default 25).")
    ] = None,
    operations: Annotated[
        int | None, typer.Option(min=1, help="Checked operations that the run promises (default 20000).")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Use this block size only, for a target that takes no other.")
    ] = None,
    call_limit: Annotated[
        float, typer.Option(min=0.01, max=86_400, help="Seconds that one call to the target may take.")
    ] = 10.0,
    json_output: Json = False,
) -> None:
    """Certify an allocator: drive it hard, check every rule after every operation, give a verdict.

    The target is compared with itself (is it deterministic?), driven by Hypothesis on small pools, then by a
    real workload, then at random, until the promised number of operations was checked. The seed decides the
    run; the budget only cuts it short. A violation is minimised, explained, and saved as a trace.

    Example: kvproof certify transformers --workload conversation.jsonl --budget 120 --out report/
    """
    from kvproof.checks.adapters.registry import resolve
    from kvproof.checks.certification import certificate
    from kvproof.checks.certification import certify as certification

    default = certification.Plan()
    plan = certification.Plan(
        rows=rows or default.rows,
        examples=examples or default.examples,
        operations=operations or default.operations,
    )
    if block_size is not None:
        plan = plan.with_block_size(block_size)
    with _target_speaks_to_stderr(), _progress() as show, _no_hypothesis_folder():
        factory = resolve(target)
        result = certification.certify(
            factory,
            target,
            seed=seed,
            budget=budget,
            workload=workload,
            plan=plan,
            call_limit=call_limit,
            progress=certification.Progress(show),
        )
    if out is not None:
        certificate.save(result, out)
    elif result.findings:
        try:
            certificate.save_findings(result, Path(certificate.DEFAULT_DIRECTORY))
        except OSError as error:
            _err.print(f"kvproof: the counterexample was not saved ({error}); use --out DIR", markup=False)
    if json_output:
        _print_json(certificate.as_json(result))
    else:
        _out.print(certificate.report(result))
        if out is not None:
            _out.print(f"certificate and report are in {out}", markup=False)
    raise typer.Exit(result.exit_code)


def _target_speaks_to_stderr() -> redirect_stdout[TextIO]:
    """Whatever a target prints goes to standard error: standard output is for the report."""
    return redirect_stdout(sys.stderr)


@contextmanager
def _no_hypothesis_folder() -> Iterator[None]:
    """Hypothesis keeps files in the working directory; there is nothing to keep here."""
    name = "HYPOTHESIS_STORAGE_DIRECTORY"
    if name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="kvproof-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error, when that is a terminal."""
    if not _err.is_terminal:
        yield lambda _phase, _done: None
        return
    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=_err, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: float) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=1.0)
            bar.update(tasks[phase], completed=done)

        yield show


@app.command()
@_clean
def targets(json_output: Json = False) -> None:
    """List what can be certified: targets, their capabilities, what to install, and the mutants with their rules."""
    from kvproof.checks.adapters.registry import list_targets

    rows = list_targets()
    if json_output:
        _print_json(
            {
                "targets": [
                    {
                        "name": row.name,
                        "description": row.description,
                        "capabilities": list(row.capabilities),
                        "available": row.available,
                        "install": row.install,
                        "rule": row.rule,
                    }
                    for row in rows
                ]
            }
        )
        return
    table = Table(box=None, padding=(0, 2))
    for column in ("target", "available", "what it is, and what to install", "capabilities"):
        table.add_column(column, no_wrap=column in ("target", "available"))
    for row in rows:
        about = row.description if row.available or not row.install else f"{row.description}; {row.install}"
        capabilities = "as reference" if row.rule else ", ".join(row.capabilities)
        table.add_row(row.name, "yes" if row.available else "no", about, capabilities)
    _out.print(table)
    _out.print("\nYour own: kvproof certify package.module:factory (it takes a Configuration).", markup=False)


@app.command()
@_clean
def replay(
    trace: Annotated[Path, typer.Argument(help="A trace file (JSON lines).")],
    on: Annotated[
        str | None, typer.Option("--on", help="Replay on this target instead of the built-in one of the header.")
    ] = None,
    call_limit: Annotated[
        float, typer.Option(min=0.01, max=86_400, help="Seconds that one call to the target may take.")
    ] = 10.0,
    json_output: Json = False,
) -> None:
    """Run a trace again: 1 if the violation happens again, 0 if nothing breaks, 3 if the target answers otherwise.

    Only built-in targets are taken from the file; anything else has to be named with --on, so that opening a
    file never imports code that it names.
    """
    from kvproof.checks.certification import certificate
    from kvproof.checks.certification.replay import replay as run

    with _target_speaks_to_stderr():
        outcome = run(trace, on, call_limit=call_limit)
    if json_output:
        _print_json(
            {
                "verdict": outcome.verdict,
                "finding": outcome.finding.as_json() if outcome.finding else None,
                "operations": outcome.operations,
                "target": outcome.target,
                "note": outcome.note,
            }
        )
    else:
        words = {
            "violated": "the violation happens again",
            "certified": "nothing breaks, and every answer is as recorded",
            "undetermined": "the target no longer answers as recorded: neither a pass nor a violation",
        }
        _out.print(f"{outcome.target}: {outcome.verdict} ({words[outcome.verdict]})", markup=False)
        if outcome.note:
            _out.print(outcome.note, markup=False)
        if outcome.finding is not None:
            for part in certificate.finding_report(outcome.finding):
                _out.print(part)
    raise typer.Exit(outcome.exit_code)


# ---------------------------------------------------------------------------- commands of the other checks


@app.command()
@_clean
def prove(
    theorem: Annotated[str | None, typer.Option(help="Prove only this theorem.")] = None,
    mutants: Annotated[bool, typer.Option("--mutants", help="Show that every broken variant is refuted.")] = False,
    json_output: Json = False,
) -> None:
    """Prove the rules for any number of blocks, requests, copies and steps."""
    from kvproof.checks.proof.prove import run

    raise typer.Exit(run(theorem=theorem, mutants=mutants, json_output=json_output))


@app.command()
@_clean
def refute(
    mutant: Annotated[str, typer.Argument(help="Name of a mutant of the spec.")],
    out: Annotated[Path | None, typer.Option(help="Write the trace into this folder, for kvproof replay.")] = None,
    json_output: Json = False,
) -> None:
    """Find the shortest run that breaks a rule in a mutant of the spec (bounded)."""
    from kvproof.checks.proof.refute import run

    raise typer.Exit(run(mutant=mutant, out=out, json_output=json_output))


@app.command()
@_clean
def explore(
    subject: Annotated[str, typer.Option(help="spec or model.")] = "model",
    blocks: Annotated[int, typer.Option(min=1, help="Usable blocks.")] = 4,
    requests: Annotated[int, typer.Option(min=1)] = 3,
    table: Annotated[int, typer.Option(min=1, help="Longest table, in blocks.")] = 3,
    copies: Annotated[int, typer.Option(min=0, help="Queued copies and pins still held, at most.")] = 2,
    symmetry: Annotated[str, typer.Option(help="none, blocks or full.")] = "none",
    mutant: Annotated[str | None, typer.Option(help="Explore this mutant.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    destination: Annotated[str, typer.Option(help="Demanded of copies: ordered, pinned or cancelled.")] = "ordered",
    max_states: Annotated[int | None, typer.Option(min=1, help="Stop after a level with more states.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Save to this file; resume from it if it is there.")] = None,
    engine: Annotated[str, typer.Option(help="For the spec: auto, numba, numpy or torch.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the trace of a finding into this folder.")] = None,
    json_output: Json = False,
) -> None:
    """Visit every reachable state of a small pool and check the rules in each."""
    from kvproof.checks.exploring.explore import run

    raise typer.Exit(
        run(
            subject=subject,
            blocks=blocks,
            requests=requests,
            table=table,
            copies=copies,
            symmetry=symmetry,
            mutant=mutant,
            device=device,
            destination=destination,
            max_states=max_states,
            checkpoint=checkpoint,
            engine=engine,
            out=out,
            json_output=json_output,
        )
    )


@app.command()
@_clean
def monitor(
    trace: Annotated[Path, typer.Argument(help="A trace file (JSON lines).")],
    json_output: Json = False,
) -> None:
    """Check that every step of a recorded run is allowed by the spec."""
    from kvproof.checks.monitoring.monitor import run

    raise typer.Exit(run(trace=trace, json_output=json_output))


@app.command()
@_clean
def diff(
    a: Annotated[str, typer.Argument(help="One target.")],
    b: Annotated[str, typer.Argument(help="The other target.")],
    examples: Annotated[int, typer.Option(min=1, help="Runs to compare.")] = 100,
    seed: Seed = 0,
    schedule: Annotated[str, typer.Option(help="eager, lazy, random, starve:STREAM or all.")] = "all",
    json_output: Json = False,
) -> None:
    """Run the same operations on two targets and compare answers, tables, counts and rows."""
    from kvproof.checks.differential.diff import run

    raise typer.Exit(run(a=a, b=b, examples=examples, seed=seed, schedule=schedule, json_output=json_output))


@app.command()
@_clean
def selftest(
    device: Annotated[str, typer.Option(help="cuda, or cpu for the simulated device.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Directory for the results.")] = None,
    json_output: Json = False,
) -> None:
    """Check the GPU backend on this machine: real streams and events, the detectors, copy bandwidth."""
    from kvproof.checks.differential.selftest import run

    raise typer.Exit(run(device=device, out=out, json_output=json_output))
