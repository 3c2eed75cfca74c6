/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Shared by the tests of BBR: connections in a given state. */
#ifndef CC_TEST_BBR_H
#define CC_TEST_BBR_H

#include "../core/bbr2.h"
#include "../core/bbr3.h"
#include "sim.h"
#include "test.h"

enum { STARTUP, DRAIN, DOWN, CRUISE, REFILL, UP, PROBE_RTT };

CC_FN struct cc_bbr_state *state_of(struct cc_conn *conn)
{
	return (struct cc_bbr_state *)conn->state;
}

/* An ACK in the middle of a round that delivers nothing new. */
CC_FN struct cc_out ack(struct cc_conn *conn, struct cc_ack *a, u32 lost)
{
	struct cc_out out;

	a->lost_pkts = lost;
	a->total_lost_pkts += lost;
	cc_call_ack(conn, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	if (out.pacing_bytes_per_sec)
		a->pacing_bytes_per_sec = out.pacing_bytes_per_sec;
	return out;
}

/* One ACK that ends a round of 100 packets in 10 ms: bw = 10^4 packets/s, rounded up: a BDP of 101. */
CC_FN struct cc_out round_ack(struct cc_conn *conn, struct cc_ack *a, u32 lost)
{
	a->now_us += 10000;
	a->rate_prior_delivered_pkts = a->delivered_pkts;
	a->delivered_pkts += 100;
	a->rate_delivered_pkts = 100;
	a->rate_interval_us = 10000;
	a->acked_pkts = 1;
	return ack(conn, a, lost);
}

CC_FN struct cc_conn cruising(const char *scheme, struct cc_ack *a)
{
	struct cc_conn conn;
	u32 i;

	a->inflight_pkts = 90;
	a->prior_inflight_pkts = 91;
	conn = test_conn(scheme, a);
	for (i = 0; i < 5; i++)
		round_ack(&conn, a, 0);
	CHECK_EQ(test_stat(&conn, a, "mode"), CRUISE);
	return conn;
}

/* scheme waits five rounds. */
CC_FN struct cc_conn probing(const char *scheme, struct cc_ack *a)
{
	struct cc_conn conn = cruising(scheme, a);
	u32 i;

	for (i = 0; i < 10 && test_stat(&conn, a, "mode") != UP; i++)
		round_ack(&conn, a, 0);
	CHECK_EQ(test_stat(&conn, a, "mode"), UP);
	a->rate_prior_delivered_pkts = a->delivered_pkts - 100;
	return conn;
}

#endif
