"""The command line: `python -m pipeline VERB`, one verb a stage, and a few for people."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.errors import ConfigError, ExactokError, StageError

if TYPE_CHECKING:
    from rich.console import Console

ROOT = Path()
"""Every command runs at the root of the repository, as DVC does."""


def _settings(stage: str, *paths: str) -> dict[str, Any]:
    """The stage's own parts of build/config.yaml, merged; installed libraries are checked against it."""
    import yaml

    from pipeline.io.libraries import check_installed

    path = ROOT / "build/config.yaml"
    if not path.exists():
        raise StageError(f"{path} is missing: run `dvc repro`, or `python -m pipeline compose` first")
    tree = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    check_installed(tree.get("libraries", {}).get(stage, {}))
    merged: dict[str, Any] = {}
    for keys in paths:
        part: Any = tree
        for key in keys.split("."):
            if not isinstance(part, dict) or key not in part:
                there_are = ", ".join(map(str, part)) if isinstance(part, dict) else "none"
                raise ConfigError(f"{path}: {keys}: no {key!r}; there are: {there_are}")
            part = part[key]
        merged |= part
    return merged


def _console() -> Console:
    """Off a terminal nothing says how wide a line may be; rich would take 80 columns and break words."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console


class _OneLine(click.Group):
    """A user's mistake is one line on stderr and exit code 1; a bug keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ExactokError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
            ctx.exit(130)


