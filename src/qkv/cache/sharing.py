"""Begin a text with pages that another text of the same beginning has filled.

What pages hold must then be what the text itself would have put there, to the bit:

- they are found only under the same model, policy and shape (and the caller's salt and adapter);
- they are remembered only while nothing has been dropped. A page of which one layer or head is gone,
  behind a window or through an eviction, and all pages behind it, are not remembered. Where a window is
  smaller than a prompt, remember the prompt as it comes in, chunk by chunk: what the index knows already
  may be gone from the sequence;
- tokens within a page are taken by copying it, except where pages are encoded as a whole: there the
  text's own page must be as it came.

Evictions at every step leave a text alone until it exceeds their budget, and then go by its keys or its
last query, which a shared beginning does not change. Not so h2o, whose scores are what all later queries
of one text gave its keys, nor the evictions after a prompt, which go by all or many of the queries of the
step that reads it: with these a text that begins with shared pages would keep other tokens.
"""

import numpy as np
from numpy.typing import ArrayLike

from qkv.cache.evicting import adds_up_attention
from qkv.cache.identity import Identity
from qkv.cache.policy import Policy
from qkv.cache.pool import NO_PAGE, Ids
from qkv.cache.prefix import PrefixIndex
from qkv.cache.prefix_tree import pages_of
from qkv.cache.tables import Marked, SequenceTables
from qkv.errors import CacheFull, OptionError, ShapeError


def check_shareable(index: PrefixIndex, one: SequenceTables, policy: Policy) -> None:
    """Refuse an index of other pages, or a policy under which a beginning is no text's alone.

    Raises
    ------
    OptionError
    """
    if index.pool is not one.pages.pool:
        raise OptionError("the index keeps pages of another pool; make both with the same PagePool")
    if index.page_size != one.layout.P:
        raise OptionError(
            f"the index has pages of {index.page_size} tokens, the cache of {one.layout.P}; "
            f"make PrefixIndex(pool, page_size={one.layout.P}), or ask for page={index.page_size}"
        )
    if not is_shareable(policy):
        raise OptionError(
            f"{policy.eviction} goes by all the queries of a text, and a shared beginning has none; "
            f"share beginnings with another eviction, such as streaming or tova, or with none"
        )


def is_shareable(policy: Policy) -> bool:
    """Whether what a policy keeps of a beginning is the same whatever comes behind it.

    Examples
    --------
    >>> [is_shareable(Policy.parse(text)) for text in ("int8,window=64", "streaming=64", "h2o=64")]
    [True, True, False]
    """
    eviction = policy.eviction
    return eviction is None or (eviction.acts_every_step and not adds_up_attention(eviction))


def namespace(identity: Identity, salt: str) -> str:
    """Return the salt under which an index keeps pages of this identity.

    Examples
    --------
    >>> namespace(Identity("4f1a", "int8", "3 layers"), "of a user")
    "('4f1a', 'int8', '3 layers', 'of a user')"
    """
    return repr((identity.model, identity.policy, identity.shape, salt))


def adopt(one: SequenceTables, index: PrefixIndex, tokens: ArrayLike, salt: str, adapter: str) -> int:
    """Let an empty sequence begin with the pages of the longest known beginning; return how many tokens.

    Parameters
    ----------
    one : SequenceTables
    index : PrefixIndex
    tokens : (S,) integers
        The text, of which at least the last token is left to compute.
    salt, adapter : str
        Of the `namespace`.

    Raises
    ------
    OptionError
        If the sequence holds tokens.
    """
    if one.length:
        raise OptionError(f"only an empty sequence takes a beginning, not one of {one.length} tokens")
    one.free()  # what a step left that did not come to its end
    hit = index.lookup(np.asarray(tokens)[:-1], salt=salt, adapter=adapter)
    num_tokens, num_pages = hit.num_tokens, len(hit.ids_per_page)
    if num_pages:
        _enter(one, 0, np.stack(hit.ids_per_page, axis=2))
    if hit.partial_ids is not None and _copy_page(one, num_pages, hit.partial_ids):
        num_tokens += hit.partial_tokens
    one.held[:] = one.tokens[:] = one.length = num_tokens
    return num_tokens


def remember(one: SequenceTables, index: PrefixIndex, tokens: ArrayLike, salt: str, adapter: str) -> int:
    """Let the index keep the full pages of a sequence; return how many tokens can be found from now on.

    Parameters
    ----------
    one : SequenceTables
    index : PrefixIndex
    tokens : (S,) integers
        The text that the sequence was run on; what is behind it does not count.
    salt, adapter : str
        Of the `namespace`.

    Raises
    ------
    ShapeError
        If there are fewer tokens than were run.
    """
    text, P = np.asarray(tokens)[: one.length], one.layout.P
    if text.shape != (one.length,):
        raise ShapeError(f"expected the {one.length} tokens that were run, not {np.shape(tokens)} of them")
    known = index.last_known(text, salt=salt, adapter=adapter, known=one.remembered)
    num_pages = max(known.depth, _num_whole_pages(one, known.depth))
    pages = pages_of(text[known.depth * P : num_pages * P], P)
    ids = np.moveaxis(one.pages.ids[:, :, known.depth : num_pages], 2, 0)
    one.remembered = index.insert_behind(known, pages, ids)
    return num_pages * P


def _num_whole_pages(one: SequenceTables, known: int) -> int:
    """Return before which page, from one on, something was dropped; all are whole if nothing was."""
    if (one.held != one.tokens[:, None]).any():
        return 0
    full = one.length // one.layout.P
    whole = (one.pages.ids[:, :, known:full] != NO_PAGE).all(axis=(0, 1))
    return known + (whole.size if whole.all() else int(np.argmin(whole)))


def _enter(one: SequenceTables, first_page: int, ids: Ids) -> None:
    """Enter pages, (L, G, n), which are the sequence's from now on."""
    one.pages.put(slice(None), Marked(first_page, np.ones(ids.shape, bool)), ids.ravel())


def _copy_page(one: SequenceTables, page: int, shared: Ids) -> bool:
    """Enter copies of pages, (L, G), and give up the reference to these; return whether that was possible.

    Not so where pages are encoded as a whole, nor where there is no room. The next step then asks for as
    many pages, after these have gone back too, and so needs no more room than without a hit.
    """
    pool = one.pages.pool
    try:
        if one.closes_pages:
            return False
        copies = pool.take(one.layout.nbytes, shared.size)
        for copy, original in zip(copies, shared.ravel(), strict=True):
            pool.page(copy)[:] = pool.page(original)
        _enter(one, page, copies.reshape(*shared.shape, 1))
    except CacheFull:
        return False
    finally:
        pool.free(shared)
    return True
