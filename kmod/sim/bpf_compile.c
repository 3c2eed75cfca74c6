/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The functions of all cores as BPF programs, to check that they compile for BPF. They are never loaded. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#include "../core/schemes.h"

#define PROGRAMS(NAME, WANTS)                                                                      \
	struct cc_##NAME##_params NAME##_params;                                                   \
	struct cc_##NAME##_state NAME##_state;                                                     \
	struct cc_##NAME##_stats NAME##_stats;                                                     \
	int NAME##_init(struct cc_ack *a, struct cc_out *out)                                      \
	{                                                                                          \
		cc_##NAME##_init(&NAME##_state, &NAME##_params, a, out);                           \
		return 0;                                                                          \
	}                                                                                          \
	int NAME##_sample(struct cc_ack *a)                                                           \
	{                                                                                          \
		cc_##NAME##_on_sample(&NAME##_state, &NAME##_params, a);                              \
		return 0;                                                                          \
	}                                                                                          \
	int NAME##_ack(struct cc_ack *a, struct cc_out *out)                                       \
	{                                                                                          \
		cc_##NAME##_on_ack(&NAME##_state, &NAME##_params, a, out);                         \
		cc_##NAME##_read(&NAME##_state, &NAME##_params, a, &NAME##_stats);                 \
		return 0;                                                                          \
	}                                                                                          \
	int NAME##_loss(struct cc_ack *a)                                                          \
	{                                                                                          \
		return (int)cc_##NAME##_on_loss(&NAME##_state, &NAME##_params, a);                 \
	}                                                                                          \
	int NAME##_event(u32 event, struct cc_ack *a, struct cc_out *out)                          \
	{                                                                                          \
		cc_##NAME##_on_event(&NAME##_state, &NAME##_params, event, a, out);                \
		return 0;                                                                          \
	}                                                                                          \
	int NAME##_undo(struct cc_ack *a)                                                          \
	{                                                                                          \
		return (int)cc_##NAME##_undo(&NAME##_state, &NAME##_params, a);                    \
	}

CC_CORES(PROGRAMS)
