#include "examples/llama/tokenizer.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "examples/llama/utf8.hpp"
#include "graphs/error.hpp"

namespace stepgraph::llama {
namespace {

struct code_range {
  char32_t first;
  char32_t last;
};

#include "examples/llama/unicode_tables.inc"

enum class category : std::uint8_t { letter, number, space, other };

bool in_ranges(std::span<const code_range> ranges, char32_t code) {
  const auto above = std::ranges::upper_bound(ranges, code, {}, &code_range::first);
  return above != ranges.begin() && code <= std::prev(above)->last;
}

category search_category(char32_t code) {
  if (in_ranges(letter_ranges, code)) return category::letter;
  if (in_ranges(number_ranges, code)) return category::number;
  if (in_ranges(space_ranges, code)) return category::space;
  return category::other;
}

category category_of(char32_t code) {
  static const auto ascii = [] {
    std::array<category, 128> table{};
    for (char32_t i = 0; i < table.size(); ++i) table[i] = search_category(i);
    return table;
  }();
  return code < ascii.size() ? ascii[code] : search_category(code);
}

struct character {
  category kind = category::other;
  std::size_t length = 0;  // bytes
};

/// The character at `at`, which is before the end; a byte outside well-formed UTF-8 is an "other" of its own.
character character_at(std::string_view text, std::size_t at) {
  const utf8_step step = utf8_next(text.substr(at));
  if (!step.whole) return {category::other, 1};
  return {category_of(step.code), step.length};
}

/// End of the run of characters of `kind` that begins at `at`.
std::size_t run_end(std::string_view text, std::size_t at, category kind) {
  while (at < text.size()) {
    const character next = character_at(text, at);
    if (next.kind != kind) break;
    at += next.length;
  }
  return at;
}

/// Length of the contraction that `text` begins with, or 0.
std::size_t contraction(std::string_view text) {
  for (std::string_view each : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(each)) return each.size();
  }
  return 0;
}

/// End of the white space piece in the run that begins at `at`. Before a letter or other character, the run's
/// last character stays behind: a space joins what follows, anything else becomes a piece of its own.
std::size_t space_end(std::string_view text, std::size_t at) {
  std::size_t last = at;  // where the last character of the run begins
  std::size_t end = at;
  character next;
  while (end < text.size() && (next = character_at(text, end)).kind == category::space) {
    last = end;
    end += next.length;
  }
  // a number is cut out before anything else, so it ends the text as far as this rule goes
  const bool before_cut = end == text.size() || next.kind == category::number;
  return before_cut || last == at ? end : last;
}

/// End of the piece that begins at `at`.
std::size_t word_end(std::string_view text, std::size_t at) {
  const character first = character_at(text, at);
  if (first.kind == category::number) return at + first.length;
  if (first.kind == category::space) {
    const std::size_t after = at + 1;
    if (text[at] == ' ' && after < text.size()) {
      const category next = character_at(text, after).kind;
      if (next == category::letter || next == category::other) return run_end(text, after, next);
    }
    return space_end(text, at);
  }
  if (const std::size_t length = contraction(text.substr(at)); length > 0) return at + length;
  return run_end(text, at, first.kind);
}

/// The byte that each character of the printable byte alphabet stands for: printable Latin-1 stands for
/// itself, the other bytes in order for U+0100 onwards; -1 elsewhere.
std::array<int, 512> make_byte_alphabet() {
  std::array<int, 512> table;
  table.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    table[static_cast<std::size_t>(itself ? byte : next++)] = byte;
  }
  return table;
}

/// Bytes that `text`, in the byte alphabet, stands for; nothing if a character is not of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text) {
  static const std::array<int, 512> alphabet = make_byte_alphabet();
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const utf8_step step = utf8_next(text.substr(at));
    if (!step.whole || step.code >= alphabet.size() || alphabet[step.code] < 0) return std::nullopt;
    out += static_cast<char>(alphabet[step.code]);
    at += step.length;
  }
  return out;
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::uint32_t no_symbol = std::numeric_limits<std::uint32_t>::max();

}  // namespace

/// Buffers of one call of encode, kept from word to word.
struct tokenizer::scratch {
  struct symbol {
    std::int32_t id;  // -1 once merged into the one before
    std::uint32_t previous;
    std::uint32_t next;
  };
  struct candidate {
    merge rule;
    std::uint32_t at;  // left symbol
    std::int32_t left;
    std::int32_t right;
    // lowest rank first, leftmost among equals; greater-than makes a min-heap
    friend bool operator<(const candidate& a, const candidate& b) {
      return std::tie(a.rule.rank, a.at) > std::tie(b.rule.rank, b.at);
    }
  };
  std::vector<symbol> symbols;
  std::vector<candidate> heap;
};

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = word_end(text, at);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

