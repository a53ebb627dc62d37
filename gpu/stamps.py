"""What a KV row holds: a stamp in place of key and value data, different in every word.

A stamp says which token stands at the row and which prefix leads to it, as real keys and values
depend on both.  A row that was overwritten, copied from elsewhere, half copied, or never filled
therefore shows.  Word w of layer l of a row with stamp s is ``s * layers * words + l * words + w``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

UNFILLED = -1
"""Every word of memory that nobody wrote, and the token that such a row reads as."""
POISON = -7
"""Every word of memory that was poisoned when its last owner left."""

TOKEN_LIMIT = 2**32
_LINEAGES = 32749  # prime, below 2**15: a stamp has 47 bits, so layers * words may have 15
WORDS_LIMIT = 2**15


class WrongToken(ValueError):
    """A token that does not fit into a stamp."""

    def __init__(self, token: object) -> None:
        super().__init__(f"token {token!r} does not fit into a row: use whole numbers from 0 to {TOKEN_LIMIT - 1}")


def stamps_of(tokens: Iterable[int]) -> list[int]:
    """The stamps of a request's rows, position 0 first: each depends on all tokens up to its own."""
    stamps, lineage = list[int](), 1
    for token in tokens:
        if not 0 <= token < TOKEN_LIMIT:
            raise WrongToken(token)
        lineage = (lineage * 31 + token + 1) % _LINEAGES
        stamps.append(lineage * TOKEN_LIMIT + token)
    return stamps


def words_of(stamps: torch.Tensor, layers: int, words: int) -> torch.Tensor:
    """The row contents for stamps [T], as int64 [layers, T, words]."""
    salt = torch.arange(layers * words, device=stamps.device).view(layers, 1, words)
    return stamps.view(1, -1, 1) * (layers * words) + salt


def tokens_in(rows: torch.Tensor) -> list[int]:
    """The tokens that rows [layers, T, words] hold; UNFILLED where the words disagree or are no stamp."""
    layers, _, words = rows.shape
    stamps = rows[0, :, 0].div(layers * words, rounding_mode="floor")
    whole = (rows == words_of(stamps, layers, words)).all(dim=2).all(dim=0) & (stamps >= 0)
    return [int(token) for token in torch.where(whole, stamps % TOKEN_LIMIT, UNFILLED)]
