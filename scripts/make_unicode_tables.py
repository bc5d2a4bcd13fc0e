#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes examples/llama/unicode_tables.inc: ranges of letters (\\p{L}), numbers (\\p{N}) and white space.

    python3 scripts/make_unicode_tables.py > examples/llama/unicode_tables.inc

Takes `unicodedata2` where it is installed (the committed table is of 16.0.0, the Unicode version of the regular expressions
that the tokenizer's reference uses), else Python's own unicodedata.
"""

import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# the property White_Space, which unicodedata does not have: a closed list since Unicode 6.3
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def ranges(members):
    found = []
    for code in sorted(members):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def print_table(name, members):
    print(f"constexpr code_range {name}[] = {{")
    line = "   "
    for first, last in ranges(members):
        item = f" {{{first:#x}, {last:#x}}},"
        if len(line) + len(item) > 110:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def main():
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    category = {code: unicodedata.category(chr(code)) for code in codes}
    print("// clang-format off")
    print(f"// Made by scripts/make_unicode_tables.py from Unicode {unicodedata.unidata_version}; do not edit.")
    print_table("letter_ranges", [code for code in codes if category[code][0] == "L"])
    print_table("number_ranges", [code for code in codes if category[code][0] == "N"])
    print_table("space_ranges", WHITE_SPACE)


if __name__ == "__main__":
    main()
