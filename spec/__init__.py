"""kvproof.spec: the formal specification, one relational text.

Reading order: ``language`` (the vocabulary of the text), ``state`` (what the rules speak of),
``rules`` (the rule book).  ``README.md`` beside this file is the prose.
"""

from .language import RULES, Clause, Rule, SpecError
from .rules import owned
from .state import EVENT, STATE

__all__ = ["EVENT", "RULES", "STATE", "Clause", "Rule", "SpecError", "owned"]
