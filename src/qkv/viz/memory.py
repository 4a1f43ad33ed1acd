"""Memory against users and against context, a line per strategy, with the budget across."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.errors import OptionError
from qkv.planner import Plan
from qkv.planner.engines import engine_named
from qkv.planner.outcomes import on_one_device
from qkv.planner.strategies import Request, Strategy
from qkv.planner.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 48
"""Of a line."""

RANGE = 256
"""How many times the first number the last one is."""


def draw_memory(plan: Plan) -> "Figure":
    """Draw what each strategy of a plan takes, up to twice the users and twice the context.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    matplotlib.figure.Figure
        On the left GiB against users, on the right against context; the budget is a dashed line.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("drawing needs the extra: pip install 'qkv[viz]'") from None
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    against_users, against_context = figure.subplots(1, 2)
    users, context = plan.request.users, plan.request.context
    _draw(against_users, plan, [replace(plan.request, users=n) for n in _steps(2 * users)], "users")
    _draw(against_context, plan, [_of_context(plan.request, n) for n in _steps(2 * context)], "context")
    against_users.set_xlabel(f"users of {context:,} tokens")
    against_context.set_xlabel(f"tokens of each of {users:,} users")
    against_users.set_ylabel("GiB")
    figure.legend(*against_users.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.suptitle(f"KV cache of {plan.model.name}, engine: {plan.engine}")
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Write a figure to a file whose ending names the format, such as .png or .svg.

    Raises
    ------
    OptionError
        If the ending is no format, or the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise OptionError(f"{path} cannot be drawn ({error}); name a .png, .svg or .pdf file") from error


def _draw(axes: "Axes", plan: Plan, requests: list[Request], axis: str) -> None:
    engine = engine_named(plan.engine)
    model = on_one_device(plan.model, plan.request.tensor_parallel)

    def gib(strategy: Strategy, request: Request) -> float:
        return engine.demand(model, strategy, request).total(request.users) / GIB

    for outcome in plan.outcomes:
        strategy = outcome.strategy
        chosen = plan.recommended.outcome is not None and strategy == plan.recommended.outcome.strategy
        axes.plot(
            [getattr(request, axis) for request in requests],
            [gib(strategy, request) for request in requests],
            label=strategy.title,
            linewidth=2.6 if chosen else 1.4,
            linestyle="-" if strategy.is_lossless else "-.",
        )
    if plan.budget is not None:
        axes.axhline(plan.budget / GIB, color="black", linestyle="--", linewidth=1, label="budget")
    axes.axvline(getattr(plan.request, axis), color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.grid(alpha=0.3)


def _steps(last: int) -> list[int]:
    """Return numbers up to the last, each larger by the same factor."""
    first = max(1, last // RANGE)
    return sorted({round(first * (last / first) ** (point / POINTS)) for point in range(POINTS + 1)})


def _of_context(request: Request, context: int) -> Request:
    return replace(
        request,
        context=context,
        shared_prefix=min(request.shared_prefix, context),
        new_tokens=min(request.new_tokens, context),
    )
