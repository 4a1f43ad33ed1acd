"""What a model folder says about its tokenizer.

======================= ======== ==================================================================
file                    needed   what is read from it
======================= ======== ==================================================================
tokenizer.json          yes      vocabulary, how text is cut up, which tokens are put around it
tokenizer_config.json   no       which token begins a text, ends it, ...; the chat template
special_tokens_map.json no       the same tokens, for those the config does not name
chat_template.jinja     no       the chat template; goes before the config's
======================= ======== ==================================================================

What tokenizer.json puts around a text is the truth: a config's ``add_bos_token`` and
``clean_up_tokenization_spaces`` are not read.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_core(folder: Path) -> "tokenizers.Tokenizer":
    """Read tokenizer.json; neither truncation nor padding is taken over from when it was saved."""
    from tokenizers import Tokenizer  # a large library, which not every use of qkv needs

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"expected a tokenizer in {path}, found no such file; copy it from where the model came from, "
            "or make it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        core = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises this bare type
        raise damaged(path, error) from error
    core.no_truncation()
    core.no_padding()
    return core


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Read which token has which role; one a file sets to null has none."""
    named = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    tokens = {role: spelled_out(named.get(role)) for role in SPECIAL_ROLES}
    return {role: token for role, token in tokens.items() if token is not None}


def spelled_out(token: object) -> str | None:
    """Read a special token, given as text or as ``{"content": ...}``.

    Examples
    --------
    >>> spelled_out("<s>"), spelled_out({"content": "<s>", "lstrip": False}), spelled_out(None)
    ('<s>', '<s>', None)
    """
    match token:
        case str(text) | {"content": str(text)}:
            return text
    return None


def read_chat_templates(folder: Path) -> dict[str, str]:
    """Read the chat templates by name; a file of its own is the default one."""
    path = folder / "tokenizer_config.json"
    templates = named_templates(read_json(path).get("chat_template"))
    if templates is None:
        raise damaged(path, "chat_template is neither text nor a list of named texts")
    own_file = read_text(folder / "chat_template.jinja")
    return templates if own_file is None else {**templates, "default": own_file}


def named_templates(configured: object) -> dict[str, str] | None:
    """Read a config's chat_template: nothing, text, or a list of ``{"name": ..., "template": ...}``.

    Examples
    --------
    >>> named_templates("{{ messages }}")
    {'default': '{{ messages }}'}
    >>> named_templates([{"name": "tool_use", "template": "{{ tools }}"}])
    {'tool_use': '{{ tools }}'}
    """
    match configured:
        case None:
            return {}
        case str():
            return {"default": configured}
        case list() if all(
            isinstance(entry, dict) and {"name", "template"} <= entry.keys() for entry in configured
        ):
            return {entry["name"]: entry["template"] for entry in configured}
    return None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file reads as an empty one."""
    text = read_text(path)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise damaged(path, error) from error
    if not isinstance(content, dict):
        raise damaged(path, f"a JSON object was expected, not {type(content).__name__}")
    return content


def read_text(path: Path) -> str | None:
    """Read a UTF-8 file; ``None`` if it is missing."""
    try:
        return path.read_text("utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise damaged(path, error) from error


def damaged(path: Path, reason: object) -> CheckpointError:
    """Give the error for a file that is there and cannot be read."""
    return CheckpointError(f"{path} cannot be read ({reason}); copy it again from where the model came from")
