#pragma once

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/paged_attention.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/attention.hpp"
#include "tests/reference/random_batch.hpp"

namespace stepgraph {

template <class T>
constexpr element_type type_of = std::is_same_v<T, float> ? element_type::f32
                                 : std::is_same_v<T, f16> ? element_type::f16
                                                          : element_type::bf16;

/// What a ragged step is captured with.
struct ragged_shape {
  int rows = 4;    // B
  int tokens = 8;  // C
  int heads = 4;
  int kv_heads = 2;
  int head_size = 64;
  int page_shift = 4;
  int longest = 100;  // cached tokens that there are pages for
  int width = 0;      // cached tokens that the page table has columns for, if more
  double scale = 1;   // over 1 / sqrt(head_size)
  float logit_cap = 0;
  int window = 0;
  bool sink = false;
  bool tree = false;
  bool batch_invariant = false;
  bool workspace = true;
  std::int64_t page_gap = 0;  // elements between pages that no page holds
  bool csr = false;           // pages listed one row after another
  bool step_kv = false;       // the step's own keys and values lie beside the cache
};

/// One row of a step.
struct ragged_row {
  int tokens = 1;  // E
  int length = 0;  // in the cache, new ones included
  int key = -1;    // of its random contents; negative: the row's number
};

/// A captured shape with its buffers: KV that no live token may see is NaN, table tails are wild, outputs are
/// NaN before each run.
template <class T>
class ragged_batch {
 public:
  ragged_batch(stream_ref at, const ragged_shape& shape, std::uint64_t seed)
      : at_(at),
        s(shape),
        seed_(seed),
        random_(seed),
        page_size_(std::int64_t{1} << s.page_shift),
        columns_((std::max(s.longest, s.width) + page_size_ - 1) / page_size_ + 1),
        pages_(s.rows * ((s.longest + page_size_ - 1) / page_size_ + 1) + 1),
        page_stride_(page_size_ * s.kv_heads * s.head_size + s.page_gap),
        keys_(pages_ * page_stride_, from_float<T>(nan)),
        values_(keys_),
        table_(s.rows * columns_, wild),
        query_(std::size_t(s.tokens) * s.heads * s.head_size),
        mask_(s.tokens, 0),
        sink_(s.heads),
        device_keys_(at, keys_),
        device_values_(at, values_),
        device_query_(at, query_),
        output_(at, query_),
        device_table_(at, table_),
        row_of_(at, s.tokens, 0),
        causal_(at, s.tokens, 0),
        cu_(at, s.rows + 1, 0),
        lengths_(at, s.rows, 0),
        device_mask_(at, mask_),
        device_sink_(at, sink_),
        lse_(at, std::size_t(s.tokens) * s.heads, nan),
        indptr_(at, s.rows + 1, std::int64_t{0}),
        step_keys_(at, std::size_t(s.tokens) * s.kv_heads * s.head_size, from_float<T>(nan)),
        step_values_(at, step_keys_.size(), from_float<T>(nan)),
        workspace_(at, paged_attention_workspace_bytes(at.where(), bare_params()), std::uint8_t{0}) {
    for (float& each : sink_) each = static_cast<float>(random_.between(-2000, 2000)) / 1000.0f;
    device_sink_.set(sink_);
  }

  paged_attention_params params() const {
    paged_attention_params all = bare_params();
    all.workspace = s.workspace ? workspace_.data() : nullptr;
    all.workspace_bytes = workspace_.size();
    return all;
  }

  paged_attention_params bare_params() const {
    return {.type = type_of<T>,
            .query = device_query_.data(),
            .output = output_.data(),
            .cache = {.keys = device_keys_.data(),
                      .values = device_values_.data(),
                      .page_stride = page_stride_,
                      .token_stride = std::int64_t{s.kv_heads} * s.head_size,
                      .head_stride = s.head_size,
                      .pages = pages_},
            .page_table = device_table_.data(),
            .page_table_stride = columns_,
            .page_columns = columns_,
            .row_of = row_of_.data(),
            .causal_length = causal_.data(),
            .tokens = s.tokens,
            .rows = s.rows,
            .heads = s.heads,
            .kv_heads = s.kv_heads,
            .head_size = s.head_size,
            .page_shift = s.page_shift,
            .scale = static_cast<float>(s.scale / std::sqrt(static_cast<double>(s.head_size))),
            .logit_cap = s.logit_cap,
            .window = s.window,
            .sink = s.sink ? device_sink_.data() : nullptr,
            .log_sum_exp = lse_.data(),
            .cu_seqlens_q = cu_.data(),
            .cache_seqlens = lengths_.data(),
            .tree_mask = s.tree ? device_mask_.data() : nullptr,
            .batch_invariant = s.batch_invariant,
            .page_indptr = s.csr ? index_view(indptr_.data()) : index_view(),
            .page_entries = s.rows * columns_,
            .step_kv = s.step_kv ? step_kv_view{step_keys_.data(), step_values_.data(),
                                                std::int64_t{s.kv_heads} * s.head_size, s.head_size}
                                 : step_kv_view{}};
  }

