"""What is seen of a text at a glance, as numbers: features of jobs that are prompts, without a model that reads them."""

import math
import re

LOOKED_AT = 4000  # characters at either end of a text that are looked at
BEGINNING = 200  # characters in which a text says what is to be done
MOST_SIGNS = 8  # different signs of code that are counted
SIGNS = 2  # of them, from which on a text is about code; a fenced block alone is enough

CODE = re.compile(
    r"```|^[ \t]*(def|class|import|from|const|let|func|fn|public|private|#include|SELECT|Traceback)\b"
    r"|[{;][ \t]*$|\b(python|javascript|typescript|rust|golang|java|sql|regex|stack ?trace|refactor|unit tests?)\b",
    re.MULTILINE | re.IGNORECASE,
)
WORD = re.compile(r"[^\W\d_]{2,}")
NUMBER = re.compile(r"\d+")
OPTION = re.compile(r"^[ \t]*\(?[A-Ea-e1-5][.)]\s", re.MULTILINE)
LATEX = re.compile(r"\\[a-z]+\{|\\(frac|sqrt|times|sum|int|leq?|geq?)\b")
ENGLISH = frozenset(
    ("the", "of", "and", "to", "in", "is", "that", "for", "it", "with", "as", "on", "be", "this", "are")
)
OTHERS = frozenset(
    ("der", "die", "und", "das", "ist", "le", "la", "les", "et", "des", "est", "el", "los", "por", "que")
)
"""Frequent words of English and of some other languages: hints, no detection."""
PERSONS = frozenset(("i", "me", "my", "you", "your", "he", "she", "we"))
TO_WRITE = re.compile(r"\b(write|create|compose|generate|draft|make)\b", re.IGNORECASE)
TO_RECALL = frozenset(("what", "who", "when", "where", "which"))
TO_REASON = frozenset(("why", "how", "explain", "describe"))


def text_features(text: str) -> list[float]:
    """Return 24 numbers that describe a text: length, code, language, form, and what kind of thing it asks for.

    The same in every process. They say what questions look like, not what they are about: an embedding does that. Only
    the first and the last 4,000 characters count, except for the length.

    Examples
    --------
    >>> scheduler = bilinq.Scheduler([bilinq.JobClass("chat")], [bilinq.ServerClass("small"), bilinq.ServerClass("large")])
    >>> scheduler.submit("chat", features=bilinq.text_features("Why is the sky blue?"))
    0
    >>> len(bilinq.text_features(""))
    24
    """
    seen = _ends(text)
    found, numbers, signs = WORD.findall(seen), NUMBER.findall(seen), code_signs(seen)
    words = [word.lower() for word in found]
    different, size, number = set(words), max(len(seen), 1), max(len(words), 1)

    def part(some: str) -> float:
        return sum(map(seen.count, some)) / size

    def among(some: frozenset[str]) -> float:
        return sum(word in some for word in words) / number

    return [
        math.log1p(len(text)),
        math.log1p(seen.count("\n")),
        float(signs >= SIGNS),
        min(signs, MOST_SIGNS),
        part("{}()[];=<>"),
        part("+-*/=^<>"),
        part(",;:"),
        part("\"'“”"),
        sum(map(len, numbers)) / size,
        math.log1p(len(numbers)),
        len(seen.encode("utf-8", "replace")) / size,
        among(ENGLISH),
        among(OTHERS),
        among(PERSONS),
        len(different) / number,
        sum(map(len, words)) / number,
        sum(word[0].isupper() for word in found) / number,
        math.log1p(seen.count("?")),
        float(seen.rstrip().endswith("?")),
        math.log1p(len(OPTION.findall(seen))),
        float(LATEX.search(seen) is not None),
        float(TO_WRITE.search(seen[:BEGINNING]) is not None),
        float(not different.isdisjoint(TO_RECALL)),
        float(not different.isdisjoint(TO_REASON)),
    ]


def code_signs(text: str) -> int:
    """Return how many different signs of code a text has; a fenced block counts as enough."""
    signs = {found.group().strip().lower() for found in CODE.finditer(_ends(text))}
    return max(len(signs), SIGNS if "```" in signs else 0)


def _ends(text: str) -> str:
    return text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]}\n{text[-LOOKED_AT:]}"
