"""Nothing -> the fixed corpus: 12,000 generated strings whose ids tell one tokenizer from another.

Special tokens alone prove little: transformers 5.17-5.24 loads Kimi with all 256 special ids right
and another split pattern, and 4 % of all strings change. So the strings mix scripts, contractions,
combining marks, emoji, digits and whitespace, where split patterns differ. They hold only
code points that Unicode assigned long ago, so a newer regex engine gives the same ids.

The texts must never change: every target's contract holds a hash over their ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

SIZE = 12_000
SEED = 20260131

HOSTILE = (
    "I don't think it's what they'll say; we've said I'd go, you're LATE, SHE'S here.",
    " don't",
    "I'LL'S'T'Re",
    "hello'world l'été d’accord can’t",
    "⭐️❤️⭐️⭐️",
    "👩‍👩‍👧‍👦👍🏽🇫🇮1️⃣🏴‍☠️",
    "தமிழ் மொழி க்ஷ்",
    "क्षत्रिय ज़िन्दगी",
    "e\u0301a\u0308o\u0302\u0301n\u0303 Z\u0351\u036b\u0343alg\u0489o",
    "你好世界，今天天气怎么样？「好」…",
    "东京タワーへ行きましょう。ｶﾀｶﾅ Ｆｕｌｌ１２３",
    "a仧a，児ー タ亐ー x伧a",  # tokens that begin inside a Han character and end in the next letter
    "}\n///\n\t\t// TODO\r\n  return f'{x!r}'\n\n\n",
    'def f(x):\n    """doc"""\n    return {"a": [1, 2.50, -3e8]}\n',
    "\n" * 64 + "哈" * 65,
    "1234567890 ٣٤٥ १२३ ①② ½ x² 10.000,00",
    "   leading, trailing   \n \t \n",
    "ǅenana ǈubav ŉ ß ẞ İi ıI",
    "\x00\x01\x1f\x7f\x85\u200b\u200d\ufeff\u2028\u2029\u00ad\ufffd",
    "<think>a</think>b<|im_end|><|tool_call_begin|>x<|tool_call_end|>[EOS]<|endoftext|>",
)
"""Written by hand: what public reports of wrong tokenizers are about."""

MARKERS = (
    "<think>",
    "</think>",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_start|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<|endoftext|>",
    "<|user|>",
    "<tool_call>",
    "[BOS]",
    "[EOS]",
    "[PAD]",
    "<|reserved_token_163700|>",
    "<｜end▁of▁sentence｜>",
    "<|",
    "|>",
)
"""Strings that are special tokens of some model; to the others they are text."""


class _Dice:
    """Pseudo-random numbers (SplitMix64) that are the same on every Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return (mixed ^ (mixed >> 31)) % limit

    def pick(self, items: Sequence[str]) -> str:
        return items[self.below(len(items))]

    def run(self, items: Sequence[str], least: int, most: int) -> str:
        return "".join(self.pick(items) for _ in range(least + self.below(most - least + 1)))


def _span(*ranges: tuple[int, int]) -> str:
    return "".join(chr(code) for first, last in ranges for code in range(first, last + 1))


