"""The fixed corpus stays what it is, and what it is for."""

import hashlib
import unicodedata

import numpy as np

from pipeline.core import corpus

# Every target's `corpus_sha256` stands on these very texts.
TEXTS_SHA256 = "e3289ce4640acc8bb35a37b867b02e0ef530edb41a79dc2f6746d7e45b19a4c9"


def test_the_texts_never_change():
    texts = corpus.texts()
    assert len(texts) == corpus.SIZE >= 10_000
    assert hashlib.sha256("\0".join(texts).encode()).hexdigest() == TEXTS_SHA256


def test_the_texts_are_no_accident_of_this_process():
    again = corpus.texts.__wrapped__()
    assert again is not corpus.texts()
    assert again == corpus.texts()


def test_every_script_and_habit_is_there_often():
    texts = corpus.texts()
    scripts = {
        "LATIN": "é",
        "CJK": "你",
        "HIRAGANA": "の",
        "KATAKANA": "タ",
        "HANGUL": "한",
        "ARABIC": "م",
        "HEBREW": "א",
        "THAI": "ก",
        "TAMIL": "த",
        "DEVANAGARI": "क",
        "CYRILLIC": "ж",
        "GREEK": "ω",
    }
    for script, example in scripts.items():
        assert unicodedata.name(example).startswith(script)
        holding = sum(any(unicodedata.name(char, "").startswith(script) for char in text) for text in texts)
        assert holding > 500, script
    pieces = ("'s ", "'LL", "\u200d", "\ufe0f", "\r\n", "\x00", "１", "</think>", "<|im_end|>", "    ")
    for piece in (*pieces, "\n\n\n\n", "a" * 8, "return", "```", "\u0301"):
        assert sum(piece in text for text in texts) > 15, piece
    assert sum(len(text) > 500 for text in texts) > 20


def test_only_characters_that_every_unicode_table_knows():
    for char in set("".join(corpus.texts())):
        assert unicodedata.ucd_3_2_0.category(char) != "Cn" or unicodedata.category(char) != "Cn", hex(
            ord(char)
        )
        assert unicodedata.category(char) != "Cs"


def test_the_hash_sees_every_id_and_every_border():
    base = corpus.ids_sha256([[1, 2], [3]], [[4]])
    assert base == hashlib.sha256(np.array([2, 1, 2, 1, 3, 1, 4], dtype="<u4").tobytes()).hexdigest()
    others = [
        ([[1, 2], [4]], [[4]]),
        ([[1], [2, 3]], [[4]]),
        ([[1, 2, 3]], [[4]]),
        ([[1, 2], [3]], [[5]]),
        ([[1, 2], [3], []], [[4]]),
    ]
    assert len({base, *(corpus.ids_sha256(*rows) for rows in others)}) == len(others) + 1