tokenizer::tokenizer(const gguf_file& file) {
  const auto model = file.string("tokenizer.ggml.model");
  STEPGRAPH_EXPECTS(model == "gpt2", "tokenizer ", file.name(), ": tokenizer.ggml.model is ", quoted(model),
                    ", expected 'gpt2'");
  const auto splitter = file.string("tokenizer.ggml.pre");
  STEPGRAPH_EXPECTS(splitter == "smollm", "tokenizer ", file.name(), ": tokenizer.ggml.pre is ",
                    quoted(splitter), ", expected 'smollm'");
  STEPGRAPH_EXPECTS(!file.boolean_or("tokenizer.ggml.add_space_prefix", false), "tokenizer ", file.name(),
                    ": tokenizer.ggml.add_space_prefix is true, expected false");
  read_tokens(file);
  read_merges(file);
  auto special_id = [&](const char* key) -> std::optional<std::int32_t> {
    if (!file.contains(key)) return std::nullopt;
    const std::int64_t id = file.integer(key);
    STEPGRAPH_EXPECTS(id >= 0 && id < vocab_size(), "tokenizer ", file.name(), ": ", key, " is ", id,
                      ", the vocabulary has ", vocab_size(), " tokens");
    return static_cast<std::int32_t>(id);
  };
  bos_ = special_id("tokenizer.ggml.bos_token_id");
  eos_ = special_id("tokenizer.ggml.eos_token_id");
}

void tokenizer::read_tokens(const gguf_file& file) {
  // numbers of the file's token types
  constexpr int normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5;
  const auto texts = file.strings("tokenizer.ggml.tokens");
  const auto types = file.integers("tokenizer.ggml.token_type");
  STEPGRAPH_EXPECTS(texts.size() == types.size(), "tokenizer ", file.name(), ": ", texts.size(),
                    " tokens have ", types.size(), " token types");
  STEPGRAPH_EXPECTS(!texts.empty() && texts.size() <= std::numeric_limits<std::int32_t>::max(), "tokenizer ",
                    file.name(), ": the vocabulary has ", texts.size(), " tokens");
  tokens_.resize(texts.size());
  byte_ids_.fill(-1);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    STEPGRAPH_EXPECTS(!texts[i].empty(), "tokenizer ", file.name(), ": token ", id, " is empty");
    STEPGRAPH_EXPECTS(types[i] >= normal && types[i] <= unused, "tokenizer ", file.name(), ": token ", id,
                      " has token type ", types[i], ", known are 1..5");
    bool fresh = false;
    if (types[i] == normal) {
      auto bytes = from_byte_alphabet(texts[i]);
      STEPGRAPH_EXPECTS(bytes.has_value(), "tokenizer ", file.name(), ": token ", id, ", ", quoted(texts[i]),
                        ", holds characters outside the byte alphabet");
      if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>(bytes->front())] = id;
      fresh = ids_.emplace(*bytes, id).second;
      tokens_[i] = {std::move(*bytes), false};
    } else {
      const bool is_control = types[i] != user_defined;
      tokens_[i] = {std::string(texts[i]), is_control};
      fresh = special_ids_.emplace(texts[i], id).second;
      // control and unknown tokens may be written in text, unused ones not
      if (types[i] == control || types[i] == unknown || types[i] == user_defined) {
        specials_.push_back({std::string(texts[i]), id, is_control});
        special_starts_[static_cast<unsigned char>(texts[i].front())] = true;
      }
    }
    STEPGRAPH_EXPECTS(fresh, "tokenizer ", file.name(), ": token ", id, ", ", quoted(texts[i]),
                      ", is there twice");
  }
  std::ranges::sort(specials_, {}, &special::text);
}

void tokenizer::read_merges(const gguf_file& file) {
  const auto rules = file.strings("tokenizer.ggml.merges");
  STEPGRAPH_EXPECTS(rules.size() <= std::numeric_limits<std::int32_t>::max(), "tokenizer ", file.name(),
                    ": has ", rules.size(), " merges");
  merges_.reserve(rules.size());
  for (std::size_t rank = 0; rank < rules.size(); ++rank) {
    const auto rule = rules[rank];
    const auto space = rule.find(' ');
    STEPGRAPH_EXPECTS(space != rule.npos && rule.find(' ', space + 1) == rule.npos, "tokenizer ", file.name(),
                      ": merge ", rank, ", ", quoted(rule), ", is not two parts with a space between");
    const auto left_bytes = from_byte_alphabet(rule.substr(0, space));
    const auto right_bytes = from_byte_alphabet(rule.substr(space + 1));
    STEPGRAPH_EXPECTS(left_bytes && right_bytes, "tokenizer ", file.name(), ": merge ", rank, ", ",
                      quoted(rule), ", holds characters outside the byte alphabet");
    const auto left = ids_.find(*left_bytes);
    const auto right = ids_.find(*right_bytes);
    const auto merged = ids_.find(*left_bytes + *right_bytes);
    STEPGRAPH_EXPECTS(left != ids_.end() && right != ids_.end() && merged != ids_.end(), "tokenizer ",
                      file.name(), ": merge ", rank, ", ", quoted(rule),
                      ", has parts or a result that are no tokens");
    const merge entry{static_cast<std::int32_t>(rank), merged->second};
    STEPGRAPH_EXPECTS(merges_.emplace(pair_key(left->second, right->second), entry).second, "tokenizer ",
                      file.name(), ": merge ", rank, ", ", quoted(rule), ", is there twice");
  }
}

