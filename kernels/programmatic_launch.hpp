#pragma once

namespace stepgraph {

/// While one that says false lives on this thread, no kernel of stepgraph is launched programmatically: each starts only
/// when all before it is complete, and what is captured has plain edges alone. With it a kernel may start while its
/// predecessor still runs, and waits itself before it reads. The results are the same, bit for bit; if they are not,
/// a kernel does not wait for what it reads. An inner scope can turn them off, not on again.
class programmatic_launch_scope {
 public:
  explicit programmatic_launch_scope(bool allowed) noexcept;
  ~programmatic_launch_scope();
  programmatic_launch_scope(const programmatic_launch_scope&) = delete;
  programmatic_launch_scope& operator=(const programmatic_launch_scope&) = delete;

 private:
  bool before_;
};

/// Whether this thread's launches may be programmatic; an embedder's own launches ask it, too.
bool programmatic_launches() noexcept;

}  // namespace stepgraph
