/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between the core of a congestion control and its hosts (kernel module, BPF program, simulator).
 *
 * A core NAME is a header with three structs and eight functions:
 *
 *   struct cc_NAME_params   set by the user, u32 each; the table cc_NAME_table gives unit, range and default
 *   struct cc_NAME_state    per connection, at most CC_STATE_BYTES (what the kernel keeps per socket), or
 *                           CC_STORAGE_BYTES with CC_WANTS_STORAGE
 *   struct cc_NAME_stats    exported state, u32 each; cc_NAME_stat_table has names and units
 *
 *                                                             host calls it for
 *   cc_NAME_check(params, fault)                              0, or -1 and the invalid parameter
 *   cc_NAME_init(state, params, ack, out)                     init
 *   cc_NAME_on_sample(state, params, ack) -> flags            pkts_acked: every ACK of data, in every state
 *   cc_NAME_on_ack(state, params, ack, out)                   cong_avoid, or cong_control (CC_OWNS_CWND)
 *   cc_NAME_on_loss(state, params, ack) -> ssthresh, pkts     ssthresh (fast retransmit, RTO and ECE alike)
 *   cc_NAME_on_event(state, params, event, ack, out)          set_state, cwnd_event
 *   cc_NAME_undo(state, params, ack) -> cwnd, pkts            undo_cwnd
 *   cc_NAME_read(state, params, ack, stats)                   whenever flags have CC_OUT_ROUND or CC_OUT_STATE
 *
 * The host fills struct cc_ack from the socket, calls the core, and writes the changed values of struct cc_out back. A core has no access
 * to sockets, clocks, or any random number other than cc_ack.random.
 *
 * Units: time in us; windows and counts in packets of one MSS; sequence numbers in bytes modulo 2^32.
 */
#ifndef CC_CC_H
#define CC_CC_H

#include "platform.h"

#define CC_STATE_BYTES 104	/* ICSK_CA_PRIV_SIZE on 6.18; the module asserts it at build time */
#define CC_STORAGE_BYTES 512	/* maximum state of a core with CC_WANTS_STORAGE */
#define CC_MIN_CWND 2u		/* pkts; lower bound of cwnd and ssthresh */
#define CC_INFINITE 0x7fffffffu /* ssthresh before the first loss, pkts */
#define CC_NO_RTT 0xffffffffu	/* us; a running minimum that has no sample yet */

/* Values equal the kernel's TCP_CA_*. */
enum cc_ca_state { CC_OPEN, CC_DISORDER, CC_CWR, CC_RECOVERY, CC_LOSS };

/* The first five: the socket enters this state; cc_ack.ca_state is still the old one. */
enum cc_event {
	CC_EVENT_OPEN,
	CC_EVENT_DISORDER,
	CC_EVENT_CWR,
	CC_EVENT_RECOVERY,
	CC_EVENT_LOSS,
	CC_EVENT_RESTART,  /* CA_EVENT_CWND_RESTART: idle for more than an RTO */
	CC_EVENT_TX_START, /* CA_EVENT_TX_START: first transmission with nothing in flight */
	CC_EVENT_RTO,	   /* CA_EVENT_LOSS: retransmission timeout; on_loss has just been called */
	CC_EVENTS
};

/* cc_ack.flags */
#define CC_CWND_LIMITED 1u /* tcp_is_cwnd_limited(): in slow start, half of the window in use is enough */
#define CC_APP_LIMITED 2u  /* the application had nothing to send when the rate sample was taken */
#define CC_ECN 4u	   /* ECN feedback was negotiated; delivered_ce_pkts counts */
#define CC_CWND_FULL 8u	   /* tp->is_cwnd_limited alone: the window was full, and neither pacing nor the application limited */
#define CC_ACK_DELAYED 16u /* rs->is_ack_delayed: the RTT sample may contain a delayed-ACK timer */

/* cc_out.flags */
#define CC_OUT_ROUND 1u /* a round ended: cc_NAME_read gives a new row */
#define CC_OUT_STATE 2u /* a state of the core began, possibly before the round ended: another row */

