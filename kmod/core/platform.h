/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The platforms of a core: kernel module, BPF, host. Only this file of core/ depends on the platform. It defines
 * - u8..u64 and s32.
 * - CC_FN: precedes every function of a core.
 * - CC_STEP: precedes a large function, which BPF calls instead of inlining it; otherwise the verifier would follow the product of all
 *   paths. The function must return a number that the caller uses, or the verifier may find a pointer in the return register. Its input is
 *   restrict, so that a write to the state does not make the compiler read the input again.
 * - CC_CONSTANT_PARAMS: parameters never change after init.
 * - CC_IN_ORDER: the compiler moves no memory access across it, for which it would need more than BPF's stack of 512 bytes.
 * - CC_TABLE: constant tables, removed if unused.
 * - CC_ASSERT: an assertion at compile time.
 * - cc_div64: the only division.
 */
#ifndef CC_PLATFORM_H
#define CC_PLATFORM_H

#if defined(__KERNEL__)

#include <linux/build_bug.h>
#include <linux/compiler.h>
#include <linux/math64.h>
#include <linux/types.h>
#define CC_FN static inline __maybe_unused
#define CC_STEP CC_FN
#define CC_CONSTANT_PARAMS 0
#define CC_DIV64(a, b) div64_u64(a, b)

#elif defined(__bpf__)

/* The including file defines u8..u64 and s32. */
#define CC_FN static inline __attribute__((always_inline, unused))
#define CC_STEP static __attribute__((noinline, unused))
#define CC_CONSTANT_PARAMS 1
#define CC_DIV64(a, b) ((a) / (b))

#else

#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
#define CC_FN static inline __attribute__((unused))
#define CC_STEP CC_FN
#define CC_CONSTANT_PARAMS 0
#define CC_DIV64(a, b) ((a) / (b))

#endif

#define CC_IN_ORDER() __asm__ volatile("" : : : "memory")
#define CC_TABLE static const __attribute__((unused))
#define CC_ASSERT(condition, text) _Static_assert(condition, text)

/* a / b, rounded down. b must not be zero. */
CC_FN u64 cc_div64(u64 a, u64 b)
{
	return CC_DIV64(a, b);
}

#endif
