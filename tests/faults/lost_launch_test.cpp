// Work that would slip past the capture of a step, in every kind of step: docs/faults.md.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/filling_step.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;
using namespace stepgraph::filling_step;

namespace {

enum class misdeed { throws, throws_no_exception, allocates, synchronises, launches_on_a_foreign_stream };

}  // namespace

TEST_CASE(
    "lost-launch: a body that throws, allocates, synchronises or launches elsewhere fails its capture by "
    "name, "
    "in every kind of step, and the executor works on") {
  const stream foreign(test_device());
  const device_vector<int> data(foreign, 1, 0);
  constexpr step_kind kinds[]{step_kind::decode, step_kind::extend, step_kind::target_verify,
                              step_kind::draft_extend, step_kind::draft_decode};
  step_limits limits = small_limits();
  limits.max_rows = 2;
  limits.max_draft_tokens = 3;
  limits.hidden_size = 8;
  for (const step_kind kind : kinds)
    for (const auto& [how, why] : {std::pair{misdeed::throws, "the body failed"},
                                   {misdeed::throws_no_exception, "no std::exception"},
                                   {misdeed::allocates, "allocation"},
                                   {misdeed::synchronises, "synchronisation"},
                                   {misdeed::launches_on_a_foreign_stream, "a stream outside the capture"}}) {
      CAPTURE(std::string(to_string(kind)));
      CAPTURE(std::string(why));
      bool bad = true;
      const auto body = [&](const step_context& context) {
        const auto zero = [&](std::int32_t* tokens, int count) {
          if (tokens) context.stream.fill(tokens, 0, sizeof(std::int32_t) * count);
        };
        zero(context.next_token, context.key.rows);
        zero(context.feed_token, context.key.rows);
        if (context.key.kind == step_kind::target_verify) zero(context.argmax, context.key.tokens);
        // of the draft's decodes in one graph the last
        const bool last = kind != step_kind::draft_decode || context.draft_step == context.key.steps;
        if (!bad || context.key.kind != kind || !last || !context.stream.is_capturing()) return;
        switch (how) {
          case misdeed::throws:
            throw std::runtime_error("the body failed");
          case misdeed::throws_no_exception:
            throw 7;
          case misdeed::allocates:
            buffer(device_memory(context.stream.where()), 16);
            break;
          case misdeed::synchronises:
            context.stream.synchronize();
            break;
          case misdeed::launches_on_a_foreign_stream:
            foreign.ref().fill(data.data(), 1, 4);
            break;
        }
      };
      std::vector<step_definition> steps;
      for (const step_kind each : kinds) steps.push_back({.kind = each, .body = body});
      step_executor executor(
          test_device(), limits, layout, steps,
          {.row_buckets = bucket_policy::exactly({2}),
           .token_buckets = bucket_policy::exactly({8}),
           .draft = draft_shape{.layout = layout, .hidden_size = 8, .vocab_size = limits.vocab_size},
           .draft_lengths = {3}});
      try {
        executor.capture();
        FAIL_CHECK("captured what it must not");
      } catch (const capture_error& refused) {
        const std::string what = refused.what();
        CHECK_MESSAGE(
            what.find(std::string("capture of ") + to_string(kind) + ", 2 rows") != std::string::npos, what);
        CHECK_MESSAGE(what.find(why) != std::string::npos, what);
      }
      CHECK(executor.captures().empty());
      CHECK_FALSE(executor.stream().is_capturing());
      bad = false;
      CHECK(executor.capture().size() == std::size(kinds));
      // a prompt, then drafts, all of them kept
      const request_id request = executor.open();
      const std::vector<std::int32_t> prompt{1, 2};
      const std::vector<step_row> asks{first(request, prompt)}, drafted{{.request = request, .tokens = 4}};
      executor.wait(*executor.replay({.kind = step_kind::extend, .rows = asks, .extend_draft = true}));
      const auto results = executor.wait(*executor.replay(
          {.kind = step_kind::target_verify, .rows = drafted, .draft_length = 3, .extend_draft = true}));
      CHECK(results[0].count == 4);
      CHECK(results[0].length == 2 + 4);
      CHECK(results[0].status == 0);
      CHECK_FALSE(executor.fault());
    }
}