/* What a core requires from its host: CC_NAME_WANTS. */
#define CC_OWNS_CWND 1u	  /* hook cong_control: the stack uses neither PRR nor its own pacing */
#define CC_WANTS_ECN 2u	  /* ECN with one echo per mark (DCTCP-style or AccECN) */
#define CC_WANTS_ECT1 4u  /* also ECT(1) on data */
#define CC_WANTS_PACING 8u /* enable pacing at init */
#define CC_WANTS_BURSTS 16u /* min_tso_segs by cc_NAME_burst_segs, sk_pacing_shift (module) by cc_NAME_burst_shift */
#define CC_WANTS_STORAGE 32u /* the state exceeds icsk_ca_priv */
#define CC_MAY_WANT_ECN 64u /* CC_WANTS_ECN if parameter ecn_enable is not 0 */
#define CC_SKIPS_EVENTS 128u /* also storage; on_event need not be called if cc_NAME_reacts_to(state, event, app_limited) is 0 */
/*
 * CC_WANTS_RANDOM: on_ack and on_event use cc_ack.random only if cc_NAME_draws(state, ack) is not 0 before the call. With CC_OWNS_CWND,
 * that ack is the one of the previous call.
 */
#define CC_WANTS_RANDOM 256u
/* CC_SKIPS_FIELDS: only init reads mdev_us, rtt_min_us, prior_cwnd_pkts, una_seq, nxt_seq and mtu_bytes. Nothing reads CC_CWND_LIMITED. */
#define CC_SKIPS_FIELDS 512u
/*
 * CC_SKIPS_PROBE, with CC_OWNS_CWND: on_ack reads srtt_us, prior_inflight_pkts, edt_delay_us, random and CC_CWND_FULL only if
 * cc_NAME_reads_probe(state) is not 0 before the call.
 */
#define CC_SKIPS_PROBE 1024u
/*
 * CC_FAST_PATH, with CC_OWNS_CWND, CC_SKIPS_PROBE and storage: if cc_NAME_may_take_fast_path(state, params) and then
 * cc_NAME_takes_fast_path(state, params, ack) are not 0, on_fast_ack does the same as on_ack, with ack on the stack. takes_fast_path reads
 * the rate sample, now_us, pacing_bytes_per_sec, rtt_us, acked_pkts, lost_pkts, cwnd_pkts, delivered_ce_pkts, total_lost_pkts, mss_bytes
 * and flags. on_fast_ack does not change whether on_event reacts to TX_START. on_slow_ack handles any ACK; it alone reads ca_state, whose
 * changes are events.
 */
#define CC_FAST_PATH 2048u

struct cc_ack {
	u64 now_us;		       /* tcp_mstamp */
	u64 pacing_bytes_per_sec;      /* current pacing rate */
	u32 rtt_us;		       /* RTT sample of this ACK; 0: none, so a host passes a sample of 0 us as 1 */
	u32 srtt_us;		       /* smoothed RTT (the kernel's srtt_us >> 3) */
	u32 mdev_us;		       /* tp->mdev_us, in the kernel's scale; only ratios matter */
	u32 rtt_min_us;		       /* windowed minimum; 0 or CC_NO_RTT if unknown */
	u32 acked_pkts;		       /* newly delivered by this ACK */
	u32 lost_pkts;		       /* newly marked lost by this ACK */
	u32 inflight_pkts;	       /* after this ACK */
	u32 prior_inflight_pkts;       /* before this ACK */
	u32 cwnd_pkts;
	u32 ssthresh_pkts;
	u32 cwnd_clamp_pkts;
	u32 prior_cwnd_pkts;	       /* cwnd before the last reduction, for undo */
	u32 una_seq;		       /* first unacknowledged byte, after this ACK */
	u32 nxt_seq;		       /* next byte to be sent */
	u32 delivered_pkts;	       /* running count, wraps */
	u32 delivered_ce_pkts;	       /* how many of these had CE; wraps */
	u32 total_lost_pkts;	       /* running count of packets marked lost, including those of timeouts; wraps */
	u32 rate_prior_delivered_pkts; /* delivered_pkts when the acked packet was sent; for rounds */
	u32 rate_delivered_pkts;       /* delivered within rate_interval_us; 0 if there is no sample */
	u32 rate_delivered_ce_pkts;    /* how many of these had CE; 0 on kernels before 5.18 */
	u32 rate_interval_us;
	u32 edt_delay_us;	       /* from now to the earliest departure time of the next packet (pacing) */
	u32 mss_bytes;
	u32 mtu_bytes;		       /* of a full packet: mss_bytes plus the TCP and IP headers */
	u32 random;		       /* where CC_WANTS_RANDOM says so: uniform over u32 and new for every call */
	u32 ca_state;		       /* enum cc_ca_state */
	u32 flags;
};

