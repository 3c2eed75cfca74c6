/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A minimal unit test harness. CHECK_EQ prints both values, done() the number of checks. */
#ifndef CC_TEST_H
#define CC_TEST_H

#include <stdlib.h>
#include <string.h>

#include "host.h"

static u32 checks_done;

#define CHECK_EQ(got, want)                                                                        \
	do {                                                                                       \
		unsigned long long g_ = (got), w_ = (want);                                        \
		checks_done++;                                                                     \
		if (g_ != w_) {                                                                    \
			fprintf(stderr, "%s:%d: %s: %s is %llu, not %llu\n", __FILE__, __LINE__,   \
				__func__, #got, g_, w_);                                           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		checks_done++;                                                                     \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s: %s does not hold\n", __FILE__, __LINE__,       \
				__func__, #condition);                                             \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* A connection with 20 packets in congestion avoidance, base RTT 10 ms, just before the sequence numbers wrap. */
CC_FN struct cc_ack test_ack(void)
{
	return (struct cc_ack){
		.now_us = 5000000,
		.rtt_us = 10000,
		.srtt_us = 10000,
		.mdev_us = 400,
		.rtt_min_us = 10000,
		.acked_pkts = 1,
		.inflight_pkts = 19,
		.prior_inflight_pkts = 20,
		.cwnd_pkts = 20,
		.ssthresh_pkts = 10,
		.cwnd_clamp_pkts = 100000,
		.prior_cwnd_pkts = 20,
		.una_seq = 0xfffffc00u,
		.nxt_seq = 0xfffffc00u + 20 * 1448,
		.mss_bytes = 1448,
		.mtu_bytes = 1500,
		.flags = CC_CWND_LIMITED | CC_CWND_FULL,
	};
}

/* Returns conn of "scheme,param=value", initialised with *a. Ends the test if it is rejected. */
CC_FN struct cc_conn test_conn(const char *text, const struct cc_ack *a)
{
	struct cc_conn conn;
	struct cc_out out;
	char message[256];

	if (cc_conn_parse(&conn, text, message, sizeof(message))) {
		fprintf(stderr, "%s\n", message);
		exit(1);
	}
	cc_call_init(&conn, a, &out);
	return conn;
}

/*
 * Runs a whole round: samples RTTs of rtt_us without a decision, then the ACK that passes the round's end and carries no sample. *a keeps
 * cwnd and ssthresh.
 */
CC_FN struct cc_out test_round(struct cc_conn *conn, struct cc_ack *a, u32 samples, u32 rtt_us)
{
	struct cc_out out;
	u32 i;

	for (i = 0; i < samples; i++) {
		a->rtt_us = rtt_us;
		cc_call_sample(conn, a);
	}
	a->rtt_us = 0;
	a->una_seq = a->nxt_seq + 1;
	a->nxt_seq = a->una_seq + a->cwnd_pkts * a->mss_bytes;
	cc_call_ack(conn, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	a->ssthresh_pkts = out.ssthresh_pkts;
	return out;
}

/* Returns a stat of the core by name. */
CC_FN u32 test_stat(const struct cc_conn *conn, const struct cc_ack *a, const char *name)
{
	u32 stats[CC_PARAMS_MAX] = {0}, i;

	cc_call_read(conn, a, stats);
	for (i = 0; i < conn->ops->stat_count; i++)
		if (!strcmp(conn->ops->stats[i].name, name))
			return stats[i];
	fprintf(stderr, "no stat %s\n", name);
	exit(1);
}

/*
 * Checks that a reduction and a timeout forget the packets that were acked since the last increase, in a state in which Reno controls the
 * window: 15 of 20 before it, and 5 of 10 after it, which do not give a packet.
 */
CC_FN void test_reductions_forget_credits(const char *text)
{
	u32 i;

	for (i = 0; i < 2; i++) {
		struct cc_ack a = test_ack();
		struct cc_conn conn = test_conn(text, &a);
		struct cc_out out;

		cc_call_event(&conn, CC_EVENT_CWR, &a, &out);
		a.acked_pkts = 15;
		cc_call_ack(&conn, &a, &out);
		CHECK_EQ(out.cwnd_pkts, 20);
		if (i == 0)
			cc_call_loss(&conn, &a);
		else
			cc_call_event(&conn, CC_EVENT_LOSS, &a, &out);
		a.cwnd_pkts = 10;
		a.acked_pkts = 5;
		cc_call_ack(&conn, &a, &out);
		CHECK_EQ(out.cwnd_pkts, 10);
	}
}

/* Checks that the scheme text is rejected with exactly this message. */
CC_FN void test_refused(const char *text, const char *want)
{
	struct cc_conn conn;
	char message[256] = "accepted";

	if (!cc_conn_parse(&conn, text, message, sizeof(message)) || strcmp(message, want)) {
		fprintf(stderr, "\"%s\": %s\n    not: %s\n", text, message, want);
		exit(1);
	}
	checks_done++;
}

CC_FN int test_done(const char *name)
{
	printf("%s: %u checks hold\n", name, checks_done);
	return 0;
}

#endif
