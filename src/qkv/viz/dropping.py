"""(k) What each eviction costs on text by budget, and the heads that were dropped, beside the controls."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BUDGET = Words("budget: tokens kept per key head (S)", "预算：每个键头保留的 token 数（S）")
LOSS = Words("text: KL in nats per token", "文本：每个 token 的 KL（nat）")
FOUND = Words("pairs found if asked\nafter → before the drop", "找回键值对：\n丢弃之后 → 之前提问")
POLICIES = {
    "random": (Words("at random", "随机"), "k--"),
    "latest": (Words("the latest", "最近的"), "k:"),
    "streaming": (Words("StreamingLLM", "StreamingLLM"), "o-"),
    "h2o": (Words("H2O as published", "H2O 原版"), "s-"),
    "h2o_decay": (Words("H2O with decay", "H2O 带衰减"), "s--"),
    "tova": (Words("TOVA", "TOVA"), "^-"),
    "snapkv": (Words("SnapKV", "SnapKV"), "v-"),
    "knorm": (Words("key norm", "键范数"), "d-"),
}
"""In the order of the legend; the controls in black."""


def draw_dropping(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a line for each policy, the controls in black, and behind each name what it found of the pairs."""
    series = result.series
    for name, (words, style) in POLICIES.items():
        label = words.say(language) + found(result, name)
        axes.plot(series["budget"], series[f"{name}_kl"], style, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(series["budget"], [str(budget) for budget in series["budget"]])
    axes.minorticks_off()
    axes.set_xlabel(BUDGET.say(language))
    axes.set_ylabel(LOSS.say(language))
    axes.grid(alpha=0.3)
    has_pairs = "random_blind" in result.numbers
    title = FOUND.say(language) if has_pairs else None
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), title=title, fontsize="small", frameon=False)


def found(result: Result, name: str) -> str:
    """Return which share of pairs a policy found, asked for behind the drop and before it."""
    shares = [result.numbers.get(f"{name}_{when}") for when in ("blind", "aware")]
    return "".join(f" → {share:.0%}" for share in shares if share is not None).replace(" →", ":", 1)
