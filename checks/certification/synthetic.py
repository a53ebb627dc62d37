"""Make the bundled workload: ``python -m kvproof.checks.certification.synthetic > checks/data/synthetic.jsonl``.

Three hundred requests of a chat service, in the Mooncake format.  Two system prompts start every
conversation; each later turn repeats the whole conversation and adds to it; eleven requests carry
a document of 90 to 180 chunks.  All numbers come from one seeded generator, so that the command
prints the same bytes on every machine (a test compares them with the file).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvproof.checks.certification.workload_rows import MOONCAKE_CHUNK

ROWS = 300
SEED = 4
SYSTEM_PROMPTS = (1, 3)
"""Chunks of each system prompt."""
DOCUMENT_EVERY = 27
"""One request in this many carries a document."""
LONGEST = 60
"""Chunks after which a conversation ends."""


@dataclass
class Conversation:
    """One user's prompt so far: its tokens, and the ids of its complete chunks."""

    tokens: int
    ids: list[int] = field(default_factory=list)


def synthetic_rows(seed: int = SEED) -> Iterator[dict[str, object]]:
    """The rows, in arrival order."""
    # Only random() is used: its sequence is the same in every Python version.
    draw = random.Random(seed).random
    fresh = iter(range(10**6))
    prompts = [[next(fresh) for _ in range(chunks)] for chunks in SYSTEM_PROMPTS]
    talks: list[Conversation] = []
    clock = 0
    for row in range(ROWS):
        clock += int(draw() * 900)
        talks = [talk for talk in talks if talk.tokens < LONGEST * MOONCAKE_CHUNK]
        if len(talks) < 8 or draw() < 0.2:
            ids = prompts[int(draw() * len(prompts))]
            talks.append(Conversation(len(ids) * MOONCAKE_CHUNK, list(ids)))
        talk = talks[int(draw() * len(talks))]
        document = row % DOCUMENT_EVERY == DOCUMENT_EVERY - 1
        chunks = 90 + draw() * 90 if document else 0.1 + draw() ** 3 * 14
        talk.tokens += int(chunks * MOONCAKE_CHUNK)
        complete = talk.tokens // MOONCAKE_CHUNK
        talk.ids += [next(fresh) for _ in range(complete - len(talk.ids))]
        # The incomplete last chunk is a prefix of its own: the next turn completes it differently.
        last = [next(fresh)] if talk.tokens % MOONCAKE_CHUNK else []
        output = 1 + int(draw() ** 2 * 900)
        yield {"timestamp": clock, "input_length": talk.tokens, "output_length": output, "hash_ids": talk.ids + last}
        talk.tokens += output


def synthetic_text(seed: int = SEED) -> str:
    """The file: one row a line."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in synthetic_rows(seed))


if __name__ == "__main__":
    print(synthetic_text(), end="")
