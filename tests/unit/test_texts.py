"""Features of texts: what they see, that they are the same everywhere, and what they cost."""

import math
import subprocess
import sys
import time

import pytest

import bilinq
from bilinq.texts import LOOKED_AT, code_signs

NAMES = (
    "length", "lines", "code", "signs", "brackets", "operators", "separators", "quotes", "digits", "numbers", "bytes",
    "english", "others", "persons", "distinct", "letters", "capitals", "questions", "asks", "options", "latex", "write",
    "recall", "reason",
)  # fmt: skip


def seen(text: str) -> dict[str, float]:
    return dict(zip(NAMES, bilinq.text_features(text), strict=True))


def test_each_feature_sees_what_it_is_for() -> None:
    sea = seen("Why is the sea salty, and who found out?")
    assert (sea["reason"], sea["recall"], sea["asks"], sea["write"], sea["code"]) == (1.0, 1.0, 1.0, 0.0, 0.0)
    assert sea["questions"] == math.log(2.0) and sea["separators"] == 1 / 40 and sea["capitals"] == 1 / 9
    assert sea["english"] == 3 / 9 and sea["others"] == 0.0  # is, the, and
    poem = seen("Write a poem for me.\nIt may rhyme.")
    assert (poem["write"], poem["asks"], poem["lines"], poem["persons"]) == (1.0, 0.0, math.log(2.0), 1 / 7)
    code = seen("def f(x):\n    return x;\n")
    assert code["code"] == 1.0 and code["brackets"] > 0.1 and code["signs"] == 2.0
    sums = seen(r"Compute 12 + 345 = x, \frac{1}{2}")
    assert (
        sums["numbers"] == math.log(5.0) and sums["digits"] == 7 / 33 and sums["latex"] == 1.0 and sums["operators"] > 0
    )
    assert seen("Which?\nA. one\nB. two\n(C) three")["options"] == math.log(4.0)
    assert seen("El mar y los cielos")["others"] == 2 / 4 and seen("海は広い")["bytes"] == 3.0
    assert seen('He said "no"')["quotes"] == 2 / 12 and seen("dog dog cat")["distinct"] == 2 / 3


@pytest.mark.parametrize("text", ["", " ", "?", "\ud800", "海" * 20_000, "a" * 100_000, "```", "\x00\n\r", "1" * 9000])
def test_any_text_has_as_many_finite_numbers(text: str) -> None:
    found = bilinq.text_features(text)
    assert len(found) == len(NAMES) and all(map(math.isfinite, found))


def test_features_are_the_same_in_another_process() -> None:
    text = "Explain the words of this question: which of them count?"
    code = f"import bilinq; print(bilinq.text_features({text!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(bilinq.text_features(text))


@pytest.mark.parametrize(
    "text", ["\n", " ", " \n", "\t(", "{", "; ", "`", "\\a", "A", "1", "_", "import ", "stack "], ids=repr
)
def test_no_text_takes_longer_than_others_of_its_length(text: str) -> None:
    """8,000 empty lines took 0.4 s: each was the beginning of all that follow."""
    long = text * (2 * LOOKED_AT // len(text))
    began = time.process_time()
    bilinq.text_features(long)
    assert time.process_time() - began < 0.05


def test_long_texts_are_looked_at_at_both_ends() -> None:
    middle = "x" * LOOKED_AT + " ```code``` " + "x" * LOOKED_AT
    assert code_signs(middle) == 0 and code_signs("```code```" + middle) >= 2 and code_signs(middle + "```code```") >= 2
    spent = []
    for length in (10_000, 10_000_000):
        text = "word and, " * (length // 10)
        began = time.process_time()
        bilinq.text_features(text)
        spent.append(time.process_time() - began)
    assert spent[1] < 0.2, spent  # a thousand times the length; looking at all of it would take seconds
