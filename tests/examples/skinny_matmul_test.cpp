// The fused products of the example's layers on a GPU, each against plain loops in double, at random shapes:
// whole and broken tiles, one to 64 tokens. They exist on the GPU alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "examples/llama/skinny_matmul.hpp"
#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/llama_products.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

namespace {

bool has_kernels() {
  if (test_device().is_host()) MESSAGE("the products run on a GPU alone: skipped");
  return !test_device().is_host();
}

std::vector<bf16> rounded(const std::vector<float>& values) {
  std::vector<bf16> out(values.size());
  std::ranges::transform(values, out.begin(), from_float<bf16>);
  return out;
}

std::vector<float> widened(const std::vector<bf16>& values) {
  std::vector<float> out(values.size());
  std::ranges::transform(values, out.begin(), [](bf16 value) { return to_float(value); });
  return out;
}

struct numbers {
  explicit numbers(std::uint64_t seed) : engine(seed) {}
  std::vector<float> normal(std::int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> draw(0.0f, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = draw(engine);
    return values;
  }
  int between(int first, int last) { return first + static_cast<int>(engine() % (last - first + 1)); }
  std::mt19937_64 engine;
};

/// Norm of the difference over norm of `want`; a NaN never passes.
double distance(const std::vector<float>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

constexpr double exact = 1e-4;     // float32 sums of bf16 products
constexpr double rounding = 4e-3;  // of a result to bf16
constexpr double epsilon = 1e-5;

/// Weights, and tokens whose residual is known as well as what a product gets of it.
struct problem {
  problem(stream_ref at, numbers& random, int rows, int columns, int tokens, bool norm)
      : rows(rows),
        columns(columns),
        tokens(tokens),
        norm(norm),
        weight_values(widened(rounded(random.normal(std::int64_t{rows} * columns)))),
        residual(random.normal(std::int64_t{tokens} * columns, 3.0f)),
        x_values(widened(rounded(residual))),
        weight(at, rounded(weight_values)),
        x(at, rounded(x_values)),
        squares(at, squares_of()) {}

  llama::skinny_input input() const {
    return {.weight = weight.data(),
            .rows = rows,
            .columns = columns,
            .x = x.data(),
            .tokens = tokens,
            .squares = norm ? squares.data() : nullptr,
            .epsilon = static_cast<float>(epsilon)};
  }
  double want(int line, int row) const {
    const std::int64_t at = std::int64_t{line} * columns;
    return reference::product(weight_values, x_values.data() + at, row, columns,
                              norm ? reference::norm_factor(residual.data() + at, columns, epsilon) : 1.0);
  }

  int rows, columns, tokens;
  bool norm;
  std::vector<float> weight_values, residual, x_values;
  device_vector<bf16> weight, x;
  device_vector<float> squares;

 private:
  std::vector<float> squares_of() const {
    std::vector<float> sums(residual.size() / 8);
    for (std::size_t i = 0; i < residual.size(); ++i) sums[i / 8] += residual[i] * residual[i];
    return sums;
  }
};

int some_tokens(numbers& random, int round) {
  constexpr int edges[] = {1, 8, 9, 16, 17, 32, 33, 64};
  return round < 8 && !test_small() ? edges[round] : random.between(1, 64);
}

}  // namespace

TEST_CASE("plain product: weights times lines of x, wherever they lie, with the norm or without") {
  if (!has_kernels()) return;
  const stream at(test_device());
  numbers random(test_seed());
  for (int round = 0; round < test_rounds(16); ++round) {
    const int rows = random.between(1, 700), columns = 32 * random.between(1, 60),
              lines = some_tokens(random, round);
    CAPTURE(rows);
    CAPTURE(columns);
    CAPTURE(lines);
    const problem p(at.ref(), random, rows, columns, 64, random.between(0, 1) == 1);
    std::vector<std::int32_t> source(lines);
    for (auto& each : source) each = random.between(0, 63);
    const device_vector<std::int32_t> sources(at.ref(), source);
    const bool direct = random.between(0, 1) == 1;
    const device_vector<float> out(at.ref(), std::int64_t{lines + 1} * rows, -7.5f);
    llama::skinny_input in = p.input();
    in.tokens = lines;
    in.source = direct ? nullptr : sources.data();
    llama::skinny_matmul(at.ref(), llama::plain_product{.in = in, .out = out.data()});
    std::vector<float> got = out.get();
    CHECK(std::ranges::all_of(got.begin() + std::int64_t{lines} * rows, got.end(),
                              [](float v) { return v == -7.5f; }));
    got.resize(std::int64_t{lines} * rows);
    std::vector<double> want;
    for (int line = 0; line < lines; ++line)
      for (int row = 0; row < rows; ++row) want.push_back(p.want(direct ? line : source[line], row));
    CHECK(distance(got, want) < exact);
  }
}

namespace {

/// Tokens of rows, some of none, some dead, and the line where each row's last token's residual goes.
struct copied_rows {
  std::vector<std::int32_t> causal_length, row_of, last_row, out_line;

