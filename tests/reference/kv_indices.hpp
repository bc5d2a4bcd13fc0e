#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/reference/batch.hpp"

namespace stepgraph::reference {

/// A page table given as input; its live columns are the caller's lengths.
struct input_table {
  std::int64_t lines = 0;
  std::int64_t width = 0;
  std::function<std::int64_t(std::int64_t line, std::int64_t column)> entry;
};

struct spec_page_table_input {
  std::int64_t T = 0;                // live tokens
  std::vector<std::int64_t> row_of;  // [C]; not read for dead tokens
  input_table table_a;               // a line a row
  std::vector<std::int64_t> len_a;   // [rows of table_a]
  input_table table_b;               // a line a token
  std::vector<std::int64_t> len_b;   // [C]; not read for dead tokens
  std::int64_t width = 0;            // columns of the output
  output_rule rule;
};

struct spec_page_table_output {
  table_output table;         // [C, width]
  vector_output total;        // [C]
  std::vector<fault> faults;  // rows are tokens here
};

/// Each token's line: its row's entries of one table, then its own of another.
spec_page_table_output spec_page_table(const spec_page_table_input& in);

struct kv_indices_options {
  std::vector<std::int64_t> start;    // [B]; empty: 0
  std::int64_t capacity = 0;          // entries the output holds
  std::optional<index_map> slot_map;  // instead of the batch's page map
  std::int64_t skip = -1;
};

struct kv_indices_output {
  vector_output indptr;   // [B + 1]
  vector_output indices;  // [capacity]
  std::vector<fault> faults;
};

/// CSR of the slots of tokens [start, len) of each row.
kv_indices_output kv_indices(const batch& in, const kv_indices_options& options);

struct unified_kv_indices_input {
  std::vector<std::int64_t> prefix_indptr;   // [B + 1]; entries past n are not read
  std::vector<std::int64_t> prefix_indices;  // CSR
  std::vector<std::int64_t> extend_indices;  // a row's own lie at cu_q[r], or at extend_start[r]
  std::vector<std::int64_t> extend_start;    // [B]; empty: cu_q
  std::int64_t capacity = 0;
  std::int64_t skip = -1;
};

/// CSR of each row's prefix indices followed by its extend indices.
kv_indices_output unified_kv_indices(const batch& in, const unified_kv_indices_input& input);

}  // namespace stepgraph::reference
