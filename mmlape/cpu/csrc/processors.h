// How the operators use the processor they run on: its instructions, and PyTorch's threads.

#ifndef MMLAPE_PROCESSORS_H
#define MMLAPE_PROCESSORS_H

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

#endif