  copied_rows(numbers& random, int tokens) : causal_length(tokens, 0), row_of(tokens, 0) {
    const int live = random.between(0, tokens);
    for (int token = 0; token < live;) {
      const int own = std::min(random.between(0, 4), live - token), row = static_cast<int>(last_row.size());
      for (int i = 0; i < own; ++i, ++token) {
        causal_length[token] = random.between(1, 100);
        row_of[token] = row;
      }
      last_row.push_back(own > 0 ? token - 1 : 0);
    }
    last_row.push_back(0);  // a dead row
    for (std::size_t row = 0; row < last_row.size(); ++row)
      out_line.push_back(static_cast<std::int32_t>(last_row.size() - row));
  }
};

}  // namespace

TEST_CASE("residual product: the last token of each row goes to its line as well, nothing else") {
  if (!has_kernels()) return;
  const stream at(test_device());
  numbers random(test_seed() + 7);
  for (int round = 0; round < test_rounds(12); ++round) {
    const int rows = 8 * random.between(1, 40), columns = 32 * random.between(1, 30),
              tokens = some_tokens(random, round);
    CAPTURE(rows);
    CAPTURE(tokens);
    const problem p(at.ref(), random, rows, columns, tokens, false);
    const copied_rows batch(random, tokens);
    const bool by_line = round % 2 == 0;
    const std::int64_t lines = std::ssize(batch.last_row) + 1;
    const device_vector<float> residual(at.ref(), random.normal(std::int64_t{tokens} * rows, 5.0f)),
        gains(at.ref(), random.normal(rows)), squares(at.ref(), std::int64_t{tokens} * rows / 8, 0.0f),
        copy(at.ref(), lines * rows, -7.0f);
    const device_vector<bf16> x(at.ref(), std::int64_t{tokens} * rows, bf16{0});
    const device_vector<std::int32_t> causal(at.ref(), batch.causal_length), row_of(at.ref(), batch.row_of),
        last(at.ref(), batch.last_row), out(at.ref(), batch.out_line);
    llama::skinny_matmul(at.ref(),
                         llama::residual_product{.in = p.input(),
                                                 .residual = residual.data(),
                                                 .gain = gains.data(),
                                                 .x = x.data(),
                                                 .squares = squares.data(),
                                                 .copy = {.to = copy.data(),
                                                          .causal_length = causal.data(),
                                                          .row_of = row_of.data(),
                                                          .last_row = last.data(),
                                                          .out_line = by_line ? out.data() : nullptr}});
    const std::vector<float> all = residual.get(), got = copy.get();
    std::vector<float> want(got.size(), -7.0f);
    for (std::size_t row = 0; row < batch.last_row.size(); ++row) {
      const int token = batch.last_row[row];
      if (batch.causal_length[token] == 0 || batch.row_of[token] != static_cast<int>(row)) continue;
      const std::int64_t line = by_line ? batch.out_line[row] : static_cast<std::int64_t>(row);
      std::copy_n(all.begin() + std::int64_t{token} * rows, rows, want.begin() + line * rows);
    }
    CHECK((got == want));
  }
}

TEST_CASE("residual product: adds, and leaves what the next norm and product need") {
  if (!has_kernels()) return;
  const stream at(test_device());
  numbers random(test_seed() + 1);
  for (int round = 0; round < test_rounds(16); ++round) {
    const int rows = 8 * random.between(1, 80), columns = 32 * random.between(1, 60),
              tokens = some_tokens(random, round);
    CAPTURE(rows);
    CAPTURE(columns);
    CAPTURE(tokens);
    const problem p(at.ref(), random, rows, columns, tokens, false);
    const std::vector<float> before = random.normal(std::int64_t{tokens} * rows, 5.0f),
                             gain = random.normal(rows);
    const device_vector<float> residual(at.ref(), before), gains(at.ref(), gain);
    const device_vector<bf16> x(at.ref(), before.size(), bf16{0x7fc0});
    const device_vector<float> squares(at.ref(), before.size() / 8, NAN);
    llama::skinny_matmul(at.ref(), llama::residual_product{.in = p.input(),
                                                           .residual = residual.data(),
                                                           .gain = gains.data(),
                                                           .x = x.data(),
                                                           .squares = squares.data()});
    std::vector<double> want, want_x, want_squares(before.size() / 8);
    for (int token = 0; token < tokens; ++token)
      for (int row = 0; row < rows; ++row) {
        const double value = before[want.size()] + p.want(token, row);
        want_squares[want.size() / 8] += value * value;
        want.push_back(value);
        want_x.push_back(value * gain[row]);
      }
    CHECK(distance(residual.get(), want) < exact);
    CHECK(distance(widened(x.get()), want_x) < rounding);
    CHECK(distance(squares.get(), want_squares) < exact);
  }
}

TEST_CASE("gated product: silu of the gate times up") {
  if (!has_kernels()) return;
  const stream at(test_device());
  numbers random(test_seed() + 2);
  for (int round = 0; round < test_rounds(16); ++round) {
    const int ffn = 8 * random.between(1, 80), columns = 32 * random.between(1, 40),
              tokens = some_tokens(random, round);
    CAPTURE(ffn);
    CAPTURE(columns);
    CAPTURE(tokens);
    const problem p(at.ref(), random, 2 * ffn, columns, tokens, true);
    const device_vector<bf16> out(at.ref(), std::int64_t{tokens} * ffn, bf16{0x7fc0});
    llama::skinny_matmul(at.ref(), llama::gated_product{.in = p.input(), .out = out.data()});
    std::vector<double> want;
    for (int token = 0; token < tokens; ++token)
      for (int i = 0; i < ffn; ++i)
        want.push_back(reference::silu(p.want(token, i)) * p.want(token, ffn + i));
    CHECK(distance(widened(out.get()), want) < rounding);
  }
}

TEST_CASE(
    "qkv product: turned queries, keys and values at their slots, nothing of tokens that store nothing") {
  if (!has_kernels()) return;
  const stream at(test_device());
  numbers random(test_seed() + 3);
  for (int round = 0; round < test_rounds(16); ++round) {
    const int head_size = 64 * random.between(1, 2), kv_heads = random.between(1, 3),
              heads = kv_heads * random.between(1, 3), columns = 32 * random.between(1, 30),
              tokens = some_tokens(random, round), shift = random.between(0, 4), page_size = 1 << shift,
              pages = 64 / page_size + 3, positions = 50;
    const int rows = (heads + 2 * kv_heads) * head_size;
    CAPTURE(rows);
    CAPTURE(columns);
    CAPTURE(tokens);
    const problem p(at.ref(), random, rows, columns, tokens, true);
    std::vector<float> table;
    std::vector<double> angles;
    for (int position = 0; position < positions; ++position)
      for (int pair = 0; pair < head_size / 2; ++pair) {
        angles.push_back(position * std::pow(100.0, -2.0 * pair / head_size));
        table.push_back(static_cast<float>(std::cos(angles.back())));
        table.push_back(static_cast<float>(std::sin(angles.back())));
      }
    // each token its own slot, any order; some store nothing
    std::vector<std::int32_t> slots(pages * page_size), places(tokens), causal(tokens);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i);
    std::ranges::shuffle(slots, random.engine);
    slots.resize(tokens);
    for (int token = 0; token < tokens; ++token) {
      places[token] = random.between(0, positions - 1);
      causal[token] = random.between(0, 4) == 0 ? 0 : places[token] + 1;
    }
    const std::int64_t token_stride = kv_heads * head_size, page_stride = page_size * token_stride + 16;
    const device_vector<bf16> keys(at.ref(), pages * page_stride, bf16{0x4290}),
        values(at.ref(), pages * page_stride, bf16{0x4290}),
        query(at.ref(), std::int64_t{tokens} * heads * head_size, bf16{0x7fc0});
    const device_vector<float> rope(at.ref(), table);
    const device_vector<std::int32_t> device_slots(at.ref(), slots), device_places(at.ref(), places),
        device_causal(at.ref(), causal);
    llama::skinny_matmul(at.ref(), llama::qkv_product{.in = p.input(),
                                                      .query = query.data(),
                                                      .cache = {.keys = keys.data(),
                                                                .values = values.data(),
                                                                .page_stride = page_stride,
                                                                .token_stride = token_stride,
                                                                .head_stride = head_size,
                                                                .pages = pages},
                                                      .rope = rope.data(),
                                                      .positions = device_places.data(),
                                                      .causal_length = device_causal.data(),
                                                      .out_cache_loc = device_slots.data(),
                                                      .page_shift = shift,
                                                      .heads = heads,
                                                      .kv_heads = kv_heads,
                                                      .head_size = head_size});
    std::vector<double> want_query, want_keys(pages * page_stride, 72.0), want_values = want_keys;
    for (int token = 0; token < tokens; ++token) {
      const std::int64_t place =
          slots[token] / page_size * page_stride + slots[token] % page_size * token_stride;
      for (int head = 0; head < heads + 2 * kv_heads; ++head)
        for (int pair = 0; pair < head_size / 2; ++pair) {
          const int row = head * head_size + 2 * pair;
          const double a = p.want(token, row), b = p.want(token, row + 1);
          const bool is_value = head >= heads + kv_heads;
          const auto [first, second] =
              is_value ? reference::turned{a, b}
                       : reference::rotate(a, b, angles[places[token] * (head_size / 2) + pair]);
          if (head < heads) {
            want_query.insert(want_query.end(), {first, second});
          } else if (causal[token] > 0) {
            auto& to = is_value ? want_values : want_keys;
            const std::int64_t at_head = place + (head - heads) % kv_heads * head_size + 2 * pair;
            to[at_head] = first;
            to[at_head + 1] = second;
          }
        }
    }
    CHECK(distance(widened(query.get()), want_query) < rounding);
    CHECK(distance(widened(keys.get()), want_keys) < rounding);
    CHECK(distance(widened(values.get()), want_values) < rounding);
  }
}

TEST_CASE("a token's products have the same bits whatever tokens ride along") {
  if (!has_kernels()) return;
  const stream at(test_device());
  numbers random(test_seed() + 4);
  for (const int columns : {576, 1536, 96}) {
    const int rows = 272;
    const problem p(at.ref(), random, rows, columns, 64, true);
    const auto products = [&](int first, int count) {
      const device_vector<float> out(at.ref(), std::int64_t{count} * rows, 0.0f);
      const device_vector<bf16> gated(at.ref(), std::int64_t{count} * rows / 2, bf16{0});
      llama::skinny_input in = p.input();
      in.tokens = count;
      in.x += std::int64_t{first} * columns;
      in.squares += std::int64_t{first} * columns / 8;
      llama::skinny_matmul(at.ref(), llama::plain_product{.in = in, .out = out.data()});
      llama::skinny_matmul(at.ref(), llama::gated_product{.in = in, .out = gated.data()});
      std::vector<float> all = out.get(), more = widened(gated.get());
      std::vector<std::vector<float>> tokens(count);
      for (int t = 0; t < count; ++t) {
        tokens[t].assign(all.begin() + t * rows, all.begin() + (t + 1) * rows);
        tokens[t].insert(tokens[t].end(), more.begin() + t * rows / 2, more.begin() + (t + 1) * rows / 2);
      }
      return tokens;
    };
    const auto together = products(0, 64);
    for (const int count : {1, 5, 16, 31})
      for (int first = 0; first + count <= 64; first += count) {
        const auto few = products(first, count);
        for (int t = 0; t < count; ++t) CHECK(few[t] == together[first + t]);
        if (test_small()) break;
      }
  }
}

TEST_CASE("a chain of products in a graph waits for what each reads") {
  if (!has_kernels()) return;
  const stream at(test_device());
  numbers random(test_seed() + 5);
  // the residual goes round through two products; each replay must see the one before it
  const int hidden = 576, ffn = 1536, tokens = 5, links = test_small() ? 4 : 40;
  const problem up(at.ref(), random, 2 * ffn, hidden, tokens, true),
      down(at.ref(), random, hidden, ffn, tokens, false);
  const std::vector<float> start = up.residual;
  const device_vector<float> gain(at.ref(), hidden, 1.0f);
  struct state {
    device_vector<float> residual, squares;
    device_vector<bf16> x, activated;
  };
  const auto make = [&] {
    return state{{at.ref(), start},
                 {at.ref(), up.squares.get()},
                 {at.ref(), up.x.get()},
                 {at.ref(), std::size_t(tokens) * ffn, bf16{0x7fc0}}};
  };
  const auto link = [&](stream_ref to, const state& s) {
    llama::skinny_input in = up.input();
    in.x = s.x.data();
    in.squares = s.squares.data();
    llama::skinny_matmul(to, llama::gated_product{.in = in, .out = s.activated.data()});
    in = down.input();
    in.x = s.activated.data();
    llama::skinny_matmul(to, llama::residual_product{.in = in,
                                                     .residual = s.residual.data(),
                                                     .gain = gain.data(),
                                                     .x = s.x.data(),
                                                     .squares = s.squares.data()});
  };
  const state apart = make(), chained = make();
  for (int i = 0; i < 2 * links; ++i) {
    link(at.ref(), apart);
    at.synchronize();
  }
  const graph_exec exec = capture(at.ref(), [&](stream_ref to) {
                            for (int i = 0; i < links; ++i) link(to, chained);
                          }).instantiate();
  exec.launch(at.ref());
  exec.launch(at.ref());
  CHECK(chained.residual.get() == apart.residual.get());
}

TEST_CASE("products that cannot be are refused by name") {
  if (!has_kernels()) return;
  const stream at(test_device());
  const llama::skinny_input in{.rows = 8, .columns = 48, .tokens = 1};
  CHECK_THROWS_AS(llama::skinny_matmul(at.ref(), llama::plain_product{.in = in}), invalid_argument);
  const llama::skinny_input many{.rows = 8, .columns = 64, .tokens = 65};
  CHECK_THROWS_AS(llama::skinny_matmul(at.ref(), llama::plain_product{.in = many}), invalid_argument);
}
