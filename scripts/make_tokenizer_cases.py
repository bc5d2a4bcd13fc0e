#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the tokenizer's reference, the Python package `tokenizers`, makes of many strings.

    pip install tokenizers gguf
    python3 scripts/make_tokenizer_cases.py MODEL.gguf > tests/examples/tokenizer_cases.inc
    python3 scripts/make_tokenizer_cases.py MODEL.gguf --text --random 20000 --seed 7   # for a check of many more

The .inc has a small vocabulary made here with its cases, and cases of the model's vocabulary. With --text only the latter are
written, one a line: the bytes in hex, whether special tokens are parsed, the ids.
"""

import argparse
import random

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SAMPLES = [
    "", " ", "  ", "\n", "\n\n", " \n ", "\t\tx", "a  ", "a  b", "a   b ", "a \n b", "\r\n\r\nend", "tail \t\n",
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", "it's we're I'd you'll they've I'm don't",
    "IT'S WE'RE", "'sound 'tis 'relic", "''s ' s '", "rock 'n' roll's", "it\u2019s",
    "0", "42", "3.14159", "1234567890", " 7 8  9", "x1y22z333", "1\u00bd \u2167 \u0663\u0664 \u2460 \u4e09 \U0001d7d8",
    "  5", "a  5", "\n5", "year  2024  and", "v1.2.3-rc4", "0x1F", "100%", "$5.00", "(555) 123-4567",
    "for (int i = 0; i < n; ++i) {\n    sum += a[i];\n}\n", "def f(x):\n\treturn x**2\n", "#include <vector>\n",
    "https://example.org/a?b=c&d=%20#e", "user@example.org", "C:\\temp\\new", "!!!???...", "--==>>", "#hashtag @name",
    "Gr\u00fc\u00dfe aus M\u00fcnchen, \u00e4rgerlich", "\u00bfQu\u00e9 tal? \u00a1Ma\u00f1ana!",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca", "\uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "e\u0301 a\u0308\u0323 n\u0303", "\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u00a0nbsp\u00a0", "\u3000wide\u3000\u3000space", "\u2003em\u2028line\u2029par", "\u0085next", "\u200bzero\ufeffwidth",
    "\x00nul\x00", "\x04\x06!\x13!", "\x1b[0m", "\x7f", "\U00040000a\U00080000", "\U0010fffd",
    "\u00c0\u00c1\u00f1\u00f2", "\u0660\u0661 \u06f1", "\u2155 \u00b2\u00b3", "\ufb01 \u01c5 \u02b0 \u00aa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "=" * 70, " " * 70, "-" * 33 + "\n" + "_" * 20, "ha" * 40,
]
SPECIAL_SAMPLES = [
    "<|im_start|>", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_end|>b", "<|im_end|><|im_end|>", " <|endoftext|> ",
    "<|im_start|", "<|im_start|>>", "<<|im_end|>", "<|im_<|im_end|>", "  <|im_end|>  x", "7<|im_end|>7",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
]
TINY_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TINY_MISSING = [0x06, 0x13, 0xF1, 0xF5]


def byte_alphabet():
    itself = [b for b in range(256) if 0x21 <= b <= 0x7E or (0xA1 <= b and b != 0xAD)]
    others = [b for b in range(256) if b not in itself]
    return {**{b: chr(b) for b in itself}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def splitter():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


class Reference:
    def __init__(self, tokens, merges, specials):
        def make():
            vocabulary = {text: i for i, text in enumerate(tokens)}
            made = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(each.split(" ")) for each in merges]))
            made.pre_tokenizer = splitter()
            made.decoder = decoders.ByteLevel()
            return made

        self.plain = make()
        self.special = make()
        self.special.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])

    def encode(self, text, parse_special):
        return (self.special if parse_special else self.plain).encode(text, add_special_tokens=False).ids


def random_string(rng):
    def any_code():
        while True:
            code = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    atoms = [
        lambda: rng.choice(" \n\t\r\u00a0\u3000\u2002") * rng.randrange(1, 4),
        lambda: " ",
        lambda: "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ") for _ in range(rng.randrange(1, 12))),
        lambda: rng.choice("0123456789\u00bd\u0663\u2167\u2460"),
        lambda: rng.choice(["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'", "'S", "\u2019s"]),
        lambda: "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randrange(1, 5))),
        lambda: any_code(),
        lambda: "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(rng.randrange(1, 5))),
        lambda: "".join(chr(rng.randrange(0x400, 0x460)) for _ in range(rng.randrange(1, 8))),
        lambda: "".join(chr(rng.randrange(0x900, 0x980)) for _ in range(rng.randrange(1, 6))),
        lambda: chr(rng.randrange(0x1F300, 0x1FAFF)) + rng.choice(["", "\u200d", "\ufe0f"]),
        lambda: chr(rng.randrange(0x300, 0x370)),
        lambda: rng.choice(SAMPLES),
        lambda: rng.choice(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "|>"]),
        lambda: chr(rng.randrange(0x20)),
    ]
    return "".join(rng.choice(atoms)() for _ in range(rng.randrange(1, 9)))


def cases(reference, count, rng):
    texts = SAMPLES + SPECIAL_SAMPLES + [random_string(rng) for _ in range(count)]
    for text in texts:
        plain = reference.encode(text, False)
        parsed = reference.encode(text, True)
        yield text, False, plain
        if parsed != plain:
            yield text, True, parsed


def tiny():
    """A vocabulary of about 500 tokens, merges learnt from the samples; some bytes have no token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = splitter()
    made.train_from_iterator(SAMPLES * 2, trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(byte_alphabet().values()), show_progress=False))
    import json
    merges = [" ".join(each) for each in json.loads(made.to_str())["model"]["merges"]]
    missing = {byte_alphabet()[b] for b in TINY_MISSING}
    merges = [each for each in merges if not any(c in each for c in missing)]
    tokens = TINY_SPECIALS + sorted(c for c in byte_alphabet().values() if c not in missing)
    for each in merges:
        joined = each.replace(" ", "")
        if joined not in tokens:
            tokens.append(joined)
    return tokens, merges