@click.group(cls=_OneLine, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Build exact-token training data for EAGLE-3 drafters.

    `dvc repro` runs the stages; each can be run alone by its verb. Exit codes: 0 done, 1 something to
    mend (one line says what), 2 wrong usage, 130 interrupted.
    """


def _verb(help_text: str) -> Callable[[Callable[..., None]], click.Command]:
    return main.command(help=help_text, short_help=help_text.split(";")[0])


@_verb("conf/ and params.yaml -> build/config.yaml.")
def compose() -> None:
    from pipeline.stages.compose import run

    click.echo(run(ROOT))


@_verb("Build and check the target's tokenizer -> build/tokenizer/.")
def tokenizer() -> None:
    from pipeline.config import TokenizerSettings
    from pipeline.stages.shell import parse_settings
    from pipeline.stages.tokenizer import run

    subtree = _settings("tokenizer", "tokenizer")
    target = str(subtree.pop("target"))
    settings = parse_settings(TokenizerSettings, subtree, "tokenizer")
    click.echo(run(settings, ROOT, ROOT / "build/tokenizer", target))


@_verb("Read a dataset's prompts -> build/prompts/.")
@click.argument("dataset")
def prompts(dataset: str) -> None:
    from pipeline.stages.prompts import run

    click.echo(run(dataset, _settings("prompts", f"{dataset}.prompts"), ROOT))


@_verb("Ask the provider for every answer that is not stored yet -> build/responses/.")
@click.argument("dataset")
def generate(dataset: str) -> None:
    from pipeline.config import GenerateSettings
    from pipeline.io.conf import load_runtime, load_transport
    from pipeline.stages.generate import run
    from pipeline.stages.shell import parse_settings

    settings = parse_settings(
        GenerateSettings, _settings("generate", f"{dataset}.generate"), f"{dataset}.generate"
    )
    transport = load_transport(settings.provider, ROOT)
    out = ROOT / f"build/responses/{dataset}.parquet"
    click.echo(
        run(
            ROOT / f"build/prompts/{dataset}.parquet", settings, transport, load_runtime(ROOT), out, root=ROOT
        )
    )


@_verb("Find what each served provider does to text -> build/profiles.yaml.")
def profiles() -> None:
    from pipeline.stages.profiles import run

    click.echo(run(_settings("profiles", "reading", "profiles"), ROOT))


@_verb("Responses -> exact token ids in build/samples/, the rest in build/rejects/.")
@click.argument("dataset")
def reconstruct(dataset: str) -> None:
    from pipeline.io.conf import load_runtime
    from pipeline.stages.reconstruct import run

    click.echo(
        run(dataset, _settings("reconstruct", "reading", f"{dataset}.reconstruct"), ROOT, load_runtime(ROOT))
    )


@_verb("Check every row against every rule -> build/verdicts/, build/reports/.")
@click.argument("dataset")
def validate(dataset: str) -> None:
    from pipeline.io.conf import load_runtime
    from pipeline.stages.validate import run

    click.echo(
        run(dataset, _settings("validate", "reading", f"{dataset}.validate"), ROOT, load_runtime(ROOT))
    )


@_verb("Write the rows that pass in a trainer's format -> build/exports/.")
@click.argument("dataset")
@click.argument("format_name", metavar="FORMAT")
def export(dataset: str, format_name: str) -> None:
    from pipeline.stages.export import run

    click.echo(run(dataset, format_name, _settings("export", f"{dataset}.export.{format_name}"), ROOT))


@_verb("Sum up the whole build -> build/report/.")
def report() -> None:
    from pipeline.stages.report import run

    click.echo(run(_settings("report", "report"), ROOT))


@_verb("Write the hash of a dataset's prompt file into conf/dataset/.")
@click.argument("dataset")
def pin(dataset: str) -> None:
    from pipeline.stages.pin import run

    click.echo(run(dataset, ROOT))


@_verb("Ask for every dataset's answers in one process, into the store; then `dvc repro` replays them.")
@click.argument("datasets", nargs=-1, metavar="[DATASET]...")
def fetch(datasets: tuple[str, ...]) -> None:
    from pipeline.stages.fetch import run

    click.echo(run(datasets, ROOT))


@_verb("What the next build will run, send and cost, and which edit is why; sends nothing.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def plan(as_json: bool) -> None:
    from pipeline.stages.plan import run

    run(ROOT, _console(), json=as_json)


@_verb("Ask each served provider a few cheap questions: what it does to text, calls and counts.")
@click.option("--provider", required=True, help="Name in conf/provider/.")
@click.option("--target", default="kimi_k2_5", show_default=True, help="Name in conf/target/.")
@click.option("--again", default=0, show_default=True, help="Another number asks anew.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def probe(provider: str, target: str, again: int, as_json: bool) -> None:
    from pipeline.stages.probe import run

    run(provider, target, ROOT, _console(), json=as_json, sample=again)


@main.group(short_help="Look after the store of paid answers.")
def store() -> None:
    """Look after the store of paid answers, or with --simulator after the simulator's."""


def _store_verb(help_text: str) -> Callable[[Callable[..., None]], click.Command]:
    def decorate(function: Callable[..., None]) -> click.Command:
        simulator = click.option("--simulator", is_flag=True, help="The simulator's store.")
        name = function.__name__.rstrip("_")  # `import` is no name for a function
        return store.command(name, help=help_text, short_help=help_text)(simulator(function))

    return decorate


@_store_verb("What it holds, and what that cost.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def stats(as_json: bool, simulator: bool) -> None:
    from pipeline.stages.store import stats as run

    run(ROOT, _console(), as_json, simulator=simulator)


@_store_verb("Check every row of it.")
def verify(simulator: bool) -> None:
    from pipeline.stages.store import verify as run

    run(ROOT, _console(), simulator=simulator)


@_store_verb("Copy answers into one file that a colleague can import.")
@click.option("--identity", default="", help="Only of endpoints whose identity begins so.")
@click.option(
    "--since", type=click.DateTime(["%Y-%m-%d"]), help="Only those that came at this date or later."
)
@click.option("--attempts", is_flag=True, help="With every attempt.")
@click.argument("file", type=click.Path(path_type=Path))
def export_(identity: str, since: Any, attempts: bool, simulator: bool, file: Path) -> None:
    from pipeline.stages.store import export as run

    click.echo(run(ROOT, file, identity=identity, since=since, attempts=attempts, simulator=simulator))


@_store_verb("Take answers from a file of `export`, or from a git revision's build.")
@click.argument("source", metavar="FILE|REVISION")
def import_(source: str, simulator: bool) -> None:
    from pipeline.stages.store import import_ as run

    run(ROOT, source, _console(), simulator=simulator)


@_store_verb("Drop what no build needs; paid answers only if they are named, and with --yes.")
@click.option("--identity", help="Also answers of endpoints whose identity begins so ...")
@click.option("--older-than", type=float, metavar="DAYS", help="... and that are older than this.")
@click.option("--yes", is_flag=True, help="Do remove them.")
def gc(identity: str | None, older_than: float | None, yes: bool, simulator: bool) -> None:
    from pipeline.stages.store import gc as run

    click.echo(run(ROOT, simulator=simulator, identity=identity, older_than_days=older_than, yes=yes))


@store.command(
    help="Ask a provider what exchanges of unknown cost have cost.", short_help="Ask for unknown costs."
)
@click.option("--provider", required=True, help="Name in conf/provider/.")
def reconcile(provider: str) -> None:
    from pipeline.stages.reconcile import run

    click.echo(run(provider, ROOT))


@_verb("Show the exact tokens of pasted answers; JSON in (one value or JSON Lines), JSON out.")
@click.option("--target", default="kimi_k2_5", show_default=True, help="Name in conf/target/.")
@click.option("--pretty", is_flag=True, help="Tokens in colour, for a person.")
@click.argument("file", type=click.File("rb"))
def inspect(target: str, pretty: bool, file: Any) -> None:
    import json

    from pipeline.stages import inspect as stage

    data, name = file.read(), getattr(file, "name", "-")
    if pretty:
        stage.show(data, name, target, ROOT, _console())
        return
    for result in stage.inspect(data, name, target, ROOT):
        click.echo(json.dumps(result, ensure_ascii=False))


@main.group(short_help="Look at the targets in conf/target/.")
def target() -> None:
    """Look at the targets in conf/target/."""


@target.command(short_help="Run a target's contract and golden cases.")
@click.argument("name", default="all")
def check(name: str) -> None:
    """Run contract and golden cases of target NAME, or of all, and print a table."""
    from pipeline.stages.target_check import run

    run(name, ROOT, _console())


@_verb("Run the simulator alone, until interrupted.")
@click.option("--port", default=0, show_default=True, help="0: a free one, which is printed.")
@click.option("--profile", default="default", show_default=True, help="File of pipeline/simulator/profiles/.")
@click.option("--seed", default=0, show_default=True)
def simulate(port: int, profile: str, seed: int) -> None:
    from pipeline.simulator.__main__ import main as simulator

    sys.exit(simulator(["--port", str(port), "--profile", profile, "--seed", str(seed)]))


if __name__ == "__main__":
    main()
