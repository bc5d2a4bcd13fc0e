#pragma once

#include <cstdint>

#include "kernels/sample/ranked_logit.hpp"
#include "kernels/sample/sampling_settings.hpp"

namespace stepgraph {

/// A change of a request's page table that a step carries with it.
struct page_patch {
  std::int32_t request;
  std::int32_t index;  // column of the request's line
  std::int32_t page;
};

/// A request's line begins anew with this step: nothing of its former owner may be taken for its own.
struct request_join {
  sampling_settings sampling;
  std::int32_t budget;  // tokens it may emit
  std::int32_t reserved;
};

/// What the host says of one step, at the head of the one block that is copied per replay. Offsets are bytes
/// from its start.
struct staged_header {
  std::int32_t live_rows;     // n
  std::int32_t patches;       // page_patch entries at patch_offset
  std::int32_t joins;         // request_join entries at join_offset
  std::int32_t result_slot;   // slot of the result ring that this step writes
  std::int32_t patch_offset;  // a multiple of 4
  std::int32_t join_offset;   // a multiple of 8
  std::int32_t accepts;       // 1: the target step is a verify step
  std::int32_t draft_steps;   // draft decodes that go before it
  std::int32_t last_reader;   // step_kind of the round's step that reads the request table last
  std::int32_t reserved;
  std::uint64_t sequence;  // number of the round
};

/// The state of requests that lives on the device from step to step, one line a request.
struct request_state {
  std::int32_t* pages = nullptr;  // [requests, page_columns], page-granular
  std::int64_t page_stride = 0;   // entries between lines
  std::int32_t page_columns = 0;
  std::int32_t requests = 0;
  std::int32_t* seq_lens = nullptr;        // [requests], tokens in the KV cache
  std::int32_t* last_token = nullptr;      // [requests], the token sampled last, not yet in the cache
  std::int32_t* token_capacity = nullptr;  // [requests] or null: tokens that the pages given can hold
  std::int32_t* finished = nullptr;        // [requests] or null: finish_reason, not 0 once it has ended
  std::int32_t* budget = nullptr;          // [requests] or null: tokens it may still emit
  sampling_settings* sampling = nullptr;   // [requests] or null
  std::int32_t* first_draft = nullptr;     // [requests + 1] or null: d1 of the next round, negative for none
  std::uint64_t* first_ranked = nullptr;   // [requests + 1] or null: as the draft's head ranked it, or 0
  std::int32_t* first_drawn = nullptr;     // [requests + 1] or null: 1 where it was drawn from a q

  STEPGRAPH_HD bool has(std::int64_t request) const { return request >= 0 && request < requests; }
  STEPGRAPH_HD chosen_tokens first_drafts(const std::int32_t* target_ids) const {
    return {first_draft, first_ranked, target_ids};
  }
  STEPGRAPH_HD void forget_first_draft(std::int32_t request) const {
    if (first_draft) first_draft[request] = -1;
    if (first_ranked) first_ranked[request] = 0;
  }
};

}  // namespace stepgraph
