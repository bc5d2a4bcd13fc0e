#include "kernels/guard.hpp"

namespace stepgraph {

const char* to_string(row_status status) noexcept {
  switch (status) {
    case row_status::ok:
      return "ok";
    case row_status::length_clamped:
      return "length clamped";
    case row_status::query_count_clamped:
      return "query count clamped";
    case row_status::request_out_of_range:
      return "request index out of range";
    case row_status::slot_out_of_range:
      return "slot out of range";
    case row_status::token_out_of_range:
      return "token id out of range";
    case row_status::nan_logits:
      return "NaN among the logits";
    case row_status::live_rows_clamped:
      return "live rows clamped";
    case row_status::no_allowed_token:
      return "no token is allowed";
    case row_status::nan_probabilities:
      return "NaN among the draft's probabilities";
    case row_status::not_a_tree:
      return "parents that are not a tree";
    case row_status::out_of_pages:
      return "out of pages";
    case row_status::capacity_exceeded:
      return "capacity exceeded";
    case row_status::start_clamped:
      return "start clamped";
    case row_status::top_k_out_of_range:
      return "top-k index out of range";
    case row_status::window_not_gathered:
      return "window begins before the gathered tokens";
  }
  return "unknown status";
}

const char* to_string(op_id op) noexcept {
  switch (op) {
    case op_id::none:
      return "none";
    case op_id::step_prologue:
      return "step_prologue";
    case op_id::token_inputs:
      return "token_inputs";
    case op_id::decode_metadata:
      return "decode_metadata";
    case op_id::paged_attention:
      return "paged_attention";
    case op_id::greedy_sample:
      return "greedy_sample";
    case op_id::step_epilogue:
      return "step_epilogue";
    case op_id::embedder:
      return "embedder";
    case op_id::sample_tokens:
      return "sample_tokens";
    case op_id::verify_inputs:
      return "verify_inputs";
    case op_id::greedy_accept:
      return "greedy_accept";
    case op_id::rejection_accept:
      return "rejection_accept";
    case op_id::commit_slots:
      return "commit_slots";
    case op_id::commit_kv:
      return "commit_kv";
    case op_id::finish_rows:
      return "finish_rows";
    case op_id::draft_steps_metadata:
      return "draft_steps_metadata";
    case op_id::dsa_metadata:
      return "dsa_metadata";
    case op_id::compressed_metadata:
      return "compressed_metadata";
    case op_id::spec_page_table:
      return "spec_page_table";
    case op_id::kv_indices:
      return "kv_indices";
    case op_id::unified_kv_indices:
      return "unified_kv_indices";
    case op_id::kv_split_plan:
      return "kv_split_plan";
    case op_id::draft_extend_inputs:
      return "draft_extend_inputs";
    case op_id::set_k_and_s:
      return "set_k_and_s";
    case op_id::get_k_and_s:
      return "get_k_and_s";
    case op_id::top_k_to_slots:
      return "top_k_to_slots";
    case op_id::combine_top_k_and_window:
      return "combine_top_k_and_window";
    case op_id::window_token_ids:
      return "window_token_ids";
  }
  return "unknown op";
}

}  // namespace stepgraph