  /// Fills every buffer with a new step's random contents.
  void set(const std::vector<ragged_row>& rows) {
    rows_ = rows;
    poisoned_ = -1;
    lost_.clear();
    const auto poison = from_float<T>(nan);
    std::fill(keys_.begin(), keys_.end(), poison);
    values_ = keys_;
    std::fill(query_.begin(), query_.end(), poison);
    std::fill(table_.begin(), table_.end(), wild);
    std::vector<std::int32_t> free(pages_ - 1), row_of(s.tokens, 0), causal(s.tokens, 0), cu(1, 0), lengths;
    std::iota(free.begin(), free.end(), 1);
    for (std::size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[random_.below(i)]);
    for (int row = 0; row < s.rows; ++row) {
      const ragged_row each = row < static_cast<int>(rows.size()) ? rows[row] : ragged_row{0, 0};
      lengths.push_back(each.length);
      reference::random_integers contents(seed_ * 1000 + (each.key < 0 ? row : each.key));
      const auto number = [&contents] { return static_cast<float>(contents.between(-2000, 2000)) / 1000.0f; };
      for (int position = 0; position < each.length; ++position) {
        if (position % page_size_ == 0) {
          table_[row * columns_ + position / page_size_] = free.back();
          free.pop_back();
        }
        for (int head = 0; head < s.kv_heads; ++head)
          for (int d = 0; d < s.head_size; ++d) {
            keys_[element(row, position, head, d)] = from_float<T>(number());
            values_[element(row, position, head, d)] = from_float<T>(number());
          }
      }
      for (int j = 0; j < each.tokens; ++j) {
        const int token = cu.back() + j;
        for (int i = 0; i < s.heads * s.head_size; ++i)
          query_[std::size_t(token) * s.heads * s.head_size + i] = from_float<T>(number());
        row_of[token] = row;
        causal[token] = std::max(0, each.length - each.tokens + j + 1);
        // a tree with random parents
        const std::uint64_t own = j < 64 ? std::uint64_t{1} << j : 0;
        mask_[token] = own | (j > 0 ? mask_[cu.back() + contents.below(j)] : 0);
      }
      cu.push_back(cu.back() + each.tokens);
    }
    row_of_.set(row_of);
    causal_.set(causal);
    cu_.set(cu);
    lengths_.set(lengths);
    if (s.step_kv)
      set_beside();
    else {
      device_keys_.set(keys_);
      device_values_.set(values_);
    }
    device_table_.set(s.csr ? listed() : s.step_kv ? without_own(table_) : table_);
    device_query_.set(query_);
    device_mask_.set(mask_);
    clear_outputs();
  }

  /// Other options for the same contents; the table, rows and buffers stay as they are.
  void set_options(const ragged_shape& other) {
    s.logit_cap = other.logit_cap;
    s.window = other.window;
    s.sink = other.sink;
    s.tree = other.tree;
    clear_outputs();
  }

  void clear_outputs() {
    output_.set(std::vector<T>(query_.size(), from_float<T>(nan)));
    lse_.set(std::vector<float>(lse_.size(), nan));
  }

  /// Makes a row's cached keys and values NaN, or those of one position that all its tokens see. From then on
  /// `check` wants NaN as the row's outputs and log-sum-exp.
  void poison(int row, int only = -1) {
    const int first = only < 0 ? 0 : only, end = only < 0 ? rows_[row].length : only + 1;
    for (int position = first; position < end; ++position)
      for (int head = 0; head < s.kv_heads; ++head)
        for (int d = 0; d < s.head_size; ++d)
          keys_[element(row, position, head, d)] = values_[element(row, position, head, d)] =
              from_float<T>(nan);
    device_keys_.set(keys_);
    device_values_.set(values_);
    poisoned_ = row;
  }

