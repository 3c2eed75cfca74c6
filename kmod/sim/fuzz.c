/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Makes random calls to every core and checks the invariants after each (host.c): no write beyond the state, cwnd from 2 to its clamp,
 * ssthresh from 2 to infinity. The sanitizers find signed overflow, bad shifts and division by zero. A third of the connections get
 * plausible values, a third get arbitrary values, and a third get arbitrary values and unchecked parameters (like a module parameter
 * written while a flow runs).
 *
 * Usage: fuzz OPERATIONS_PER_CORE [SEED]
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

#define LIFE 2000u /* calls per connection */

enum mood { PLAUSIBLE, WILD, HOSTILE };

/* Arbitrary numbers, many of them near the edges. */
static u32 any_u32(u64 *seed)
{
	static const u32 edges[] = {0, 1, 2, 3, 0x7fffffff, 0x80000000u, 0xffffffffu, 0xfffffffeu, 1000, 1u << 20};
	u32 r = cc_random(seed);

	switch (r & 3) {
	case 0:
		return edges[(r >> 2) % (sizeof(edges) / sizeof(edges[0]))];
	case 1:
		return cc_random(seed) >> (cc_random(seed) & 31);
	default:
		return cc_random(seed);
	}
}

static u32 between(u64 *seed, u32 low, u32 high)
{
	return low + (u32)(((u64)cc_random(seed) * (high - low + 1ull)) >> 32);
}

static void choose_params(struct cc_conn *conn, enum mood mood, u64 *seed)
{
	const struct cc_ops *ops = conn->ops;
	struct cc_fault fault;
	u32 i, tries;

	for (tries = 0; tries < 20; tries++) {
		for (i = 0; i < ops->param_count; i++) {
			conn->params[i] = ops->defaults[i];
			if (mood == HOSTILE)
				conn->params[i] = any_u32(seed);
			else if (cc_random(seed) & 1)
				conn->params[i] = between(seed, ops->params[i].min, ops->params[i].max);
		}
		if (mood == HOSTILE || !ops->check(conn->params, &fault))
			return;
	}
	memcpy(conn->params, ops->defaults, ops->param_count * sizeof(u32));
}

static void plausible(struct cc_ack *a, u64 *seed)
{
	a->now_us += between(seed, 1, 2000);
	a->rtt_us = between(seed, 0, 9) ? between(seed, 10000, 40000) : 0;
	a->srtt_us = between(seed, 10000, 40000);
	a->mdev_us = between(seed, 0, 10000);
	a->rtt_min_us = 10000;
	a->acked_pkts = between(seed, 0, 4);
	a->lost_pkts = between(seed, 0, 19) ? 0 : between(seed, 1, 5);
	a->total_lost_pkts += a->lost_pkts;
	a->delivered_ce_pkts += between(seed, 0, a->acked_pkts);
	a->inflight_pkts = between(seed, 0, a->cwnd_pkts);
	a->prior_inflight_pkts = a->inflight_pkts + a->acked_pkts;
	a->una_seq += a->acked_pkts * 1448;
	a->nxt_seq = a->una_seq + a->inflight_pkts * 1448;
	a->delivered_pkts += a->acked_pkts;
	a->rate_prior_delivered_pkts = a->delivered_pkts - a->prior_inflight_pkts;
	a->rate_delivered_pkts = a->prior_inflight_pkts;
	a->rate_delivered_ce_pkts = between(seed, 0, a->rate_delivered_pkts);
	a->rate_interval_us = between(seed, 0, 40000);
	a->edt_delay_us = between(seed, 0, 1000);
	a->flags = cc_random(seed) & 31;
	a->random = cc_random(seed);
}

static void randomize(struct cc_ack *a, u64 *seed)
{
	u32 cwnd = a->cwnd_pkts, ssthresh = a->ssthresh_pkts, state = a->ca_state, i;
	u32 *value = &a->rtt_us;
	u64 now = a->now_us + any_u32(seed);

	for (i = 0; i < (sizeof(*a) - offsetof(struct cc_ack, rtt_us)) / sizeof(u32); i++)
		value[i] = any_u32(seed);
	a->now_us = now;
	a->pacing_bytes_per_sec = (u64)any_u32(seed) << (any_u32(seed) & 31);
	a->cwnd_pkts = between(seed, 0, 3) ? cwnd : cc_max(any_u32(seed), 1);
	a->ssthresh_pkts = between(seed, 0, 3) ? ssthresh : cc_max(any_u32(seed) & CC_INFINITE, 2);
	a->ca_state = state;
}

static void one_call(struct cc_conn *conn, struct cc_ack *a, u64 *seed)
{
	struct cc_out out;
	u32 stats[CC_PARAMS_MAX], kind = between(seed, 0, 99), event;

	if (kind < 70) {
		if (a->acked_pkts)
			cc_call_sample(conn, a);
		cc_call_ack(conn, a, &out);
		a->cwnd_pkts = out.cwnd_pkts;
		a->ssthresh_pkts = out.ssthresh_pkts;
	} else if (kind < 75) {
		a->prior_cwnd_pkts = a->cwnd_pkts;
		a->ssthresh_pkts = cc_call_loss(conn, a);
	} else if (kind < 97) {
		event = between(seed, 0, CC_EVENTS - 1);
		cc_call_event(conn, event, a, &out);
		a->cwnd_pkts = out.cwnd_pkts;
		a->ssthresh_pkts = out.ssthresh_pkts;
		if (event <= CC_EVENT_LOSS)
			a->ca_state = event;
		if (event == CC_EVENT_RTO)
			a->cwnd_pkts = 1;
	} else {
		a->cwnd_pkts = cc_min(cc_call_undo(conn, a), cc_max(a->cwnd_clamp_pkts, 2));
	}
	cc_call_read(conn, a, stats);
}

static void one_core(const struct cc_ops *ops, u32 operations, u64 seed)
{
	u32 done = 0, lives = 0;

	while (done < operations) {
		enum mood mood = (enum mood)(lives++ % 3);
		struct cc_conn conn = {.ops = ops};
		struct cc_ack a = {.cwnd_pkts = 10, .ssthresh_pkts = CC_INFINITE,
				   .cwnd_clamp_pkts = 100000, .mss_bytes = 1448, .mtu_bytes = 1500};
		struct cc_out out;
		u32 i;

		choose_params(&conn, mood, &seed);
		a.una_seq = cc_random(&seed);
		a.nxt_seq = a.una_seq;
		if (mood == PLAUSIBLE)
			plausible(&a, &seed);
		else
			randomize(&a, &seed);
		cc_call_init(&conn, &a, &out);
		for (i = 0; i < LIFE && done < operations; i++, done++) {
			if (mood == PLAUSIBLE)
				plausible(&a, &seed);
			else
				randomize(&a, &seed);
			if (mood == HOSTILE && !(i & 255))
				choose_params(&conn, mood, &seed);
			one_call(&conn, &a, &seed);
		}
	}
	printf("fuzz: %s: %u calls in %u lives\n", ops->name, done, lives);
}

int main(int argc, char **argv)
{
	u32 operations = argc > 1 ? (u32)strtoul(argv[1], NULL, 10) : 100000, count, i;
	u64 seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
	const struct cc_ops *const *all = cc_all(&count);

	for (i = 0; i < count; i++)
		one_core(all[i], operations, seed * 1000003 + i + 1);
	return 0;
}