_LOWER = "etaoinshrdlucmfwypvbgkqjxz"
_LATIN = _span((0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x17F))
_SUFFIXES = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "’s", "'x", "-")
_CONTRACTIONS = (
    *("I'm", "you're", "he's", "it's", "that's", "what's", "let's", "we've", "they've", "I'll", "they'll"),
    *("he'd", "we'd", "don't", "can't", "isn't", "wouldn't", "it'll", "who's", "user's", "would've"),
)
_STOPS = (". ", ", ", "; ", "! ", "?\n", ": ", " — ", "…", ".\n\n", ") ", ' "', "/")
_CODE = (
    "if (x != 0) {\n",
    "    return self._value\n",
    "\t}\n",
    "for i in range(10):\n",
    "#include <vector>\n",
    "SELECT * FROM t WHERE id=%s;\n",
    "const getUserName = async () => ",
    "std::map<int,std::string>",
    "// ---- ",
    "/* x */",
    "a->b[i] += 0xFF;\r\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich"}}',
    "HTTPResponseError",
    "snake_case_name",
    "```python\n",
    "\n```\n",
    "\\frac{1}{2}",
    "$x^2$",
    "://",
    "==>",
)
_HAN = (
    _span((0x4E00, 0x4EFF), (0x5929, 0x59FF), (0x6C00, 0x6CFF), (0x9F00, 0x9F50), (0x3400, 0x3420)) + "𠀀𠮷𡃁"
)
_ALL_HAN = _span((0x4E00, 0x9FA5))
_HAN_STOPS = "，。！？；：「」『』（）、《》…—·々〇"
_KANA = _span((0x3041, 0x3096), (0x30A1, 0x30FA)) + "ーｱｲｳﾞﾟ"
_HANGUL = _span((0xAC00, 0xAD00), (0x1100, 0x1112), (0x1161, 0x1175))
_ARABIC = _span((0x0621, 0x063A), (0x0641, 0x064A), (0x064B, 0x0652)) + "،؟ \u0640"
_HEBREW = _span((0x05D0, 0x05EA), (0x05B0, 0x05B9)) + " ־"
_THAI = _span((0x0E01, 0x0E3A), (0x0E40, 0x0E4E)) + " ๆ"
_TAMIL = _span((0x0B95, 0x0B95), (0x0B99, 0x0B9A), (0x0BAE, 0x0BB5), (0x0BBE, 0x0BC2), (0x0BCA, 0x0BCD)) + " "
_DEVANAGARI = _span((0x0901, 0x0914), (0x0915, 0x0939), (0x093E, 0x094D)) + " ।"
_CYRILLIC = _span((0x0410, 0x044F)) + "ёЁїі "
_GREEK = _span((0x0391, 0x03A1), (0x03A3, 0x03C9)) + " "
_MARKS = _span((0x0300, 0x0314), (0x0323, 0x0331), (0x20D0, 0x20DC)) + "\u0489\ufe0f\u200d"
_EMOJI = ("😀", "🙃", "🤖", "🔥", "👍", "👩", "🧑", "💻", "❤", "⭐", "☎", "✈", "🏴", "🇫", "🇮", "🇯", "1", "#")
_JOINS = ("\u200d", "\ufe0f", "\ufe0e", "🏻", "🏿", "\u20e3", "", "", " ")
_DIGITS = "01234567890123456789٠١٢٣۴۵१२３４５²³½①Ⅻ"
_SPACES = (" ", " ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0")
_WIDE_SPACES = ("\u2003", "\u2009", "\u3000", "\u2028", "\u202f", "\u1680")
_CONTROLS = _span((0x00, 0x08), (0x0E, 0x1F), (0x7F, 0x9F)) + "\u200b\u200e\u2060\ufeff\u00ad\ufffd"
_PUNCTUATION = _span((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)) + "«»“”‘’„–—•§€£°±×÷→∑√≠"
_FULL_WIDTH = _span((0xFF01, 0xFF5E), (0xFFE0, 0xFFE6))
_TITLE = "ǅǈǋᾈᾼʰˈˑªºﬀﬁﬆ"


def _words(dice: _Dice) -> str:
    words = []
    for _ in range(1 + dice.below(6)):
        word = dice.run(_LOWER, 1, 9)
        case = dice.below(6)
        word = word.upper() if case == 0 else word.capitalize() if case == 1 else word
        if dice.below(4) == 0:
            word += dice.pick(_SUFFIXES)
        words.append(word + (" " if dice.below(5) else dice.pick(_STOPS)))
    return "".join(words)


