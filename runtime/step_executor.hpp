#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graphs/arena.hpp"
#include "graphs/stream.hpp"
#include "kernels/page_source.hpp"
#include "kernels/step/step_epilogue.hpp"
#include "runtime/bucket_policy.hpp"
#include "runtime/request_table.hpp"
#include "runtime/statistics.hpp"
#include "runtime/step_context.hpp"
#include "runtime/step_limits.hpp"

namespace stepgraph {

/// An embedder's own request table, adopted as a view: its lines are named by the rows of a step, its pages
/// and lengths are the embedder's to manage. Addresses and strides are baked into the captures.
struct adopted_requests {
  page_source source{};
  std::int32_t* seq_lens = nullptr;       // [requests], tokens in the cache; each step advances them
  std::int32_t* last_token = nullptr;     // [requests], the token sampled last; each step writes it
  sampling_settings* sampling = nullptr;  // [requests], read by sampled steps; null where there are none
};

/// Asks the steps themselves to end requests: at these ids, at a request's budget, at the context's end, at a
/// fault. A request that has ended takes part in later steps without tokens, until it is closed.
struct finish_options {
  std::vector<std::int32_t> end_ids{};  // tokens that end a text; they are emitted
};

/// Whether steps are timed by nodes that read the device's clock: at the begin and end of every graph, or beside
/// every node of the executor's own.
enum class step_timing { off, steps, nodes };

/// What the executor does not make itself, and what it is to do beside running steps. Everything left out is
/// owned by the executor.
struct executor_options {
  std::optional<stream_ref> stream{};            // work runs here; must outlive the executor
  memory_resource* memory = nullptr;             // device memory comes from here
  std::size_t memory_budget = arena::no_budget;  // bytes of device memory, executables included
  std::optional<kv_cache_view> kv_cache{};       // the embedder's pool
  std::optional<adopted_requests> requests{};    // the embedder's request table
  std::optional<bucket_policy> row_buckets{};    // else powers of two up to max_rows
  std::optional<bucket_policy> token_buckets{};  // of ragged kinds; else powers of two up to max_step_tokens
  bool poison = false;                 // fill everything undefined with wild values before each step
  std::optional<draft_shape> draft{};  // of the draft whose steps are among the definitions
  std::vector<int> draft_lengths{};    // K that draft_decode is captured for; empty: 2 to max_draft_tokens
  std::optional<finish_options> finish{};  // else only the embedder ends requests
  bool read_fence = false;                 // a node more in each graph, beside the others, for `table_read`
  step_timing timing = step_timing::off;   // statistics().times
  bool programmatic_launch = true;         // kernels of a step may start while the one before still runs
};

/// The embedder's part of a step: enqueues the model's work on `context.stream` and what follows from its
/// logits, as `step_context` says. Called once eagerly and once in capture for every bucket; for draft_decode
/// once a further step. May call cuBLAS or NCCL, fork and join streams; must neither allocate nor synchronise.
using step_body = std::function<void(const step_context& context)>;

struct step_definition {
  step_kind kind = step_kind::decode;
  int variant = 0;
  step_body body{};
  /// Bytes of scratch that the body needs in a bucket; null: none.
  std::function<std::size_t(int rows, int tokens)> scratch_bytes{};
  bool sampled = false;  // by each request's settings; a greedy request may sit among sampled ones
  bool tree = false;     // a verify step whose rows bring parents; chains may sit among them
};

/// One row of a step.
struct step_row {
  request_id request = 0;
  std::int32_t tokens = 1;  // E: 0 sits the step out
  /// [tokens], or empty: the token sampled last (tokens <= 1). In a verify step the row's tokens are the one
  /// sampled last and its drafts, and these are the drafts, [tokens - 1]; or empty: as many of the draft
  /// model's as there are, tokens - 1 at most.
  std::span<const std::int32_t> token_ids{};
  /// In a tree's verify step: [tokens], parent node of each, negative for node 0; or empty: a chain.
  std::span<const std::int32_t> parents{};
  /// In an extend step: the token of the prompt that comes after this chunk, which then emits nothing; or
  /// negative: what the target samples comes next.
  std::int32_t following = -1;
};

/// A target step with the draft's steps around it, all staged by one copy: before a verify step the draft's
/// further tokens for its rows, after any step the draft over what it left in the cache.
struct step_round {
  step_kind kind = step_kind::decode;  // of the target
  std::span<const step_row> rows{};
  int variant = 0;
  int draft_length = 0;       // K of a verify step; over 1: K - 1 draft decodes go before it
  bool extend_draft = false;  // draft_extend goes after it
  int draft_variant = 0;
};

/// Names a step whose results are on their way.
struct step_ticket {
  std::uint64_t executor = 0;
  std::uint64_t sequence = 0;
};

/// What to do when all staging buffers are in flight.
enum class when_full { would_block, wait };

/// Captures an embedder's steps once per bucket at the maximum context width, and replays them at any length.
///
/// One stream, one thread: a call while another is inside is refused. `replay` neither allocates nor
/// synchronises, makes one small copy and one graph launch, and returns at once; only where all staging is in
/// flight, or pages wait for a step in flight, does it wait, if asked to.
class step_executor {
 public:
  /// What an executor of these arguments would carve from device memory, before it is made: each carving's name and
  /// bytes, as its `carvings` would then list them, and all bytes together; what executables take comes on top and is
  /// known once they are captured. Allocates no device memory and asks neither the budget nor what there is. Throws
  /// `invalid_argument` as the constructor does.
  static arena_plan plan_memory(device where, const step_limits& limits, const kv_layout& layout,
                                const std::vector<step_definition>& steps,
                                const executor_options& options = {});