const tokenizer::token& tokenizer::at(std::int32_t id) const {
  STEPGRAPH_EXPECTS(id >= 0 && id < vocab_size(), "tokenizer: token id ", id,
                    " is outside the vocabulary of ", vocab_size());
  return tokens_[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> tokenizer::find(std::string_view text) const {
  const std::string key(text);
  if (auto found = special_ids_.find(key); found != special_ids_.end()) return found->second;
  if (auto found = ids_.find(key); found != ids_.end()) return found->second;
  return std::nullopt;
}

bool tokenizer::is_control(std::int32_t id) const {
  return at(id).control;
}

std::vector<std::int32_t> tokenizer::encode(std::string_view text, bool parse_special) const {
  STEPGRAPH_EXPECTS(text.size() < no_symbol, "tokenizer: text of ", text.size(), " bytes, the most are ",
                    no_symbol - 1);
  std::vector<std::int32_t> out;
  scratch work;
  std::size_t plain = 0;  // where text not yet encoded begins
  for (std::size_t at = 0; at < text.size();) {
    const special* found = special_starts_[static_cast<unsigned char>(text[at])]
                               ? longest_special(text.substr(at), parse_special)
                               : nullptr;
    if (found == nullptr) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), work, out);
    out.push_back(found->id);
    at += found->text.size();
    plain = at;
  }
  encode_plain(text.substr(plain), work, out);
  return out;
}

const tokenizer::special* tokenizer::longest_special(std::string_view text, bool parse_special) const {
  const special* longest = nullptr;
  auto first = specials_.begin();
  auto last = specials_.end();
  // narrows to the specials that share one more byte with `text` in each round
  for (std::size_t depth = 0; depth < text.size() && first != last; ++depth) {
    if (first->text.size() == depth) ++first;
    const auto byte = [depth](const special& each) { return static_cast<unsigned char>(each.text[depth]); };
    const auto wanted = static_cast<unsigned char>(text[depth]);
    first = std::ranges::lower_bound(first, last, wanted, {}, byte);
    last = std::ranges::upper_bound(first, last, wanted, {}, byte);
    if (first != last && first->text.size() == depth + 1 && (parse_special || !first->control))
      longest = &*first;
  }
  return longest;
}

void tokenizer::encode_plain(std::string_view text, scratch& work, std::vector<std::int32_t>& out) const {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = word_end(text, at);
    encode_word(text.substr(at, end - at), work, out);
    at = end;
  }
}

void tokenizer::encode_word(std::string_view word, scratch& work, std::vector<std::int32_t>& out) const {
  auto& symbols = work.symbols;
  auto& heap = work.heap;
  symbols.clear();
  heap.clear();
  for (char each : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(each)];
    if (id < 0) continue;  // the vocabulary lacks this byte; its neighbours may merge
    const auto index = static_cast<std::uint32_t>(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({id, index > 0 ? index - 1 : no_symbol, no_symbol});
  }

  auto propose = [&](std::uint32_t at) {
    const std::uint32_t next = symbols[at].next;
    if (next == no_symbol) return false;
    const auto rule = merges_.find(pair_key(symbols[at].id, symbols[next].id));
    if (rule == merges_.end()) return false;
    heap.push_back({rule->second, at, symbols[at].id, symbols[next].id});
    return true;
  };
  for (std::uint32_t i = 0; i < symbols.size(); ++i) propose(i);
  std::ranges::make_heap(heap, std::less<>{});

  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::less<>{});
    const auto best = heap.back();
    heap.pop_back();
    // a candidate is stale if either symbol was merged since
    auto& left = symbols[best.at];
    if (left.id != best.left || left.next == no_symbol || symbols[left.next].id != best.right) continue;
    auto& right = symbols[left.next];
    left.id = best.rule.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next != no_symbol) symbols[left.next].previous = best.at;
    if (propose(best.at)) std::ranges::push_heap(heap, std::less<>{});
    if (left.previous != no_symbol && propose(left.previous)) std::ranges::push_heap(heap, std::less<>{});
  }
  if (symbols.empty()) return;
  for (std::uint32_t i = 0; i != no_symbol; i = symbols[i].next) out.push_back(symbols[i].id);
}

std::size_t tokenizer::unencodable_bytes(std::string_view text) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [&](char each) { return byte_ids_[static_cast<unsigned char>(each)] < 0; }));
}

std::string tokenizer::decode(std::span<const std::int32_t> ids, bool with_control) const {
  std::string out;
  for (std::int32_t id : ids) {
    const token& found = at(id);
    if (!found.control || with_control) out += found.bytes;
  }
  return out;
}

std::string stream_decoder::push(std::int32_t id) {
  held_ += from_.decode({&id, 1}, with_control_);
  std::size_t end = 0;  // of what may be handed out
  while (end < held_.size()) {
    const utf8_step step = utf8_next(std::string_view(held_).substr(end));
    if (step.unfinished) break;
    end += step.length;
  }
  std::string out = held_.substr(0, end);
  held_.erase(0, end);
  return out;
}

std::string stream_decoder::finish() {
  return std::exchange(held_, {});
}

}  // namespace stepgraph::llama
