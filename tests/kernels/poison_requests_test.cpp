#include "kernels/step/poison_requests.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "graphs/error.hpp"
#include "kernels/sample/ranked_logit.hpp"
#include "tests/device_vector.hpp"
#include "tests/reference/random_batch.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("poison_requests fills the lines that nobody has and the others' tails, and nothing else") {
  constexpr std::int32_t wild = 0x7f7f7f7f;
  using words = std::vector<std::int32_t>;
  const stream at(test_device());
  reference::random_integers random(test_seed());
  for (int i = 0; i < test_rounds(20); ++i) {
    const int requests = static_cast<int>(random.between(1, 6));
    const int columns = static_cast<int>(random.between(1, 700)), stride = (columns + 3) / 4 * 4;
    const int hidden_size = static_cast<int>(random.between(1, 600)), vocab = 3;
    const bool drafts = i % 3 > 0, all = i % 2 == 0;
    words live(requests);
    for (auto& pages : live)
      pages = random.one_in(3) ? 0 : static_cast<std::int32_t>(random.between(1, columns));
    // a word in front and one behind each buffer stay
    const auto made = [&](std::size_t size) {
      words values(size + 2);
      for (auto& value : values) value = static_cast<std::int32_t>(random.below(1000));
      return values;
    };
    constexpr int vectors = 5, setting_words = sizeof(sampling_settings) / 4;
    words pages = made(std::size_t(requests) * stride), numbers[vectors],
          settings = made(std::size_t(requests + 1) * setting_words), first = made(requests + 1),
          hidden = made(std::size_t(requests + 1) * hidden_size), q = made(std::size_t(requests + 1) * vocab);
    for (words& each : numbers) each = made(requests);
    // a draft is due where there is a plain token, or a number that stands for one
    std::vector<std::uint64_t> ranked(requests + 3, 0);
    for (int r = 0; r < requests; ++r) {
      if (random.one_in(2)) first[1 + r] = -1;
      if (random.one_in(3)) ranked[1 + r] = ranked_logit(1.5f, static_cast<int>(random.below(9)));
    }
    const device_vector<std::uint64_t> d_ranked(at, ranked);
    const device_vector<std::int32_t> d_live(at, live), d_pages(at, pages), d_first(at, first),
        d_hidden(at, hidden), d_q(at, q), d_settings(at, settings),
        d_numbers[vectors]{
            {at, numbers[0]}, {at, numbers[1]}, {at, numbers[2]}, {at, numbers[3]}, {at, numbers[4]}};

    for (int r = 0; r <= requests; ++r) {
      const bool taken = r < requests && live[r] > 0;
      const bool drafted = taken && drafts && (first[1 + r] >= 0 || ranked[1 + r] != 0);
      if (r < requests)
        for (int c = live[r]; c < stride; ++c) pages[1 + r * stride + c] = wild;
      if (r < requests && !taken) {
        for (int n = 0; n < (all ? 5 : 3); ++n) numbers[n][1 + r] = wild;
        // aligned, so its lines begin with the second
        if (all) std::fill_n(settings.begin() + (r + 1) * setting_words, setting_words, wild);
      }
      if (!drafts) continue;
      if (!taken) {
        first[1 + r] = wild;
        ranked[1 + r] = 0x7f7f7f7f7f7f7f7f;
      }
      if (drafted) continue;
      std::fill_n(hidden.begin() + 1 + r * hidden_size, hidden_size, wild);
      if (all) std::fill_n(q.begin() + 1 + r * vocab, vocab, wild);
    }
    const auto floats = [](const device_vector<std::int32_t>& of) {
      return reinterpret_cast<float*>(of.data() + 1);
    };
    poison_requests(
        at,
        {.state = {.pages = d_pages.data() + 1,
                   .page_stride = stride,
                   .page_columns = columns,
                   .requests = requests,
                   .seq_lens = d_numbers[0].data() + 1,
                   .last_token = d_numbers[1].data() + 1,
                   .token_capacity = d_numbers[2].data() + 1,
                   .finished = all ? d_numbers[3].data() + 1 : nullptr,
                   .budget = all ? d_numbers[4].data() + 1 : nullptr,
                   .sampling = all ? reinterpret_cast<sampling_settings*>(d_settings.data() + setting_words)
                                   : nullptr,
                   .first_draft = drafts ? d_first.data() + 1 : nullptr,
                   .first_ranked = drafts ? d_ranked.data() + 1 : nullptr},
         .live_pages = d_live.data(),
         .hidden = drafts ? floats(d_hidden) : nullptr,
         .hidden_size = hidden_size,
         .probabilities = drafts && all ? floats(d_q) : nullptr,
         .vocab_size = vocab});
    CHECK(d_pages.get() == pages);
    for (int n = 0; n < vectors; ++n) CHECK(d_numbers[n].get() == numbers[n]);
    CHECK(d_settings.get() == settings);
    CHECK(d_first.get() == first);
    CHECK(d_ranked.get() == ranked);
    CHECK(d_hidden.get() == hidden);
    CHECK(d_q.get() == q);
  }
  CHECK_THROWS_WITH_AS(poison_requests(at, {}), doctest::Contains("live_pages is null"), invalid_argument);
  const device_vector<std::int32_t> one(at, {1});
  CHECK_THROWS_WITH_AS(poison_requests(at, {.live_pages = one.data()}), doctest::Contains("requests"),
                       invalid_argument);
}
