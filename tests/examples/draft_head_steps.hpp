#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "examples/llama/llama_model.hpp"
#include "graphs/memory_resource.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

namespace stepgraph::llama {

/// What a draft is fed at one position of a row.
struct draft_entry {
  int row = 0;
  std::int32_t token = 0;
  std::vector<float> state{};  // [states, hidden]; a target is fed none
};

/// What a step of a draft yields; lines of rows without entries hold no meaning.
struct draft_result {
  std::vector<float> logits;  // [rows, draft's vocab]
  std::vector<float>
      states;  // [rows, states, hidden] of each row's last entry; of a target [entries, states, hidden]
};

/// Runs a draft head's pass, or that of a target with taps, by itself, without an executor: pages, lengths and metadata are
/// made here.
class draft_steps {
 public:
  static constexpr int page_size = 8, page_columns = 12;

  draft_steps(const llama_weights& head, int rows)
      : model_(make_llama(test_device(), head)),
        target_(!head.fusion),
        states_(target_ ? states_of(head.config) : head.fusion->states),
        rows_(rows),
        lengths_(static_cast<std::size_t>(rows), 0) {
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < page_columns; ++column) table_.push_back(1 + column * rows + row);
    const std::int64_t pages = std::int64_t{rows} * page_columns + 1;
    pool_ = buffer(device_memory(test_device()), kv_cache_bytes(model_->layout(), page_size, pages));
    at_.ref().fill(pool_.data(), 0xff, pool_.bytes());
    kv_ = make_kv_cache(model_->layout(), page_size, pages, {pool_.data(), pool_.bytes()});
  }

  /// One step of `live_rows` rows; `entries` by row, each at its row's next position.
  draft_result run(const std::vector<draft_entry>& entries, int live_rows, int token_bucket) {
    using numbers = std::vector<std::int32_t>;
    const std::int64_t hidden = states_ * model_->config().hidden_size;  // of a line
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    numbers query_counts(lengths_.size(), 0), cu_seqlens_q{0}, last_row(lengths_.size(), 0), out_line;
    numbers token_ids, positions, row_of, causal_length, out_cache_loc, hidden_row;
    std::vector<float> fed(static_cast<std::size_t>(3 * hidden), nan);
    for (const draft_entry& entry : entries) {
      const auto row = static_cast<std::size_t>(entry.row);
      const std::int32_t position = lengths_[row]++;
      last_row[row] = static_cast<std::int32_t>(token_ids.size());
      query_counts[row] += 1;
      token_ids.push_back(entry.token);
      positions.push_back(position);
      row_of.push_back(entry.row);
      causal_length.push_back(position + 1);
      const std::int32_t page = table_[row * page_columns + static_cast<std::size_t>(position / page_size)];
      out_cache_loc.push_back(page * page_size + position % page_size);
      hidden_row.push_back(static_cast<std::int32_t>(std::ssize(fed) / hidden));
      fed.insert(fed.end(), entry.state.begin(), entry.state.end());
    }
    for (int row = 0; row < rows_; ++row) {
      const std::int32_t count = query_counts[static_cast<std::size_t>(row)];
      cu_seqlens_q.push_back(cu_seqlens_q.back() + count);
      out_line.push_back(count > 0 ? rows_ - 1 - row
                                   : rows_);  // a line of their own for those without entries
    }
    for (numbers* each : {&token_ids, &positions, &row_of, &causal_length, &out_cache_loc})
      each->resize(static_cast<std::size_t>(token_bucket), 0);
    hidden_row.resize(token_ids.size(), 1 << 30);  // what no live token asks for is not followed

    const stream_ref at = at_.ref();
    const step_key key{.kind = step_kind::draft_extend, .rows = rows_, .tokens = token_bucket};
    const buffer scratch(device_memory(test_device()), model_->scratch_bytes(key));
    at.fill(scratch.data(), 0xff, scratch.bytes());
    const auto put = [&](const numbers& values) { return device_vector(at, values); };
    const auto on_live_rows = put({live_rows}), on_query_counts = put(query_counts),
               on_lengths = put(lengths_), on_cu_seqlens_q = put(cu_seqlens_q), on_last_row = put(last_row),
               on_token_ids = put(token_ids), on_positions = put(positions), on_row_of = put(row_of),
               on_causal_length = put(causal_length), on_out_cache_loc = put(out_cache_loc),
               on_hidden_row = put(hidden_row), on_out_line = put(out_line), on_table = put(table_);
    const device_vector hidden_in(at, fed);
    const device_vector hidden_out(
        at, static_cast<std::size_t>((target_ ? token_bucket : rows_ + 1) * hidden), nan);
    model_->enqueue_logits({.key = key,
                            .stream = at,
                            .live_rows = on_live_rows.data(),
                            .requests = nullptr,
                            .query_counts = on_query_counts.data(),
                            .cache_seqlens = on_lengths.data(),
                            .cu_seqlens_q = on_cu_seqlens_q.data(),
                            .cu_seqlens_k = nullptr,
                            .last_row = on_last_row.data(),
                            .token_ids = on_token_ids.data(),
                            .positions = on_positions.data(),
                            .row_of = on_row_of.data(),
                            .causal_length = on_causal_length.data(),
                            .out_cache_loc = on_out_cache_loc.data(),
                            .page_table = on_table.data(),
                            .page_table_stride = page_columns,
                            .page_columns = page_columns,
                            .page_shift = 3,
                            .kv = &kv_,
                            .parents = nullptr,
                            .ancestors = nullptr,
                            .next_token = nullptr,
                            .argmax = nullptr,
                            .ranked_argmax = nullptr,
                            .accepted = {},
                            .out_line = on_out_line.data(),
                            .feed_token = nullptr,
                            .ranked_feed = {},
                            .hidden = target_ ? hidden_out.data() : nullptr,
                            .hidden_in = hidden_in.data(),
                            .hidden_row = on_hidden_row.data(),
                            .hidden_out = target_ ? nullptr : hidden_out.data(),
                            .hidden_size = static_cast<int>(hidden),
                            .draft_step = 0,
                            .sampled = false,
                            .sampling = {},
                            .distributions = nullptr,
                            .drafted = {},
                            .probabilities = nullptr,
                            .probabilities_stride = 0,
                            .scratch = {scratch.data(), scratch.bytes()},
                            .faults = {}});
    draft_result result;
    result.logits.resize(static_cast<std::size_t>(rows_) * model_->config().vocab_size);
    at.copy(result.logits.data(), scratch.data(),
            result.logits.size() * sizeof(float));  // the scratch's head
    at.synchronize();
    const std::vector<float> lines = hidden_out.get();
    if (target_) {
      result.states.assign(lines.begin(), lines.begin() + std::ssize(entries) * hidden);
      return result;
    }
    for (int row = 0; row < rows_; ++row)
      result.states.insert(result.states.end(), lines.begin() + (rows_ - 1 - row) * hidden,
                           lines.begin() + (rows_ - row) * hidden);
    return result;
  }

 private:
  std::unique_ptr<llama_model> model_;
  bool target_;
  int states_;
  stream at_{test_device()};
  int rows_;
  std::vector<std::int32_t> lengths_;  // [rows] entries so far
  std::vector<std::int32_t> table_;
  buffer pool_;
  kv_cache_view kv_;
};

}  // namespace stepgraph::llama