struct cc_out {
	u64 pacing_bytes_per_sec; /* 0: unchanged */
	u32 cwnd_pkts;
	u32 ssthresh_pkts;
	u32 flags;
};

/* One parameter: a row of cc_NAME_table, in the order of the struct's fields. */
struct cc_param {
	const char *name, *unit, *doc;
	u32 default_value, min, max;
};

struct cc_stat {
	const char *name, *unit;
};

/* Why a parameter is rejected. message is null if the value is outside min..max. */
struct cc_fault {
	const char *name, *unit, *message;
	u32 value, min, max;
};

#define CC_PARAMS_MAX 32

#define CC_PARAM_FIELD(name, unit, default_value, min, max, doc) u32 name;
#define CC_PARAM_DEFAULT(name, unit, default_value, min, max, doc) .name = (default_value),
#define CC_PARAM_ROW(name, unit, default_value, min, max, doc) {#name, unit, doc, default_value, min, max},
#define CC_STAT_FIELD(name, unit) u32 name;
#define CC_STAT_ROW(name, unit) {#name, unit},

/* The structs and tables of core NAME, from its lists PARAMS(X) and STATS(X). */
#define CC_SHAPE(NAME, PARAMS, STATS)                                                              \
	struct cc_##NAME##_params {                                                                \
		PARAMS(CC_PARAM_FIELD)                                                             \
	};                                                                                         \
	struct cc_##NAME##_stats {                                                                 \
		STATS(CC_STAT_FIELD)                                                               \
	};                                                                                         \
	CC_TABLE struct cc_##NAME##_params cc_##NAME##_defaults = {PARAMS(CC_PARAM_DEFAULT)};      \
	CC_TABLE struct cc_param cc_##NAME##_table[] = {PARAMS(CC_PARAM_ROW)};                     \
	CC_TABLE struct cc_stat cc_##NAME##_stat_table[] = {STATS(CC_STAT_ROW)};                   \
	CC_ASSERT(sizeof(cc_##NAME##_table) / sizeof(struct cc_param) <= CC_PARAMS_MAX, #NAME)

/*
 * Rules between parameters: X(invalid parameter, condition, rule, message), with expressions of p. They are a list so that the tables for
 * other languages can be generated from it.
 */
#define CC_RULE(param, when, holds, message)                                                       \
	if ((when) && !(holds))                                                                    \
		return cc_refuse(fault, #param, p->param, message);

#define CC_PARAM_COUNT(NAME) ((u32)(sizeof(struct cc_##NAME##_params) / sizeof(u32)))

#define CC_STATE_FITS(NAME)                                                                        \
	CC_ASSERT(sizeof(struct cc_##NAME##_state) <= CC_STATE_BYTES, #NAME " state too big")
#define CC_STORAGE_FITS(NAME)                                                                      \
	CC_ASSERT(sizeof(struct cc_##NAME##_state) <= CC_STORAGE_BYTES, #NAME " state too big")

/* Checks every value against its range. cc_NAME_check also checks the rules between parameters. */
CC_FN int cc_check_ranges(const struct cc_param *table, const u32 *values, u32 count,
			  struct cc_fault *fault)
{
	u32 i;

	for (i = 0; i < CC_PARAMS_MAX; i++) {
		if (i >= count)
			break;
		if (values[i] >= table[i].min && values[i] <= table[i].max)
			continue;
		fault->name = table[i].name;
		fault->unit = table[i].unit;
		fault->message = 0;
		fault->value = values[i];
		fault->min = table[i].min;
		fault->max = table[i].max;
		return -1;
	}
	return 0;
}

CC_FN int cc_refuse(struct cc_fault *fault, const char *name, u32 value, const char *message)
{
	fault->name = name;
	fault->unit = "";
	fault->message = message;
	fault->value = value;
	fault->min = 0;
	fault->max = 0;
	return -1;
}

CC_FN u32 cc_min(u32 a, u32 b)
{
	return a < b ? a : b;
}

CC_FN u32 cc_max(u32 a, u32 b)
{
	return a > b ? a : b;
}

/* a - b, but not below 0. */
CC_FN u32 cc_saturating_sub(u32 a, u32 b)
{
	return a > b ? a - b : 0;
}

CC_FN u32 cc_u32(u64 a)
{
	return a > 0xffffffffu ? 0xffffffffu : (u32)a;
}

CC_FN u32 cc_min_u64(u64 a, u32 b)
{
	return a < b ? (u32)a : b;
}

/* value * num / den for quantities up to 2^32; den == 0 gives the maximum value. */
CC_FN u32 cc_scale(u32 value, u32 num, u32 den)
{
	return den ? cc_u32(cc_div64((u64)value * num, den)) : 0xffffffffu;
}

/* Whether sequence number (or wrapping counter) a is after b. */
CC_FN int cc_after(u32 a, u32 b)
{
	return a != b && a - b < 0x80000000u;
}

CC_FN int cc_in_slow_start(u32 cwnd_pkts, u32 ssthresh_pkts)
{
	return cwnd_pkts < ssthresh_pkts;
}

/* An output that changes nothing. */
CC_FN void cc_keep(const struct cc_ack *a, struct cc_out *out)
{
	out->pacing_bytes_per_sec = 0;
	out->cwnd_pkts = a->cwnd_pkts;
	out->ssthresh_pkts = a->ssthresh_pkts;
	out->flags = 0;
}

CC_FN u32 cc_bound_cwnd(const struct cc_ack *a, u64 cwnd_pkts)
{
	u32 cwnd = cc_min(cc_min(cc_u32(cwnd_pkts), a->cwnd_clamp_pkts), CC_INFINITE);

	return cc_max(cwnd, CC_MIN_CWND);
}

/* Slow start: one packet per packet acked, up to ssthresh. */
CC_FN void cc_slow_start(const struct cc_ack *a, struct cc_out *out)
{
	u64 grown = (u64)out->cwnd_pkts + a->acked_pkts;

	if (grown > out->ssthresh_pkts)
		grown = out->ssthresh_pkts;
	out->cwnd_pkts = cc_bound_cwnd(a, grown);
}

/*
 * The increase of RFC 5681: slow start below ssthresh, then one packet per window. *count holds the packets acked since the last increase
 * (snd_cwnd_cnt). Packets acked beyond ssthresh count for congestion avoidance.
 */
CC_FN void cc_reno_increase(u32 *count, const struct cc_ack *a, struct cc_out *out)
{
	u32 acked = a->acked_pkts, room, steps;
	u64 sum;

	out->cwnd_pkts = cc_bound_cwnd(a, out->cwnd_pkts);
	if (!(a->flags & CC_CWND_LIMITED))
		return;
	if (cc_in_slow_start(out->cwnd_pkts, out->ssthresh_pkts)) {
		room = out->ssthresh_pkts - out->cwnd_pkts;
		out->cwnd_pkts += cc_min(acked, room);
		acked = cc_saturating_sub(acked, room);
	}
	if (acked) {
		sum = (u64)*count + acked;
		steps = (u32)cc_div64(sum, out->cwnd_pkts);
		*count = (u32)(sum - (u64)steps * out->cwnd_pkts);
		out->cwnd_pkts = cc_bound_cwnd(a, (u64)out->cwnd_pkts + steps);
	}
	out->cwnd_pkts = cc_bound_cwnd(a, out->cwnd_pkts);
}

CC_FN u32 cc_half(u32 cwnd_pkts)
{
	return cc_max(cwnd_pkts >> 1, CC_MIN_CWND);
}

CC_FN u32 cc_plain_undo(const struct cc_ack *a)
{
	return cc_max(cc_max(a->cwnd_pkts, a->prior_cwnd_pkts), CC_MIN_CWND);
}

#endif
