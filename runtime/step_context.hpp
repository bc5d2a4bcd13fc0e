#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "graphs/stream.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "kernels/sample/row_distribution.hpp"
#include "kernels/speculate/accept_result.hpp"
#include "kernels/speculate/rejection_accept.hpp"
#include "runtime/kv_cache.hpp"

namespace stepgraph {

/// What a step does to its rows. `step_kinds.cpp` says how each maps to buckets.
enum class step_kind {
  decode,         // one token a row
  extend,         // a chunk of tokens a row, ragged: prompts, and decoding rows beside them
  target_verify,  // a row's last token and its drafts, ragged: what the target agrees with is kept
  draft_extend,   // the draft over what a target step has just put into the cache: fills the draft's own
                  // cache, with the target's hidden states, and yields each row's first draft
  draft_decode,   // the draft's further tokens, one a row and step, all steps in one graph
};

const char* to_string(step_kind kind) noexcept;

/// True if a row may have more than one token, so that tokens have buckets of their own.
bool is_ragged(step_kind kind) noexcept;

/// True for the steps of the draft; the others are the target's.
bool is_draft(step_kind kind) noexcept;

/// All that is baked into one capture besides the executor's own limits and addresses.
struct step_key {
  step_kind kind = step_kind::decode;
  int rows = 0;     // row bucket, B
  int tokens = 0;   // token bucket, C
  int variant = 0;  // the embedder's own: greedy or sampled, an adapter set, an attention path
  int steps = 1;    // of draft_decode: decodes of the draft in one graph, K - 1

  friend auto operator<=>(const step_key&, const step_key&) = default;
};

/// "decode, 8 rows, 8 tokens, variant 0", "draft_decode, 8 rows, 8 tokens, variant 0, 3 steps"
std::string to_string(const step_key& key);

/// What a step's body works on. All pointers are device memory of the executor, the same for every replay;
/// contents are this step's. Dead rows and tokens are harmless to read (token 0, position 0, the sink slot),
/// the page table beyond a row's live pages is undefined.
struct step_context {
  step_key key;
  stream_ref stream;

  const std::int32_t* live_rows;      // one number, n
  const std::int32_t* requests;       // [rows] line of the request table
  const std::int32_t* query_counts;   // [rows] E; in draft_decode 0 for a row that sits the drafts out
  const std::int32_t* cache_seqlens;  // [rows] tokens in the cache, this step's included
  const std::int32_t* cu_seqlens_q;   // [rows + 1]
  const std::int32_t* cu_seqlens_k;   // [rows + 1]
  const std::int32_t* last_row;  // [rows] the row's last token, which goes to the output head; 0 where E = 0

  const std::int32_t* token_ids;      // [tokens]
  const std::int32_t* positions;      // [tokens]
  const std::int32_t* row_of;         // [tokens]
  const std::int32_t* causal_length;  // [tokens] cached tokens that the token sees, itself included
  const std::int32_t* out_cache_loc;  // [tokens] KV slot to store at

  const std::int32_t* page_table;  // [rows, page_columns]
  std::int64_t page_table_stride;  // entries
  std::int64_t page_columns;
  int page_shift;           // log2 of the page size
  const kv_cache_view* kv;  // of the target, in the draft's steps its own

  // trees, in a verify step that was defined with them; null elsewhere
  const std::int32_t* parents;     // [tokens] node of the same row; 0 for roots
  const std::uint64_t* ancestors;  // [tokens] bit i: node i of the row is the token itself or an ancestor

  // what a body writes, by `choose_tokens` or by itself. A target step that is not verify, and every step of
  // the draft, leaves a token a row: entry out_line[row], or `row` where out_line is null, of next_token. A
  // greedy verify step leaves the argmax of every token (-1 for a NaN, -2 for an empty mask), and the
  // executor accepts; a sampled one accepts in the body.
  std::int32_t* next_token;  // negative for none
  std::int32_t* argmax;      // [tokens], in a greedy verify step
  /// Of a greedy step, else null: [rows], or by out_line, in a verify step [tokens]; all 0 when the body begins. An output
  /// head that raises each line's number to the largest `ranked_logit` of its logits (`atomicMax`) spares a pass over
  /// them: a number that is not 0 stands for the entry of next_token or argmax. Not where logits are masked.
  std::uint64_t* ranked_argmax;
  accept_result accepted;  // in a sampled verify step
  // [rows] or null: line of next_token, hidden_out and draft probabilities that the row writes; dead rows and
  // those with E = 0 have a line of their own that nobody reads
  const std::int32_t* out_line;
  std::int32_t* feed_token;  // draft_decode: out [rows], next_token again, but 0 for none; else null
  /// draft_decode, greedy, from its second step on: the tokens it is fed as the step before has ranked them. A body that
  /// ranks reads them here (a kernel's parameter: `ranked_feed[row]`), or has `choose_tokens` write token_ids.
  stepgraph::ranked_feed ranked_feed;

  // between target and draft; null without a draft
  float* hidden;                   // a target step: out [tokens, hidden_size], what the draft is fed
  const float* hidden_in;          // a step of the draft: token t is fed line hidden_row[t] ...
  const std::int32_t* hidden_row;  // [tokens] ... of hidden_in, [*, hidden_size]
  float* hidden_out;               // a step of the draft: out [*, hidden_size], of each row's last token
  int hidden_size;
  int draft_step;  // draft_decode: which of key.steps this body call is, from 1: it feeds draft d_step

  // sampling, where the step was defined so
  bool sampled;
  sampling_view sampling;           // settings of the rows
  row_distribution* distributions;  // [tokens], for the body of a sampled verify step to fill
  draft_view drafted;               // a sampled verify step: where its drafts come from
  float* probabilities;  // a sampled step of the draft: out [*, probabilities_stride], q by draft's own id
  std::int64_t probabilities_stride;

  std::span<std::byte> scratch;  // as many bytes as the step's definition asked for; shared by all steps
  fault_sink faults;             // where the body's own kernels report
};

}  // namespace stepgraph
