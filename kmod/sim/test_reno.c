/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "test.h"

/* Returns cwnd after an ACK of a->acked_pkts, and applies it to the socket. */
static u32 ack(struct cc_conn *conn, struct cc_ack *a)
{
	struct cc_out out;

	cc_call_ack(conn, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	return out.cwnd_pkts;
}

/* 3 acked at cwnd 9, ssthresh 10: one up to ssthresh, two towards the next packet; eight more complete it. */
static void slow_start_leaves_its_rest_to_avoidance(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = test_conn("reno", &a);

	a.cwnd_pkts = 9;
	a.acked_pkts = 3;
	CHECK_EQ(ack(&conn, &a), 10);
	CHECK_EQ(test_stat(&conn, &a, "count_pkts"), 2);
	a.acked_pkts = 8;
	CHECK_EQ(ack(&conn, &a), 11);
	CHECK_EQ(test_stat(&conn, &a, "count_pkts"), 0);
	a.flags = 0;
	CHECK_EQ(ack(&conn, &a), 11);
	CHECK_EQ(test_stat(&conn, &a, "count_pkts"), 0);
}

/* 19 acked at cwnd 20 are credits for almost one packet. At cwnd 10 they give one packet, not 19/10, and the ACK starts a new count. */
static void credits_of_a_larger_window_give_one_packet(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = test_conn("reno", &a);

	a.acked_pkts = 19;
	CHECK_EQ(ack(&conn, &a), 20);
	a.cwnd_pkts = 10;
	a.acked_pkts = 1;
	CHECK_EQ(ack(&conn, &a), 11);
	CHECK_EQ(test_stat(&conn, &a, "count_pkts"), 1);
}

/* A timeout leaves one packet; its ACK makes it two. A loss forgets the 15 of 20 packets acked. */
static void losses_halve_and_forget_credits(void)
{
	struct cc_ack a = test_ack();
	struct cc_conn conn = test_conn("reno", &a);

	a.acked_pkts = 15;
	ack(&conn, &a);
	CHECK_EQ(cc_call_loss(&conn, &a), 10);
	CHECK_EQ(test_stat(&conn, &a, "count_pkts"), 0);
	a.cwnd_pkts = 3;
	CHECK_EQ(cc_call_loss(&conn, &a), 2);
	a.cwnd_pkts = 1;
	a.acked_pkts = 1;
	CHECK_EQ(ack(&conn, &a), 2);
	a.prior_cwnd_pkts = 40;
	CHECK_EQ(cc_call_undo(&conn, &a), 40);
}

int main(void)
{
	slow_start_leaves_its_rest_to_avoidance();
	credits_of_a_larger_window_give_one_packet();
	losses_halve_and_forget_credits();
	return test_done("reno");
}
