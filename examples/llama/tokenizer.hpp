#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "examples/llama/gguf.hpp"

namespace stepgraph::llama {

/// Cuts UTF-8 text into the pieces that are merged on their own: every number character alone, and what lies
/// between cut by the GPT-2 pattern (contractions; letters, then other characters, each with one space
/// before; white space). The pieces are views of `text` and joined give `text`. A byte that belongs to no
/// well-formed UTF-8 sequence counts as an "other" character.
std::vector<std::string_view> split_words(std::string_view text);

/// Byte-level BPE tokenizer of a GGUF file (model 'gpt2', pre-tokenizer 'smollm'). Copies what it needs: the
/// file may be closed afterwards. Immutable, so threads may share it.
class tokenizer {
 public:
  /// Reads vocabulary, merges, token types and special ids from the metadata under 'tokenizer.ggml.'. Throws
  /// invalid_argument for another model or pre-tokenizer, missing keys, lists of unequal length, a token that
  /// is there twice or is no byte-level text, a merge whose parts or result are no tokens, and special ids
  /// outside the vocabulary.
  explicit tokenizer(const gguf_file& file);

  /// Number of tokens; ids are 0..vocab_size() - 1.
  int vocab_size() const noexcept { return static_cast<int>(tokens_.size()); }

  /// Ids of beginning and end of a sequence, where the file names them.
  std::optional<std::int32_t> bos() const noexcept { return bos_; }
  std::optional<std::int32_t> eos() const noexcept { return eos_; }

  /// The id whose text is exactly `text` (for control tokens as written, "<|im_end|>"), or nothing.
  std::optional<std::int32_t> find(std::string_view text) const;

  /// Whether `id` is a control, unknown or unused token: one that text never yields unless `parse_special`
  /// asks for it. Throws invalid_argument for an id outside the vocabulary.
  bool is_control(std::int32_t id) const;

  /// Token ids of `text`, any bytes; no beginning-of-sequence token is added. With `parse_special` the text
  /// of a control token becomes that token, else it is encoded as plain text: use false for text that is not
  /// trusted. The file's user-defined tokens are taken from text always. Bytes that no token stands for are
  /// left out, as the model's own tokenizer does; `unencodable_bytes` counts them. Time grows as n log n with
  /// the longest word.
  std::vector<std::int32_t> encode(std::string_view text, bool parse_special) const;

  /// How many bytes of `text` `encode` leaves out because the vocabulary has no token for them.
  std::size_t unencodable_bytes(std::string_view text) const;

  /// The bytes that `ids` stand for: UTF-8 if all sequences in them are whole. Control tokens give nothing,
  /// or with `with_control` their text. Throws invalid_argument for an id outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids, bool with_control = false) const;

 private:
  friend class stream_decoder;

  struct token {
    std::string bytes;
    bool control = false;
  };
  struct merge {
    std::int32_t rank;
    std::int32_t merged;
  };
  struct special {
    std::string text;
    std::int32_t id;
    bool control;
  };
  struct scratch;

  void read_tokens(const gguf_file& file);
  void read_merges(const gguf_file& file);
  void encode_plain(std::string_view text, scratch& work, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view word, scratch& work, std::vector<std::int32_t>& out) const;
  const special* longest_special(std::string_view text, bool parse_special) const;
  const token& at(std::int32_t id) const;

  std::vector<token> tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;          // normal tokens, by bytes
  std::unordered_map<std::string, std::int32_t> special_ids_;  // the others, by text
  std::array<std::int32_t, 256> byte_ids_{};                   // -1 where the vocabulary lacks the byte
  std::unordered_map<std::uint64_t, merge> merges_;            // by left id << 32 | right id
  std::vector<special> specials_;                              // sorted by text
  std::array<bool, 256> special_starts_{};                     // first bytes of specials
  std::optional<std::int32_t> bos_;
  std::optional<std::int32_t> eos_;
};

/// Turns ids into text as they come. What is handed out never ends inside a UTF-8 character: up to 3 bytes
/// are held back until the character is whole or cannot become so.
class stream_decoder {
 public:
  /// `from` must outlive the decoder.
  explicit stream_decoder(const tokenizer& from, bool with_control = false)
      : from_(from), with_control_(with_control) {}

  /// Bytes that became complete with `id`, possibly none. Throws invalid_argument for an id outside the
  /// vocabulary, and is then as before.
  std::string push(std::int32_t id);

  /// What is still held back: the bytes of a character that never became whole, or none. The decoder starts
  /// afresh.
  std::string finish();

 private:
  const tokenizer& from_;
  bool with_control_;
  std::string held_;
};

}  // namespace stepgraph::llama
