// The draft head's pass on a device: ragged entries fed by a target's states, then entries fed by its own, in pages.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "examples/llama/llama_model.hpp"
#include "graphs/memory_resource.hpp"
#include "tests/device_vector.hpp"
#include "tests/examples/draft_head_files.hpp"
#include "tests/reference/llama_forward.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;
using namespace stepgraph::llama;

namespace {

constexpr int page_size = 8, page_columns = 12;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// What a step of the draft works on, made on the host for rows of `counts` new entries after `lengths`.
struct draft_step {
  std::vector<std::int32_t> live_rows, query_counts, cache_seqlens, cu_seqlens_q, last_row, token_ids,
      positions, row_of, causal_length, out_cache_loc, hidden_row, out_line;
};

double distance(const std::vector<float>& got, std::size_t at, const std::vector<double>& want) {
  double square = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    square += (got[at + i] - want[i]) * (got[at + i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(square / norm);
}

/// Runs a head beside its reference, a text a row.
class draft_run {
 public:
  draft_run(std::uint64_t seed, element_type type, int rows)
      : random_(seed),
        target_(make_tiny_weights(7, tiny_config())),
        rows_(rows),
        tolerance_(type == element_type::f32 ? 2e-5
                   : test_device().is_host() ? 2e-5
                                             : 0.03) {
    std::vector<std::int32_t> ids;
    for (int id = 0; id < target_.config.vocab_size; id += 1 + static_cast<int>(random_.below(4)))
      ids.push_back(id);
    head_ = load_draft_head(safetensors_file(random_head(random_, target_.config, ids, type).file(), "head"),
                            target_);
    model_ = make_llama(test_device(), head_.model);
    for (int row = 0; row < rows; ++row) {
      references_.emplace_back(head_.model);
      for (int column = 0; column < page_columns; ++column) table_.push_back(1 + column * rows + row);
    }
    const std::int64_t pages = std::int64_t{rows} * page_columns + 1;
    pool_ = buffer(device_memory(test_device()), kv_cache_bytes(model_->layout(), page_size, pages));
    at_.ref().fill(pool_.data(), 0xff, pool_.bytes());
    kv_ = make_kv_cache(model_->layout(), page_size, pages, {pool_.data(), pool_.bytes()});
    own_.resize(static_cast<std::size_t>(rows) * hidden());
  }

  /// One step of `counts` entries a row, fed by a target's states or (one entry a row) by the head's own.
  void step(const std::vector<std::int32_t>& counts, int token_bucket, bool own) {
    draft_step made;
    made.live_rows = {static_cast<std::int32_t>(counts.size())};
    made.cu_seqlens_q = {0};
    std::vector<float> fed(static_cast<std::size_t>(4) * hidden(), nan);
    std::vector<std::vector<float>> logits(counts.size());
    std::vector<std::vector<double>> states(counts.size());
    for (int row = 0; row < rows_; ++row) {
      const int count = row < std::ssize(counts) ? counts[static_cast<std::size_t>(row)] : 0;
      for (int i = 0; i < count; ++i) {
        reference::llama_reference& reference = references_[static_cast<std::size_t>(row)];
        const int position = reference.length();
        const auto token = static_cast<std::int32_t>(random_.below(target_.config.vocab_size));
        std::vector<float> state(static_cast<std::size_t>(hidden()));
        for (float& value : state) value = static_cast<float>(random_.below(401)) / 50.0f - 4.0f;
        if (own) std::copy_n(own_.begin() + row * hidden(), hidden(), state.begin());
        made.hidden_row.push_back(static_cast<std::int32_t>(std::ssize(fed) / hidden()));
        fed.insert(fed.end(), state.begin(), state.end());
        made.token_ids.push_back(token);
        made.positions.push_back(position);
        made.row_of.push_back(row);
        made.causal_length.push_back(position + 1);
        made.out_cache_loc.push_back(
            table_[static_cast<std::size_t>(row * page_columns + position / page_size)] * page_size +
            position % page_size);
        logits[static_cast<std::size_t>(row)] = reference.forward(token, state);
        states[static_cast<std::size_t>(row)] = reference.hidden();
      }
      made.query_counts.push_back(count);
      made.cu_seqlens_q.push_back(static_cast<std::int32_t>(made.token_ids.size()));
      made.cache_seqlens.push_back(references_[static_cast<std::size_t>(row)].length());
      made.last_row.push_back(count > 0 ? made.cu_seqlens_q.back() - 1 : 0);
      made.out_line.push_back(count > 0 ? rows_ - 1 - row : rows_);  // a line of their own for those without
    }
    REQUIRE(std::ssize(made.token_ids) <= token_bucket);
    made.token_ids.resize(static_cast<std::size_t>(token_bucket), 0);
    made.positions.resize(made.token_ids.size(), 0);
    made.row_of.resize(made.token_ids.size(), 0);
    made.causal_length.resize(made.token_ids.size(), 0);
    made.out_cache_loc.resize(made.token_ids.size(), 0);
    made.hidden_row.resize(made.token_ids.size(), 1 << 30);  // what no live token asks for is not followed
    const auto [got_logits, got_states] = run(made, token_bucket, fed);
    for (std::size_t row = 0; row < counts.size(); ++row) {
      if (counts[row] == 0) continue;
      CAPTURE(row);
      const std::size_t line = static_cast<std::size_t>(rows_) - 1 - row;
      CHECK(distance(got_logits, row * logits[row].size(), {logits[row].begin(), logits[row].end()}) <
            tolerance_);
      CHECK(distance(got_states, line * static_cast<std::size_t>(hidden()), states[row]) < tolerance_);
      std::copy_n(got_states.begin() + static_cast<std::int64_t>(line) * hidden(), hidden(),
                  own_.begin() + static_cast<std::int64_t>(row) * hidden());
    }
  }

 private:
  int hidden() const { return target_.config.hidden_size; }

  std::pair<std::vector<float>, std::vector<float>> run(const draft_step& made, int token_bucket,
                                                        const std::vector<float>& fed) {
    const stream_ref at = at_.ref();
    const step_key key{.kind = step_kind::draft_extend, .rows = rows_, .tokens = token_bucket};
    const buffer scratch(device_memory(test_device()), model_->scratch_bytes(key));
    at.fill(scratch.data(), 0xff, scratch.bytes());
    const auto put = [&](const std::vector<std::int32_t>& values) { return device_vector(at, values); };
    const auto live_rows = put(made.live_rows), query_counts = put(made.query_counts),
               cache_seqlens = put(made.cache_seqlens), cu_seqlens_q = put(made.cu_seqlens_q),
               last_row = put(made.last_row), token_ids = put(made.token_ids),
               positions = put(made.positions), row_of = put(made.row_of),
               causal_length = put(made.causal_length), out_cache_loc = put(made.out_cache_loc),
               hidden_row = put(made.hidden_row), out_line = put(made.out_line), table = put(table_);
    const device_vector hidden_in(at, fed);
    const device_vector hidden_out(at, static_cast<std::size_t>((rows_ + 1) * hidden()), nan);
    model_->enqueue_logits({.key = key,
                            .stream = at,
                            .live_rows = live_rows.data(),
                            .requests = nullptr,
                            .query_counts = query_counts.data(),
                            .cache_seqlens = cache_seqlens.data(),
                            .cu_seqlens_q = cu_seqlens_q.data(),
                            .cu_seqlens_k = nullptr,
                            .last_row = last_row.data(),
                            .token_ids = token_ids.data(),
                            .positions = positions.data(),
                            .row_of = row_of.data(),
                            .causal_length = causal_length.data(),
                            .out_cache_loc = out_cache_loc.data(),
                            .page_table = table.data(),
                            .page_table_stride = page_columns,
                            .page_columns = page_columns,
                            .page_shift = 3,
                            .kv = &kv_,
                            .parents = nullptr,
                            .ancestors = nullptr,
                            .next_token = nullptr,
                            .argmax = nullptr,
                            .accepted = {},
                            .out_line = out_line.data(),
                            .feed_token = nullptr,
                            .hidden = nullptr,
                            .hidden_in = hidden_in.data(),
                            .hidden_row = hidden_row.data(),
                            .hidden_out = hidden_out.data(),
                            .hidden_size = hidden(),
                            .draft_step = 0,
                            .sampled = false,
                            .sampling = {},
                            .distributions = nullptr,
                            .drafted = {},
                            .probabilities = nullptr,
                            .probabilities_stride = 0,
                            .scratch = {scratch.data(), scratch.bytes()},
                            .faults = {}});
    std::vector<float> logits(static_cast<std::size_t>(rows_) * head_.target_ids.size());
    at.copy(logits.data(), scratch.data(), logits.size() * sizeof(float));  // the head of the scratch
    at.synchronize();
    return {logits, hidden_out.get()};
  }

  reference::random_integers random_;
  llama_weights target_;
  draft_head_weights head_;
  std::unique_ptr<llama_model> model_;
  stream at_{test_device()};
  int rows_;
  double tolerance_;
  std::vector<reference::llama_reference> references_;
  std::vector<std::int32_t> table_;
  buffer pool_;
  kv_cache_view kv_;
  std::vector<float> own_;  // [rows, hidden] what the head made of each row's last entry
};

}  // namespace

TEST_CASE("a draft head says what its reference says, from a target's states and from its own") {
  for (const element_type type : {element_type::f32, element_type::bf16}) {
    CAPTURE(to_string(type));
    draft_run run(test_seed(), type, 5);
    run.step({3, 1, 0, 7}, 16, false);
    run.step({1, 1, 1, 1}, 5, true);
    run.step({1, 0, 1, 1}, 5, true);
    run.step({2, 5, 1, 1, 4}, 13, false);
    run.step({40, 1, 26, 3, 2}, 72, false);  // past what the fused products take
    run.step({1, 1, 1, 1, 1}, 5, true);
  }
}
