"""What a cache keeps of a text, and in what form: a small value that prints and parses as text.

Form: bytes that one token takes in one key head of one layer, for a key and a value of D numbers each.

==============  ================================  ======================  =============================
text            what is stored                    bytes per token         source
==============  ================================  ======================  =============================
float32         numbers as they are; the default  8 D                     IEEE 754
fp16, bf16      16-bit floats                     4 D                     IEEE 754; Kalamkar 2019
fp8-e4m3,       8-bit floats, saturating          2 D                     Micikevicius 2022
fp8-e5m2
int8            whole multiples of a scale        2 D + 8                 Dettmers 2022 (LLM.int8)
                per token
int8-kivi       keys: steps per channel,          2 D + 4 + 4 D / P       Liu 2024 (KIVI)
                values: as int8
int4            keys: steps per channel,          D + 4 ceil(D / 32)      Liu 2024 (KIVI);
                values: steps per 32 channels     + 4 D / P               Hooper 2024 (KVQuant)
latent          for a model with latent           half, and once          DeepSeek-AI 2024
                attention: keys hold the values   for all heads           (DeepSeek-V2)
page=P          P tokens per page: 16, or 32      the same, in            Kwon 2023 (PagedAttention)
                for int8-kivi and int4            whole pages
==============  ================================  ======================  =============================

Which tokens stay, per key head:

==================  =======================================================  ========================
text                what is kept                                             source
==================  =======================================================  ========================
window=W            the query's own key and the W-1 before it                Beltagy 2020 (Longformer);
                                                                             Jiang 2023 (Mistral)
sinks=n             also the first n tokens; needs one of the others         Xiao 2023 (StreamingLLM)
streaming=BUDGET    4 sinks, or n, and the latest for the rest               Xiao 2023 (StreamingLLM)
h2o=BUDGET          the latest half, and those that got most attention       Zhang 2023 (H2O)
tova=BUDGET         those that the last query attends to most                Oren 2024 (TOVA)
knorm=BUDGET        those whose keys are shortest                            Devoto 2024
snapkv=BUDGET       the last queries' window, and what it attends to most    Li 2024 (SnapKV)
pyramidkv=BUDGET    as snapkv, more in lower layers, BUDGET on average       Cai 2024 (PyramidKV)
expected=BUDGET     4 sinks, or n, and those that queries to come will       Devoto 2025 (Expected
                    attend to most                                           Attention)
heads=10/01         heads marked 1 keep all, 0 window and sinks; a row of    Xiao 2024 (DuoAttention)
                    key heads per layer, or one for all; needs window
rerotate            what an eviction leaves, moved together to               Xiao 2023 (StreamingLLM)
                    consecutive rotary positions
==================  =======================================================  ========================

streaming, h2o, tova and knorm hold the budget at every step; snapkv, pyramidkv and expected come down to
it when a prompt has been read. h2o takes a rule for adding up attention after a colon: ``h2o=512:sum``,
``:age`` or ``:decay=0.9``; see `qkv.cache.eviction.Scoring`.
"""

from dataclasses import dataclass
from typing import TypeVar

from qkv.arguments import shown
from qkv.cache.elements import ELEMENTS, element_named
from qkv.cache.eviction import AFTER_PROMPT, EVICTIONS, Eviction
from qkv.cache.policy_text import HeadPattern, head_digits, head_pattern, read_parts, whole_number
from qkv.cache.retention import DEFAULT_SINKS
from qkv.errors import OptionError

