#include "tests/reference/random_batch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "tests/reference/dsa_metadata.hpp"
#include "tests/reference/kv_indices.hpp"
#include "tests/reference/metadata.hpp"
#include "tests/reference/sparse.hpp"

namespace stepgraph::reference {
namespace {

constexpr int batches = 200;

std::uint64_t first_seed() {
  static const std::uint64_t seed = std::random_device{}();
  return seed;
}

TEST_CASE("random batches: clean ones have no fault, each injected kind shows") {
  std::set<fault_kind> seen;
  bool no_rows = false, no_tokens = false, fresh = false, full = false, exact = false;
  for (int i = 0; i < batches; ++i) {
    const batch in = random_batch(first_seed() + i);
    INFO(describe(in));
    const derived d = derive(in);
    CHECK(d.faults.empty());
    decode_options with_window;
    with_window.full_to_swa = random_slot_map(in, in.seed);
    CHECK(decode_metadata(in, with_window).faults.empty());
    CHECK(token_inputs(in).faults.empty());
    no_rows |= in.n == 0;
    exact |= in.C == d.T;
    for (std::int64_t r = 0; r < d.n; ++r) {
      no_tokens |= d.E[r] == 0;
      fresh |= d.len[r] < d.E[r];
      full |= d.len[r] == in.cap();
    }

    random_batch_options options;
    options.bad_request = options.bad_length = options.bad_tokens = options.bad_slot = options.drop_tokens =
        true;
    options.poison = true;
    options.page_granular = i % 2 == 0;
    const batch bad = random_batch(first_seed() + i, options);
    with_window.full_to_swa = random_slot_map(bad, bad.seed);
    for (const fault& f : decode_metadata(bad, with_window).faults) seen.insert(f.kind);
  }
  INFO("first seed ", first_seed());
  CHECK(no_rows);
  CHECK(no_tokens);
  CHECK(fresh);
  CHECK(full);
  CHECK(exact);
  CHECK(seen == std::set<fault_kind>{fault_kind::query_tokens, fault_kind::tokens_dropped, fault_kind::length,
                                     fault_kind::request_index, fault_kind::slot});
}

TEST_CASE("random batches: what is dead does not show in any output") {
  for (int i = 0; i < batches; ++i) {
    random_batch_options options;
    options.page_granular = i % 2 == 1;
    options.page_map = i % 3 == 0;
    const batch clean = random_batch(first_seed() + i, options);
    options.poison = true;
    const batch poisoned = random_batch(first_seed() + i, options);
    INFO(describe(clean));
    dsa_options dsa;
    dsa.token_table = true;
    dsa.kpool = 2;
    CHECK(token_inputs(clean).out_cache_loc.value == token_inputs(poisoned).out_cache_loc.value);
    CHECK(dsa_metadata(clean, dsa).page_table_1.line == dsa_metadata(poisoned, dsa).page_table_1.line);
    CHECK(dsa_metadata(clean, dsa).pooled_table.line == dsa_metadata(poisoned, dsa).pooled_table.line);
    CHECK(draft_extend_metadata(clean).page_table.line == draft_extend_metadata(poisoned).page_table.line);
    CHECK(decode_metadata(poisoned).faults.empty());
  }
}

TEST_CASE("random batches: a line a row, read through row_of, is a line a token") {
  for (int i = 0; i < batches; ++i) {
    random_batch_options random;
    random.bad_request = random.bad_length = random.bad_slot = random.drop_tokens = i % 2 == 0;
    const batch in = random_batch(first_seed() + i, random);
    INFO(describe(in));
    dsa_options options;
    options.token_table = true;
    const dsa_output rows = dsa_metadata(in, options);
    options.line_per_token = true;
    const dsa_output tokens = dsa_metadata(in, options);
    const derived d = derive(in);
    for (std::int64_t t = 0; t < d.T; ++t) {
      CHECK(tokens.page_table_1.line[t] == rows.page_table_1.line[rows.row_of.value[t]]);
      CHECK(tokens.real_page_table.line[t] == rows.real_page_table.line[rows.row_of.value[t]]);
    }
    CHECK(tokens.expanded.value == rows.expanded.value);
    CHECK(tokens.real_page_table.line.size() == static_cast<std::size_t>(in.C));
  }
}

TEST_CASE("random batches: outputs agree with each other") {
  for (int i = 0; i < batches; ++i) {
    random_batch_options random;
    random.page_map = i % 2 == 0;
    const batch in = random_batch(first_seed() + i, random);
    random.page_granular = true;
    const batch by_page = random_batch(first_seed() + i, random);
    INFO(describe(in));
    const derived d = derive(in);
    dsa_options options;
    options.token_table = true;
    const dsa_output dsa = dsa_metadata(in, options);
    const token_inputs_output tokens = token_inputs(in);

    // all three forms of one table
    CHECK(decode_metadata(in).page_table.line == dsa.real_page_table.line);
    CHECK(decode_metadata(by_page).page_table.line == dsa.real_page_table.line);
    const kv_indices_output csr = kv_indices(in, {{}, in.B * in.cap(), {}, -1});
    for (std::int64_t r = 0; r < d.n; ++r) {
      const std::vector<std::int64_t>& slots = dsa.page_table_1.line[r];
      CHECK(std::equal(slots.begin(), slots.end(), csr.indices.value.begin() + csr.indptr.value[r]));
      for (std::int64_t p = 0; p < in.pages(d.len[r]); ++p) {
        const std::int64_t slot = slots[p * in.P];
        CHECK(dsa.real_page_table.line[r][p] == (slot < 0 ? -1 : slot / in.P));
      }
    }
    // a token stores in the slot of its position; without a map no two tokens share one
    std::set<std::int64_t> stores;
    for (std::int64_t t = 0; t < d.T; ++t) {
      if (d.c[t] == 0) continue;
      CHECK(tokens.out_cache_loc.value[t] == dsa.page_table_1.line[d.row_of[t]][tokens.position.value[t]]);
      CHECK((stores.insert(tokens.out_cache_loc.value[t]).second || in.page_map));
    }
    // ratio 1 compresses nothing
    const compressed_output c1 = compressed_metadata(compressed_from(in, 1));
    CHECK(c1.length.value == d.c);
    CHECK(c1.positions.value == tokens.position.value);
    CHECK(c1.out_loc.value == tokens.out_cache_loc.value);
    for (std::int64_t t = 0; t < d.T; ++t) {
      const std::vector<std::int64_t>& slots = dsa.page_table_1.line[d.row_of[t]];
      CHECK(std::equal(c1.page_indices.line[t].begin(), c1.page_indices.line[t].end(), slots.begin()));
    }
  }
}

TEST_CASE("random batches: a pooled page is a group of pages") {
  for (int i = 0; i < batches; ++i) {
    dsa_options options;
    options.kpool = 2 << (i % 2);
    random_batch_options random;
    random.page_group = options.kpool;
    random.poison = true;
    const batch in = random_batch(first_seed() + i, random);
    INFO(describe(in));
    const dsa_output out = dsa_metadata(in, options);
    for (std::int64_t r = 0; r < in.n; ++r) {
      const std::vector<std::int64_t>& pages = out.real_page_table.line[r];
      const std::vector<std::int64_t>& pooled = out.pooled_table.line[r];
      CHECK(static_cast<std::int64_t>(pooled.size()) == in.pages(out.cache_seqlens.value[r] / options.kpool));
      for (std::size_t p = 0; p < pages.size() && p / options.kpool < pooled.size(); ++p) {
        CHECK(pages[p] ==
              pooled[p / options.kpool] * options.kpool + static_cast<std::int64_t>(p) % options.kpool);
      }
    }
  }
}

TEST_CASE("random batches: every draft step is a decode one token longer") {
  for (int i = 0; i < batches; ++i) {
    draft_steps_options options;
    options.steps = 1 + i % 6;
    random_batch_options random;
    random.draft_steps = options.steps;
    random.poison = true;
    batch in = random_batch(first_seed() + i, random);
    INFO(describe(in));
    options.decode.full_to_swa = random_slot_map(in, in.seed);
    const draft_steps_output steps = draft_steps_metadata(in, options);
    CHECK(steps.faults.empty());
    in.delta_of.clear();
    for (std::int64_t k = 0; k < options.steps; ++k) {
      in.delta = k + 1;
      CHECK(steps.cache_seqlens[k].value == decode_metadata(in).cache_seqlens.value);
      CHECK(steps.out_cache_loc[k].value == token_inputs(in).out_cache_loc.value);
    }
    CHECK(steps.page_table.line == decode_metadata(in).page_table.line);
  }
}

TEST_CASE("random batches: what index-K stores, it gathers") {
  for (int i = 0; i < 20; ++i) {
    random_batch_options random;
    random.rows = 4;
    random.page_size = 4;
    random.max_tokens = 5;
    const batch in = random_batch(first_seed() + i, random);
    INFO(describe(in));
    const derived d = derive(in);
    const index_k_layout layout{in.P, in.pool_pages, 0};
    random_integers values(first_seed() + i);
    std::vector<std::uint8_t> keys;
    std::vector<std::uint32_t> scales;
    for (std::int64_t x = 0; x < in.C * 128; ++x)
      keys.push_back(static_cast<std::uint8_t>(values.below(256)));
    for (std::int64_t x = 0; x < in.C; ++x)
      scales.push_back(static_cast<std::uint32_t>(values.below(1LL << 32)));
    const set_k_and_s_output set =
        set_k_and_s(layout, d.T, token_inputs(in).out_cache_loc.value, keys, scales);
    CHECK(set.faults.empty());
    const std::vector<std::uint8_t> buffer(set.buffer.value.begin(), set.buffer.value.end());

    const decode_output pages = decode_metadata(in);
    index_k_gather gather{layout, d.n, d.len, {}, in.B * in.cap()};
    gather.table = {in.B, in.page_columns,
                    [&](std::int64_t r, std::int64_t p) { return pages.page_table.line[r][p]; }};
    const get_output got = get_k_and_s(gather, buffer);
    for (std::int64_t t = 0; t < d.T; ++t) {
      if (d.c[t] == 0) continue;
      const std::int64_t to = pages.cu_seqlens_k.value[d.row_of[t]] + (d.c[t] - 1);
      CHECK(got.scales.value[to] == scales[t]);
      CHECK(std::equal(keys.begin() + t * 128, keys.begin() + t * 128 + 128,
                       got.keys.value.begin() + to * 128));
    }
  }
}

TEST_CASE("random batches: a table a million tokens wide takes no memory") {
  random_batch_options options;
  options.rows = 8;
  options.max_context = 1048576;
  options.page_size = 1;
  options.length_limit = 3000;
  options.full_width = false;
  const batch in = random_batch(first_seed(), options);
  INFO(describe(in));
  CHECK(in.source.width >= 1048576);
  CHECK(in.cap() == 1048576);
  for (const std::vector<std::int64_t>& line : decode_metadata(in).page_table.line)
    CHECK(line.size() <= 3000);
}

}  // namespace
}  // namespace stepgraph::reference