  /// Carves everything from one block. Throws `out_of_memory` with the bytes needed and the largest carvings,
  /// and `invalid_argument` naming the limit that cannot be.
  step_executor(device where, const step_limits& limits, const kv_layout& layout,
                std::vector<step_definition> steps, executor_options options = {});
  ~step_executor();
  step_executor(step_executor&&) noexcept;
  step_executor& operator=(step_executor&&) noexcept;

  /// Captures every bucket of every step, largest first, each after one eager run of its body. `progress` is
  /// told what is done and how many there are. Throws `capture_error` naming the step and bucket, and
  /// `out_of_memory` naming them where the driver has no memory for an executable or the budget does not hold it;
  /// what this call had captured is then given back, and the executor stays usable.
  std::span<const capture_report> capture(const std::function<void(int done, int all)>& progress = {});
  std::span<const capture_report> captures() const;

  /// Captures everything anew for other limits, in mid-run: open requests, their pages, keys and values stay
  /// untouched. max_rows, max_step_tokens, max_draft_tokens and in_flight may change, and the buckets (null: powers
  /// of two); what lives as long as the executor is refused by name. `executor_options::draft_lengths` stay, so
  /// max_draft_tokens may not fall below the largest. Waits for the steps in flight; their tickets end, so wait for
  /// results first; drafts of a model that were made for the next round are dropped. Throws `out_of_memory` while
  /// both blocks of step buffers do not fit side by side; if it throws before it captures, nothing has changed.
  std::span<const capture_report> recapture(const step_limits& limits,
                                            std::optional<bucket_policy> row_buckets = {},
                                            std::optional<bucket_policy> token_buckets = {},
                                            const std::function<void(int done, int all)>& progress = {});

  /// Writes the graph of a step of `rows` rows and `tokens` tokens in Graphviz's DOT language. Captures it
  /// anew. Throws `invalid_argument` for what no bucket holds.
  void dot(step_kind kind, int rows, int tokens, int variant, std::ostream& out);

  /// Enqueues the nodes of the step of that key on the executor's stream, without staging anything: for an
  /// embedder that captures the step into a graph of its own, to measure it or to build a larger one. The inputs
  /// are those of the `replay` or `run_eager` before it. Throws `invalid_argument` for a key that `capture` would
  /// not make.
  void enqueue_step(const step_key& key);

  /// Takes a line of the request table. Not with adopted requests. Throws `invalid_argument` if all are taken
  /// or a setting cannot be.
  request_id open(const request_settings& settings = {});

  /// Gives a request's line back now, its pages once every step launched so far is done.
  void close(request_id request);

  /// With adopted requests: line `request` is another text's from the next step on. That the text before had ended, its
  /// budget and its draft are forgotten; lengths, tokens and pages are the embedder's to write. Waits for nothing. Throws
  /// `invalid_argument` for a line outside the table, and where the executor owns it: there `open` does this.
  void restart(request_id request);

  /// Launches the captured step of the smallest bucket that holds `rows`. Nothing is returned (and nothing
  /// changed) if all staging is in flight, or if pages are free only once a step in flight is done, and
  /// `full` is would_block. Throws `invalid_argument` for rows that cannot be and for a key that was not
  /// captured, `out_of_pages`; then nothing was launched and no request changed.
  std::optional<step_ticket> replay(step_kind kind, std::span<const step_row> rows, int variant = 0,
                                    when_full full = when_full::wait);

  /// The same with the draft's steps around it: one copy, one launch for each step. The ticket is the target
  /// step's; its results are there before draft_extend has run.
  std::optional<step_ticket> replay(const step_round& round, when_full full = when_full::wait);

  /// The same steps without graphs: the reference, and the way to find a fault.
  step_ticket run_eager(step_kind kind, std::span<const step_row> rows, int variant = 0);
  step_ticket run_eager(const step_round& round);

  /// True once the step has read the request table for the last time, which may be long before it is done: from
  /// then on the owner of an adopted table may overwrite what this step, and those before it, were told to read.
  /// Needs `executor_options::read_fence`. Does not block.
  bool table_read(step_ticket ticket) const;

  /// True if the step's results are there. Does not block.
  bool ready(step_ticket ticket) const;

  /// Blocks until the step is done; its rows' results, valid until `in_flight` further steps. Throws if they
  /// have been overwritten.
  std::span<const row_result> wait(step_ticket ticket);

  /// The tokens that row `row` emitted, [row_result::count]; waits and expires as `wait` does.
  std::span<const std::int32_t> emitted(step_ticket ticket, int row);

  /// The first fault since the last reset, if any; no synchronisation, so a step in flight may add one.
  std::optional<fault_record> fault() const;
  void reset_fault();

  /// The name of a buffer behind whose end something was written, if there is one: by the last step where each makes
  /// the buffer anew, at any time where it lasts. Waits for all steps. Needs `executor_options::poison`.
  std::optional<std::string> overrun() const;

  device where() const;
  stream_ref stream() const;
  const step_limits& limits() const;
  const kv_cache_view& kv_cache() const;
  const executor_statistics& statistics() const;

  /// Forgets what `statistics().times` holds, and the rounds that it has not read yet.
  void reset_times();

  std::span<const carving_info> carvings() const;
  std::int64_t free_pages() const;

  /// Tokens of `request` in the cache after the steps launched so far, at most.
  std::int64_t length_bound(request_id request) const;

  std::span<const step_definition> steps() const;  // as they were defined
  bool has_draft() const;                          // options.draft was given
  bool owns_requests() const;                      // options.requests was not

  /// K over 0 of rounds with drafts of the model that graphs can be captured for, ascending: 1, which needs no
  /// draft decodes, and those of `executor_options::draft_lengths`. Empty without a draft.
  std::vector<int> draft_lengths() const;
  bool finishes() const;  // options.finish was given

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace stepgraph
