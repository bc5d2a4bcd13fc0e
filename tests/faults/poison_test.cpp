// Poison mode: whatever the contract calls undefined is wild, so that a body that reads it shows: docs/faults.md.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/draft_fixture.hpp"

using namespace stepgraph;

namespace {

constexpr std::int32_t wild = 0x7f7f7f7f;

/// Says where the executor's two blocks lie, so that a test can look at every carving.
class seen_memory final : public memory_resource {
 public:
  device where() const noexcept override { return test_device(); }

  /// What lasts is allocated first, then the steps' block, whose carvings are listed first.
  std::byte* at(const carving_info& carving) const {
    return carving.offset < bytes[1] ? blocks[1] + carving.offset : blocks[0] + (carving.offset - bytes[1]);
  }
  bool of_step(const carving_info& carving) const { return carving.offset < bytes[1]; }

 private:
  void* do_allocate(std::size_t size) override {
    void* const made = device_memory(where()).allocate(size);
    blocks.push_back(static_cast<std::byte*>(made));
    bytes.push_back(size);
    return made;
  }
  void do_deallocate(void* pointer, std::size_t size) noexcept override {
    device_memory(where()).deallocate(pointer, size);
  }
  std::vector<std::byte*> blocks;
  std::vector<std::size_t> bytes;
};

/// The part of a carving that is undefined before a round, where one request has `pages` pages and a draft, in
/// line 0, and the other lines are nobody's.
struct undefined_part {
  const char* name;
  int lines;    // that the carving has, one a request and perhaps one for dead rows
  int skipped;  // bytes of line 0 that are live; the other lines are undefined as a whole
};

}  // namespace

TEST_CASE("poison: every buffer of the executor is filled where nothing is live, and nowhere else") {
  constexpr unsigned char mark = 0x5a;
  const tiny_with_draft t;
  constexpr int rows = 4, prompt_tokens = 19, page_size = 8;
  constexpr int pages = 3;  // of 19 tokens and one more
  for (const bool poison : {false, true}) {
    CAPTURE(poison);
    seen_memory memory;
    step_executor executor = t.executor({.rows = rows,
                                         .most = 3,
                                         .sampled = true,
                                         .trees = true,
                                         .page_size = page_size,
                                         .poison = poison,
                                         .step_tokens = 64,
                                         .options = {.memory = &memory,
                                                     .row_buckets = bucket_policy::exactly({rows}),
                                                     .token_buckets = bucket_policy::exactly({64})}});
    executor.capture();
    reference::random_integers random(test_seed());
    const auto prompt = random_prompt(random, prompt_tokens, 509);
    const sampling_settings sampling{.temperature = 0.7f, .seed = 3};
    const auto extend = [&](request_id request) {
      const std::vector<step_row> row{{.request = request, .tokens = prompt_tokens, .token_ids = prompt}};
      executor.wait(*executor.replay(
          {.kind = step_kind::extend, .rows = row, .variant = 1, .extend_draft = true, .draft_variant = 1}));
    };
    const request_id open = executor.open({.sampling = sampling}),
                     closed = executor.open({.sampling = sampling});
    REQUIRE(open == 0);
    extend(closed);
    extend(open);
    executor.close(closed);
    // everything of the steps' block is undefined now, but for what a first draft was drawn from
    const int float_bytes = sizeof(float), vocab = 509 * float_bytes;
    const undefined_part by_request[] = {
        {"request_pages", rows, pages * 4},
        {"request_seq_lens", rows, 4},
        {"request_last_token", rows, 4},
        {"request_sampling", rows, sizeof(sampling_settings)},
        {"request_capacity", rows, 4},
        {"request_finished", rows, 4},
        {"request_budget", rows, 4},
        {"request_first_draft", rows + 1, 4},
        {"draft_first_hidden", rows + 1, t.weights.config.hidden_size * float_bytes},
        {"draft_probabilities", 0, vocab},
        {"live_pages", 0, INT32_MAX},
        {"page_live_tokens", 0, INT32_MAX},
        // set once, and shown by other tests to be filled beyond each request's tokens
        {"fault_taken", 0, INT32_MAX},
        {"end_ids", 0, INT32_MAX},
        {"kv_planes", 0, INT32_MAX},
        {"kv_cache", 0, INT32_MAX},
        {"draft_kv_cache", 0, INT32_MAX}};
    const stream_ref at = executor.stream();
    std::vector<std::vector<std::byte>> before;
    const auto live_bytes = [&](const carving_info& carving) -> std::size_t {
      for (const undefined_part& part : by_request)
        if (carving.name == part.name) return std::min<std::size_t>(part.skipped, carving.bytes);
      CHECK_MESSAGE(memory.of_step(carving), "a carving that this test does not know: ", carving.name);
      return 0;
    };
    for (const carving_info& carving : executor.carvings()) {
      const std::size_t live = live_bytes(carving);
      if (carving.bytes > live) at.fill(memory.at(carving) + live, mark, carving.bytes - live);
    }
    // one of three sits in a bucket of four
    const std::vector<step_row> row{{.request = open, .tokens = 4}};
    const step_ticket ticket = *executor.replay({.kind = step_kind::target_verify,
                                                 .rows = row,
                                                 .variant = 1,
                                                 .draft_length = 3,
                                                 .extend_draft = true,
                                                 .draft_variant = 1});
    const row_result result = executor.wait(ticket)[0];
    CHECK(result.status == 0);
    CHECK(result.length >= prompt_tokens + 1);
    at.synchronize();
    std::string left;
    for (const carving_info& carving : executor.carvings()) {
      const std::size_t live = live_bytes(carving);
      if (carving.bytes <= live) continue;
      std::vector<unsigned char> bytes(carving.bytes - live);
      at.copy(bytes.data(), memory.at(carving) + live, bytes.size());
      at.synchronize();
      std::size_t marked = 0;
      for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4)
        marked += std::all_of(bytes.begin() + i, bytes.begin() + i + 4,
                              [](unsigned char byte) { return byte == mark; });
      if (poison) CHECK_MESSAGE(marked == 0, marked, " words of ", carving.name, " are as they were");
      if (marked > 0) left += carving.name + " ";
    }
    if (poison) continue;
    // else most is as it was
    for (const char* name : {"staging", "draft_probabilities", "request_pages", "request_seq_lens",
                             "request_sampling", "draft_first_hidden", "page_table", "scratch"})
      CHECK_MESSAGE(left.find(name) != std::string::npos, name);
  }
}