def literal(text):
    out = ""
    for byte in text.encode():
        plain = 0x20 <= byte < 0x7F and byte not in b'"\\?'
        out += chr(byte) if plain else f"\\{byte:03o}"
    return f'"{out}"sv'


def print_list(name, items):
    print(f"constexpr std::string_view {name}[] = {{")
    line = "   "
    for each in items:
        item = f" {literal(each)},"
        if len(line) + len(item) > 150:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def print_cases(name, made):
    print(f"constexpr tokenizer_case {name}[] = {{")
    for text, parse_special, ids in made:
        print(f"    {{{literal(text)}, {str(parse_special).lower()}, {{{', '.join(map(str, ids))}}}}},")
    print("};")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("--text", action="store_true")
    arguments.add_argument("--random", type=int, default=250, help="random strings beside the fixed ones")
    arguments.add_argument("--seed", type=int, default=1)
    chosen = arguments.parse_args()

    fields = GGUFReader(chosen.model).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    specials = [text for text, kind in zip(tokens, types) if kind == 3]
    model = Reference(tokens, fields["tokenizer.ggml.merges"].contents(), specials)
    model_cases = cases(model, chosen.random, random.Random(chosen.seed))
    if chosen.text:
        for text, parse_special, ids in model_cases:
            print(f"{text.encode().hex()};{int(parse_special)};{' '.join(map(str, ids))}")
        return

    tiny_tokens, tiny_merges = tiny()
    reference = Reference(tiny_tokens, tiny_merges, TINY_SPECIALS)
    print("// clang-format off")
    print("// Made by scripts/make_tokenizer_cases.py; do not edit.")
    print_list("tiny_tokens", tiny_tokens)
    print_list("tiny_merges", tiny_merges)
    print_cases("tiny_cases", cases(reference, chosen.random, random.Random(chosen.seed + 1)))
    print_cases("model_cases", model_cases)


if __name__ == "__main__":
    main()
