"""(i) What fewer key heads cost in loss, above what their caches take."""

from typing import TYPE_CHECKING

import numpy as np

from qkv.lab import Language, Result, Words
from qkv.lab.key_heads import ALMOST_NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COST = Words("more loss than MHA, same seed (%)", "比同一种子的 MHA 多的损失（%）")
BYTES = Words("bars: share of MHA's cache", "柱：占 MHA 缓存的比例")
RECORDED = Words("recorded at training, seed {seed}", "训练时的记录，种子 {seed}")
HERE = Words("texts read here, seed {seed}", "此处读入的文本，种子 {seed}")
SEEDS = Words("seeds of MHA lie as far apart", "MHA 的种子之间的差距")
HARDLY = Words("almost no loss", "几乎没有损失")
KIND = Words(
    "{name}, G = {G}\n{milliseconds:.1f} ms a token", "{name}，G = {G}\n每个 token {milliseconds:.1f} ms"
)


def draw_key_heads(result: Result, axes: "Axes", language: Language = "en") -> None:
    """Draw a line of costs for each seed, and a bar of bytes behind each kind on an axis of its own."""
    series, at = result.series, np.arange(len(result.series["name"]))
    recorded = np.array(series["recorded"])  # kinds, seeds
    lines = [(RECORDED, seed, bits, "o-") for seed, bits in zip(series["seeds"], recorded.T, strict=True)]
    lines.append((HERE, series["seeds"][0], np.array(series["here"]), "s--"))
    for index, (what, seed, bits, style) in enumerate(lines):
        label = what.say(language, {"seed": seed})
        axes.plot(at, 100 * (bits / bits[0] - 1), style, color=f"C{index}", label=label)
    spread = 100 * result.numbers["seed_spread"].value
    axes.axhspan(-spread / 2, spread / 2, color="C0", alpha=0.12, label=SEEDS.say(language))
    axes.axhline(100 * ALMOST_NONE, color="#1a7f4b", linewidth=0.8, label=HARDLY.say(language))
    axes.margins(y=0.25)
    axes.set_xticks(at, _kinds(result, language))
    axes.set_ylabel(COST.say(language))
    _draw_bytes(result, axes, language)
    axes.legend(loc="upper left", fontsize="small")


def _kinds(result: Result, language: Language) -> list[str]:
    kinds = zip(*(result.series[what] for what in ("name", "G", "milliseconds")), strict=True)
    return [
        KIND.say(language, {"name": name.upper(), "G": G, "milliseconds": milliseconds})
        for name, G, milliseconds in kinds
    ]


def _draw_bytes(result: Result, axes: "Axes", language: Language) -> None:
    nbytes = np.array(result.series["bytes"])
    beside = axes.twinx()
    beside.bar(np.arange(len(nbytes)), nbytes / nbytes[0], width=0.5, color="lightgrey")
    beside.set_ylim(0, 1.6)
    beside.set_yticks([0, 0.25, 0.5, 0.75, 1])
    beside.set_ylabel(BYTES.say(language))
    axes.set_zorder(beside.get_zorder() + 1)
    axes.patch.set_visible(False)
