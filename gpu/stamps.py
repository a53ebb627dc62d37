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

DRAFT = -2
"""The token of a draft: its rows are written before anybody knows whether it will count."""
DRAFT_STAMP = 0
"""The stamp of every draft; no token has it, because lineages start at 1."""

TOKEN_LIMIT = 2**32
_LINEAGES = 2**15  # a stamp has 47 bits, so layers * words may have 15
WORDS_LIMIT = 2**15


class WrongToken(ValueError):
    """A token that does not fit into a stamp."""

    def __init__(self, token: object) -> None:
        super().__init__(f"token {token!r} does not fit into a row: use whole numbers from 0 to {TOKEN_LIMIT - 1}")


def append_stamps(stamps: list[int], tokens: Iterable[int]) -> None:
    """Extend the stamps of a request's rows by more tokens; each depends on all tokens up to its own."""
    lineage = stamps[-1] // TOKEN_LIMIT if stamps else 1
    for token in tokens:
        if not 0 <= token < TOKEN_LIMIT:
            raise WrongToken(token)
        lineage = (lineage * 31 + token + 1) % (_LINEAGES - 1) + 1
        stamps.append(lineage * TOKEN_LIMIT + token)


def stamps_of(tokens: Iterable[int]) -> list[int]:
    """The stamps of a request's rows, position 0 first."""
    stamps: list[int] = []
    append_stamps(stamps, tokens)
    return stamps


def words_of(stamps: torch.Tensor, layers: int, words: int) -> torch.Tensor:
    """The row contents for stamps [T], as int64 [layers, T, words]."""
    salt = torch.arange(layers * words, device=stamps.device).view(layers, 1, words)
    return stamps.view(1, -1, 1) * (layers * words) + salt


def tokens_in(rows: torch.Tensor) -> list[int]:
    """The tokens that rows [layers, T, words] hold.

    UNFILLED where the words are no stamp or do not agree on one; DRAFT for a draft.
    """
    layers, _, words = rows.shape
    stamps = rows[0, :, 0].div(layers * words, rounding_mode="floor")
    whole = (rows == words_of(stamps, layers, words)).all(dim=2).all(dim=0) & (stamps >= 0)
    tokens = torch.where(stamps == DRAFT_STAMP, DRAFT, stamps % TOKEN_LIMIT)
    return [int(token) for token in torch.where(whole, tokens, UNFILLED)]
