// Pages of a request that has gone, while steps that may still write them run: docs/faults.md.
#include <doctest/doctest.h>

#include <stdexcept>

#include "graphs/host_backend.hpp"
#include "tests/device_vector.hpp"
#include "tests/runtime/filling_step.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;
using namespace stepgraph::filling_step;

namespace {

/// Which step still runs as its request goes.
enum class last_step { decode, draft_extend, failed };

/// An executor whose last steps take long, and tell when they are done.
class slow_steps {
 public:
  explicit slow_steps(last_step which)
      : which(which),
        at(test_device()),
        slow(at, test_small() || at.where().is_host() ? 1 << 10 : 1 << 26, 0),
        one(at, {1}),
        done(pinned_memory(test_device()), sizeof(std::int32_t)),
        executor(test_device(), limits(), layout, steps(), options()) {
    *done.as<std::int32_t>() = 0;
    executor.capture();
    *done.as<std::int32_t>() = 0;
  }
  ~slow_steps() { detail::hold_host_events = false; }
  slow_steps(const slow_steps&) = delete;
  slow_steps& operator=(const slow_steps&) = delete;

  bool is_done() const { return *done.as<volatile std::int32_t>() == 1; }

  /// Pages for one request at a time.
  static step_limits limits() {
    step_limits few = small_limits();
    few.max_draft_tokens = 1;
    few.hidden_size = 8;
    few.kv_pages = 3;
    return few;
  }

  last_step which;
  bool fails = false;
  stream at;
  device_vector<unsigned char> slow;
  device_vector<std::int32_t> one;
  buffer done;
  step_executor executor;

 private:
  executor_options options() const {
    return {.stream = at.ref(),
            .row_buckets = bucket_policy::exactly({4}),
            .token_buckets = bucket_policy::exactly({8}),
            .draft = draft_shape{.layout = layout, .hidden_size = 8, .vocab_size = 100}};
  }
  std::vector<step_definition> steps() {
    std::vector<step_definition> all{filling(0, step_kind::extend), filling(0, step_kind::decode),
                                     filling(0, step_kind::draft_extend)};
    for (step_definition& step : all)
      step.body = [this, body = step.body](const step_context& context) {
        const step_kind slow_kind =
            which == last_step::draft_extend ? step_kind::draft_extend : step_kind::decode;
        if (context.key.kind == slow_kind) {
          for (int i = 0; i < (slow.size() < 1 << 20 ? 1 : 200); ++i)
            context.stream.fill(slow.data(), 1, slow.size());
          context.stream.copy(done.data(), one.data(), sizeof(std::int32_t));
        }
        if (fails) throw std::runtime_error("the body failed");
        body(context);
      };
    return all;
  }
};

}  // namespace

TEST_CASE(
    "abort-reuse: pages of a request that has gone are not handed out before its last step is done, whatever "
    "step that is, and whether it was launched whole") {
  for (const last_step which : {last_step::decode, last_step::draft_extend, last_step::failed})
    for (const when_full full : {when_full::would_block, when_full::wait}) {
      CAPTURE(static_cast<int>(which));
      CAPTURE(static_cast<int>(full));
      slow_steps steps(which);
      step_executor& executor = steps.executor;
      const request_id gone = executor.open(), next = executor.open();
      const std::vector<std::int32_t> four(4, 1), eight(8, 1);
      executor.wait(*executor.replay(step_kind::extend, std::vector{first(gone, four)}));
      executor.stream().synchronize();
      REQUIRE(executor.free_pages() == 1);

      detail::hold_host_events =
          test_device().is_host();  // there a step would be done as soon as it is launched
      const std::vector<step_row> row{{.request = gone}};
      if (which == last_step::failed) {
        steps.fails = true;
        CHECK_THROWS_AS(executor.run_eager(step_kind::decode, row), std::runtime_error);
        steps.fails = false;
      } else {
        const step_round last{
            .kind = step_kind::decode, .rows = row, .extend_draft = which == last_step::draft_extend};
        REQUIRE(executor.replay(last));
      }
      executor.close(gone);
      CHECK(executor.free_pages() == 0);

      const std::vector<step_row> wanted{first(next, eight)};  // both pages
      int refused = 0;
      while (!executor.replay(step_kind::extend, wanted, 0, full)) {
        CHECK(executor.free_pages() == 0);
        if (++refused == 3 && test_device().is_host()) detail::hold_host_events = false;
      }
      CHECK(steps.is_done());
      CHECK_FALSE(detail::hold_host_events.load());  // the host waited
      const bool sees_it_run = test_device().is_host() || !test_small();
      if (full == when_full::would_block && sees_it_run) CHECK(refused >= 3);
      CHECK(executor.statistics().would_block == static_cast<std::uint64_t>(refused));
      executor.stream().synchronize();
      CHECK(executor.free_pages() == 0);
    }
}
