"""(h) What each element type saves against what it costs."""

from typing import TYPE_CHECKING

from qkv.lab import Language, Result, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAVING = Words("times smaller than FP16, scales included", "比 FP16 小多少倍（含缩放系数）")
LOSS = Words("loss: KL in nats per token", "损失：每个 token 的 KL（nat）")
FORGETFUL = Words("control: only the last {kept} tokens", "对照：只留最后 {kept} 个 token")
HARDLY = Words("hardly any loss", "损失极小")
SMALLEST = 1e-9
"""Nats: less is rounding, and would stretch a logarithmic axis."""


def draw_codes(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a point for each element type: bytes saved to the right, loss upwards; the control is a line."""
    series, kept = result.series, {"kept": result.settings["forgetful"]}
    for code, saving, kl in zip(series["code"], series["saving"], series["kl"], strict=True):
        axes.plot(saving, max(kl, SMALLEST), "o", color="C0")
        axes.annotate(code, (saving, max(kl, SMALLEST)), textcoords="offset points", xytext=(6, 4))
    forgetful = result.numbers["forgetful_kl"].value
    axes.axhline(forgetful, color="grey", linestyle="--", label=FORGETFUL.say(language, kept))
    axes.axhline(0.01, color="#1a7f4b", linewidth=0.8, label=HARDLY.say(language))
    axes.axvline(2.0, color="grey", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlim(0.8, max(series["saving"]) + 0.6)
    axes.set_xlabel(SAVING.say(language))
    axes.set_ylabel(LOSS.say(language))
    axes.grid(alpha=0.3)
    axes.legend()
