"""`qkv plan`: what a model's KV cache takes, before anything runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from qkv.app.cli.console import note, require_drawing
from qkv.app.cli.plan_report import advice_record, advice_report, as_record, report
from qkv.errors import OptionError
from qkv.models.shipped import SHIPPED, folder_of
from qkv.planner import Plan
from qkv.planner import plan as make_plan
from qkv.planner.advice import advise as make_advice
from qkv.planner.catalogue import catalogue

ADVISED = {"model", "users", "context", "memory", "weights", "shared_prefix", "advise", "as_json"}
"""What advice looks at; the rest is what it is to find."""


def plan(
    called: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A known name, verse, a folder, a config.json, a .gguf file, or a hub id.")
    ] = "",
    users: Annotated[int, typer.Option(help="Sequences held at once.")] = 1,
    context: Annotated[
        int | None, typer.Option(help="Tokens of each; the model's longest if not given.")
    ] = None,
    cache: Annotated[str, typer.Option(help="A strategy: int8, fp8, int4, keep=512, window=1024, ...")] = "",
    engine: Annotated[str, typer.Option(help="ideal, qkv, vllm, llama.cpp or transformers.")] = "ideal",
    memory: Annotated[str | None, typer.Option(help="Of one device, with its unit: 80GiB.")] = None,
    kv_memory: Annotated[str | None, typer.Option(help="For the cache alone: 40GiB.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="What the weights take, where it is not known; of qkv also their form: int8."),
    ] = None,
    page_size: Annotated[int | None, typer.Option(help="Tokens per page.")] = None,
    shared_prefix: Annotated[int, typer.Option(help="First tokens that all users have in common.")] = 0,
    new_tokens: Annotated[int, typer.Option(help="How many of the context are generated.")] = 0,
    tensor_parallel: Annotated[int, typer.Option(help="Devices the key heads are split over.")] = 1,
    step_tokens: Annotated[int | None, typer.Option(help="Tokens the engine runs at once.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Simulate allocators: sharegpt, alpaca, a CSV.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Of a device's memory: 3.35TB/s.")] = None,
    compute: Annotated[str | None, typer.Option(help="Of a device: 990TFLOP/s.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw memory against users and context to a file.")
    ] = None,
    advise: Annotated[bool, typer.Option("--advise", help="Print one configuration per engine.")] = False,
    models: Annotated[bool, typer.Option("--models", help="List the known models.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what the KV cache of MODEL takes under every strategy, how many users fit, and what to take."""
    if models:
        _list_models()
        return
    if not model:
        raise OptionError("name a MODEL, such as llama-3-8b; `qkv plan --models` lists the known ones")
    source = folder_of(model) if model in SHIPPED else model
    if advise:
        _require_advisable(called)
        advice = make_advice(
            source, users, context, memory=memory, weights=weights, shared_prefix=shared_prefix
        )
        typer.echo(_json(advice_record(advice)) if as_json else advice_report(advice))
        return
    if plot is not None:
        require_drawing(plot)
    made = make_plan(
        source,
        users,
        context,
        cache=cache,
        engine=engine,
        memory=memory,
        kv_memory=kv_memory,
        weights=weights,
        page_size=page_size,
        shared_prefix=shared_prefix,
        new_tokens=new_tokens,
        tensor_parallel=tensor_parallel,
        step_tokens=step_tokens,
        lengths=lengths,
        bandwidth=bandwidth,
        compute=compute,
    )
    if plot is not None:
        draw_plan(made, plot)
        note(f"KV cache of {made.model.name}: {plot}")
    typer.echo(_json(as_record(made)) if as_json else report(made))


def draw_plan(made: Plan, path: Path) -> None:
    """Draw a plan; the drawing library is loaded only here."""
    from qkv.viz.memory import draw_memory, save

    save(draw_memory(made), path)


def _require_advisable(called: typer.Context) -> None:
    """Raise `OptionError` if an option was given that advice does not use."""
    given = (option for option in called.command.params if _is_given(called, option.name or ""))
    unused = [option.opts[0] for option in given if option.name not in ADVISED]
    if unused:
        raise OptionError(
            "--advise finds an engine's settings from --users, --context, --memory, --weights and "
            f"--shared-prefix alone; leave out {', '.join(unused)}"
        )


def _is_given(called: typer.Context, name: str) -> bool:
    source = called.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _json(record: object) -> str:
    return json.dumps(record, ensure_ascii=False, indent=2)


def _list_models() -> None:
    for name in SHIPPED:
        typer.echo(f"{name:22} comes with qkv")
    for name, entry in catalogue().items():
        typer.echo(f"{name:22} {entry['hub']}")
