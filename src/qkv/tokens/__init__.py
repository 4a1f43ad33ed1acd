"""Text to ids to text: the first and the last step of generating.

`Tokenizer` turns text into ids, `StreamDecoder` ids into text while they are generated, and
`StopMatcher` ends that text at a stop string.
"""

from qkv.tokens.stops import StopMatcher
from qkv.tokens.stream import StreamDecoder
from qkv.tokens.tokenizer import Tokenizer

__all__ = ["StopMatcher", "StreamDecoder", "Tokenizer"]