  /// Lists `entry`, which is no page, as a row's `index`-th; `check` wants its tokens unseen from then on.
  void lose_page(int row, std::int64_t index, std::int32_t entry) {
    std::vector<std::int32_t> table = device_table_.get();
    if (lost_.empty()) whole_table_ = table;
    lost_.insert({row, index});
    table[(s.csr ? indptr_.get()[row] : row * columns_) + index] = entry;
    device_table_.set(table);
  }

  /// Lists all lost pages again.
  void find_pages() {
    if (!lost_.empty()) device_table_.set(whole_table_);
    lost_.clear();
  }

  /// The page that holds a row's tokens from `index` pages on.
  std::int32_t page(int row, std::int64_t index) const { return table_[row * columns_ + index]; }

  std::vector<T> output() const { return output_.get(); }
  std::vector<float> log_sum_exp() const { return lse_.get(); }

  /// What is wrong with the outputs, in words; empty if nothing is. Looks at no more than `most` (token,
  /// head) pairs, chosen at random, beyond zeros where nothing is seen.
  std::string check(double tolerance, int most = 1 << 30) {
    const auto got = output_.get();
    const auto lse = lse_.get();
    int token = 0;
    std::vector<std::pair<int, int>> live;  // row, token of the row
    for (int row = 0; row < static_cast<int>(rows_.size()); ++row)
      for (int j = 0; j < rows_[row].tokens; ++j) live.emplace_back(row, j);
    const std::int64_t pairs = static_cast<std::int64_t>(live.size()) * s.heads;
    for (; token < s.tokens; ++token)
      for (int head = 0; head < s.heads; ++head) {
        const bool dead = token >= static_cast<int>(live.size());
        const auto [row, j] = dead ? std::pair{0, 0} : live[token];
        const int base = dead ? 0 : rows_[row].length - rows_[row].tokens;
        const std::size_t first = (std::size_t(token) * s.heads + head) * s.head_size;
        const std::string name = "row " + std::to_string(row) + ", token " + std::to_string(token) +
                                 ", head " + std::to_string(head) + ": ";
        const float got_lse = lse[std::size_t(token) * s.heads + head];
        if (!dead && row == poisoned_) {
          for (int d = 0; d < s.head_size; ++d)
            if (!std::isnan(to_float(got[first + d]))) return name + "not NaN, though what it sees is";
          if (!std::isnan(got_lse)) return name + "log-sum-exp not NaN, though what it sees is";
          continue;
        }
        if (dead || base + j + 1 <= 0) {
          for (int d = 0; d < s.head_size; ++d)
            if (to_float(got[first + d]) != 0) return name + "not zero";
          if (got_lse != -std::numeric_limits<float>::infinity())
            return name + "log-sum-exp not minus infinity";
          continue;
        }
        if (random_.below(pairs) >= most) continue;
        const auto want = expect(row, j, token, head);
        double difference = 0, norm = 0;
        for (int d = 0; d < s.head_size; ++d) {
          const double value = to_float(got[first + d]);
          difference += (value - want.output[d]) * (value - want.output[d]);
          norm += want.output[d] * want.output[d];
        }
        if (!(std::sqrt(difference) <= tolerance * std::sqrt(norm)))
          return name + "relative error " + std::to_string(std::sqrt(difference / norm));
        if (!(std::abs(got_lse - want.log_sum_exp) <= 1e-3))
          return name + "log-sum-exp " + std::to_string(got_lse) + " instead of " +
                 std::to_string(want.log_sum_exp);
      }
    return {};
  }

 private:
  /// Cached tokens of a row that the table must list.
  std::int64_t cached(int row) const {
    if (row >= static_cast<int>(rows_.size())) return 0;
    return std::max(0, rows_[row].length - (s.step_kv ? rows_[row].tokens : 0));
  }

  /// The table with the entries that only the step's own tokens need made wild.
  std::vector<std::int32_t> without_own(std::vector<std::int32_t> table) const {
    for (int row = 0; row < s.rows; ++row)
      for (std::int64_t page = (cached(row) + page_size_ - 1) / page_size_; page < columns_; ++page)
        table[row * columns_ + page] = wild;
    return table;
  }

  /// The rows' entries one after another, and where each row's begin.
  std::vector<std::int32_t> listed() {
    std::vector<std::int32_t> entries;
    std::vector<std::int64_t> indptr(1, 0);
    for (int row = 0; row < s.rows; ++row) {
      for (std::int64_t page = 0; page < (cached(row) + page_size_ - 1) / page_size_; ++page)
        entries.push_back(table_[row * columns_ + page]);
      indptr.push_back(static_cast<std::int64_t>(entries.size()));
    }
    entries.resize(table_.size(), wild);
    indptr_.set(indptr);
    return entries;
  }

