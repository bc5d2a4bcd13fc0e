#include "tests/reference/random_batch.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>

namespace stepgraph::reference {
namespace {

constexpr std::int64_t wild_high = 0x7ff00000;  // past every table, still an int32
constexpr std::int64_t wild_low = -0x70000000;

std::int64_t wild(random_integers& random) {
  return (random.one_in(2) ? wild_high : wild_low) + random.below(4096);
}

/// One length, the edges as likely as the rest.
std::int64_t random_length(random_integers& random, const batch& in, std::int64_t E,
                           const random_batch_options& options) {
  const std::int64_t cap = in.cap();
  const std::int64_t limit = options.length_limit > 0 ? std::min(options.length_limit, cap) : cap;
  const std::int64_t edge = random.between(0, limit / in.P) * in.P;
  std::int64_t length = 0;
  switch (random.below(8)) {
    case 0:
      return 0;
    case 1:
      length = 1;
      break;
    case 2:
      length = edge;
      break;
    case 3:
      length = edge - 1;
      break;
    case 4:
      length = edge + 1;
      break;
    case 5:
      return options.full_width ? cap : limit;
    case 6:
      length = random.between(0, std::max<std::int64_t>(E - 1, 0));
      break;  // fresh: len < E
    default:
      length = random.between(0, limit);
      break;
  }
  return std::clamp<std::int64_t>(length, 0, limit);
}

/// `count` of the first `rows` integers, shuffled.
std::vector<std::int64_t> distinct(random_integers& random, std::int64_t rows, std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t i = 0; i < count; ++i) std::swap(all[i], all[random.between(i, rows - 1)]);
  all.resize(static_cast<std::size_t>(count));
  return all;
}

/// The request table: page `p` of request `q` is one page of a scattered pool, never page 0.
void make_source(random_integers& random, batch& in, const std::vector<std::int64_t>& length,
                 const random_batch_options& options) {
  const std::int64_t P = in.P;
  const std::int64_t group = options.page_group;
  const std::int64_t rows = in.B + random.below(5);
  const std::int64_t page_width = in.pages(in.cap()) + random.below(3);
  const std::int64_t groups_a_row = (page_width + group - 1) / group;
  std::int64_t pool =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows * groups_a_row)));
  while ((pool + 1) * group * P > wild_high) pool /= 2;
  in.pool_pages = (pool + 1) * group;
  in.source.pool_pages = random.one_in(2) ? in.pool_pages : 0;
  in.source.page_granular = options.page_granular;
  in.source.rows = rows;
  in.source.width = options.page_granular ? page_width : page_width * P;
  in.source.stride = in.source.width + random.below(4);

  // live columns of each request, for the poison past them
  in.q = distinct(random, rows, in.B);
  std::vector<std::int64_t> extent(static_cast<std::size_t>(rows), 0);
  for (std::int64_t r = 0; r < in.n; ++r) {
    extent[in.q[r]] = options.page_granular ? in.pages(length[r]) : length[r];
  }

  // negative, past every map with a page id that times P stays inside int32, the last of the pool or the next
  const auto bad_entry = [&]() -> std::int64_t {
    const std::int64_t pool_end = options.page_granular ? in.pool_pages : in.pool_pages * P;
    switch (random.below(3)) {
      case 0:
        return options.page_granular ? wild_high / P : wild_high + random.below(64);
      case 1:
        return pool_end - random.below(2);
      default:
        return -1 - random.below(3);
    }
  };
  auto bad = std::make_shared<std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t>>();
  for (std::int64_t r = 0; options.bad_slot && r < in.n; ++r) {
    const std::int64_t columns = extent[in.q[r]];
    if (columns == 0 || random.one_in(3)) continue;
    const std::int64_t column = random.below(columns);
    (*bad)[{in.q[r], column}] = bad_entry();
    if (random.one_in(2)) continue;  // where it is no page's first, a page table does not see it
    const std::int64_t page_column = options.page_granular ? column : column / P * P;
    (*bad)[{in.q[r], page_column}] = bad_entry();
  }

  const std::int64_t salt = random.below(1 << 20);
  const bool page_granular = options.page_granular;
  const bool poison = options.poison;
  in.source.entry = [=](std::int64_t q, std::int64_t column) -> std::int64_t {
    const auto found = bad->find({q, column});
    if (found != bad->end()) return found->second;
    if (poison && column >= extent[static_cast<std::size_t>(q)]) {
      return (column % 2 == 0 ? wild_high : wild_low) + (column + q) % 1024;
    }
    const std::int64_t p = page_granular ? column : column / P;
    // an odd factor permutes the pool, a power of two
    const std::int64_t scattered = ((q * groups_a_row + p / group) * 0x9e3779b1 + salt) & (pool - 1);
    const std::int64_t page = (1 + scattered) * group + p % group;
    return page_granular ? page : page * P + column % P;
  };
}

}  // namespace

