#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "graphs/error.hpp"
#include "graphs/graph.hpp"
#include "kernels/metadata/query_tokens.hpp"
#include "kernels/metadata/token_inputs.hpp"
#include "tests/test_device.hpp"

/// Ops that lack a pointer, one at a time and two at once: each is refused by its field's name alone.
namespace stepgraph {

template <class Params>
struct named_field {
  std::string name;
  void (*clear)(Params&);
};

// clang-format off
#define FIELD(name) \
  { #name, [](auto& p) { p.name = {}; } }
// clang-format on

/// `enqueue` refuses `good` without each of `fields` by the text "name is null", with no other name beside it,
/// and without the first two of them by both. Nothing is launched.
template <class Params>
void expect_named(const char* op, void (*enqueue)(stream_ref, const Params&), const Params& good,
                  const std::vector<named_field<Params>>& fields) {
  const stream at(test_device());
  const auto refused = [&](const Params& bad, const std::string& why) {
    const std::string text = std::string(op) + ": " + why + " [kernels/";
    const graph nothing = capture(at, [&](stream_ref capturing) {
      CHECK_THROWS_WITH_AS(enqueue(capturing, bad), doctest::Contains(text.c_str()), invalid_argument);
    });
    CHECK(nothing.node_count() == 0);
  };
  for (const auto& field : fields) {
    Params bad = good;
    field.clear(bad);
    refused(bad, field.name + " is null");
  }
  if (fields.size() > 1) {
    Params bad = good;
    fields[0].clear(bad);
    fields[1].clear(bad);
    refused(bad, fields[0].name + " is null, " + fields[1].name + " is null");
  }
}

// nothing of this is ever read: every call is refused
inline std::int32_t word[64];
inline const std::int32_t* const in = word;

inline row_lengths good_lengths() {
  return {.live_rows = in, .rows = 2, .seq_lens = in, .delta = 0, .delta_by_row = nullptr, .cap = 8};
}

inline page_source good_source() {
  return {.table = in, .row_stride = 8, .requests = 2, .columns = 8};
}

inline query_tokens good_query() {
  return {.counts = in, .uniform = false, .max_count = 1, .tokens = 2};
}

inline token_inputs_params good_inputs() {
  token_inputs_params p;
  p.lengths = good_lengths();
  p.query_counts = p.cu_seqlens_q = p.row_of = word;
  p.max_query_count = 1;
  p.tokens = 2;
  p.requests = in;
  p.source = good_source();
  return p;
}

}  // namespace stepgraph