  /// Moves the step's own keys and values out of the cache; NaN takes their place there.
  void set_beside() {
    const std::int64_t line = std::int64_t{s.kv_heads} * s.head_size;
    std::vector<T> step_keys(step_keys_.size(), from_float<T>(nan)), step_values(step_keys), keys(keys_),
        values(values_);
    int first = 0;
    for (int row = 0; row < static_cast<int>(rows_.size()); ++row) {
      const int base = rows_[row].length - rows_[row].tokens;
      for (int j = std::max(0, -base); j < rows_[row].tokens; ++j)
        for (int i = 0; i < line; ++i) {
          const std::int64_t from = element(row, base + j, i / s.head_size, i % s.head_size);
          step_keys[(first + j) * line + i] = keys_[from];
          step_values[(first + j) * line + i] = values_[from];
          keys[from] = values[from] = from_float<T>(nan);
        }
      first += rows_[row].tokens;
    }
    step_keys_.set(step_keys);
    step_values_.set(step_values);
    device_keys_.set(keys);
    device_values_.set(values);
  }

  static constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  static constexpr std::int32_t wild = 0x7f7f7f7f;

  std::int64_t element(int row, std::int64_t position, int head, int d) const {
    return table_[row * columns_ + position / page_size_] * page_stride_ +
           (position % page_size_ * s.kv_heads + head) * s.head_size + d;
  }

  reference::attention_output expect(int row, int j, int token, int head) const {
    const int kv_head = head / (s.heads / s.kv_heads), base = rows_[row].length - rows_[row].tokens;
    const std::uint64_t mask = mask_[token];
    // depth of node `i` on the path to this token, itself at its own
    const auto depth = [mask](int i) {
      int count = 0;
      for (int node = 0; node < i; ++node) count += mask >> node & 1;
      return count;
    };
    reference::attention_case one{
        .query = {},
        .positions = base + j + 1,
        .visible = {},
        .key = [&](std::int64_t p, int d) { return to_float(keys_[element(row, p, kv_head, d)]); },
        .value = [&](std::int64_t p, int d) { return to_float(values_[element(row, p, kv_head, d)]); },
        .scale = s.scale / std::sqrt(static_cast<double>(s.head_size)),
        .logit_cap = s.logit_cap,
        .window = s.tree ? 0 : s.window,
        .has_sink = s.sink,
        .sink = sink_[head]};
    if (s.tree)
      one.visible = [=, this](std::int64_t p) {
        const std::int64_t position = p < base ? p : base + depth(static_cast<int>(p - base));
        if (s.window > 0 && position <= base + depth(j) - s.window) return false;
        return p < base || (mask >> (p - base) & 1) == 1;
      };
    if (!lost_.empty())
      one.visible = [=, this, seen = one.visible](std::int64_t p) {
        const bool listed = !s.step_kv || p < base;
        return (!seen || seen(p)) && !(listed && lost_.contains({row, p / page_size_}));
      };
    const std::size_t first = (std::size_t(token) * s.heads + head) * s.head_size;
    for (int d = 0; d < s.head_size; ++d) one.query.push_back(to_float(query_[first + d]));
    return reference::attention(one);
  }

  stream_ref at_;
  ragged_shape s;
  std::uint64_t seed_;
  reference::random_integers random_;
  std::int64_t page_size_, columns_, pages_, page_stride_;
  std::vector<ragged_row> rows_;
  int poisoned_ = -1;
  std::set<std::pair<int, std::int64_t>> lost_;  // row, index among its pages
  std::vector<T> keys_, values_;
  std::vector<std::int32_t> table_, whole_table_;
  std::vector<T> query_;
  std::vector<std::uint64_t> mask_;
  std::vector<float> sink_;
  device_vector<T> device_keys_, device_values_, device_query_, output_;
  device_vector<std::int32_t> device_table_, row_of_, causal_, cu_, lengths_;
  device_vector<std::uint64_t> device_mask_;
  device_vector<float> device_sink_, lse_;
  device_vector<std::int64_t> indptr_;
  device_vector<T> step_keys_, step_values_;
  device_vector<std::uint8_t> workspace_;
};

}  // namespace stepgraph