def _contractions(dice: _Dice) -> str:
    """In every case, and with letters after the suffix, where a pattern without it goes on."""
    written = []
    for _ in range(1 + dice.below(5)):
        word = dice.pick(_CONTRACTIONS)
        case = dice.below(3)
        word = word.upper() if case == 0 else word.capitalize() if case == 1 else word
        written.append(word + dice.pick((" ", " ", ", ", "", "am", "es", "ING", "l", "T", "'d", "\n")))
    return "".join(written)


def _mixed_case(dice: _Dice) -> str:
    return "".join(
        dice.run(_LOWER.upper(), 0, 3) + dice.run(_LOWER, 0, 4) + dice.run("_-.'0" + _TITLE + _LATIN, 0, 1)
        for _ in range(1 + dice.below(5))
    )


def _emoji(dice: _Dice) -> str:
    return "".join(dice.pick(_EMOJI) + dice.pick(_JOINS) for _ in range(1 + dice.below(7)))


def _marked(dice: _Dice) -> str:
    letters = _LOWER + _LATIN + "АяΩ한中カ 1."
    return "".join(dice.pick(letters) + dice.run(_MARKS, 0, 2) for _ in range(1 + dice.below(9)))


def _repeat(dice: _Dice) -> str:
    unit = dice.pick(
        (*_SPACES, *_WIDE_SPACES, "a", "A", "=", "-", "哈", "\u0301", "1", "😀", "ab", " x", "\n ")
    )
    return unit * (2 + dice.below(90 if dice.below(12) else 1500))


def _of(letters: Sequence[str], most: int) -> Callable[[_Dice], str]:
    return lambda dice: dice.run(letters, 1, most)


_FRAGMENTS: tuple[Callable[[_Dice], str], ...] = (
    _words,
    _words,
    _contractions,
    _mixed_case,
    _of(_CODE, 3),
    _of(_CODE, 5),
    _of(_HAN, 12),
    lambda dice: dice.run(_HAN, 1, 8) + dice.run(_HAN_STOPS, 1, 2) + dice.run(_HAN, 0, 6),
    _of(_KANA, 10),
    lambda dice: dice.run(_HAN, 1, 3) + dice.run(_KANA, 1, 4),
    lambda dice: "".join(dice.pick("aBタ， é") + dice.pick(_ALL_HAN) + dice.pick("aーса") for _ in range(6)),
    _of(_HANGUL, 8),
    _of(_ARABIC, 14),
    _of(_HEBREW, 12),
    _of(_THAI, 16),
    _of(_TAMIL, 14),
    _of(_DEVANAGARI, 14),
    _of(_CYRILLIC, 14),
    _of(_GREEK, 12),
    _of(_LATIN, 8),
    _marked,
    _emoji,
    _of(_DIGITS, 12),
    lambda dice: dice.run("0123456789", 1, 9) + dice.pick((".", ",", "%", " ", "", "e-", ":")),
    _of(_SPACES, 5),
    _of((*_SPACES, *_WIDE_SPACES), 3),
    _of(_CONTROLS, 4),
    _of(_PUNCTUATION, 6),
    _of(_FULL_WIDTH, 8),
    _repeat,
    _of(MARKERS, 1),
)


@lru_cache(maxsize=1)
def texts() -> tuple[str, ...]:
    """`HOSTILE`, then generated strings of one to seven fragments."""
    dice = _Dice(SEED)
    generated = (
        "".join(
            _FRAGMENTS[dice.below(len(_FRAGMENTS))](dice) + (" " if dice.below(4) == 0 else "")
            for _ in range(1 + dice.below(7))
        )
        for _ in range(SIZE - len(HOSTILE))
    )
    return (*HOSTILE, *generated)


def ids_sha256(ordinary: Iterable[Sequence[int]], prompt: Iterable[Sequence[int]]) -> str:
    """Hash over the ids of every text, once as ordinary text and once as a prompt."""
    digest = hashlib.sha256()
    for rows in (ordinary, prompt):
        for ids in rows:
            digest.update(np.asarray([len(ids), *ids], dtype="<u4").tobytes())
    return digest.hexdigest()
