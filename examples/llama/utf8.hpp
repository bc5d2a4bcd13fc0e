#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stepgraph::llama {

/// What stands at the beginning of some bytes.
struct utf8_step {
  char32_t code = 0;  // valid only if `whole`
  std::size_t length =
      1;  // bytes of it: of the character, the unfinished prefix, or 1 for a byte that begins neither
  bool whole = false;       // a well-formed character
  bool unfinished = false;  // all bytes there are, and more could make them a well-formed character
};

/// Reads the first character of `text`, which is not empty. Overlong forms, surrogates and codes past
/// U+10FFFF are not well-formed.
constexpr utf8_step utf8_next(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {.code = lead, .length = 1, .whole = true};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  char32_t code = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {.length = i, .unfinished = true};
    // the second byte's range rules out overlong forms, surrogates and codes past U+10FFFF
    const std::uint8_t low = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const std::uint8_t high = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  return {.code = code, .length = length, .whole = true};
}

}  // namespace stepgraph::llama
