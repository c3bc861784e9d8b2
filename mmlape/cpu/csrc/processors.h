// What both operators share: how they use the processor they run on, PyTorch's threads, and how Python calls them.

#ifndef MMLAPE_PROCESSORS_H
#define MMLAPE_PROCESSORS_H

#include <cstdint>

// One machine's binary may run on another (a home folder on a cluster): the loader picks the variant for its processor.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_VARIANTS
// By instructions, not by models: a variant for "haswell" is for Intel's processors of that name and no others.
#if __GNUC__ >= 12
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define FOR_EVERY_PROCESSOR
#endif
#if defined(__GNUC__)
#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
#else
#define INLINE inline
#define INLINE_LAMBDA
#endif

// OpenMP's threads are those of PyTorch, whose library the compiler's calls must fit: GCC's do. Others run on one.
#if defined(_OPENMP) && !defined(__clang__)
#define IN_PARALLEL _Pragma("omp parallel for num_threads(threads) if (threads > 1)")
#else
#define IN_PARALLEL (void)threads;
#endif

// A task is a class template with `operator()(i)`, which allocates nothing: an exception in a thread would end the
// process. These are its variants, for `each`.
#define RUN(TASK)                                                                              \
  FOR_EVERY_PROCESSOR static void run(const TASK<float>& task, int64_t i) { task(i); }         \
  FOR_EVERY_PROCESSOR static void run(const TASK<double>& task, int64_t i) { task(i); }

namespace {

// Numbers 0 to count - 1 of a task.
template <typename Task>
void each(const Task& task, int64_t count, int threads) {
  IN_PARALLEL
  for (int64_t i = 0; i < count; ++i) run(task, i);
}

}  // namespace

// The function NAME_float32 or NAME_float64 that mmlape/cpu/library.py calls: FUNCTION with sizes and pointers to dense
// arrays. It returns 0, or 1 if there is not enough memory.
#define EXPORT_FOR(NAME, FUNCTION, T)                                                              \
  extern "C" int NAME(const int64_t* sizes, double eps, T* const* arrays, int threads) try {       \
    FUNCTION<T>(sizes, eps, arrays, threads);                                                      \
    return 0;                                                                                      \
  } catch (...) {                                                                                  \
    return 1;                                                                                      \
  }
#define EXPORT(NAME, FUNCTION)                   \
  EXPORT_FOR(NAME##_float32, FUNCTION, float)    \
  EXPORT_FOR(NAME##_float64, FUNCTION, double)

#endif