batch random_batch(std::uint64_t seed, const random_batch_options& options) {
  random_integers random(seed);
  batch in;
  in.seed = seed;
  in.B = options.rows > 0 ? options.rows : random.between(1, 12);
  in.n = options.live_rows >= 0 ? options.live_rows : random.between(0, in.B);
  in.Emax = options.max_tokens >= 0 ? options.max_tokens : random.between(1, 6);
  in.P = options.page_size > 0 ? options.page_size : std::int64_t{1} << random.below(7);
  in.max_context = options.max_context;
  if (in.max_context == 0) {
    in.max_context = random.between(1, 8) * in.P + (random.one_in(2) ? 0 : random.below(in.P));
  }
  in.max_context = std::max(in.max_context, options.draft_steps);
  in.page_columns = in.pages(in.max_context) + (random.one_in(2) ? 0 : random.below(3));

  // what live rows shall have
  std::vector<std::int64_t> E, length;
  for (std::int64_t r = 0; r < in.B; ++r) {
    E.push_back(options.equal_tokens ? in.Emax : random.between(0, in.Emax));
    length.push_back(random_length(random, in, E[r], options));
  }

  // how the embedder counts: lengths with the new tokens, without them by a number, or by a vector
  const std::int64_t counting = random.below(4);
  if (counting == 1) in.delta = 1;
  if (counting == 2) in.delta_of = E;
  for (std::int64_t r = 0; counting == 3 && r < in.B; ++r) in.delta_of.push_back(random.below(3));
  for (std::int64_t r = 0; r < in.B; ++r) {
    const std::int64_t delta = in.delta_of.empty() ? in.delta : in.delta_of[r];
    // a row is as long as its delta at least, so that seq_lens is negative only where a tiny cap forces it
    in.seq_lens.push_back(std::min(std::max(length[r], delta), in.cap()) - delta);
    if (options.draft_steps > 0) {
      in.seq_lens[r] = std::clamp<std::int64_t>(in.seq_lens[r], 0, in.cap() - options.draft_steps);
    }
    in.E.push_back(E[r]);
  }

  for (std::int64_t r = 0; r < in.n; ++r) {
    if (options.bad_length && random.one_in(3)) {
      const std::int64_t worst[] = {-1 - random.below(100), in.cap() + 1 + random.below(100), 0x7fffffff,
                                    wild_low};
      in.seq_lens[r] = worst[random.below(4)];
    }
    if (options.bad_tokens && random.one_in(3)) {
      const std::int64_t worst[] = {-1, in.Emax + 1, wild_high, wild_low};
      in.E[r] = worst[random.below(4)];
    }
  }

  // captured tokens: exactly those there are, some more, or some fewer
  in.C = in.B * in.Emax;
  const derived d = derive(in);
  in.C = d.T + (random.one_in(2) ? 0 : random.between(1, 5));
  if (options.drop_tokens) in.C = d.T - std::min(d.T, random.between(1, 4));

  std::vector<std::int64_t> live_columns = d.len;
  for (std::int64_t r = 0; r < in.n; ++r) {
    live_columns[r] =
        std::clamp<std::int64_t>(in.seq_lens[r] + options.draft_steps, live_columns[r], in.cap());
  }
  make_source(random, in, live_columns, options);
  for (std::int64_t r = 0; r < in.n; ++r) {
    if (options.bad_request && random.one_in(3)) {
      in.q[r] = random.one_in(2) ? -1 - random.below(5) : (random.one_in(2) ? in.source.rows : wild_high);
    }
  }
  if (options.page_map) in.page_map = random_page_map(in.pool_pages, seed + 1);
  for (std::int64_t r = in.n; options.poison && r < in.B; ++r) {
    in.E[r] = wild(random);
    in.seq_lens[r] = wild(random);
    in.q[r] = wild(random);
    if (!in.delta_of.empty()) in.delta_of[r] = wild(random);
  }
  return in;
}

std::string describe(const batch& in) {
  std::ostringstream out;
  out << "seed " << in.seed << ": B " << in.B << " C " << in.C << " n " << in.n << " Emax " << in.Emax
      << " P " << in.P << " max_context " << in.max_context << " page_columns " << in.page_columns
      << " table " << in.source.rows << " x " << in.source.width
      << (in.source.page_granular ? " pages" : " tokens") << " stride " << in.source.stride;
  return out.str();
}

index_map random_page_map(std::int64_t pages, std::uint64_t seed) {
  const std::int64_t salt = static_cast<std::int64_t>(seed % 1021);
  return {pages, [=](std::int64_t page) -> std::int64_t {
            if (page == 0) return 0;
            if ((page * 7 + salt) % 8 == 0) return -1;
            return 1 + (page - 1 + salt) % (pages - 1);  // a rotation of all pages but the sink
          }};
}

index_map random_slot_map(const batch& in, std::uint64_t seed) {
  const index_map pages = random_page_map(in.pool_pages, seed);
  const std::int64_t P = in.P;
  return {in.pool_pages * P, [=](std::int64_t slot) -> std::int64_t {
            const std::int64_t page = pages.entry(slot / P);
            return page < 0 ? -1 : page * P + slot % P;
          }};
}

}  // namespace stepgraph::reference
