#pragma once

// The compiler makes a copy of the function for each of these processors, and the best one is chosen when the
// program starts. What such a function calls must be inlined into it (STEPGRAPH_INLINE), else the callee is
// plain code.
#if defined(__x86_64__) && defined(__linux__) && (defined(__GNUC__) || defined(__clang__)) && \
    !defined(__SANITIZE_THREAD__) && !defined(STEPGRAPH_NO_TARGET_CLONES)
#define STEPGRAPH_TARGET_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define STEPGRAPH_TARGET_CLONES
#endif

#define STEPGRAPH_INLINE __attribute__((always_inline)) inline