_FLAGS = (*ELEMENTS, "latent", "rerotate")
_EXAMPLES = {"window": "1024", "sinks": "4", "heads": "10/01", "page": "32"} | dict.fromkeys(EVICTIONS, "512")

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Policy:
    """What a cache keeps, and in what form; the table is at the top of this module.

    Parameters
    ----------
    element : str
        How numbers are stored; one of `qkv.cache.elements.ELEMENTS`.
    window : int, optional
        W: a query sees its own key and the W-1 before it.
    sinks : int
        How many tokens at the beginning stay whatever happens. A text that does not say it means what
        was published with its eviction: 4 for streaming and expected, 0 for the others.
    eviction : Eviction, optional
    heads : rows of bools, optional
        Which key heads are full (``True``); window and sinks then are for the others.
    latent : bool
        Whether values are part of their keys.
    rerotate : bool
        Whether kept tokens take consecutive rotary positions.
    page : int, optional
        P; what the element type prefers when left out.

    Raises
    ------
    OptionError
        If two parts contradict each other, or one has no effect.

    Examples
    --------
    >>> policy = Policy.parse("sinks=4, window=1024, int8")
    >>> policy
    Policy('int8,window=1024,sinks=4')
    >>> policy.page_size, policy.window_of(layer=0, head=0)
    (16, 1024)
    >>> Policy.parse("") == Policy()
    True
    """

    element: str = "float32"
    window: int | None = None
    sinks: int = 0
    eviction: Eviction | None = None
    heads: HeadPattern | None = None
    latent: bool = False
    rerotate: bool = False
    page: int | None = None

    def __post_init__(self) -> None:
        element_named(self.element)
        for name, number, least in (
            ("window", self.window, 1),
            ("sinks", self.sinks, 0),
            ("page", self.page, 1),
        ):
            if number is not None and number < least:
                raise OptionError(f"{name} must be at least {least}, not {number}")
        self._check_heads()
        self._check_sinks()
        self._check_eviction()
        if self.rerotate and self.eviction is None:
            raise OptionError(
                "rerotate moves together what an eviction leaves; add one, such as streaming=512"
            )

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """Return the policy that a text means: names and ``name=value``, in any order, between commas.

        An empty text, or an empty part of one, asks for nothing; so policies join with a comma.

        Raises
        ------
        OptionError
            For an unknown name, a value that is missing, unexpected or no number, and contradictions.

        Examples
        --------
        >>> str(Policy.parse("page=64,h2o=512:sum,bf16"))
        'bf16,h2o=512:sum,page=64'
        >>> Policy.parse("windw=8")
        Traceback (most recent call last):
            ...
        qkv.errors.OptionError: a policy has no part named 'windw'; did you mean 'window'?
        """
        if not isinstance(text, str):
            raise OptionError(f"a policy is text such as 'int8,window=1024', '' for all, not {shown(text)}")
        given = read_parts(text, _FLAGS, _EXAMPLES)
        numbers = {
            name: whole_number(name, given[name]) for name in ("window", "sinks", "page") if name in given
        }
        evictions = [Eviction.parse(name, given[name]) for name in EVICTIONS if name in given]
        eviction = _only("evictions", evictions)
        return cls(
            element=_only("element types", [name for name in given if name in ELEMENTS]) or "float32",
            window=numbers.get("window"),
            sinks=numbers.get("sinks", _default_sinks(eviction)),
            eviction=eviction,
            heads=head_pattern(given["heads"]) if "heads" in given else None,
            latent="latent" in given,
            rerotate="rerotate" in given,
            page=numbers.get("page"),
        )

    def __str__(self) -> str:
        parts = (
            (self.element, self.element != "float32"),
            (f"window={self.window}", self.window is not None),
            (f"sinks={self.sinks}", self.sinks != _default_sinks(self.eviction)),
            (str(self.eviction), self.eviction is not None),
            (f"heads={head_digits(self.heads or ())}", self.heads is not None),
            ("latent", self.latent),
            ("rerotate", self.rerotate),
            (f"page={self.page}", self.page is not None),
        )
        return ",".join(part for part, said in parts if said)

    def __repr__(self) -> str:
        return f"Policy({str(self)!r})"

    @property
    def page_size(self) -> int:
        """P, tokens per page."""
        return element_named(self.element).page_size if self.page is None else self.page

    @property
    def keeps_all(self) -> bool:
        """Whether every token stays, in every head."""
        return self.window is None and self.eviction is None

    def window_of(self, layer: int, head: int) -> int | None:
        """Return the window of one key head, ``None`` where it has none."""
        if self.heads is None:
            return self.window
        row = self.heads[0 if len(self.heads) == 1 else layer]
        return None if row[head] else self.window

    def exceeds(self, held: int, budget: int, num_new: int) -> bool:
        """Whether a head that holds so many tokens after a step of ``num_new`` must come down to its budget.

        At every step, a page more than the budget is let fill first, so that a page comes back each time;
        after a prompt, anything more than the budget goes.
        """
        if self.eviction is None:
            return False
        if self.eviction.acts_every_step:
            return held >= budget + self.page_size
        return num_new > 1 and held > budget

    def check_fits(self, L: int, G: int) -> None:
        """Refuse a head pattern that is not for a model of L layers of G key heads.

        Raises
        ------
        OptionError
        """
        if self.heads is None:
            return
        rows, heads = len(self.heads), len(self.heads[0])
        if rows not in (1, L) or heads != G:
            raise OptionError(
                f"heads={head_digits(self.heads)} has {_counted(rows, 'row')} of {_counted(heads, 'digit')}; "
                f"this model takes {_counted(G, 'digit')}, one per key head, in one row or in {L}, "
                "one per layer"
            )

    def _check_heads(self) -> None:
        if self.heads is None:
            return
        if not self.heads or not self.heads[0] or len({len(row) for row in self.heads}) != 1:
            raise OptionError("heads takes rows of equally many digits, at least one, as in heads=10/01")
        if self.window is None:
            raise OptionError("heads needs window=W: how far back the heads marked 0 see")

    def _check_sinks(self) -> None:
        if self.sinks and self.window is None and self.eviction is None:
            raise OptionError(
                f"sinks={self.sinks} stay when others leave, and here all stay; "
                f"add window=W or an eviction such as streaming=512"
            )
        if self.eviction is not None and self.eviction.budget <= self.sinks:
            raise OptionError(
                f"{self.eviction} must be more than the {self.sinks} sinks that it includes; "
                f"raise the budget, or give fewer sinks=n"
            )

    def _check_eviction(self) -> None:
        if self.eviction is None:
            return
        name = self.eviction.name
        if self.window is not None:
            other = "window" if self.heads is None else "heads"
            raise OptionError(f"{name} and {other} both say which tokens stay; take one of them")
        if self.eviction.acts_every_step and element_named(self.element).closes_pages:
            raise OptionError(
                f"{name} drops tokens one by one, but keys of {self.element} share a step within a page; "
                f"take int8, or an eviction after the prompt: {', '.join(AFTER_PROMPT)}"
            )


def _default_sinks(eviction: Eviction | None) -> int:
    return 0 if eviction is None else DEFAULT_SINKS[eviction.name]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _only(kind: str, found: list[_Part]) -> _Part | None:
    """Return what was found, ``None`` if nothing was."""
    if len(found) > 1:
        raise OptionError(f"{' and '.join(map(str, found))} are {len(found)} {kind}; a policy has one")
    return found[0] if found else None
